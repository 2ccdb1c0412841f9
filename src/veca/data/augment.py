"""Random and center views for training.

TrivialAugmentWide: one random change of random strength to each image.

Müller and Hutter, "TrivialAugment: Tuning-free Yet State-of-the-Art Data Augmentation" (2021), in
their wide space, which the authors of VECA train with. One of 14 changes is drawn, one of 31
strengths from nothing to the most, and for half of them a sign. What comes in from outside is black
and pixels are moved whole, never blended.

Translations are up to 32 pixels whatever the size of the image, as the space is defined: a quarter
of an image of 128 pixels, an eighth of one of 256.

Views: squares cut out of a picture, as 8-bit images that every network normalizes for itself.

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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from veca.data.images import Box, DataError, DecodedImage

STRENGTHS = 31
"""Steps from nothing to the most."""

MOST_SHEAR = 0.99
"""Pixels along one side for each pixel along the other."""

MOST_PIXELS = 32.0

MOST_DEGREES = 135.0

MOST_ENHANCEMENT = 0.99
"""How far a factor of color or sharpness goes from 1."""

FEWEST_BITS = 2

Change = Callable[[Image.Image, float], Image.Image]


class Operation(NamedTuple):
    """One kind of change."""

    name: str

    change: Change

    strengths: Sequence[float] = (0.0,)
    """From the weakest to the strongest; one where there is no choice."""

    signed: bool = False
    """Whether the strength is negative half of the time."""


def trivial_augment(image: Image.Image, draw: random.Random) -> Image.Image:
    """Change an RGB image of 8 bits at random."""
    operation, strength = draw_operation(draw)
    return operation.change(image, strength)


def draw_operation(draw: random.Random) -> tuple[Operation, float]:
    """A change and its strength, by `draw.random()` alone, whose stream Python promises to keep."""
    operation = OPERATIONS[int(draw.random() * len(OPERATIONS))]
    strength = operation.strengths[int(draw.random() * len(operation.strengths))]
    negative = draw.random() < 0.5  # drawn in any case: what follows does not depend on the kind
    return operation, -strength if operation.signed and negative else strength


def _identity(image: Image.Image, _: float) -> Image.Image:
    """Nothing at all."""
    return image


def _moved(image: Image.Image, matrix: tuple[int | float, ...]) -> Image.Image:
    """An affine map; the matrix leads from new places to old ones."""
    return image.transform(
        image.size, Image.Transform.AFFINE, matrix, Image.Resampling.NEAREST, fillcolor=(0, 0, 0)
    )


def _shear_x(image: Image.Image, strength: float) -> Image.Image:
    """Move each row to the left in proportion to its distance from the top."""
    return _moved(image, (1, strength, 0, 0, 1, 0))


def _shear_y(image: Image.Image, strength: float) -> Image.Image:
    """Move each column up in proportion to its distance from the left."""
    return _moved(image, (1, 0, 0, strength, 1, 0))


def _translate_x(image: Image.Image, strength: float) -> Image.Image:
    """Move to the right by whole pixels."""
    return _moved(image, (1, 0, -int(strength), 0, 1, 0))


def _translate_y(image: Image.Image, strength: float) -> Image.Image:
    """Move down by whole pixels."""
    return _moved(image, (1, 0, 0, 0, 1, -int(strength)))


def _rotate(image: Image.Image, strength: float) -> Image.Image:
    """Rope counter-clockwise by degrees."""
    return image.rotate(strength, Image.Resampling.NEAREST, fillcolor=(0, 0, 0))


def _enhanced(
    enhancer: Callable[[Image.Image], ImageEnhance._Enhance], image: Image.Image, strength: float
) -> Image.Image:
    """Away from, or towards, what Pillow takes for the image without that quality."""
    return enhancer(image).enhance(1 + strength)


def _posterize(image: Image.Image, bits: float) -> Image.Image:
    """Keep the highest bits of each color."""
    return ImageOps.posterize(image, int(bits))


def _solarize(image: Image.Image, threshold: float) -> Image.Image:
    """Invert the colors from a threshold on."""
    return ImageOps.solarize(image, threshold)  # type: ignore[arg-type] # compares only


def _autocontrast(image: Image.Image, _: float) -> Image.Image:
    """Stretch each color to the full range."""
    return ImageOps.autocontrast(image)


def _equalize(image: Image.Image, _: float) -> Image.Image:
    """Make all values of each color equally frequent."""
    return ImageOps.equalize(image)


def _steps(first: float, last: float) -> tuple[float, ...]:
    """Strengths at equal distances."""
    return tuple(first + (last - first) * step / (STRENGTHS - 1) for step in range(STRENGTHS))


BITS = tuple(
    float(8 - round((8 - FEWEST_BITS) * step / (STRENGTHS - 1))) for step in range(STRENGTHS)
)

OPERATIONS: tuple[Operation, ...] = (
    Operation("identity", _identity),
    Operation("shear x", _shear_x, _steps(0.0, MOST_SHEAR), signed=True),
    Operation("shear y", _shear_y, _steps(0.0, MOST_SHEAR), signed=True),
    Operation("translate x", _translate_x, _steps(0.0, MOST_PIXELS), signed=True),
    Operation("translate y", _translate_y, _steps(0.0, MOST_PIXELS), signed=True),
    Operation("rotate", _rotate, _steps(0.0, MOST_DEGREES), signed=True),
    *(
        Operation(name, partial(_enhanced, enhancer), _steps(0.0, MOST_ENHANCEMENT), signed=True)
        for name, enhancer in (
            ("brightness", ImageEnhance.Brightness),
            ("color", ImageEnhance.Color),
            ("contrast", ImageEnhance.Contrast),
            ("sharpness", ImageEnhance.Sharpness),
        )
    ),
    Operation("posterize", _posterize, BITS),
    Operation("solarize", _solarize, _steps(255.0, 0.0)),
    Operation("autocontrast", _autocontrast),
    Operation("equalize", _equalize),
)


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
    picture: DecodedImage, resolution: int, draw: random.Random, config: ViewConfig, margin: int = 0
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
    return DecodedImage((image,)).pixels()


def center_view(
    picture: DecodedImage, resolution: int, config: ViewConfig, margin: int = 0
) -> UInt8[Tensor, "3 S S"]:
    """The view from the middle, at the scale of 'resized' views and unchanged; S = R + 2 margin."""
    sides = _scaled_sides(picture.sides, resolution, config.margin)
    top, left = ((side - resolution) // 2 for side in sides)
    box = _box(picture.sides, sides, (top, left), resolution)
    return DecodedImage((_cut(picture, resolution, box, margin),)).pixels()


def inner_view(images: UInt8[Tensor, "*B 3 S S"], resolution: int) -> UInt8[Tensor, "*B 3 R R"]:
    """What lies within the margins of views that may have some."""
    start = (images.shape[-1] - resolution) // 2
    return images[..., start : start + resolution, start : start + resolution]


def min_side(resolution: int, config: ViewConfig) -> int:
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


def _cut(picture: DecodedImage, resolution: int, box: Box, margin: int) -> Image.Image:
    """What lies within a box, and around it a margin in pixels of the view."""
    if not margin:
        return _eight_bit(picture.resampled((resolution, resolution), box))
    left, top, right, bottom = box
    across, down = (right - left) * margin / resolution, (bottom - top) * margin / resolution
    outer = (left - across, top - down, right + across, bottom + down)
    side = resolution + 2 * margin
    return _eight_bit(picture.resampled_beyond((side, side), outer))


def _eight_bit(picture: DecodedImage) -> Image.Image:
    """The picture as one RGB image of 8 bits."""
    if picture.bands[0].mode == "RGB":
        return picture.bands[0]
    planes = [np.rint(np.asarray(band) * 255).astype(np.uint8) for band in picture.bands]
    return Image.fromarray(np.stack(planes * (3 // len(planes)), axis=-1))
