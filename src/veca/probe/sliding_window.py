"""Whole images and sliding windows, and how their maps are merged."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from veca.data.images import DecodedImage

Sides = tuple[int, int]
"""Height and width in pixels."""

MOST_NUMBERS = 1 << 24
"""Of a map of all classes that is made at once; larger pictures come in strips."""


@dataclass(frozen=True, kw_only=True)
class WindowGrid:
    """Where the windows of one picture lie."""

    original: Sides
    """Of the picture."""

    scaled: Sides
    """Of the picture as it is shown."""

    window: Sides
    """Of each window; of what is shown where it is shown whole."""

    tops: tuple[int, ...]
    """First row of the windows, in scaled pixels."""

    lefts: tuple[int, ...]
    """First column of the windows, in scaled pixels."""

    @property
    def windows(self) -> int:
        """How many there are; each top goes with each left, row by row."""
        return len(self.tops) * len(self.lefts)


def whole_image(original: Sides, short: int, multiple: int) -> WindowGrid:
    """A picture that is shown whole, each side scaled to the nearest multiple of a patch."""
    scaled = tuple(_nearest(side * short / min(original), multiple) for side in original)
    sides = (scaled[0], scaled[1])
    return WindowGrid(original=original, scaled=sides, window=sides, tops=(0,), lefts=(0,))


def slide(original: Sides, short: int, window: int, stride: int) -> WindowGrid:
    """A picture that is shown through square windows."""
    height, width = (round(side * short / min(original)) for side in original)
    return WindowGrid(
        original=original,
        scaled=(height, width),
        window=(min(window, height), min(window, width)),
        tops=window_starts(height, window, stride),
        lefts=window_starts(width, window, stride),
    )


def window_starts(length: int, window: int, stride: int) -> tuple[int, ...]:
    """Where the windows along a side begin; the last one is moved back so that it ends with it."""
    if min(length, window, stride) < 1 or stride > window:
        raise ValueError(
            f"windows of {window} pixels every {stride} pixels do not cover a side of {length}; "
            "all must be at least 1, and the stride at most the window."
        )
    count = max(length - window + stride - 1, 0) // stride + 1
    return tuple(max(min(number * stride, length - window), 0) for number in range(count))


def cut_windows(
    picture: DecodedImage, layout: WindowGrid, flipped: bool = False
) -> UInt8[Tensor, "G 3 h w"]:
    """The windows of a picture, or of its mirror image."""
    height, width = layout.original
    pixels = eight_bit(picture.resampled(layout.scaled, (0.0, 0.0, float(width), float(height))))
    if flipped:
        pixels = pixels.flip(-1)
    down, across = layout.window
    return torch.stack(
        [
            pixels[:, top : top + down, left : left + across]
            for top in layout.tops
            for left in layout.lefts
        ]
    )


def eight_bit(picture: DecodedImage) -> UInt8[Tensor, "3 height width"]:
    """The colors of a picture in 8 bits."""
    pixels = picture.pixels()
    return pixels if pixels.dtype == torch.uint8 else (pixels * 255).round().to(torch.uint8)


def merge_windows(
    maps: Float[Tensor, "G K rows columns"], layout: WindowGrid
) -> Float[Tensor, "K height width"]:
    """The maps of the windows as one map of the picture's own size."""
    return next(_strips(maps, layout, layout.original[0]))[1]


def argmax_pixels(
    maps: Float[Tensor, "G K rows columns"], layout: WindowGrid
) -> UInt8[Tensor, "height width"]:
    """The class of each pixel of the picture: that with the highest value.

    The map of all classes is never held at once, since it may have gigabytes.
    """
    height, width = layout.original
    found = torch.empty(height, width, dtype=torch.uint8, device=maps.device)
    for top, strip in _strips(maps, layout, max(1, MOST_NUMBERS // (maps.shape[1] * width))):
        found[top : top + strip.shape[1]] = strip.max(0).indices.to(torch.uint8)
    return found


def bilinear(cells: int, pixels: int) -> Float[Tensor, "pixels cells"]:
    """What scales `cells` values to `pixels`, as torch does (align_corners=False)."""
    places = ((torch.arange(pixels, dtype=torch.float64) + 0.5) * cells / pixels - 0.5).clamp(min=0)
    before = places.floor().long().clamp(max=cells - 1)
    after = (before + 1).clamp(max=cells - 1)
    share = places - before
    matrix = torch.zeros(pixels, cells, dtype=torch.float64)
    rows = torch.arange(pixels)
    matrix.index_put_((rows, before), 1 - share, accumulate=True)
    matrix.index_put_((rows, after), share, accumulate=True)
    return matrix


def _nearest(length: float, multiple: int) -> int:
    """The multiple that is nearest to a length, at least one."""
    return max(1, round(length / multiple)) * multiple


def _strips(
    maps: Float[Tensor, "G K rows columns"], layout: WindowGrid, height: int
) -> Iterator[tuple[int, Float[Tensor, "K _ width"]]]:
    """The merged map, so many rows at a time, each with the number of its first row."""
    rows, columns = maps.shape[2:]
    down, across = (
        _matrix(original, scaled, window, starts, cells).to(maps)
        for original, scaled, window, starts, cells in zip(
            layout.original,
            layout.scaled,
            layout.window,
            (layout.tops, layout.lefts),
            (rows, columns),
            strict=True,
        )
    )
    laid = maps.unflatten(0, (len(layout.tops), len(layout.lefts))).permute(2, 0, 3, 1, 4)
    wide = laid.flatten(3, 4).flatten(1, 2) @ across.T
    for top in range(0, layout.original[0], height):
        yield top, down[top : top + height] @ wide


@lru_cache(maxsize=256)  # pictures of a set have few sizes
def _matrix(
    original: int, scaled: int, window: int, starts: tuple[int, ...], cells: int
) -> Float[Tensor, "{original} _"]:
    """From the cells of all windows along a side to the picture's own pixels along it."""
    placed = torch.zeros(scaled, len(starts) * cells, dtype=torch.float64)
    windows = torch.zeros(scaled, 1, dtype=torch.float64)
    one = bilinear(cells, window)
    for number, start in enumerate(starts):
        placed[start : start + window, number * cells : (number + 1) * cells] = one
        windows[start : start + window] += 1
    return (bilinear(scaled, original) @ (placed / windows)).float()
