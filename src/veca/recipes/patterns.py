"""Synthetic pictures for the recipe `quick`: stripes, rings, checks, dots and bricks."""

import math

import numpy as np
from jaxtyping import Float
from numpy.random import Generator
from PIL import Image

Field = Float[np.ndarray, "side side"]
"""A number for each pixel of a square picture."""

KINDS = ("stripes", "rings", "checks", "dots", "bricks")


def draw_pattern(rng: Generator, side: int) -> Image.Image:
    """A picture of a random pattern, `side` pixels wide and high."""
    axis = (np.arange(side) + 0.5) / side - 0.5
    x, y = np.meshgrid(axis, axis)
    depth, units = _pattern(rng, x, y)
    ink = np.clip(depth * side / units + 0.5, 0, 1)[..., None]  # edges are one pixel soft
    paper, color = (shade + 0.06 * _tints(rng, side) for shade in _two_colors(rng))
    light = 1 + rng.uniform(-0.6, 0.6) * x + rng.uniform(-0.6, 0.6) * y
    grain = rng.uniform(0, 0.04) * rng.standard_normal((side, side))
    picture = (paper + ink * (color - paper)) * light[..., None] + grain[..., None]
    return Image.fromarray(np.clip(picture * 255 + 0.5, 0, 255).astype(np.uint8))


def _pattern(rng: Generator, x: Field, y: Field) -> tuple[Field, float]:
    """How far inside the ink each pixel lies, in units of the pattern; units in the picture."""
    units = 6 * 2 ** rng.uniform(0, 1)
    angle = rng.uniform(-0.3, 0.3)
    distance = 1 + rng.uniform(-0.25, 0.25) * x + rng.uniform(-0.25, 0.25) * y  # a tilted plane
    bend = rng.uniform(0, 0.03)
    x, y = (axis / distance + bend * _hills(rng, len(x), 3) for axis in (x, y))
    x, y = math.cos(angle) * x - math.sin(angle) * y, math.sin(angle) * x + math.cos(angle) * y
    x, y = units * x + rng.uniform(-3, 3), units * y + rng.uniform(-3, 3)
    return _depth(KINDS[rng.integers(len(KINDS))], rng.uniform(0.15, 0.35), x, y), units


def _depth(kind: str, width: float, x: Field, y: Field) -> Field:
    """Signed distance from the nearest edge of the ink, positive inside."""
    if kind == "stripes":
        return width - _to_integer(x)
    if kind == "rings":
        return width - _to_integer(np.hypot(x, y))
    if kind == "dots":
        return width - np.hypot(_to_integer(x), _to_integer(y))
    if kind == "checks":
        odd = (np.floor(x) + np.floor(y)) % 2
        return np.minimum(_to_integer(x), _to_integer(y)) * (1 - 2 * odd)
    bricks = x / 2 + np.floor(y) / 2  # every second row is offset by half a brick
    return np.minimum(_to_integer(y), 2 * _to_integer(bricks)) - width / 3


def _two_colors(rng: Generator) -> Float[np.ndarray, "2 3"]:
    """Muted colors that differ in lightness, so that patterns show in gray too."""
    while True:
        colors = rng.random((2, 3))
        if abs((colors[0] - colors[1]) @ (0.299, 0.587, 0.114)) > 0.25:
            return (colors + colors.mean(1, keepdims=True)) / 2


def _tints(rng: Generator, side: int) -> Float[np.ndarray, "side side 3"]:
    """A smooth change of a color from place to place."""
    return _hills(rng, side, 2)[..., None] * rng.standard_normal(3)


def _to_integer(values: Field) -> Field:
    """Distance to the nearest integer."""
    return np.abs(values - np.round(values))


def _hills(rng: Generator, side: int, count: int) -> Field:
    """Smooth noise around zero with about `count` hills and valleys along a side."""
    coarse = Image.fromarray(rng.standard_normal((count, count)).astype(np.float32))
    return np.array(coarse.resize((side, side), Image.Resampling.BICUBIC))
