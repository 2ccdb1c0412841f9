"""From the outputs of a depth head to meters: the mean of fixed depths, weighted by the outputs."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from veca.data.sets.dataset import DepthRange
from veca.probe.protocols import DepthProtocol
from veca.probe.sliding_window import bilinear

LEAST_WEIGHT = 0.1
"""Added to every output, which makes zeros the middle of the range."""


@dataclass(frozen=True, kw_only=True)
class DepthScale:
    """What the outputs of a head stand for."""

    least: float
    """Meters of the first output."""

    most: float
    """Meters of the last output."""

    bins: int
    """Outputs of a patch."""

    spacing: Literal["linear", "log"]
    """Whether depths lie at equal distances or at equal ratios."""

    upsample: int
    """Outputs are scaled bilinearly by this before they become meters."""

    def depths(self) -> Float[Tensor, " bins"]:
        """Meters of each output, rising."""
        if self.spacing == "linear":
            return torch.linspace(self.least, self.most, self.bins, dtype=torch.float64).float()
        ends = math.log(self.least), math.log(self.most)
        return torch.linspace(ends[0], ends[1], self.bins, dtype=torch.float64).exp().float()

    def meters(
        self, outputs: Float[Tensor, "b bins rows columns"]
    ) -> Float[Tensor, "b 1 up_rows up_columns"]:
        """Meters of each cell, `upsample` times as many along each side as patches."""
        rows, columns = outputs.shape[2:]
        if self.upsample > 1:
            down = bilinear(rows, rows * self.upsample).to(outputs)
            across = bilinear(columns, columns * self.upsample).to(outputs)
            outputs = down @ outputs @ across.T
        weights = outputs.relu() + LEAST_WEIGHT
        sums = torch.einsum("k,bkrc->brc", self.depths().to(weights), weights) / weights.sum(1)
        return sums[:, None]

    def facts(self) -> dict[str, Any]:
        """Plain values to save with a head."""
        return asdict(self)


def depth_scale(protocol: DepthProtocol, facts: DepthRange) -> DepthScale:
    """The scale of a protocol on a set."""
    return DepthScale(
        least=facts.min_depth,
        most=facts.max_depth,
        bins=protocol.bins,
        spacing=protocol.spacing,
        upsample=protocol.upsample,
    )


def scale_from(facts: Mapping[str, Any]) -> DepthScale:
    """A scale from what `DepthScale.facts` gave, other values among them."""
    return DepthScale(**{name: facts[name] for name in DepthScale.__dataclass_fields__})
