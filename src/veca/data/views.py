"""Views: squares cut out of a picture, as 8-bit images that every network normalises for itself.

The paper scales the short side to 1.125 times the resolution and cuts a square of the resolution
out, at a random place in training and in the middle otherwise. Here both are one resampling of the
square alone: its place in the scaled picture is a whole pixel, its place on the original is exact,
and what lies around it weighs in, so the outcome is that of scaling everything and cutting, but for
rounding, at a cost that does not grow with the part that is cut off.

A view can have a margin: more of the picture on each side, at the scale of the view and out of the
same resampling; beyond its borders the picture goes on as its mirror image.
"""

import math
import random
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import UInt8
from PIL import Image
from torch import Tensor

from veca.data.errors import DataError
from veca.data.picture import Box, Picture
from veca.data.trivial_augment import trivial_augment

Crop = Literal["resized", "random-resized"]

ATTEMPTS = 10
"""Draws of an area and a shape that fit into a picture, before the middle is taken."""

SPARE = 2
"""A picture may be decoded smaller as long as it has so many times the pixels of a view on a side,
since antialiasing needs some to average."""


@dataclass(frozen=True, kw_only=True)
class ViewConfig:
    """How views are made; the defaults are the paper's."""

    crop: Crop = "resized"
    """'resized' cuts at one scale, as the paper; 'random-resized' varies scale and proportions."""

    margin: float = 1.125
    """Short side of the picture, before the cut, in sides of the view; 1 cuts as much as fits."""

    flip: float = 0.5
    """Share of the training views that are mirrored."""

    trivial_augment: bool = True
    """Whether TrivialAugmentWide changes the training views."""

    area: tuple[float, float] = (0.3, 1.0)
    """Least and greatest share of the picture in a 'random-resized' view."""

    aspect: tuple[float, float] = (3 / 4, 4 / 3)
    """Least and greatest width / height of what a 'random-resized' view shows."""

    def __post_init__(self) -> None:
        """Refuse what no view can have."""
        if self.crop not in {"resized", "random-resized"}:
            raise DataError(f"crop={self.crop!r} is unknown; use 'resized' or 'random-resized'.")
        if not 1 <= self.margin < math.inf:
            raise DataError(f"margin={self.margin} leaves no square to cut; use 1 or more.")
        if not 0 <= self.flip <= 1:
            raise DataError(f"flip={self.flip} is no share; use 0 to 1.")
        if not 0 < self.area[0] <= self.area[1] <= 1:
            raise DataError(f"area={self.area} is no range of shares; use 0 < least <= most <= 1.")
        if not 0 < self.aspect[0] <= self.aspect[1] < math.inf:
            raise DataError(f"aspect={self.aspect} is no range; use 0 < least <= most.")


def training_view(
    picture: Picture, resolution: int, draw: random.Random, config: ViewConfig, margin: int = 0
) -> UInt8[Tensor, "3 S S"]:
    """A random view: cut, mirrored half of the time, changed by TrivialAugmentWide.

    With a margin, in pixels of the view, it shows that much more on each side (S = R + 2 margin);
    what lies within is drawn as without.
    """
    if config.crop == "random-resized":
        box = _random_box(picture.sides, draw, config)
    else:
        sides = _scaled_sides(picture.sides, resolution, config.margin)
        top, left = (int(draw.random() * (side - resolution + 1)) for side in sides)
        box = _box(picture.sides, sides, (top, left), resolution)
    flipped = draw.random() < config.flip
    image = _cut(picture, resolution, box, margin)
    if flipped:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    if config.trivial_augment:
        image = trivial_augment(image, draw)
    return Picture((image,)).pixels()


def centre_view(
    picture: Picture, resolution: int, config: ViewConfig, margin: int = 0
) -> UInt8[Tensor, "3 S S"]:
    """The view from the middle, at the scale of 'resized' views and unchanged; S = R + 2 margin."""
    sides = _scaled_sides(picture.sides, resolution, config.margin)
    top, left = ((side - resolution) // 2 for side in sides)
    box = _box(picture.sides, sides, (top, left), resolution)
    return Picture((_cut(picture, resolution, box, margin),)).pixels()


def inner_view(images: UInt8[Tensor, "*B 3 S S"], resolution: int) -> UInt8[Tensor, "*B 3 R R"]:
    """What lies within the margins of views that may have some."""
    start = (images.shape[-1] - resolution) // 2
    return images[..., start : start + resolution, start : start + resolution]


def least_side(resolution: int, config: ViewConfig) -> int:
    """The short side that a picture needs for its views to be as good as from a larger one."""
    scale = config.margin
    if config.crop == "random-resized":
        narrowest = min(config.aspect[0], 1 / config.aspect[1], 1.0)
        scale = max(scale, 1 / math.sqrt(config.area[0] * narrowest))
    return math.ceil(SPARE * scale * resolution)


def _scaled_sides(sides: tuple[int, int], resolution: int, margin: float) -> tuple[int, int]:
    """Height and width after scaling the short side to `margin` views."""
    short, target = min(sides), math.floor(margin * resolution + 0.5)
    height, width = ((2 * side * target + short) // (2 * short) for side in sides)
    return height, width


def _box(
    sides: tuple[int, int], scaled: tuple[int, int], corner: tuple[int, int], resolution: int
) -> Box:
    """Where a square of the scaled picture, from its upper left corner on, lies on the original."""
    (top, bottom), (left, right) = (
        (start * side / length, (start + resolution) * side / length)
        for side, length, start in zip(sides, scaled, corner, strict=True)
    )
    return left, top, right, bottom


def _random_box(sides: tuple[int, int], draw: random.Random, config: ViewConfig) -> Box:
    """A part of random area and proportions, in whole pixels; where none fits, the middle."""
    height, width = sides
    for _ in range(ATTEMPTS):
        area = height * width * _between(config.area, draw)
        aspect = math.exp(_between((math.log(config.aspect[0]), math.log(config.aspect[1])), draw))
        across, down = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < across <= width and 0 < down <= height:
            top, left = (
                int(draw.random() * (side - part + 1))
                for side, part in ((height, down), (width, across))
            )
            return float(left), float(top), float(left + across), float(top + down)
    across = min(width, max(1, round(height * config.aspect[1])))
    down = min(height, max(1, round(width / config.aspect[0])))
    left, top = (width - across) // 2, (height - down) // 2
    return float(left), float(top), float(left + across), float(top + down)


def _between(ends: tuple[float, float], draw: random.Random) -> float:
    """A number between two others, all equally likely."""
    return ends[0] + (ends[1] - ends[0]) * draw.random()


def _cut(picture: Picture, resolution: int, box: Box, margin: int) -> Image.Image:
    """What lies within a box, and around it a margin in pixels of the view."""
    if not margin:
        return _eight_bit(picture.resampled((resolution, resolution), box))
    left, top, right, bottom = box
    across, down = (right - left) * margin / resolution, (bottom - top) * margin / resolution
    outer = (left - across, top - down, right + across, bottom + down)
    side = resolution + 2 * margin
    return _eight_bit(picture.resampled_beyond((side, side), outer))


def _eight_bit(picture: Picture) -> Image.Image:
    """The picture as one RGB image of 8 bits."""
    if picture.bands[0].mode == "RGB":
        return picture.bands[0]
    planes = [np.rint(np.asarray(band) * 255).astype(np.uint8) for band in picture.bands]
    return Image.fromarray(np.stack(planes * (3 // len(planes)), axis=-1))
