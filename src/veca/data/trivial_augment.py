"""TrivialAugmentWide: one random change of random strength to each image.

Müller and Hutter, "TrivialAugment: Tuning-free Yet State-of-the-Art Data Augmentation" (2021), in
their wide space, which the authors of VECA train with. One of 14 changes is drawn, one of 31
strengths from nothing to the most, and for half of them a sign. What comes in from outside is black
and pixels are moved whole, never blended.

Translations are up to 32 pixels whatever the size of the image, as the space is defined: a quarter
of an image of 128 pixels, an eighth of one of 256.
"""

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from PIL import Image, ImageEnhance, ImageOps

STRENGTHS = 31
"""Steps from nothing to the most."""

MOST_SHEAR = 0.99
"""Pixels along one side for each pixel along the other."""

MOST_PIXELS = 32.0

MOST_DEGREES = 135.0

MOST_ENHANCEMENT = 0.99
"""How far a factor of colour or sharpness goes from 1."""

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
    """Turn counter-clockwise by degrees."""
    return image.rotate(strength, Image.Resampling.NEAREST, fillcolor=(0, 0, 0))


def _enhanced(
    enhancer: Callable[[Image.Image], ImageEnhance._Enhance], image: Image.Image, strength: float
) -> Image.Image:
    """Away from, or towards, what Pillow takes for the image without that quality."""
    return enhancer(image).enhance(1 + strength)


def _posterize(image: Image.Image, bits: float) -> Image.Image:
    """Keep the highest bits of each colour."""
    return ImageOps.posterize(image, int(bits))


def _solarize(image: Image.Image, threshold: float) -> Image.Image:
    """Invert the colours from a threshold on."""
    return ImageOps.solarize(image, threshold)  # type: ignore[arg-type] # compares only


def _autocontrast(image: Image.Image, _: float) -> Image.Image:
    """Stretch each colour to the full range."""
    return ImageOps.autocontrast(image)


def _equalize(image: Image.Image, _: float) -> Image.Image:
    """Make all values of each colour equally frequent."""
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
            ("colour", ImageEnhance.Color),
            ("contrast", ImageEnhance.Contrast),
            ("sharpness", ImageEnhance.Sharpness),
        )
    ),
    Operation("posterize", _posterize, BITS),
    Operation("solarize", _solarize, _steps(255.0, 0.0)),
    Operation("autocontrast", _autocontrast),
    Operation("equalize", _equalize),
)
