"""What a model is, in the facts that a model card and `veca info` tell."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from veca.backbone.config import BackboneConfig
from veca.backbone.cost import parameters
from veca.backbone.sizes import SIZES
from veca.weights.cost_table import cost_rows
from veca.weights.provenance import Provenance

SHAPE = ("layers", "width", "heads", "ffn_ratio", "patch_size", "in_channels", "rotary_base",
         "rotary_still")  # fmt: skip
"""Fields that make a size; the others say what it is trained for, and how."""


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
        if same_bank and all(getattr(config, item) == getattr(known, item) for item in SHAPE):
            return name
    return None


def shows_training(name: str, tensor: Tensor) -> bool:
    """Whether a weight was trained: biases are drawn as zeros, and one step moves them."""
    return name.endswith(".bias") and bool(tensor.any())
