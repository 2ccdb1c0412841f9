"""Views and TrivialAugment equal slow oracles and are drawn from stable streams."""

import io
import math
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from tests.data.corpus import photo
from veca.data.augment import (
    OPERATIONS,
    Operation,
    ViewConfig,
    center_view,
    draw_operation,
    inner_view,
    min_side,
    training_view,
)
from veca.data.images import DataError, DecodedImage, decode, image_from_array
from veca.data.transforms import IMAGENET, prepare

PLAIN = ViewConfig(flip=0.0, trivial_augment=False)
SIDES = [(40, 56), (56, 40), (33, 33), (9, 200), (300, 211)]
MIDDLE = 0.5


class Fixed(random.Random):
    """Draws the same number again and again."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def random(self) -> float:
        return self.value


def scaled(picture: DecodedImage, resolution: int, margin: float) -> Tensor:
    """The whole image with its short side at `margin` views."""
    height, width = picture.sides
    factor = round(resolution * margin) / min(height, width)
    sides = int(height * factor + 0.5), int(width * factor + 0.5)
    return picture.resampled(sides, (0.0, 0.0, float(width), float(height))).pixels()


def agree(found: Tensor, expected: Tensor) -> bool:
    """Whether nearly all pixels are equal and the rest one step apart."""
    difference = (found.int() - expected.int()).abs()
    return bool(difference.max() <= 1 and (difference == 0).float().mean() > 0.99)


@pytest.mark.parametrize(("margin", "resolution"), [(1.0, 16), (1.125, 48), (2.0, 16)])
@pytest.mark.parametrize("sides", SIDES)
def test_a_view_is_a_crop_of_the_scaled_image_at_a_whole_pixel(
    sides: tuple[int, int], resolution: int, margin: float
) -> None:
    picture = image_from_array(photo(*sides))
    whole = scaled(picture, resolution, margin)
    config = ViewConfig(flip=0.0, trivial_augment=False, margin=margin)
    for value in (0.0, 0.3, MIDDLE, 0.999999):
        top, left = (int(value * (side - resolution + 1)) for side in whole.shape[1:])
        expected = whole[:, top : top + resolution, left : left + resolution]
        assert agree(training_view(picture, resolution, Fixed(value), config), expected)


@pytest.mark.parametrize("sides", SIDES)
def test_a_center_view_is_the_middle(sides: tuple[int, int]) -> None:
    picture = image_from_array(photo(*sides))
    whole = scaled(picture, 32, 1.125)
    top, left = ((side - 32) // 2 for side in whole.shape[1:])
    found = center_view(picture, 32, ViewConfig())
    assert agree(found, whole[:, top : top + 32, left : left + 32])
    assert torch.equal(found, center_view(picture, 32, ViewConfig(crop="random-resized")))


def test_a_center_view_without_margin_equals_fit_crop() -> None:
    pixels = photo(60, 90)
    expected = IMAGENET.normalize(center_view(image_from_array(pixels), 32, ViewConfig(margin=1.0)))
    assert torch.equal(prepare(pixels, 32, "crop").pixels, expected)


def test_positions_are_drawn_uniformly() -> None:
    across = np.tile(np.arange(72, dtype=np.uint8)[None, :, None], (72, 1, 3))
    down = across.swapaxes(0, 1)
    for pixels, corner in ((across, (0, 0, 3)), (down, (0, 3, 0))):
        picture = image_from_array(np.ascontiguousarray(pixels))
        draw = random.Random("places")
        views = [training_view(picture, 64, draw, PLAIN) for _ in range(900)]
        counts = np.bincount([int(view[corner]) - 3 for view in views], minlength=9)
        assert len(counts) == 9
        assert np.abs(counts - 100).max() < 50


def test_a_flipped_view_shows_the_same_part() -> None:
    picture = image_from_array(photo(50, 70))
    mirrored = ViewConfig(flip=1.0, trivial_augment=False)
    found = training_view(picture, 32, random.Random(1), mirrored)
    assert torch.equal(found.flip(2), training_view(picture, 32, random.Random(1), PLAIN))


def test_flip_is_the_share_of_mirrored_views() -> None:
    picture = image_from_array(np.repeat(np.arange(32, dtype=np.uint8)[None, :, None], 32, 0))
    config = ViewConfig(flip=0.3, trivial_augment=False, margin=1.0)
    draw = random.Random("mirror")
    views = [training_view(picture, 32, draw, config) for _ in range(1000)]
    assert 250 < sum(int(view[0, 0, 0]) == 31 for view in views) < 350


def test_trivial_augment_is_applied_to_the_crop() -> None:
    picture = image_from_array(photo(80, 80))
    changed = [training_view(picture, 32, random.Random(seed), ViewConfig()) for seed in range(40)]
    plain = ViewConfig(trivial_augment=False)
    unchanged = [training_view(picture, 32, random.Random(seed), plain) for seed in range(40)]
    same = [torch.equal(one, other) for one, other in zip(changed, unchanged, strict=True)]
    assert 0 < sum(same) < 20  # some draws change nothing


@given(
    height=st.integers(1, 300),
    width=st.integers(1, 300),
    resolution=st.integers(1, 70),
    seed=st.integers(0, 9),
    crop=st.sampled_from(["resized", "random-resized"]),
)
def test_an_image_of_any_size_gives_the_same_view_of_the_resolution_again(
    height: int, width: int, resolution: int, seed: int, crop: Any
) -> None:
    picture = image_from_array(np.full((height, width, 3), 7, np.uint8))
    config = ViewConfig(crop=crop)
    found = training_view(picture, resolution, random.Random(seed), config)
    assert found.shape == (3, resolution, resolution)
    assert found.dtype == torch.uint8
    assert torch.equal(found, training_view(picture, resolution, random.Random(seed), config))


def shown(view: Tensor, sides: tuple[int, int]) -> tuple[float, float, float, float]:
    """The part of `ramp` in a view: left, top, right, bottom as shares of the sides."""
    colors = view.numpy().astype(float) / 250
    left, right = colors[0].mean(0)[[0, -1]]
    top, bottom = colors[1].mean(1)[[0, -1]]
    half = 0.5 * (right - left) / (view.shape[2] - 1), 0.5 * (bottom - top) / (view.shape[1] - 1)
    return left - half[0], top - half[1], right + half[0], bottom + half[1]


def ramp(height: int, width: int) -> NDArray[Any]:
    """Red is the x position of a pixel as a share of the width, green the y position."""
    y, x = np.mgrid[0:height, 0:width]
    bands = [250 * (x + 0.5) / width, 250 * (y + 0.5) / height, np.zeros((height, width))]
    return (np.stack(bands, -1) / 255).astype(np.float32)


def test_random_resized_views_have_the_areas_and_aspect_ratios_of_the_config() -> None:
    height, width = 300, 400
    picture = image_from_array(ramp(height, width))
    config = ViewConfig(crop="random-resized", flip=0.0, trivial_augment=False)
    areas, aspects = [], []
    for seed in range(300):
        view = training_view(picture, 24, random.Random(seed), config)
        left, top, right, bottom = shown(view, (height, width))
        assert min(left, top) > -0.01
        assert max(right, bottom) < 1.01
        areas.append((right - left) * (bottom - top))
        aspects.append((right - left) * width / ((bottom - top) * height))
    assert 0.29 < min(areas) < 0.33
    assert 0.8 < max(areas) < 1.01
    assert 0.73 < min(aspects) < 0.78
    assert 1.28 < max(aspects) < 1.36


@pytest.mark.parametrize("sides", [(20, 400), (400, 20)])
def test_the_middle_is_taken_if_no_box_fits(
    sides: tuple[int, int],
) -> None:
    config = ViewConfig(
        crop="random-resized", flip=0.0, trivial_augment=False, area=(0.9, 1.0), aspect=(0.5, 2.0)
    )
    view = training_view(image_from_array(ramp(*sides)), 24, random.Random(0), config)
    left, top, right, bottom = shown(view, sides)
    part = (left, right) if sides[1] > sides[0] else (top, bottom)
    whole = (top, bottom) if sides[1] > sides[0] else (left, right)
    assert part == pytest.approx((0.45, 0.55), abs=0.02)
    assert whole == pytest.approx((0.0, 1.0), abs=0.02)


@pytest.mark.parametrize("channels", [1, 3])
def test_16_bit_images_become_8_bit_views(channels: int) -> None:
    pixels = photo(50, 60)[..., :channels]
    fine = image_from_array(pixels.astype(np.uint16) * 257)
    coarse = image_from_array(np.repeat(pixels, 3 // channels, 2))
    for draw in (random.Random(4), random.Random(5)):
        state = draw.getstate()
        found = training_view(fine, 32, draw, PLAIN)
        draw.setstate(state)
        expected = training_view(coarse, 32, draw, PLAIN)
        assert found.dtype == torch.uint8
        assert (found.int() - expected.int()).abs().max() <= 1


@pytest.mark.parametrize("config", [ViewConfig(), ViewConfig(crop="random-resized")])
def test_a_jpeg_decoded_smaller_gives_nearly_the_same_views(config: ViewConfig) -> None:
    file = io.BytesIO()
    smooth = Image.fromarray(photo(90, 120)).resize((1200, 900), Image.Resampling.BICUBIC)
    smooth.save(file, "JPEG", quality=95)
    small = decode(file.getvalue(), min_side=min_side(32, config))
    assert min_side(32, config) <= min(small.sides) < 900
    for crop in (config, PLAIN):
        expected = center_view(decode(file.getvalue()), 32, crop)
        found = center_view(small, 32, crop)
        assert (found.int() - expected.int()).abs().float().mean() < 1


def test_min_side_leaves_two_pixels_per_pixel_of_the_smallest_box() -> None:
    assert min_side(128, ViewConfig()) == 288
    wide = ViewConfig(crop="random-resized", area=(0.25, 1.0), aspect=(1.0, 1.0))
    assert min_side(100, wide) == 400
    narrow = ViewConfig(crop="random-resized", area=(1.0, 1.0), aspect=(0.25, 1.0))
    assert min_side(100, narrow) == 400


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        pytest.param({"crop": "center"}, "or 'random-resized'", marks=pytest.mark.compiled),
        ({"margin": 0.9}, ">= 1"),
        ({"margin": float("nan")}, ">= 1"),
        ({"flip": 1.5}, "in 0"),
        ({"area": (0.0, 1.0)}, "0 < low"),
        ({"area": (0.5, 0.4)}, "0 < low"),
        ({"area": (0.5, 1.4)}, "<= 1"),
        ({"aspect": (-1.0, 1.0)}, "0 < low"),
        ({"aspect": (1.0, float("inf"))}, "0 < low"),
    ],
)
def test_invalid_configs_are_refused(choices: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        ViewConfig(**choices)


UNSCALED = ViewConfig(flip=0.0, trivial_augment=False, margin=2.0)
"""Views of 32 pixels show an image of 64 unscaled."""


@pytest.mark.parametrize(("place", "start"), [(MIDDLE, 16), (0.0, 0), (0.999999, 32)])
def test_a_margin_shows_more_of_the_image_and_mirrors_it_beyond_its_borders(
    place: float, start: int
) -> None:
    pixels = photo(64, 64)
    padded = np.pad(pixels, ((40, 40), (40, 40), (0, 0)), mode="symmetric")
    around = slice(40 + start - 12, 40 + start + 32 + 12)
    found = training_view(image_from_array(pixels), 32, Fixed(place), UNSCALED, margin=12)
    assert np.array_equal(found.permute(1, 2, 0).numpy(), padded[around, around])
    if place == MIDDLE:  # within the image
        assert np.array_equal(found.permute(1, 2, 0).numpy(), pixels[4:60, 4:60])


def test_a_margin_within_the_image_equals_pillow_on_the_larger_box() -> None:
    pixels = photo(300, 211)
    config = ViewConfig(flip=0.0, trivial_augment=False, margin=3.0)  # 211 pixels become 96
    found = center_view(image_from_array(pixels), 32, config, margin=16)
    scale = 211 / 96
    top, left = ((round(side / scale) - 32) // 2 - 16 for side in (300, 211))
    box = (left * scale, top * 300 / 136, (left + 64) * scale, (top + 64) * 300 / 136)
    expected = Image.fromarray(pixels).resize((64, 64), Image.Resampling.BICUBIC, box=box)
    difference = found.permute(1, 2, 0).numpy().astype(int) - np.asarray(expected)
    assert np.abs(difference).max() <= 1


@pytest.mark.parametrize("crop", ["resized", "random-resized"])
@pytest.mark.parametrize("flip", [0.0, 1.0])
def test_a_margin_does_not_change_the_inner_view(crop: Any, flip: float) -> None:
    picture = image_from_array(photo(200, 260))
    config = ViewConfig(crop=crop, flip=flip, trivial_augment=False, area=(0.1, 0.3))
    for seed in range(5):
        outer = training_view(picture, 32, random.Random(seed), config, margin=8)
        alone = training_view(picture, 32, random.Random(seed), config)
        assert outer.shape == (3, 48, 48)
        assert torch.equal(inner_view(outer, 32), outer[:, 8:40, 8:40])
        # The filter sees mirrored pixels at the border now.
        difference = (inner_view(outer, 32).int() - alone.int()).abs()[:, 2:-2, 2:-2]
        assert difference.max() <= 2


PIXELS = photo(24, 36)
NOISE = np.random.default_rng(3).integers(20, 230, (24, 36, 3)).astype(np.uint8)
BY_NAME = {operation.name: operation for operation in OPERATIONS}

Pixels = NDArray[Any]
Oracle = Callable[[Pixels, float], Pixels]


def changed(name: str, pixels: Pixels, strength: float) -> Pixels:
    return np.asarray(BY_NAME[name].apply(Image.fromarray(pixels), strength)).astype(int)


def moved(pixels: Pixels, place: Callable[[float, float], tuple[float, float]]) -> Pixels:
    """Each new pixel is the old one that its center comes from, or black."""
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
    """Blend the image with one that lacks a quality."""
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
"""Each operation written out, and by how many steps of 255 Pillow may round differently."""


@pytest.mark.parametrize("pixels", [PIXELS, NOISE], ids=["photo", "noise"])
@pytest.mark.parametrize("operation", OPERATIONS, ids=[operation.name for operation in OPERATIONS])
def test_operations_equal_their_oracles_at_every_strength(
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


def test_the_space_is_that_of_trivial_augment_wide() -> None:
    signed: dict[str, tuple[float, float]] = dict.fromkeys(
        ("shear x", "shear y", "brightness", "color", "contrast"), (0, 0.99)
    )
    signed |= {"sharpness": (0, 0.99), "translate x": (0, 32), "translate y": (0, 32)}
    signed |= {"rotate": (0, 135)}
    unsigned: dict[str, tuple[float, float]] = {"posterize": (8, 2), "solarize": (255, 0)}
    assert set(BY_NAME) == {*signed, *unsigned, "identity", "autocontrast", "equalize"}
    for operation in OPERATIONS:
        ends: tuple[float, float] = (signed | unsigned).get(operation.name, (0, 0))
        assert (operation.strengths[0], operation.strengths[-1]) == ends
        assert len(operation.strengths) == (31 if any(ends) else 1)
        assert operation.signed == (operation.name in signed)
    expected = [8] * 3 + [7] * 5 + [6] * 5 + [5] * 5 + [4] * 5 + [3] * 5 + [2] * 3
    assert list(BY_NAME["posterize"].strengths) == expected
    assert BY_NAME["rotate"].strengths[10] == pytest.approx(45)


def test_operations_strengths_and_signs_are_drawn_uniformly() -> None:
    draw, rounds = random.Random("frequencies"), 31_000
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


def test_every_draw_takes_three_random_numbers() -> None:
    for seed in range(50):
        draw, other = random.Random(seed), random.Random(seed)
        draw_operation(draw)
        for _ in range(3):
            other.random()
        assert draw.random() == other.random()
