"""Features and cores as small RGB(A) arrays and SVG.

`pca_colors`: the three principal components of many feature maps become red, green and blue. Maps
that are to be compared (budgets, layers, photos) share one basis, so a color means the same in all.

`regions`, `heat`, `paths_svg`: which core reads where, and how cores move. A core keeps its color
at every budget: hue follows the direction of its starting point from the center, so neighbors look
alike.
"""

import colorsys
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn import functional as F

CLIPPED = 0.01
"""Share of the patches at either end of a direction that may saturate a color."""


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


def pca_colors(
    patch_map: Float[Tensor, "D rows columns"], basis: Basis
) -> UInt8[Tensor, "rows columns 3"]:
    """One map in the colors of a basis."""
    shown = (_unit_patches(patch_map) - basis.mean) @ basis.directions
    scaled = (shown - basis.low) / (basis.high - basis.low).clamp(min=1e-9)
    colors = (scaled.clamp(0, 1) * 255).round().to(torch.uint8)
    return colors.unflatten(0, tuple(patch_map.shape[1:]))


def _unit_patches(patch_map: Float[Tensor, "D rows columns"]) -> Float[Tensor, "N D"]:
    """Patches with norm one: similarity of direction is what features are compared by."""
    return F.normalize(patch_map.detach().double().flatten(1).mT, dim=1)


STRONGEST = 0.72
"""Opacity where a core reads most; weaker readings let more of the photograph through."""


def core_colors(starts: Float[Tensor, "C 2"]) -> UInt8[Tensor, "C 3"]:
    """A color for each core by the place where it starts; the center is the palest."""
    colors = []
    for x, y in starts.tolist():
        hue = math.atan2(y, x) / math.tau % 1
        saturation = 0.25 + 0.65 * min(math.hypot(x, y), 1)
        colors.append(colorsys.hsv_to_rgb(hue, saturation, 0.95))
    return (torch.tensor(colors) * 255).round().to(torch.uint8)


def regions(
    core_maps: Float[Tensor, "C rows columns"], colors: UInt8[Tensor, "C 3"]
) -> UInt8[Tensor, "rows columns 4"]:
    """Each patch in the color of the core that reads it most, more opaque the clearer it is.

    Maps are first scaled to a mean of one over the image, so that a core which reads patches at
    all, rather than other cores, does not win everywhere.
    """
    relative = core_maps / core_maps.mean(dim=(1, 2), keepdim=True).clamp(min=1e-12)
    strength, winner = relative.max(dim=0)
    low, high = strength.min(), strength.quantile(0.98)
    opacity = ((strength - low) / (high - low).clamp(min=1e-9)).clamp(0, 1)
    alpha = (255 * STRONGEST * (0.35 + 0.65 * opacity)).round().to(torch.uint8)
    return torch.cat((colors[winner], alpha.unsqueeze(-1)), dim=-1)


def heat(core_map: Float[Tensor, "rows columns"]) -> UInt8[Tensor, "rows columns 4"]:
    """One core's map as a veil: dark where it reads little, clear where it reads much."""
    low, high = core_map.quantile(0.02), core_map.quantile(0.98)
    share = ((core_map - low) / (high - low).clamp(min=1e-12)).clamp(0, 1)
    veil = torch.tensor([12, 16, 38], dtype=torch.uint8).expand(*core_map.shape, 3)
    alpha = (255 * 0.88 * (1 - share)).round().to(torch.uint8)
    return torch.cat((veil, alpha.unsqueeze(-1)), dim=-1)


def paths_svg(
    paths: Float[Tensor, "L C 2"], colors: UInt8[Tensor, "C 3"], size: tuple[int, int]
) -> str:
    """The ways of the cores over an image of (width, height): lines from start to end.

    The start is a ring, the end a disc; the first core, the image feature, has a larger one.
    """
    width, height = size
    unit = math.hypot(width, height) / 400
    shapes = []
    for core, color in enumerate(colors.tolist()):
        places = [((x + 1) / 2 * width, (y + 1) / 2 * height) for x, y in paths[:, core].tolist()]
        shapes.append(_path(places, "#{:02x}{:02x}{:02x}".format(*color), unit, core == 0))
    return (
        f'<svg viewBox="0 0 {width} {height}" preserveAspectRatio="none" aria-hidden="true">'
        + "".join(shapes)
        + "</svg>"
    )


def _path(places: Sequence[tuple[float, float]], color: str, unit: float, first: bool) -> str:
    """One core's way: white below, its color above, so that it shows on any photograph."""
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    (x0, y0), (x1, y1) = places[0], places[-1]
    radius = unit * (7 if first else 4.2)
    return (
        f'<polyline points="{line}" fill="none" stroke="#fff" stroke-width="{unit * 3.6:.1f}"/>'
        f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="{unit * 2:.1f}"/>'
        f'<circle cx="{x0:.1f}" cy="{y0:.1f}" r="{radius * 0.7:.1f}" fill="none" '
        f'stroke="#fff" stroke-width="{unit * 1.2:.1f}"/>'
        f'<circle cx="{x1:.1f}" cy="{y1:.1f}" r="{radius:.1f}" fill="{color}" '
        f'stroke="#fff" stroke-width="{unit * 1.4:.1f}"/>'
    )
