"""The model card: what the hub shows of a model, and the first thing its user reads."""

import json
import re
from collections.abc import Iterator

from veca.backbone.config import BackboneConfig
from veca.backbone.cost import parameters
from veca.weights.cost_table import cost_rows
from veca.weights.facts import Facts, size_name
from veca.weights.layout import is_hub_id
from veca.weights.provenance import NOT_RECORDED, Provenance

TITLES = {
    "teacher": "Teacher",
    "teacher_licence": "Licence of the teacher",
    "data": "Data",
    "recipe": "Recipe",
    "command": "Command",
    "seed": "Seed",
    "date": "Date",
    "notes": "Notes",
}
"""Fields of the provenance in the order in which they are told."""


def card(facts: Facts, results: str | None = None, name: str | None = None) -> str:
    """The card as Markdown, led by the fields that the hub reads; `results` is Markdown too.

    `name` is what `veca.load` finds the model by, where that is known.
    """
    provenance = facts.provenance or Provenance()
    lines = [
        *_front_matter(provenance),
        "",
        f"# {_one_line(_heading(name) if name else _title(facts.config))}",
        "",
        "An elastic vision backbone: the number of cores, and so the cost, is chosen at each call."
        if facts.config.attention != "full"
        else "The full-attention baseline of an elastic vision backbone.",
        facts.story,
        "",
        *_sizes(facts),
        "",
        "## Use",
        "",
        *_usage(facts.config, name),
        "",
        "## Cost of one image",
        "",
        *_costs(facts.config),
        "",
        *([] if results is None else ["## Results", "", results.strip(), ""]),
        "## Where it comes from",
        "",
        *_origin(provenance),
        "",
    ]
    return "\n".join(lines)


def _front_matter(provenance: Provenance) -> Iterator[str]:
    """Fields for the hub; text is quoted as JSON, which YAML reads as well."""
    yield "---"
    if provenance.licence is not None:
        named = re.fullmatch(r"other \((.+)\)", provenance.licence)  # as the hub tells such ones
        yield f"license: {json.dumps('other' if named else provenance.licence)}"
        yield from [f"license_name: {json.dumps(named[1])}"] if named else []
    yield "library_name: veca"
    yield "pipeline_tag: image-feature-extraction"
    if provenance.teacher and is_hub_id(provenance.teacher):
        yield f"base_model: {json.dumps(provenance.teacher)}"
    yield "tags:"
    yield from (f"- {tag}" for tag in ("veca", "vision-backbone", "elastic", "dense-features"))
    yield "---"


def _heading(name: str) -> str:
    """A name of the hub or of the package as it is; of a folder its last part."""
    return name.rpartition("/")[2] if name.startswith(("./", "/")) else name


def _title(config: BackboneConfig) -> str:
    """What the model is called where no name is given."""
    name = size_name(config)
    return f"VECA {name}" if name else f"VECA with {config.layers} layers of width {config.width}"


def _sizes(facts: Facts) -> Iterator[str]:
    """The numbers that shape the model."""
    config = facts.config
    yield f"* Parameters: {parameters(config):,} ({facts.dtype})"
    yield (
        f"* {config.layers} layers, width {config.width}, {config.heads} heads, "
        f"{config.hidden} hidden units"
    )
    yield f"* Patches of {config.patch_size} x {config.patch_size} pixels"
    yield f"* Channels of an image: {config.in_channels}"
    if config.attention == "full":
        yield f"* Full attention, prefix tokens: {config.prefix_tokens}"
    else:
        yield f"* Budgets (cores): {', '.join(map(str, config.budgets))}"
    yield f"* Shares of the hidden units: {', '.join(map(str, config.ffn_shares))}"
    yield f"* SHA-256 of configuration and weights: `{facts.digest}`"


def _usage(config: BackboneConfig, name: str | None) -> Iterator[str]:
    """Five lines that run."""
    hint = "" if name else "  # the folder, or its name on the hub"
    side = cost_rows(config)[0].side
    full = config.attention == "full"
    budget = "" if full else f", budget={config.budgets[len(config.budgets) // 2]}"
    yield "```python"
    yield "import torch, veca"
    yield ""
    yield f"model = veca.load({json.dumps(name or 'THIS_MODEL')}){hint}"
    yield f"images = torch.randn(1, {config.in_channels}, {side}, {side})  # normalised pictures"
    yield f"features = model(images{budget})"
    yield "features.image, features.patch_map  # the picture as a whole, and place by place"
    yield "```"


def _costs(config: BackboneConfig) -> Iterator[str]:
    """Costs for each budget as a table."""
    yield "| cores | side in pixels | attention pairs of a block | GFLOPs |"
    yield "| --: | --: | --: | --: |"
    for row in cost_rows(config):
        cores = "all-to-all" if row.budget is None else row.budget
        yield f"| {cores} | {row.side} | {row.pairs:,} | {row.gflops:.2f} |"


def _origin(provenance: Provenance) -> Iterator[str]:
    """Licence, teacher and all that is known; each on one line."""
    yield f"* Licence: {_one_line(provenance.licence or NOT_RECORDED)}"
    for name, title in TITLES.items():
        value = getattr(provenance, name)
        if value is not None:
            yield f"* {title}: {_one_line(str(value))}"


def _one_line(text: str) -> str:
    """Text that cannot end its line or open a tag."""
    return " ".join(text.split()).replace("<", "&lt;")
