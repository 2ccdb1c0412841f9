"""Every change of TrivialAugmentWide is what its name says, and all are drawn alike."""

import math
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from tests.data.corpus import photo
from veca.data.augment import OPERATIONS, Operation, draw_operation, trivial_augment

PIXELS = photo(24, 36)
NOISE = np.random.default_rng(3).integers(20, 230, (24, 36, 3)).astype(np.uint8)
BY_NAME = {operation.name: operation for operation in OPERATIONS}

Pixels = NDArray[Any]
Oracle = Callable[[Pixels, float], Pixels]


def changed(name: str, pixels: Pixels, strength: float) -> Pixels:
    return np.asarray(BY_NAME[name].change(Image.fromarray(pixels), strength)).astype(int)


def moved(pixels: Pixels, place: Callable[[float, float], tuple[float, float]]) -> Pixels:
    """Each new pixel is the old one at the place from which its center comes, or black."""
    height, width, _ = pixels.shape
    result = np.zeros_like(pixels)
    for row in range(height):
        for column in range(width):
            x, y = place(column + 0.5, row + 0.5)
            if 0 <= x < width and 0 <= y < height:
                result[row, column] = pixels[int(y), int(x)]
    return result


def rotated(pixels: Pixels, degrees: float) -> Pixels:
    """Counter-clockwise about the middle; y grows downwards."""
    height, width, _ = pixels.shape
    cosine, sine = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))

    def place(x: float, y: float) -> tuple[float, float]:
        x, y = x - width / 2, y - height / 2
        return cosine * x - sine * y + width / 2, sine * x + cosine * y + height / 2

    return moved(pixels, place)


def blended(without: Pixels, pixels: Pixels, strength: float) -> Pixels:
    """From what lacks a quality through the image, and beyond it."""
    return np.clip(without + (1 + strength) * (pixels - without), 0, 255)


def grays(pixels: Pixels) -> Pixels:
    return np.rint(pixels @ np.array([0.299, 0.587, 0.114]))


def smooth(pixels: Pixels) -> Pixels:
    """The middle weighs 5, each neighbor 1; the border stays."""
    total = 4.0 * pixels
    for down in (-1, 0, 1):
        for across in (-1, 0, 1):
            total = total + np.roll(pixels, (down, across), (0, 1))
    result = pixels.astype(float)
    result[1:-1, 1:-1] = np.rint(total / 13)[1:-1, 1:-1]
    return result


def stretched(pixels: Pixels, _: float) -> Pixels:
    low, high = pixels.min((0, 1)), pixels.max((0, 1))
    return (pixels - low) * (255 / (high - low))


