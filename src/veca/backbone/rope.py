"""Positions: where patches and cores are, and rotary embeddings of those points.

Rotary position: points become angles, angles turn queries and keys.

Turned queries and keys meet in a product that depends on the difference of their points only.
Half of a head's channel pairs turn with x, the other half with y, at periods from 1 (half the
width of the image) upwards; the longest periods are switched off and carry content alone.

Channel i is paired with channel i + K/2: [x pairs, y pairs | their partners]. The authors pair
neighbors; the two differ by an order of channels that `weights.official` takes care of. This one
turns whole runs of channels at once, which is three times faster on a CPU.

Where tokens are: patch centers, the cores' starting points, and training-time jitter.

Coordinates are (x, y), each axis of the image running from -1 to 1 whatever its length. Patches
stay at their centers. Cores start spread over the square and move from layer to layer.
"""

import functools
import math
import random
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

POOL = 1000
"""Candidates among which the cores' starting points are picked."""

EDGE = 0.95
"""No core starts closer to the border than 1 - EDGE."""


def patch_centers(
    grid: tuple[int, int], device: torch.device, dtype: torch.dtype = torch.float32
) -> Float[Tensor, "N 2"]:
    """Centers of the patches, row by row."""
    rows, columns = grid
    y = (torch.arange(rows, device=device, dtype=dtype) + 0.5) / rows * 2 - 1
    x = (torch.arange(columns, device=device, dtype=dtype) + 0.5) / columns * 2 - 1
    return torch.stack((x.expand(rows, -1), y.unsqueeze(1).expand(-1, columns)), dim=-1).flatten(
        0, 1
    )


def jittered(points: Float[Tensor, "N 2"], shift: float, rescale: float) -> Float[Tensor, "N 2"]:
    """Patch coordinates moved and scaled as a whole by one random draw, as in training."""
    draws = torch.rand(3, device=points.device, dtype=points.dtype) * 2 - 1
    move, scale = draws.split((2, 1))
    if shift > 0:
        points = points + shift * move
    if rescale > 1:
        points = points * (math.log(rescale) * scale).exp()
    return points


def spread_points(count: int, seed: int = 0) -> list[tuple[float, float]]:
    """Starting points such that every prefix of the list covers the square.

    Farthest-point sampling from random candidates: first the one nearest to the center, then
    always the one farthest from all before it. A pure function of its arguments, on every
    machine and device, so that the points of a short list begin those of a long one (up to 250).
    """
    draw = random.Random(seed)
    pool = [
        (draw.uniform(-EDGE, EDGE), draw.uniform(-EDGE, EDGE)) for _ in range(max(POOL, 4 * count))
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


CACHED_GRIDS = 8
"""Image sizes whose patch tables are kept."""

MOST_CACHED_PATCHES = 128 * 128
"""Larger grids are built at each call, which is little beside their work, so that the cache stays
below 70 MB (for heads of 64 channels)."""


class Rope(NamedTuple):
    """Cosines and signed sines by which tokens are turned, shared by all heads."""

    cosines: Float[Tensor, "*batch T 1 K"]
    sines: Float[Tensor, "*batch T 1 K"]


class Periods(NamedTuple):
    """What fixes the periods of a model: channels of a head, longest to shortest, share at rest."""

    head_width: int
    base: float
    still: float


def frequencies(
    periods: Periods, device: torch.device, dtype: torch.dtype
) -> Float[Tensor, " quarter"]:
    """Turns for one unit of distance, for a quarter of the head's channels; 0 is no turn.

    Computed from numbers, not kept as a buffer: casting a model to bfloat16 must not round it.
    """
    count = periods.head_width // 4
    order = torch.arange(count, device=device, dtype=dtype)
    turning = order < count - round(periods.still * count)
    return turning * periods.base ** -(order / count)


def rope_at(points: Float[Tensor, "*batch T 2"], turns: Float[Tensor, " quarter"]) -> Rope:
    """The turn of tokens that stand at these points."""
    angles = (2 * torch.pi * points.unsqueeze(-1) * turns).flatten(-2)  # x angles, then y angles
    cosines, sines = angles.cos(), angles.sin()
    return Rope(
        torch.cat((cosines, cosines), dim=-1).unsqueeze(-2),
        torch.cat((-sines, sines), dim=-1).unsqueeze(-2),
    )


def apply_rope(vectors: Float[Tensor, "B T H K"], turn: Rope) -> Float[Tensor, "B T H K"]:
    """Queries or keys, turned."""
    cosines, sines = turn.cosines.to(vectors.dtype), turn.sines.to(vectors.dtype)
    first, second = vectors.chunk(2, dim=-1)
    return torch.addcmul(vectors * cosines, torch.cat((second, first), dim=-1), sines)


def fits_cache(grid: tuple[int, int]) -> bool:
    """Whether the table of a grid is small enough to keep."""
    return grid[0] * grid[1] <= MOST_CACHED_PATCHES


@functools.lru_cache(maxsize=CACHED_GRIDS)
def cached_patch_turn(
    grid: tuple[int, int], periods: Periods, device: torch.device, dtype: torch.dtype
) -> Rope:
    """The turn of a grid of patches, built once for each image size.

    An ordinary tensor even when the first caller is in inference mode, since a later caller may
    want gradients.
    """
    with torch.inference_mode(mode=False), torch.no_grad():
        turns = frequencies(periods, device, dtype)
        return rope_at(patch_centers(grid, device, dtype), turns)
