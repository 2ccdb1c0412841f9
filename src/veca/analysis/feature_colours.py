"""Features as colours: three main directions of many feature maps become red, green and blue.

One basis serves all maps that shall be compared (budgets, layers, pictures), so that one colour
means one thing in all of them.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn import functional as F

CLIPPED = 0.01
"""Share of the patches at either end of a direction that may saturate a colour."""


class Basis(NamedTuple):
    """Three directions in feature space, and the range of each that is shown."""

    mean: Float[Tensor, " D"]
    directions: Float[Tensor, "D 3"]
    low: Float[Tensor, "3"]
    high: Float[Tensor, "3"]


def common_basis(maps: Sequence[Float[Tensor, "D _ _"]]) -> Basis:
    """The three directions along which the patches of all maps differ most."""
    patches = torch.cat([_unit_patches(item) for item in maps])
    mean = patches.mean(dim=0)
    _, vectors = torch.linalg.eigh((patches - mean).mT @ (patches - mean))  # values rise
    count = min(3, vectors.shape[1])
    directions = vectors.flip(1)[:, :count]
    strongest = directions.abs().argmax(dim=0, keepdim=True)
    directions = directions * directions.gather(0, strongest).sign()  # a sign is arbitrary: fix it
    directions = F.pad(directions, (0, 3 - count))
    shown = (patches - mean) @ directions
    low, high = shown.quantile(CLIPPED, dim=0), shown.quantile(1 - CLIPPED, dim=0)
    return Basis(mean, directions, low, high)


def feature_colours(
    patch_map: Float[Tensor, "D rows columns"], basis: Basis
) -> UInt8[Tensor, "rows columns 3"]:
    """One map in the colours of a basis."""
    shown = (_unit_patches(patch_map) - basis.mean) @ basis.directions
    scaled = (shown - basis.low) / (basis.high - basis.low).clamp(min=1e-9)
    colours = (scaled.clamp(0, 1) * 255).round().to(torch.uint8)
    return colours.unflatten(0, tuple(patch_map.shape[1:]))


def _unit_patches(patch_map: Float[Tensor, "D rows columns"]) -> Float[Tensor, "N D"]:
    """Patches with norm one: similarity of direction is what features are compared by."""
    return F.normalize(patch_map.detach().double().flatten(1).mT, dim=1)