def equalized(pixels: Pixels, _: float) -> Pixels:
    """Each value becomes its rank, counted in steps of equal size."""
    result = np.zeros(pixels.shape)
    for band in range(3):
        values = pixels[..., band]
        step = (values.size - np.count_nonzero(values == values.max())) // 255
        for value in np.unique(values) if step else ():
            below = np.count_nonzero(values < value)
            result[values == value, band] = np.minimum((below + step // 2) // step, 255)
        if not step:
            result[..., band] = values
    return result


ORACLES: dict[str, tuple[Oracle, int]] = {
    "identity": (lambda pixels, _: pixels, 0),
    "shear x": (lambda pixels, s: moved(pixels, lambda x, y: (x + s * y, y)), 0),
    "shear y": (lambda pixels, s: moved(pixels, lambda x, y: (x, y + s * x)), 0),
    "translate x": (lambda pixels, s: moved(pixels, lambda x, y: (x - int(s), y)), 0),
    "translate y": (lambda pixels, s: moved(pixels, lambda x, y: (x, y - int(s))), 0),
    "rotate": (rotated, 0),
    "brightness": (lambda pixels, s: blended(np.zeros(pixels.shape), pixels, s), 1),
    "color": (lambda pixels, s: blended(grays(pixels)[..., None], pixels, s), 2),
    "contrast": (lambda pixels, s: blended(np.rint(grays(pixels).mean()), pixels, s), 2),
    "sharpness": (lambda pixels, s: blended(smooth(pixels), pixels, s), 2),
    "posterize": (lambda pixels, bits: pixels // 2 ** (8 - bits) * 2 ** (8 - bits), 0),
    "solarize": (lambda pixels, s: np.where(pixels < s, pixels, 255 - pixels), 0),
    "autocontrast": (stretched, 1),
    "equalize": (equalized, 0),
}
"""What each change is, written out, and by how many steps of 255 Pillow may round otherwise."""


@pytest.mark.parametrize("pixels", [PIXELS, NOISE], ids=["photo", "noise"])
@pytest.mark.parametrize("operation", OPERATIONS, ids=[operation.name for operation in OPERATIONS])
def test_a_change_is_what_its_name_says_at_every_strength(
    operation: Operation, pixels: Pixels
) -> None:
    oracle, tolerance = ORACLES[operation.name]
    signs = (1, -1) if operation.signed else (1,)
    for strength in operation.strengths:
        for sign in signs:
            found = changed(operation.name, pixels, sign * strength)
            expected = oracle(pixels.astype(int), sign * strength)
            right = np.abs(found - expected).max(axis=2) <= tolerance
            # A quarter turn brings centers onto borders, from which they may fall either way.
            assert right.mean() >= (0.97 if operation.name == "rotate" else 1)


def test_equalizing_spreads_values_that_are_frequent_enough_to_be_spread() -> None:
    pixels = np.random.default_rng(0).integers(90, 110, (64, 64, 3)).astype(np.uint8)
    found = changed("equalize", pixels, 0.0)
    assert np.array_equal(found, equalized(pixels.astype(int), 0.0))
    assert found.min() < 10
    assert found.max() > 245


def test_the_space_is_the_wide_one() -> None:
    ends = {
        operation.name: (
            operation.strengths[0],
            operation.strengths[-1],
            len(operation.strengths),
            operation.signed,
        )
        for operation in OPERATIONS
    }
    one, signed = (0.0, 0.0, 1, False), True
    assert ends == {
        "identity": one,
        "shear x": (0, 0.99, 31, signed),
        "shear y": (0, 0.99, 31, signed),
        "translate x": (0, 32, 31, signed),
        "translate y": (0, 32, 31, signed),
        "rotate": (0, 135, 31, signed),
        "brightness": (0, 0.99, 31, signed),
        "color": (0, 0.99, 31, signed),
        "contrast": (0, 0.99, 31, signed),
        "sharpness": (0, 0.99, 31, signed),
        "posterize": (8, 2, 31, False),
        "solarize": (255, 0, 31, False),
        "autocontrast": one,
        "equalize": one,
    }
    expected = [8] * 3 + [7] * 5 + [6] * 5 + [5] * 5 + [4] * 5 + [3] * 5 + [2] * 3
    assert list(BY_NAME["posterize"].strengths) == expected
    assert BY_NAME["rotate"].strengths[10] == pytest.approx(45)


def test_kinds_strengths_and_signs_are_drawn_alike() -> None:
    draw, rounds = random.Random("frequencies"), 62_000
    drawn = [draw_operation(draw) for _ in range(rounds)]

    def check(counts: Counter[Any], kinds: int) -> None:
        """Within five standard deviations of what equal chances give."""
        total = counts.total()
        expected = total / kinds
        assert len(counts) == kinds
        spread = 5 * math.sqrt(expected * (1 - 1 / kinds))
        assert all(abs(count - expected) < spread for count in counts.values())

    check(Counter(operation.name for operation, _ in drawn), 14)
    signed = [strength for operation, strength in drawn if operation.name == "rotate"]
    check(Counter(round(abs(strength), 6) for strength in signed), 31)
    check(Counter(strength > 0 for strength in signed if strength), 2)
    unsigned = [strength for operation, strength in drawn if operation.name == "solarize"]
    assert min(unsigned) == 0
    check(Counter(unsigned), 31)


def test_the_same_numbers_give_the_same_change() -> None:
    image = Image.fromarray(PIXELS)
    found = [trivial_augment(image, random.Random(f"{seed}")).tobytes() for seed in range(60)]
    again = [trivial_augment(image, random.Random(f"{seed}")).tobytes() for seed in range(60)]
    assert found == again
    assert len(set(found)) > 40


def test_a_change_keeps_size_and_mode_and_leaves_its_input_alone() -> None:
    for size in ((1, 1), (1, 40), (64, 64)):
        image = Image.fromarray(photo(*size))
        before = image.tobytes()
        for seed in range(100):
            found = trivial_augment(image, random.Random(seed))
            assert (found.size, found.mode) == (image.size, "RGB")
        assert image.tobytes() == before


def test_every_draw_takes_three_numbers() -> None:
    for seed in range(50):
        draw, other = random.Random(seed), random.Random(seed)
        draw_operation(draw)
        for _ in range(3):
            other.random()
        assert draw.random() == other.random()
