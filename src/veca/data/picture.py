"""A decoded picture, and the one way in which it is resampled.

Resampling is bicubic (a = -0.5) with antialiasing: along x, then along y, brought back into range
after each pass. For 8-bit pictures both passes are Pillow's `Image.resize` with BICUBIC, so that
the outcome is that of Pillow as most training pipelines have used it; newer ones may begin with y
where that is faster, and differ where colours are clipped. Finer pictures go through the same
passes in floats and are never rounded to 8 bits.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Shaped
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from veca.data.errors import PictureError

SLACK = 1e-4
"""How far floats may leave 0..1, since arithmetic strays; they are clipped."""

Box = tuple[float, float, float, float]
"""Left, top, right and bottom in pixels, which begin at whole numbers."""


@dataclass(frozen=True)
class Picture:
    """Upright and opaque colours, in 8 bits or in floats."""

    bands: tuple[Image.Image, ...]
    """One 'RGB' image of 8 bits, or one (grey) or three (colour) 'F' images within 0..1."""

    @property
    def sides(self) -> tuple[int, int]:
        """Height and width."""
        width, height = self.bands[0].size
        return height, width

    def resampled(self, sides: tuple[int, int], box: Box) -> "Picture":
        """The part within the box at another height and width; what lies around it weighs in."""
        return Picture(tuple(_resampled(band, sides, box) for band in self.bands))

    def resampled_beyond(self, sides: tuple[int, int], box: Box) -> "Picture":
        """As `resampled`, of a box that may leave the picture, which is mirrored at its borders."""
        height, width = self.sides
        left, top, right, bottom = box
        if left >= 0 and top >= 0 and right <= width and bottom <= height:
            return self.resampled(sides, box)
        first_row, last_row = _reached(top, bottom, sides[0])
        first_column, last_column = _reached(left, right, sides[1])
        rows = mirrored(first_row, last_row, height)
        columns = mirrored(first_column, last_column, width)
        bands = [Image.fromarray(np.asarray(band)[rows][:, columns]) for band in self.bands]
        within = (left - first_column, top - first_row, right - first_column, bottom - first_row)
        return Picture(tuple(bands)).resampled(sides, within)

    def pixels(self) -> Shaped[Tensor, "3 height width"]:
        """Bytes, or floats within 0..1."""
        if self.bands[0].mode == "RGB":
            return torch.from_numpy(np.array(self.bands[0])).permute(2, 0, 1).contiguous()
        planes = [torch.from_numpy(np.array(band)) for band in self.bands]
        return torch.stack(planes * (3 // len(planes)))


def mirrored(first: int, last: int, side: int) -> NDArray[np.int64]:
    """Which of `side` pixels stand at the places from `first` up to `last`, of which some are none.

    Mirrors stand on the borders, so that the outermost pixels come twice in a row (numpy calls it
    'symmetric'), and again behind each other as often as it takes.
    """
    places = np.arange(first, last) % (2 * side)
    return np.where(places < side, places, 2 * side - 1 - places)


def checked_floats(name: str, values: NDArray[Any]) -> NDArray[Any]:
    """Refuse floats that are no colours in 0..1."""
    low, high = float(values.min()), float(values.max())
    if not (low >= -SLACK and high <= 1 + SLACK):  # also where one of them is not a number
        raise PictureError(
            f"{name} holds floats from {low:g} to {high:g}, but colours in 0..1 are needed; divide "
            "by the greatest value that a colour can have."
        )
    return values


def plane(values: NDArray[Any]) -> Image.Image:
    """A band of floats, brought into 0..1."""
    return Image.fromarray(np.clip(values, 0, 1).astype(np.float32, copy=False))


def _resampled(band: Image.Image, sides: tuple[int, int], box: Box) -> Image.Image:
    """One band, first along x, of the rows that are needed only, then along y."""
    height, width = sides
    left, top, right, bottom = box
    first, last = _reached(top, bottom, height)
    first, last = max(0, first), min(band.height, last)
    band = _resized(band, (width, last - first), (left, float(first), right, float(last)))
    return _resized(band, (width, height), (0.0, top - first, float(width), bottom - first))


def _reached(start: float, end: float, count: int) -> tuple[int, int]:
    """From which pixel up to which one `count` new ones between two places depend on the old."""
    reach = 2 * max(1.0, (end - start) / count) + 1  # of the kernel, and one for rounding
    return math.floor(start - reach), math.ceil(end + reach)


def _resized(band: Image.Image, size: tuple[int, int], box: Box) -> Image.Image:
    """One pass; Pillow brings bytes back into range by itself."""
    found = band.resize(size, Image.Resampling.BICUBIC, box)
    return found if band.mode == "RGB" else plane(np.asarray(found))
