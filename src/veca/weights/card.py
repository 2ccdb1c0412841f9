"""Provenance of weights, facts about a stored model, and the model card with both."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from torch import Tensor

from veca.backbone.config import SIZES, BackboneConfig
from veca.backbone.cost import cost_rows, parameters
from veca.runtime.files import in_markdown, printable
from veca.weights.format import WeightsError, is_hub_id, listed

NOT_RECORDED = "not recorded"
"""Shown for a license that is not recorded."""

MAX_CHARACTERS = 10_000
"""Longer texts in a file are cut."""


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Where weights come from; unknown fields are None."""

    licence: str | None = None
    """License of the weights as the hub abbreviates it; never guessed."""

    teacher: str | None = None
    """The model they were distilled from; a hub id if there is one."""

    teacher_licence: str | None = None
    """License of the teacher's weights, which may apply to these too."""

    data: str | None = None
    """Images they were trained on, with counts."""

    recipe: str | None = None
    """Name of the recipe, or a description of the training."""

    command: str | None = None
    """The command that trained them."""

    seed: int | None = None
    """Seed of the run."""

    date: str | None = None
    """Day of completion, such as 2026-05-12."""

    notes: str | None = None
    """Anything else."""

    def __post_init__(self) -> None:
        """Refuse an empty license."""
        if self.licence == "":
            raise WeightsError(
                "licence is empty; give one such as 'apache-2.0', or 'other' with details in "
                "notes, or omit it."
            )

    def known(self) -> dict[str, Any]:
        """The fields that are not None."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def provenance_from_json(value: object) -> Provenance:
    """The provenance in an untrusted file."""
    if not isinstance(value, dict):
        raise WeightsError(f"the provenance is a {type(value).__name__}; it must be an object.")
    unknown = sorted(set(value) - {field.name for field in fields(Provenance)})
    if unknown:
        raise WeightsError(
            f"the provenance has unknown fields {listed(unknown)}; a newer veca may know them."
        )
    known: dict[str, Any] = {}
    for name, item in value.items():
        wanted = int if name == "seed" else str
        if isinstance(item, bool) or not isinstance(item, wanted | None):
            raise WeightsError(
                f"the provenance has {name}={ascii(item)[:80]}, which must be {wanted.__name__} or "
                "omitted."
            )
        known[name] = item
        if isinstance(item, str):  # no control characters, and bounded
            known[name] = printable(" ".join(item[:MAX_CHARACTERS].split()))
    return Provenance(**known)


@dataclass(frozen=True, kw_only=True)
class ModelInfo:
    """Facts about a stored model, for the model card and `veca info`."""

    config: BackboneConfig
    path: Path
    """File of the weights."""
    dtype: str
    """Type of the weights, such as 'float32'."""
    file_bytes: int
    digest: str
    """SHA-256 of configuration and weights, verified."""
    untrained: bool
    """Whether no training step was taken."""
    provenance: Provenance | None
    """None if nothing is known."""
    notes: tuple[str, ...] = ()
    """What a user should know about the files."""
    ignored: str = ""
    """Why the config.json beside the weights, with their license and origin, was not used."""

    @property
    def training_status(self) -> str:
        """One sentence on whether the weights are trained."""
        if self.untrained:
            return "The weights are untrained (random): for tests, or to train from."
        known = self.provenance
        if known is None or (known.teacher, known.data, known.recipe) == (None, None, None):
            return "The training of the weights is not recorded."
        return "The weights are trained."

    def as_json(self) -> dict[str, Any]:
        """Plain values; a full-attention model has `budgets: null`."""
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
            "story": self.training_status,
            "provenance": self.provenance.known() if self.provenance else None,
            "notes": list(self.notes),
            "costs": [row._asdict() for row in cost_rows(config)],
        }


def size_name(config: BackboneConfig) -> str | None:
    """The name of the size, whatever its budgets; None for an unnamed one."""
    for name, known in SIZES.items():
        same_bank = config.attention == "full" or config.cores == known.cores
        if same_bank and config.architecture() == known.architecture():
            return name
    return None


def is_trained(tensors: Mapping[str, Tensor]) -> bool:
    """Whether weights show training: biases start at zero, and the first step moves them."""
    return any(name.endswith(".bias") and bool(item.any()) for name, item in tensors.items())


CARD = """\
{front_matter}

