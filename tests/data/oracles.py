"""Slow and obvious: what resampling is, and where pixels go."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veca.data.images import Box
from veca.data.transforms import Geometry, Side


def cubic(distance: float) -> float:
    """The kernel of Keys with a = -0.5."""
    d = abs(distance)
    if d < 1:
        return 1.5 * d**3 - 2.5 * d**2 + 1
    return -0.5 * d**3 + 2.5 * d**2 - 4 * d + 2 if d < 2 else 0.0


def weights(length: int, size: int, start: float, end: float) -> NDArray[Any]:
    """What each of `size` new pixels takes from each of `length` old ones."""
    scale = (end - start) / size
    widened = max(scale, 1.0)  # antialiasing: the kernel covers as much as a new pixel does
    matrix = np.zeros((size, length))
    for new in range(size):
        center = start + (new + 0.5) * scale
        row = [cubic((old + 0.5 - center) / widened) for old in range(length)]
        matrix[new] = np.array(row) / sum(row)
    return matrix


def resampled(
    picture: NDArray[Any], sides: tuple[int, int], box: Box, whole: bool = False
) -> NDArray[Any]:
    """A picture (H, W, 3) within 0..1 after a pass along x and one along y.

    Each pass ends within 0..1, and where `whole` is set at one of the 256 steps of 8 bits.
    """

    def in_range(values: NDArray[Any]) -> NDArray[Any]:
        values = np.clip(values, 0, 1)
        return np.floor(values * 255 + 0.5) / 255 if whole else values

    left, top, right, bottom = box
    height, width, _ = picture.shape
    wide = np.einsum("nw,hwc->hnc", weights(width, sides[1], left, right), picture)
    tall = np.einsum("mh,hnc->mnc", weights(height, sides[0], top, bottom), in_range(wide))
    return in_range(tall)


def place(side: Side, pixel: int) -> Fraction:
    """Where the center of an original pixel lies, in pixels of the prepared picture."""
    return Fraction(2 * pixel + 1, 2) * side.scaled / side.original - side.cropped


def patch_under(side: Side, pixel: int) -> int | None:
    """The patch on which an original pixel lies."""
    patch = math.floor(place(side, pixel) / side.patch_size)
    return patch if 0 <= patch < side.patches else None


def neighbors(side: Side, pixel: int) -> tuple[int, int, float]:
    """The patches between whose centers an original pixel lies, and the share of the second."""
    showing = [
        patch
        for patch in range(side.patches)
        if patch * side.patch_size < side.scaled - side.cropped
    ]
    exact = place(side, pixel) / side.patch_size - Fraction(1, 2)
    exact = min(max(exact, Fraction(showing[0])), Fraction(showing[-1]))
    first = math.floor(exact)
    return first, min(first + 1, showing[-1]), float(exact - first)


def nearest(patch_map: NDArray[Any], geometry: Geometry, fill: float) -> NDArray[Any]:
    """A patch map (rows, columns) on the original pixels, one pixel after the other."""
    height, width = geometry.original
    image = np.full((height, width), fill)
    for y in range(height):
        for x in range(width):
            row, column = patch_under(geometry.height, y), patch_under(geometry.width, x)
            if row is not None and column is not None:
                image[y, x] = patch_map[row, column]
    return image


def bilinear(patch_map: NDArray[Any], geometry: Geometry, fill: float) -> NDArray[Any]:
    """The same with blending."""
    height, width = geometry.original
    image = np.full((height, width), fill)
    for y in range(height):
        for x in range(width):
            if patch_under(geometry.height, y) is None or patch_under(geometry.width, x) is None:
                continue
            top, bottom, down = neighbors(geometry.height, y)
            left, right, across = neighbors(geometry.width, x)
            upper = patch_map[top, left] * (1 - across) + patch_map[top, right] * across
            lower = patch_map[bottom, left] * (1 - across) + patch_map[bottom, right] * across
            image[y, x] = upper * (1 - down) + lower * down
    return image
