"""Training views show a picture and its classes at the same places, and follow from their draw."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from tests.data.corpus import photo
from veca.data.images import image_from_array
from veca.data.sets.dataset import IGNORE_INDEX
from veca.probe.protocols import SegmentationAugment
from veca.probe.transforms import (
    PADDING,
    distorted,
    drawn_corner,
    nearest_part,
    scaled_sides,
    segmentation_crop,
)

PLAIN = SegmentationAugment(scales=(1.0, 1.0), flip=0.0, distorted=0.0, tries=1)


def stripes(height: int, width: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """A picture of flat areas of some pixels, each of its own class and gray."""
    mask = (np.arange(height)[:, None] // 12 * 4 + np.arange(width) // 12 % 4).astype(np.uint8)
    return np.repeat((40 + 8 * mask)[:, :, None], 3, 2), mask


def test_a_view_of_the_pictures_own_scale_is_a_cut() -> None:
    pixels, _ = stripes(40, 64)
    mask = np.random.default_rng(0).integers(0, 9, (40, 64)).astype(np.uint8)
    found = segmentation_crop(image_from_array(pixels), mask, 40, random.Random(3), PLAIN)
    lefts = [
        left for left in range(25) if (mask[:, left : left + 40] == found.target.numpy()).all()
    ]
    assert len(lefts) == 1
    expected = pixels[:, lefts[0] : lefts[0] + 40]
    np.testing.assert_array_equal(found.image.permute(1, 2, 0).numpy(), expected)


@given(seed=st.integers(0, 1000), flip=st.sampled_from([0.0, 1.0]))
def test_colors_and_classes_stay_together(seed: int, flip: float) -> None:
    pixels, mask = stripes(50, 70)
    augment = replace(PLAIN, scales=(0.5, 2.0), flip=flip, tries=10)
    image, target = segmentation_crop(
        image_from_array(pixels), mask, 48, random.Random(seed), augment
    )
    inside = target != IGNORE_INDEX
    told = (image[0].int() - 40) / 8
    close = (told[inside] - target[inside]).abs() < 0.5
    assert close.float().mean() > 0.6  # but for the edges, which are blurred
    padding = torch.tensor(PADDING, dtype=torch.uint8)[:, None]
    assert torch.equal(image[:, ~inside], padding.expand(-1, int((~inside).sum())))


def test_a_small_picture_is_padded_on_the_right_and_below() -> None:
    pixels, mask = stripes(40, 60)
    augment = replace(PLAIN, scales=(0.5, 0.5))
    image, target = segmentation_crop(image_from_array(pixels), mask, 48, random.Random(0), augment)
    assert (target[:24, :36] != IGNORE_INDEX).all()
    assert (target[24:] == IGNORE_INDEX).all()
    assert (target[:, 36:] == IGNORE_INDEX).all()
    assert image.shape == (3, 48, 48)


def test_a_view_follows_from_its_draw() -> None:
    picture = image_from_array(photo(60, 80))
    mask = np.random.default_rng(1).integers(0, 5, (60, 80)).astype(np.uint8)
    augment = SegmentationAugment()
    first, again, other = (
        segmentation_crop(picture, mask, 32, random.Random(seed), augment) for seed in (5, 5, 6)
    )
    assert torch.equal(first.image, again.image)
    assert torch.equal(first.target, again.target)
    assert not torch.equal(first.image, other.image)


def test_a_place_where_one_class_rules_is_drawn_again() -> None:
    mask = np.zeros((40, 200), np.uint8)
    mask[:, :20] = 1  # only views from the far left show both
    picture = image_from_array(np.zeros((40, 200, 3), np.uint8))
    once, often = (
        sum(
            len(np.unique(segmentation_crop(picture, mask, 40, random.Random(s), augment).target))
            for s in range(60)
        )
        for augment in (PLAIN, replace(PLAIN, tries=10))
    )
    assert often > once + 15


def test_pixels_that_do_not_count_are_no_class_that_rules() -> None:
    mask = np.full((40, 40), IGNORE_INDEX, np.uint8)
    view = segmentation_crop(
        image_from_array(np.zeros((40, 40, 3), np.uint8)), mask, 40, random.Random(0), PLAIN
    )
    assert (view.target == IGNORE_INDEX).all()


@given(
    sides=st.tuples(st.integers(3, 30), st.integers(3, 30)),
    scaled=st.tuples(st.integers(3, 60), st.integers(3, 60)),
    seed=st.integers(0, 99),
)
def test_a_new_pixel_has_the_class_under_its_center(
    sides: tuple[int, int], scaled: tuple[int, int], seed: int
) -> None:
    mask = np.arange(sides[0] * sides[1], dtype=np.float32).reshape(sides)
    part = 1 + seed % scaled[0], 1 + seed % scaled[1]
    top, left = drawn_corner(scaled, part, random.Random(seed))
    found = nearest_part(mask, scaled, (top, left), part)
    for row in range(part[0]):
        for column in range(part[1]):
            down = int((top + row + 0.5) * sides[0] / scaled[0] + 1e-9)
            across = int((left + column + 0.5) * sides[1] / scaled[1] + 1e-9)
            assert found[row, column] == mask[down, across]


def test_sides_are_scaled_to_whole_pixels() -> None:
    assert scaled_sides((100, 151), 0.5) == (50, 76)
    assert scaled_sides((10, 1), 0.1) == (1, 1)


EVERY = replace(SegmentationAugment(), distorted=1.0)
FLAT = Image.new("RGB", (4, 4), (100, 150, 50))


@pytest.mark.parametrize(
    ("change", "least", "most"),
    [
        ({"contrast": (1.0, 1.0), "saturation": (1.0, 1.0), "hue": 0.0}, 68, 182),
        ({"brightness": 0.0, "saturation": (1.0, 1.0), "hue": 0.0}, 25, 225),
    ],
)
def test_brightness_and_contrast_stay_in_their_ranges(
    change: dict[str, object], least: int, most: int
) -> None:
    augment = replace(EVERY, **change)  # type: ignore[arg-type]
    seen = [np.asarray(distorted(FLAT, random.Random(seed), augment)) for seed in range(50)]
    values = np.stack(seen).astype(int)
    assert values.min() >= least - 50
    assert values[..., 1].max() <= most + 3
    assert len(np.unique(values[..., 1])) > 20
    order = values[:, 0, 0]
    assert (order[:, 1] >= order[:, 0]).all()
    assert (order[:, 0] >= order[:, 2]).all()


def test_without_saturation_colors_are_gray_and_a_turn_of_the_hue_is_none() -> None:
    still = replace(EVERY, brightness=0.0, contrast=(1.0, 1.0))
    gray = distorted(FLAT, random.Random(0), replace(still, saturation=(0.0, 0.0), hue=0.0))
    assert len(set(np.asarray(gray)[0, 0].tolist())) == 1
    same = distorted(FLAT, random.Random(0), replace(still, saturation=(1.0, 1.0), hue=0.0))
    assert np.abs(np.asarray(same).astype(int) - np.asarray(FLAT)).max() <= 3


def test_hues_turn_and_keep_their_brightness() -> None:
    turned = replace(EVERY, brightness=0.0, contrast=(1.0, 1.0), saturation=(1.0, 1.0), hue=0.5)
    seen = {
        tuple(np.asarray(distorted(FLAT, random.Random(seed), turned))[0, 0].tolist())
        for seed in range(40)
    }
    assert len({np.argmax(color) for color in seen}) == 3  # red, green and blue lead in turn
    assert all(abs(max(color) - 150) <= 3 for color in seen)


def test_nothing_is_distorted_where_none_should_be() -> None:
    nothing = replace(EVERY, distorted=0.0)
    assert distorted(FLAT, random.Random(0), nothing) is FLAT
