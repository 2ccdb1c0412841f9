"""Random and center views for training, and TrivialAugmentWide.

The paper scales the short side to 1.125 times the resolution and crops a square of the resolution,
at a random place in training and in the middle otherwise. Here both are a single resampling of the
square: its position in the scaled image is a whole pixel, its position on the original is exact and
pixels around it contribute, so the result equals scaling everything and cropping up to rounding,
at a cost that does not depend on what is cropped off.

A view can have a margin: more of the image on each side, at the same scale and from the same
resampling; beyond the borders the image is mirrored.
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageOps
from PIL.ImageEnhance import Brightness, Color, Contrast, Sharpness
from torch import Tensor

from veca.data.images import Box, DataError, DecodedImage

Op = Callable[[Image.Image, float], Image.Image]

NUM_STRENGTHS = 31


class Operation(NamedTuple):
    """One operation of TrivialAugment."""

    name: str

    apply: Op

    strengths: Sequence[float] = (0.0,)
    """From the weakest to the strongest."""

    signed: bool = False
    """Whether the strength is negated half of the time."""


def trivial_augment(image: Image.Image, draw: random.Random) -> Image.Image:
    """Apply one random operation of random strength to an 8-bit RGB image.

    Müller and Hutter, "TrivialAugment: Tuning-free Yet State-of-the-Art Data Augmentation" (2021),
    in the wide space. Pixels that come in from outside are black, and nothing is interpolated.
    Translations are up to 32 pixels whatever the size of the image, as the space is defined.
    """
    operation, strength = draw_operation(draw)
    return operation.apply(image, strength)


def draw_operation(draw: random.Random) -> tuple[Operation, float]:
    """Draw an operation and its strength by `draw.random()` alone, which Python keeps stable."""
    operation = OPERATIONS[int(draw.random() * len(OPERATIONS))]
    strength = operation.strengths[int(draw.random() * len(operation.strengths))]
    negative = draw.random() < 0.5  # always drawn, so that later draws do not depend on the kind
    return operation, -strength if operation.signed and negative else strength


def _affine(image: Image.Image, *matrix: int | float) -> Image.Image:
    """Transform by a matrix that maps new positions to old ones."""
    return image.transform(
        image.size, Image.Transform.AFFINE, matrix, Image.Resampling.NEAREST, fillcolor=BLACK
    )


def _steps(first: float, last: float) -> tuple[float, ...]:
    """Equidistant strengths."""
    return tuple(
        first + (last - first) * step / (NUM_STRENGTHS - 1) for step in range(NUM_STRENGTHS)
    )


BLACK = (0, 0, 0)
SHARES, PIXELS = _steps(0.0, 0.99), _steps(0.0, 32.0)
BITS = tuple(float(8 - round(6 * step / (NUM_STRENGTHS - 1))) for step in range(NUM_STRENGTHS))

OPERATIONS: tuple[Operation, ...] = (
    Operation("identity", lambda i, _: i),
    Operation("shear x", lambda i, s: _affine(i, 1, s, 0, 0, 1, 0), SHARES, signed=True),
    Operation("shear y", lambda i, s: _affine(i, 1, 0, 0, s, 1, 0), SHARES, signed=True),
    Operation("translate x", lambda i, s: _affine(i, 1, 0, -int(s), 0, 1, 0), PIXELS, signed=True),
    Operation("translate y", lambda i, s: _affine(i, 1, 0, 0, 0, 1, -int(s)), PIXELS, signed=True),
    Operation("rotate", lambda i, s: i.rotate(s, fillcolor=BLACK), _steps(0.0, 135.0), signed=True),
    Operation("brightness", lambda i, s: Brightness(i).enhance(1 + s), SHARES, signed=True),
    Operation("color", lambda i, s: Color(i).enhance(1 + s), SHARES, signed=True),
    Operation("contrast", lambda i, s: Contrast(i).enhance(1 + s), SHARES, signed=True),
    Operation("sharpness", lambda i, s: Sharpness(i).enhance(1 + s), SHARES, signed=True),
    Operation("posterize", lambda i, bits: ImageOps.posterize(i, int(bits)), BITS),
    Operation("solarize", lambda i, s: ImageOps.solarize(i, math.ceil(s)), _steps(255.0, 0.0)),
    Operation("autocontrast", lambda i, _: ImageOps.autocontrast(i)),
    Operation("equalize", lambda i, _: ImageOps.equalize(i)),
)


Crop = Literal["resized", "random-resized"]

ATTEMPTS = 10
"""Draws of a box that fits into the image, before the middle is taken."""

SPARE = 2
"""An image is decoded with at least this many pixels per pixel of a view, along each side, since
antialiasing needs some to average."""


@dataclass(frozen=True, kw_only=True)
class ViewConfig:
    """How views are made; the defaults are the paper's."""

    crop: Crop = "resized"
    """'resized' crops at one scale, as the paper; 'random-resized' varies scale and proportions."""

    margin: float = 1.125
    """Short side of the image before cropping, in sides of the view."""

    flip: float = 0.5
    """Probability that a training view is mirrored."""

    trivial_augment: bool = True
    """Whether TrivialAugmentWide is applied to training views."""

    area: tuple[float, float] = (0.3, 1.0)
    """Range of the share of the image in a 'random-resized' view."""

    aspect: tuple[float, float] = (3 / 4, 4 / 3)
    """Range of width / height of a 'random-resized' box."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        if self.crop not in {"resized", "random-resized"}:
            raise DataError(f"crop={self.crop!r} is unknown; use 'resized' or 'random-resized'.")
        if not 1 <= self.margin < math.inf:
            raise DataError(f"margin={self.margin} is invalid: margin must be >= 1.")
        if not 0 <= self.flip <= 1:
            raise DataError(f"flip={self.flip} is invalid: flip must be in 0..1.")
        if not 0 < self.area[0] <= self.area[1] <= 1:
            raise DataError(f"area={self.area} is invalid: use 0 < low <= high <= 1.")
        if not 0 < self.aspect[0] <= self.aspect[1] < math.inf:
            raise DataError(f"aspect={self.aspect} is invalid: use 0 < low <= high.")


def training_view(
    image: DecodedImage, resolution: int, draw: random.Random, config: ViewConfig, margin: int = 0
) -> UInt8[Tensor, "3 S S"]:
    """A random view: cropped, flipped, augmented.

    With a margin, in pixels of the view, it shows that much more on each side (S = R + 2 margin);
    the inner part does not change.
    """
    if config.crop == "random-resized":
        box = _random_box(image.sides, draw, config)
    else:
        box = _square(
            image.sides, resolution, config.margin, lambda spare: int(draw.random() * (spare + 1))
        )
    flipped = draw.random() < config.flip
    view = _cut(image, resolution, box, margin)
    if flipped:
        view = view.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    if config.trivial_augment:
        view = trivial_augment(view, draw)
    return DecodedImage((view,)).pixels()


def center_view(
    image: DecodedImage, resolution: int, config: ViewConfig, margin: int = 0
) -> UInt8[Tensor, "3 S S"]:
    """The center view, at the scale of 'resized' views; S = R + 2 margin."""
    box = _square(image.sides, resolution, config.margin, lambda spare: spare // 2)
    return DecodedImage((_cut(image, resolution, box, margin),)).pixels()


def inner_view(images: UInt8[Tensor, "*B 3 S S"], resolution: int) -> UInt8[Tensor, "*B 3 R R"]:
    """Cut off the margin of views that may have one."""
    start = (images.shape[-1] - resolution) // 2
    return images[..., start : start + resolution, start : start + resolution]


def min_side(resolution: int, config: ViewConfig) -> int:
    """The short side that an image must be decoded with for its views to be exact enough."""
    scale = config.margin
    if config.crop == "random-resized":
        narrowest = min(config.aspect[0], 1 / config.aspect[1], 1.0)
        scale = max(scale, 1 / math.sqrt(config.area[0] * narrowest))
    return math.ceil(SPARE * scale * resolution)


def _square(
    sides: tuple[int, int], resolution: int, margin: float, place: Callable[[int], int]
) -> Box:
    """A square of the image whose short side is scaled to `margin` views, on the original.

    `place` chooses its first pixel, given how many there are to spare: rows, then columns.
    """
    short, target = min(sides), math.floor(margin * resolution + 0.5)
    ends = []
    for side in sides:
        scaled = (2 * side * target + short) // (2 * short)
        start = place(scaled - resolution)
        ends.append((start * side / scaled, (start + resolution) * side / scaled))
    (top, bottom), (left, right) = ends
    return left, top, right, bottom


def _random_box(sides: tuple[int, int], draw: random.Random, config: ViewConfig) -> Box:
    """A box of random area and proportions, in whole pixels; if none fits, the middle."""
    height, width = sides
    for _ in range(ATTEMPTS):
        area = height * width * draw.uniform(*config.area)
        aspect = math.exp(draw.uniform(*map(math.log, config.aspect)))
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


def _cut(image: DecodedImage, resolution: int, box: Box, margin: int) -> Image.Image:
    """Resample a box, and around it a margin in pixels of the view, to an 8-bit RGB image."""
    left, top, right, bottom = box
    across, down = (right - left) * margin / resolution, (bottom - top) * margin / resolution
    outer = (left - across, top - down, right + across, bottom + down)
    side = resolution + 2 * margin
    view = image.resampled_beyond((side, side), outer)
    if view.bands[0].mode == "RGB":
        return view.bands[0]
    planes = [np.rint(np.asarray(band) * 255).astype(np.uint8) for band in view.bands]
    return Image.fromarray(np.stack(planes * (3 // len(planes)), axis=-1))
