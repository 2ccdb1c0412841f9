"""Where tokens are: patch centres, the cores' starting points, and training-time jitter.

Coordinates are (x, y), each axis of the image running from -1 to 1 whatever its length. Patches
stay at their centres. Cores start spread over the square and move from layer to layer.
"""

import math
import random

import torch
from jaxtyping import Float
from torch import Tensor

POOL = 1000
"""Candidates among which the cores' starting points are picked."""

EDGE = 0.95
"""No core starts closer to the border than 1 - EDGE."""


def patch_centres(
    grid: tuple[int, int], device: torch.device, dtype: torch.dtype = torch.float32
) -> Float[Tensor, "N 2"]:
    """Centres of the patches, row by row."""
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

    Farthest-point sampling from random candidates: first the one nearest to the centre, then
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
