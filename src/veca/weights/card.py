"""The model card, and what it says of a model's origin.

Where weights come from: what a user must know before trusting or publishing them.

What a model is, in the facts that a model card and `veca info` tell.

The model card: what the hub shows of a model, and the first thing its user reads.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from torch import Tensor

from veca.backbone.config import SIZES, BackboneConfig
from veca.backbone.cost import cost_rows, parameters
from veca.weights.format import WeightsError, is_hub_id, listed

NOT_RECORDED = "not recorded"
"""What people are told of a licence that nobody wrote down."""

MOST_CHARACTERS = 10_000
"""Longest text of one field that is read from a file."""


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """How weights came to be; what is not known is left out."""

    licence: str | None = None
    """Licence of the weights, as the hub abbreviates it; never guessed, only their maker knows."""

    teacher: str | None = None
    """The model they were distilled from; a hub id where there is one."""

    teacher_licence: str | None = None
    """Licence of the teacher's weights, which may bind these too."""

    data: str | None = None
    """Images they were trained on, with counts."""

    recipe: str | None = None
    """Name of the recipe, or what was done."""

    command: str | None = None
    """The command that made them."""

    seed: int | None = None
    """Seed of the run."""

    date: str | None = None
    """Day they were finished, such as 2026-05-12."""

    notes: str | None = None
    """Anything else, results for example."""

    def __post_init__(self) -> None:
        """Refuse what JSON and a model card cannot hold."""
        for field in fields(self):
            _check_field(field.name, getattr(self, field.name))

    def known(self) -> dict[str, Any]:
        """The fields that say something."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @property
    def tells_of_training(self) -> bool:
        """Whether any field says how the weights were trained."""
        return any(value is not None for value in (self.teacher, self.data, self.recipe))


def provenance_from_json(value: object) -> Provenance:
    """Provenance as a file tells it; the file may come from anyone."""
    if not isinstance(value, dict):
        raise WeightsError(f"the provenance is a {type(value).__name__}; it must be an object.")
    unknown = sorted(set(value) - {field.name for field in fields(Provenance)})
    if unknown:
        raise WeightsError(
            f"the provenance has unknown fields {listed(unknown)}; a newer veca may read them."
        )
    for name, item in value.items():
        _check_field(name, item)
    told: dict[str, Any] = {name: _cleaned(item) for name, item in value.items()}
    return Provenance(**told)


def _check_field(name: str, value: object) -> None:
    """Refuse what JSON and a model card cannot hold."""
    wanted = int if name == "seed" else str
    if isinstance(value, bool) or not isinstance(value, wanted | None):
        raise WeightsError(
            f"{name}={ascii(value)[:80]} is no provenance; give it as {wanted.__name__}, or leave "
            "it out."
        )
    if name == "licence" and value == "":
        raise WeightsError(
            "licence is empty; name one such as 'apache-2.0', or 'other' and tell it in notes, or "
            "leave it out."
        )


def _cleaned(value: object) -> object:
    """Text without characters that a terminal or a page would act on, and of bounded length."""
    if not isinstance(value, str):
        return value
    text = "".join(letter if letter.isprintable() else " " for letter in value[:MOST_CHARACTERS])
    return text.strip()


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is known of a stored model without running it."""

    config: BackboneConfig
    path: Path
    """File of the weights."""
    dtype: str
    """Type of its numbers, such as 'float32'."""
    file_bytes: int
    digest: str
    """SHA-256 of configuration and weights, verified."""
    untrained: bool
    """Whether no training step was ever taken."""
    provenance: Provenance | None
    """None where nothing is known."""
    notes: tuple[str, ...] = ()
    """What a user should know about the files."""

    @property
    def story(self) -> str:
        """One sentence on how far the weights can be trusted to mean anything."""
        if self.untrained:
            return "The weights are untrained: random numbers, to test with or to train from."
        if self.provenance is None or not self.provenance.tells_of_training:
            return "How the weights were trained is not recorded."
        return "The weights are trained."

    def as_json(self) -> dict[str, Any]:
        """The facts as plain values; a full-attention model has `budgets: null`."""
        config = self.config
        full = config.attention == "full"
        return {
            "size": size_name(config),
            "attention": config.attention,
            "layers": config.layers,
            "width": config.width,
            "heads": config.heads,
            "ffn_hidden": config.hidden,
            "patch_size": config.patch_size,
            "in_channels": config.in_channels,
            "budgets": None if full else list(config.budgets),
            "prefix_tokens": config.prefix_tokens if full else None,
            "ffn_shares": list(config.ffn_shares),
            "parameters": parameters(config),
            "dtype": self.dtype,
            "file_bytes": self.file_bytes,
            "weights_sha256": self.digest,
            "untrained": self.untrained,
            "story": self.story,
            "provenance": self.provenance.known() if self.provenance else None,
            "notes": list(self.notes),
            "costs": [row._asdict() for row in cost_rows(config)],
        }


def size_name(config: BackboneConfig) -> str | None:
    """The name of the size, whatever it is trained for; None for one that has no name."""
    for name, known in SIZES.items():
        same_bank = config.attention == "full" or config.cores == known.cores
        if same_bank and config.architecture() == known.architecture():
            return name
    return None


def is_trained(name: str, tensor: Tensor) -> bool:
    """Whether a weight was trained: biases are drawn as zeros, and one step moves them."""
    return name.endswith(".bias") and bool(tensor.any())


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
    yield f"images = torch.randn(1, {config.in_channels}, {side}, {side})  # normalized pictures"
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
