"""Synthetic pictures for the recipe `quick`: stripes, rings, bricks and so on, by chance.

Each pattern maps a bent and tilted plane to ink within 0..1; colors, light and grain come last.
"""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32
from numpy.random import Generator
from PIL import Image

Field = Float32[np.ndarray, "side side"]
"""A number for each pixel of a square picture."""

Colors = Float32[np.ndarray, "3 side side"]
"""Red, green and blue, mostly within 0..1."""

TURN = 2 * math.pi


def draw_pattern(draw: Generator, side: int) -> Image.Image:
    """A picture of a random pattern, `side` pixels wide and high."""
    ink = PATTERNS[int(draw.integers(len(PATTERNS)))](draw, _plane(draw, side))
    pixels = np.clip(_lit(draw, _colored(draw, ink)) * 255 + 0.5, 0, 255).astype(np.uint8)
    return Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0)))


@dataclass(frozen=True)
class Plane:
    """Coordinates of each pixel, in units of a pattern: about one period, or one stone."""

    x: Field
    y: Field
    pixels: float
    """Pixels to a unit, so that edges can be one pixel soft."""

    def filled(self, depth: Field) -> Field:
        """Ink where the depth below an edge, in units, is positive."""
        return np.clip(depth * self.pixels + 0.5, 0, 1)


def _plane(draw: Generator, side: int) -> Plane:
    """A plane that is seen from aside, gently bent, turned, scaled and shifted."""
    x, y = _centered_axes(side)
    tilt_x, tilt_y = _between(draw, -0.25, 0.25), _between(draw, -0.25, 0.25)
    distance = 1 + tilt_x * x + tilt_y * y
    bend = _between(draw, 0.0, 0.03)
    x, y = x / distance + bend * _hills(draw, side, 3), y / distance + bend * _hills(draw, side, 3)
    units = 6 * 2.0 ** _between(draw, 0.0, 1.0)
    angle = _between(draw, -0.3, 0.3)
    cos, sin = units * math.cos(angle), units * math.sin(angle)
    shift_x, shift_y = _between(draw, -3.0, 3.0), _between(draw, -3.0, 3.0)
    return Plane(cos * x - sin * y + shift_x, sin * x + cos * y + shift_y, side / units)


def _stripes(draw: Generator, plane: Plane) -> Field:
    """Bands side by side."""
    return plane.filled(_between(draw, 0.15, 0.35) - _from_whole(plane.x))


def _rings(draw: Generator, plane: Plane) -> Field:
    """Circles around one point."""
    return plane.filled(_between(draw, 0.15, 0.35) - _from_whole(np.hypot(plane.x, plane.y)))


def _checks(draw: Generator, plane: Plane) -> Field:
    """Squares in two colors, whose shades differ a little."""
    column, row = np.floor(plane.x), np.floor(plane.y)
    off_edge = np.minimum(_from_whole(plane.x), _from_whole(plane.y))
    even = 1 - 2 * ((column + row) % 2)
    return plane.filled(off_edge * even) * _shades(draw, column, row, 0.2)


def _dots(draw: Generator, plane: Plane) -> Field:
    """Discs in rows, every second of which may be offset."""
    offset = 0.5 * int(draw.integers(2))
    row = np.round(plane.y)
    away = np.hypot(_from_whole(plane.x + offset * row), plane.y - row)
    return plane.filled(_between(draw, 0.2, 0.38) - away)


def _bricks(draw: Generator, plane: Plane) -> Field:
    """Courses of stones with joints between them."""
    length = _between(draw, 1.6, 2.4)
    row = np.floor(plane.y)
    x = plane.x / length + row / 2
    off_edge = np.minimum(_from_whole(plane.y), _from_whole(x) * length)
    joint = _between(draw, 0.05, 0.12)
    return plane.filled(off_edge - joint) * _shades(draw, np.floor(x), row, 0.35)


PATTERNS = (_stripes, _rings, _checks, _dots, _bricks)


def _colored(draw: Generator, ink: Field) -> Colors:
    """Ink on paper, each in a color that changes a little from place to place."""
    paper, color = _two_colors(draw)
    tints = draw.normal(0, 0.06, size=(2, 3, 1, 1)).astype(np.float32)
    papers = paper + _hills(draw, len(ink), 2) * tints[0]
    return papers + ink * (color + _hills(draw, len(ink), 2) * tints[1] - papers)


def _two_colors(draw: Generator) -> Float32[np.ndarray, "2 3 1 1"]:
    """Muted colors that differ in lightness, so that patterns show in gray too."""
    while True:
        colors = draw.random((2, 3), np.float32)
        if abs(np.dot(colors[0] - colors[1], (0.299, 0.587, 0.114))) > 0.25:
            return (colors / 2 + colors.mean(axis=1, keepdims=True) / 2)[..., None, None]


def _lit(draw: Generator, colors: Colors) -> Colors:
    """Light from one side, through haze, and the grain of a camera."""
    side = colors.shape[-1]
    x, y = _centered_axes(side)
    light = 1 + _between(draw, -0.6, 0.6) * x + _between(draw, -0.6, 0.6) * y
    light = light + _between(draw, 0.0, 0.2) * (_heaps(draw, side) - 0.5)
    grain = draw.standard_normal((1, side, side), np.float32) * _between(draw, 0.0, 0.04)
    return colors * light + grain


def _centered_axes(
    side: int,
) -> tuple[Float32[np.ndarray, "1 side"], Float32[np.ndarray, "side 1"]]:
    """Places of pixels from -0.5 to 0.5, across and down."""
    axis = ((np.arange(side) + 0.5) / side - 0.5).astype(np.float32)
    return axis[None], axis[:, None]


def _between(draw: Generator, low: float, high: float) -> float:
    """A uniform number; a Python float keeps arrays in single precision."""
    return float(draw.uniform(low, high))


def _from_whole(values: Field) -> Field:
    """Distance to the nearest whole number."""
    return np.abs(values - np.round(values))


def _shades(draw: Generator, column: Field, row: Field, range_: float) -> Field:
    """A factor from 1 down to 1 less the range, for each cell of a lattice."""
    table = 1 - range_ * draw.random((16, 16), np.float32)
    return table[column.astype(np.int32) % 16, row.astype(np.int32) % 16]


def _hills(draw: Generator, side: int, count: int) -> Field:
    """Smooth noise around zero with about `count` hills and valleys along a side."""
    coarse = Image.fromarray(draw.standard_normal((count + 4, count + 4), np.float32))
    left, top = 1 + _between(draw, 0.0, 1.0), 1 + _between(draw, 0.0, 1.0)
    box = (left, top, left + count + 1, top + count + 1)
    return np.array(coarse.resize((side, side), Image.Resampling.BICUBIC, box))


def _heaps(draw: Generator, side: int) -> Field:
    """Smooth noise of many sizes, the large ones highest, within 0..1."""
    noise = _hills(draw, side, 2)
    for doubling in range(1, 5):
        noise += 0.6**doubling * _hills(draw, side, 2 * 2**doubling)
    noise -= noise.min()
    return noise / max(float(noise.max()), 1e-6)
