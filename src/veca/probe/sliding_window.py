"""Whole images and sliding windows: cut them, and merge the maps predicted for them."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from veca.data.images import DecodedImage

Sides = tuple[int, int]
"""Height and width in pixels."""

MAX_STRIP_NUMBERS = 1 << 24
"""Of logits at full resolution that are held at once; larger images are merged in strips."""


@dataclass(frozen=True, kw_only=True)
class WindowGrid:
    """The windows of one image."""

    original: Sides
    """Of the image."""
    scaled: Sides
    """Of the image as the model sees it."""
    window: Sides
    tops: tuple[int, ...]
    """First row of each row of windows, in scaled pixels."""
    lefts: tuple[int, ...]
    """First column of each column of windows, in scaled pixels."""

    @property
    def count(self) -> int:
        """Number of windows, which are ordered row by row."""
        return len(self.tops) * len(self.lefts)


def whole_image(original: Sides, short_side: int, multiple: int) -> WindowGrid:
    """One window: the image, each side scaled to the nearest multiple of a patch."""
    height, width = (
        max(1, round(side * short_side / min(original) / multiple)) * multiple for side in original
    )
    sides = (height, width)
    return WindowGrid(original=original, scaled=sides, window=sides, tops=(0,), lefts=(0,))


def slide(original: Sides, short_side: int, window: int, stride: int) -> WindowGrid:
    """Square windows that overlap; the last ones end with the image."""
    height, width = (round(side * short_side / min(original)) for side in original)
    return WindowGrid(
        original=original,
        scaled=(height, width),
        window=(min(window, height), min(window, width)),
        tops=window_starts(height, window, stride),
        lefts=window_starts(width, window, stride),
    )


def window_starts(length: int, window: int, stride: int) -> tuple[int, ...]:
    """Starts of the windows along a side; the last one is moved back to end with the side."""
    count = max(length - window + stride - 1, 0) // stride + 1
    return tuple(max(min(number * stride, length - window), 0) for number in range(count))


def cut_windows(
    picture: DecodedImage, grid: WindowGrid, flipped: bool = False
) -> UInt8[Tensor, "G 3 h w"]:
    """The windows of an image, or of its mirror image."""
    height, width = grid.original
    pixels = eight_bit(picture.resampled(grid.scaled, (0.0, 0.0, float(width), float(height))))
    if flipped:
        pixels = pixels.flip(-1)
    down, across = grid.window
    places = itertools.product(grid.tops, grid.lefts)
    return torch.stack([pixels[:, y : y + down, x : x + across] for y, x in places])


def eight_bit(picture: DecodedImage) -> UInt8[Tensor, "3 height width"]:
    """The pixels of an image in 8 bits."""
    pixels = picture.pixels()
    return pixels if pixels.dtype == torch.uint8 else (pixels * 255).round().to(torch.uint8)


def merge_windows(
    maps: Float[Tensor, "G K rows columns"], grid: WindowGrid
) -> Float[Tensor, "K height width"]:
    """One map of the size of the image: the mean of the windows that cover a pixel."""
    return next(_strips(maps, grid, grid.original[0]))[1]


def argmax_pixels(
    maps: Float[Tensor, "G K rows columns"], grid: WindowGrid
) -> UInt8[Tensor, "height width"]:
    """The class of each pixel; merged logits may take gigabytes, so they come in strips."""
    height, width = grid.original
    found = torch.empty(height, width, dtype=torch.uint8, device=maps.device)
    for top, strip in _strips(maps, grid, max(1, MAX_STRIP_NUMBERS // (maps.shape[1] * width))):
        found[top : top + strip.shape[1]] = strip.max(0).indices.to(torch.uint8)
    return found


def bilinear(cells: int, pixels: int) -> Float[Tensor, "pixels cells"]:
    """The matrix that resizes `cells` to `pixels`, as torch does with align_corners=False."""
    centers = (torch.arange(pixels, dtype=torch.float64) + 0.5) * cells / pixels - 0.5
    centers = centers.clamp(min=0)
    before = centers.floor().long().clamp(max=cells - 1)
    after = (before + 1).clamp(max=cells - 1)
    share = centers - before
    matrix = torch.zeros(pixels, cells, dtype=torch.float64)
    rows = torch.arange(pixels)
    matrix.index_put_((rows, before), 1 - share, accumulate=True)
    matrix.index_put_((rows, after), share, accumulate=True)
    return matrix


def _strips(
    maps: Float[Tensor, "G K rows columns"], grid: WindowGrid, height: int
) -> Iterator[tuple[int, Float[Tensor, "K _ width"]]]:
    """The merged map, `height` rows at a time, each with the index of its first row."""
    starts = (grid.tops, grid.lefts)
    sides = zip(grid.original, grid.scaled, grid.window, starts, maps.shape[2:], strict=True)
    down, across = (_merge_matrix(*side).to(maps) for side in sides)
    tiled = maps.unflatten(0, (len(grid.tops), len(grid.lefts))).permute(2, 0, 3, 1, 4)
    wide = tiled.flatten(3, 4).flatten(1, 2) @ across.T
    for top in range(0, grid.original[0], height):
        yield top, down[top : top + height] @ wide


@lru_cache(maxsize=256)  # the images of a dataset have few sizes
def _merge_matrix(
    original: int, scaled: int, window: int, starts: tuple[int, ...], cells: int
) -> Float[Tensor, "{original} _"]:
    """From the cells of all windows along a side to the pixels of the image along it."""
    placed = torch.zeros(scaled, len(starts) * cells, dtype=torch.float64)
    coverage = torch.zeros(scaled, 1, dtype=torch.float64)
    resize = bilinear(cells, window)
    for number, start in enumerate(starts):
        placed[start : start + window, number * cells : (number + 1) * cells] = resize
        coverage[start : start + window] += 1
    return (bilinear(scaled, original) @ (placed / coverage)).float()
