"""Pictures of what dense heads tell: tints, legends and scales show what the numbers say."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from veca.data.sets.dataset import IGNORE_INDEX
from veca.probe import overlay
from veca.probe.overlay import (
    LINE,
    MARGIN,
    PAPER,
    STRENGTH,
    UNKNOWN_COLOR,
    class_colors,
    depth_colors,
    depth_map,
    scale_ticks,
    segmentation_overlay,
)

NAMES = ["background", "cat", "dog"]
SIDE = 480  # large enough not to be enlarged
GRAY = (100, 100, 100)


def picture(height: int = SIDE, width: int = SIDE) -> Image.Image:
    return Image.new("RGB", (width, height), GRAY)


def pixel(drawn: Image.Image, row: int, column: int) -> tuple[int, ...]:
    """A pixel of the picture within the sheet."""
    return tuple(np.asarray(drawn)[MARGIN + row, MARGIN + column].tolist())


def tint(number: int) -> tuple[int, ...]:
    """The color of a class over the gray picture."""
    mixed = (1 - STRENGTH) * np.array(GRAY) + STRENGTH * class_colors(3)[number]
    return tuple(np.rint(mixed).astype(int).tolist())


def test_classes_are_tinted_and_background_is_not() -> None:
    classes = np.zeros((SIDE, SIDE), np.uint8)
    classes[100:200, 100:200], classes[300:] = 1, 2
    drawn = segmentation_overlay(picture(), classes, NAMES)
    assert pixel(drawn, 50, 50) == GRAY
    assert pixel(drawn, 150, 150) == tint(1)
    assert pixel(drawn, 400, 50) == tint(2)


def test_borders_between_classes_are_drawn() -> None:
    classes = np.zeros((SIDE, SIDE), np.uint8)
    classes[:, 240:] = 1
    drawn = segmentation_overlay(picture(), classes, NAMES)
    assert pixel(drawn, 10, 239) == PAPER
    assert pixel(drawn, 10, 238) == GRAY
    assert pixel(drawn, 10, 240) == tint(1)


def test_pixels_that_do_not_count_stay_as_they_are() -> None:
    drawn = segmentation_overlay(picture(), np.full((SIDE, SIDE), IGNORE_INDEX, np.uint8), NAMES)
    assert pixel(drawn, 5, 5) == GRAY


def swatches(drawn: Image.Image, count: int) -> list[tuple[int, ...]]:
    """Colors of the legend, from its top."""
    left = SIDE + 2 * MARGIN + 4
    pixels = np.asarray(drawn)
    return [tuple(pixels[MARGIN + LINE * line + LINE // 2, left].tolist()) for line in range(count)]


def test_the_legend_has_the_classes_that_are_present_the_largest_first() -> None:
    classes = np.full((SIDE, SIDE), 2, np.uint8)
    classes[:10] = 1
    drawn = segmentation_overlay(picture(), classes, NAMES)
    cat, dog = (tuple(color.tolist()) for color in class_colors(3)[1:])
    assert swatches(drawn, 3) == [dog, cat, PAPER]


def test_a_sheet_grows_where_there_are_many_classes() -> None:
    classes = np.arange(SIDE * SIDE).reshape(SIDE, SIDE).astype(np.uint8) % 100
    drawn = segmentation_overlay(picture(), classes, [f"class {n}" for n in range(100)])
    assert drawn.height == 100 * LINE + 2 * MARGIN


def test_small_pictures_are_enlarged_by_a_whole_factor() -> None:
    classes = np.zeros((50, 64), np.uint8)
    classes[:, 32:] = 1
    drawn = segmentation_overlay(picture(50, 64), classes, NAMES)
    factor = -(-overlay.LEAST_SIDE // 64)
    assert drawn.height == 50 * factor + 2 * MARGIN
    assert pixel(drawn, 100, 32 * factor + 8) == tint(1)


def test_a_class_without_a_name_is_refused() -> None:
    with pytest.raises(ValueError, match="class 7 has no name among the 3"):
        segmentation_overlay(picture(), np.full((SIDE, SIDE), 7, np.uint8), NAMES)


def test_maps_of_another_size_are_refused() -> None:
    with pytest.raises(ValueError, match=r"480 x 480 pixels .* map 10 x 20"):
        segmentation_overlay(picture(), np.zeros((10, 20), np.uint8), NAMES)
    with pytest.raises(ValueError, match=r"480 x 480 pixels .* map 10 x 20"):
        depth_map(np.ones((10, 20), np.float32), picture())


def test_depth_has_the_colors_of_the_scale() -> None:
    meters = np.linspace(1.0, 5.0, SIDE, dtype=np.float32)[:, None].repeat(SIDE, axis=1)
    drawn = depth_map(meters)
    near, far = (tuple(depth_colors(np.array(share)).tolist()) for share in (0.0, 1.0))
    assert pixel(drawn, 0, 0) == near
    assert pixel(drawn, SIDE - 1, 0) == far
    bar = 2 * MARGIN + SIDE - MARGIN + 4  # the scale has near at its lower end
    assert pixel(drawn, 0, bar) == far
    assert pixel(drawn, SIDE - 1, bar) == near


def test_given_limits_make_maps_comparable() -> None:
    maps = [np.full((SIDE, SIDE), value, np.float32) for value in (2.0, 4.0)]
    alone = [pixel(depth_map(item), 0, 0) for item in maps]
    together = [pixel(depth_map(item, limits=(0.0, 8.0)), 0, 0) for item in maps]
    assert alone[0] == alone[1]
    assert together[0] == tuple(depth_colors(np.array(0.25)).tolist())
    assert together[1] == tuple(depth_colors(np.array(0.5)).tolist())


@pytest.mark.parametrize("unknown", [0.0, -1.0, np.nan, np.inf])
def test_unknown_depth_is_gray_and_does_not_stretch_the_scale(unknown: float) -> None:
    meters = np.full((SIDE, SIDE), 2.0, np.float32)
    meters[:10], meters[10:20] = 1.0, unknown
    drawn = depth_map(meters)
    assert pixel(drawn, 15, 5) == UNKNOWN_COLOR
    assert pixel(drawn, 5, 5) == tuple(depth_colors(np.array(0.0)).tolist())
    assert drawn.height > depth_map(np.where(meters == 1.0, meters, 2.0)).height  # it is explained


def test_a_map_without_any_depth_is_gray() -> None:
    assert pixel(depth_map(np.zeros((SIDE, SIDE), np.float32)), 100, 100) == UNKNOWN_COLOR


def test_the_picture_stands_before_its_depth() -> None:
    drawn = depth_map(np.ones((SIDE, SIDE), np.float32), picture())
    assert pixel(drawn, 10, 10) == GRAY
    assert pixel(drawn, 10, SIDE + MARGIN + 10) != GRAY


def test_a_scale_with_its_ends_swapped_is_refused() -> None:
    with pytest.raises(ValueError, match=r"from 8\.0 to 1\.0 meters"):
        depth_map(np.ones((4, 4), np.float32), limits=(8.0, 1.0))


@given(st.floats(0, 100), st.floats(1e-3, 100))
def test_a_scale_has_some_ticks_within_its_range(low: float, width: float) -> None:
    ticks = scale_ticks(low, low + width)
    assert 2 <= len(ticks) <= 7
    assert all(low - 1e-6 <= tick <= low + width + 1e-6 for tick in ticks)
    steps = np.diff(ticks)
    assert np.allclose(steps, steps[0])


def test_ticks_are_round_numbers() -> None:
    assert scale_ticks(0.0, 10.0) == [0, 2, 4, 6, 8, 10]
    assert scale_ticks(1.1, 6.8) == [2, 3, 4, 5, 6]
