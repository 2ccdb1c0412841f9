"""Positions of patches and cores, and rotary embeddings (RoPE) of these positions.

Coordinates are (x, y); each axis of the image runs from -1 to 1 whatever its length. Patches stay
at their centers, cores start spread over the square and move from layer to layer (`cores.py`).

RoPE rotates queries and keys by angles in proportion to their coordinates, so that a product of
both depends on differences of positions only. Half of a head's channel pairs rotate with x, the
other half with y, at periods from 1 (half the width of the image) upwards; the longest periods are
switched off and carry content alone.

Channel i is paired with channel i + K/2: [x pairs, y pairs | their partners]. The authors pair
neighbors; `weights/official.py` permutes their channels. Our order rotates contiguous runs of
channels, which is three times faster on a CPU.
"""

import functools
import math
import random
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

SPREAD_CANDIDATES = 1000
"""Candidates among which the cores' starting points are picked."""

SPREAD_EDGE = 0.95
"""Starting points stay within this distance of the center along each axis."""

CACHED_GRIDS = 8
"""Image sizes whose patch tables are cached."""

MAX_CACHED_PATCHES = 128 * 128
"""Larger grids are computed at each call, which is cheap beside their other work, so that the
cache stays below 70 MB (for heads of 64 channels)."""


class Rope(NamedTuple):
    """Cosines and signed sines that rotate tokens; shared by all heads."""

    cosines: Float[Tensor, "*batch T 1 K"]
    sines: Float[Tensor, "*batch T 1 K"]


class Periods(NamedTuple):
    """What determines the rotary periods of a model."""

    head_width: int
    base: float
    """Ratio of the longest period to the shortest one."""
    still: float
    """Share of the periods, the longest ones, that do not rotate."""


def frequencies(
    periods: Periods, device: torch.device, dtype: torch.dtype
) -> Float[Tensor, " quarter"]:
    """Rotations per unit of distance, for a quarter of the head's channels; 0 does not rotate.

    Computed at each call instead of stored in a buffer: casting a model to bfloat16 must not
    round them.
    """
    count = periods.head_width // 4
    order = torch.arange(count, device=device, dtype=dtype)
    rotating = order < count - round(periods.still * count)
    return rotating * periods.base ** -(order / count)


def rope_at(points: Float[Tensor, "*batch T 2"], rates: Float[Tensor, " quarter"]) -> Rope:
    """The rotation of tokens at these points."""
    angles = (2 * torch.pi * points.unsqueeze(-1) * rates).flatten(-2)  # x angles, then y angles
    cosines, sines = angles.cos(), angles.sin()
    return Rope(
        torch.cat((cosines, cosines), dim=-1).unsqueeze(-2),
        torch.cat((-sines, sines), dim=-1).unsqueeze(-2),
    )


def apply_rope(vectors: Float[Tensor, "B T H K"], rope: Rope) -> Float[Tensor, "B T H K"]:
    """Rotate queries or keys."""
    cosines, sines = rope.cosines.to(vectors.dtype), rope.sines.to(vectors.dtype)
    first, second = vectors.chunk(2, dim=-1)
    return torch.addcmul(vectors * cosines, torch.cat((second, first), dim=-1), sines)


def can_cache(grid: tuple[int, int]) -> bool:
    """Whether the table of a grid is small enough to cache."""
    return grid[0] * grid[1] <= MAX_CACHED_PATCHES


@functools.lru_cache(maxsize=CACHED_GRIDS)
def cached_patch_rope(
    grid: tuple[int, int], periods: Periods, device: torch.device, dtype: torch.dtype
) -> Rope:
    """The rotation of a grid of patches, computed once for each image size.

    Built outside inference mode even when the first caller is in it, because a later caller may
    need gradients.
    """
    with torch.inference_mode(mode=False), torch.no_grad():
        return rope_at(patch_centers(grid, device, dtype), frequencies(periods, device, dtype))


def patch_centers(
    grid: tuple[int, int], device: torch.device, dtype: torch.dtype = torch.float32
) -> Float[Tensor, "N 2"]:
    """Centers of the patches, row by row."""
    rows, columns = grid
    y = (torch.arange(rows, device=device, dtype=dtype) + 0.5) / rows * 2 - 1
    x = (torch.arange(columns, device=device, dtype=dtype) + 0.5) / columns * 2 - 1
    points = torch.stack((x.expand(rows, -1), y.unsqueeze(1).expand(-1, columns)), dim=-1)
    return points.flatten(0, 1)


def jitter(points: Float[Tensor, "N 2"], shift: float, rescale: float) -> Float[Tensor, "N 2"]:
    """Shift and scale patch coordinates as a whole by one random draw, as in training."""
    draws = torch.rand(3, device=points.device, dtype=points.dtype) * 2 - 1
    offset, scale = draws.split((2, 1))
    if shift > 0:
        points = points + shift * offset
    if rescale > 1:
        points = points * (math.log(rescale) * scale).exp()
    return points


def spread_points(count: int, seed: int = 0) -> list[tuple[float, float]]:
    """Starting points of which every prefix covers the square.

    Farthest-point sampling from random candidates: first the one nearest to the center, then
    always the one farthest from all before it. A pure function of its arguments on every machine
    and device, so a short list is the beginning of a long one (up to 250 points).
    """
    rng, edge = random.Random(seed), SPREAD_EDGE
    pool = [
        (rng.uniform(-edge, edge), rng.uniform(-edge, edge))
        for _ in range(max(SPREAD_CANDIDATES, 4 * count))
    ]
    chosen = [min(pool, key=lambda point: math.hypot(*point))]
    distances = [math.dist(point, chosen[0]) for point in pool]
    while len(chosen) < count:
        farthest = max(range(len(pool)), key=distances.__getitem__)
        chosen.append(pool[farthest])
        distances = [
            min(distance, math.dist(point, chosen[-1]))
            for point, distance in zip(pool, distances, strict=True)
        ]
    return chosen