# {title}

{summary}
{status}

* Parameters: {parameters:,} ({dtype})
* {config.layers} layers, width {config.width}, {config.heads} heads, {config.hidden} hidden units
* Patches of {config.patch_size} x {config.patch_size} pixels
* Channels of an image: {config.in_channels}
* {cores}
* Shares of the hidden units: {shares}
* SHA-256 of configuration and weights: `{digest}`

## Use

```python
import torch, veca

model = veca.load({name}){hint}
images = torch.randn(1, {config.in_channels}, {side}, {side})  # normalized images
with torch.inference_mode():
    features = model(images{budget})
features.image, features.patch_map  # of the whole image, and patch by patch
```

## Cost of one image

| cores | side in pixels | attention pairs of a block | GFLOPs |
| --: | --: | --: | --: |
{costs}

{results}## Where it comes from

{origin}
"""


def model_card(info: ModelInfo, results: str | None = None, name: str | None = None) -> str:
    """The card as Markdown, with front matter for the hub; `results` is Markdown too.

    `name` is what `veca.load` finds the model by, if known.
    """
    config, provenance = info.config, info.provenance or Provenance()
    size, full, costs = size_name(config), config.attention == "full", cost_rows(config)
    title = f"VECA {size or f'with {config.layers} layers of width {config.width}'}"
    if name:
        title = name.rpartition("/")[2] if name.startswith(("./", "/")) else name
    summary = "The full-attention baseline of an elastic vision backbone."
    cores, budget = f"Full attention, prefix tokens: {config.prefix_tokens}", ""
    if not full:
        summary = "An elastic vision backbone: the number of cores, and so the cost, is chosen at "
        summary += "each call."
        cores = f"Budgets (cores): {', '.join(map(str, config.budgets))}"
        budget = f", budget={config.budgets[len(config.budgets) // 2]}"
    origin = {"licence": NOT_RECORDED} | provenance.known()
    return CARD.format(
        front_matter="\n".join(_front_matter(provenance)),
        title=in_markdown(title),
        summary=summary,
        status=info.training_status,
        config=config,
        parameters=parameters(config),
        dtype=info.dtype,
        cores=cores,
        shares=", ".join(map(str, config.ffn_shares)),
        digest=info.digest,
        name=json.dumps(name or "THIS_MODEL"),
        hint="" if name else "  # the folder, or its name on the hub",
        side=costs[0].side,
        budget=budget,
        costs="\n".join(
            f"| {row.budget or 'all-to-all'} | {row.side} | {row.pairs:,} | {row.gflops:.2f} |"
            for row in costs
        ),
        results="" if results is None else f"## Results\n\n{results.strip()}\n\n",
        origin="\n".join(
            f"* {ORIGIN.get(key, key.capitalize())}: {in_markdown(str(value))}"
            for key, value in origin.items()
        ),
    )


ORIGIN = {"licence": "License", "teacher_licence": "License of the teacher"}
"""Titles in the card that are not the name of the field."""


def _front_matter(provenance: Provenance) -> Iterator[str]:
    """Fields for the hub; strings are quoted as JSON, which is valid YAML."""
    yield "---"
    if provenance.licence is not None:
        named = re.fullmatch(r"other \((.+)\)", provenance.licence)  # as the hub writes it
        yield f"license: {json.dumps('other' if named else provenance.licence)}"
        yield from [f"license_name: {json.dumps(named[1])}"] if named else []
    yield "library_name: veca"
    yield "pipeline_tag: image-feature-extraction"
    if provenance.teacher and is_hub_id(provenance.teacher):
        yield f"base_model: {json.dumps(provenance.teacher)}"
    yield "tags:"
    yield from (f"- {tag}" for tag in ("veca", "vision-backbone", "elastic", "dense-features"))
    yield "---"
