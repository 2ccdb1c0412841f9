"""Sides become multiples of the patch size, and proportions stay."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veca.data.images import ImageError
from veca.data.transforms import Geometry, check_result, fitted

SIDES = st.integers(1, 2000)
SIZES = st.none() | st.integers(1, 700)
PATCHES = st.sampled_from([1, 4, 14, 16])


def lengths(geometry: Geometry) -> tuple[int, int]:
    """Height and width of the prepared picture."""
    return geometry.height.length, geometry.width.length


@pytest.mark.parametrize(
    ("original", "size", "fit", "expected"),
    [
        ((480, 640), 512, "resize", (512, 688)),  # 682.7 is nearer to 688 than to 672
        ((640, 480), 512, "resize", (688, 512)),
        ((480, 640), 500, "resize", (496, 672)),
        ((480, 640), None, "resize", (480, 640)),
        ((470, 631), None, "resize", (464, 624)),
        ((24, 24), None, "resize", (32, 32)),  # halves go up
        ((3, 3), None, "resize", (16, 16)),
        ((480, 640), 512, "crop", (512, 512)),
        ((640, 480), 16, "crop", (16, 16)),
        ((480, 641), None, "crop", (480, 640)),
        ((480, 640), 512, "pad", (384, 512)),
        ((480, 640), 500, "pad", (384, 512)),  # 375 x 500
        ((481, 640), None, "pad", (496, 640)),
        ((10, 10_000), 512, "pad", (16, 512)),
        ((1, 1), 512, "pad", (512, 512)),
    ],
)
def test_sides_are_as_the_rules_say(
    original: tuple[int, int], size: int | None, fit: str, expected: tuple[int, int]
) -> None:
    assert lengths(fitted(original, size, fit, 16)) == expected


@given(SIDES, SIDES, SIZES, PATCHES)
def test_resized_sides_are_the_nearest_multiples_of_a_true_scaling(
    height: int, width: int, size: int | None, patch: int
) -> None:
    geometry = fitted((height, width), size, "resize", patch)
    scale = 1 if size is None else size / min(height, width)
    for side in (geometry.height, geometry.width):
        assert side.scaled == side.length == side.patches * patch
        assert side.patches >= 1
        assert abs(side.length - side.original * scale) <= patch / 2 + 1e-6 or side.patches == 1
        assert side.cropped == 0


@given(SIDES, SIDES, SIZES, PATCHES)
def test_padded_sides_keep_proportions_to_half_a_pixel_and_add_less_than_a_patch(
    height: int, width: int, size: int | None, patch: int
) -> None:
    geometry = fitted((height, width), size, "pad", patch)
    scale = 1 if size is None else size / max(height, width)
    for side in (geometry.height, geometry.width):
        assert abs(side.scaled - side.original * scale) <= 0.5 + 1e-6 or side.scaled == 1
        assert 0 <= side.length - side.scaled < patch
        assert side.length % patch == side.cropped == 0
    if size is not None:
        assert max(geometry.height.scaled, geometry.width.scaled) == size


@given(SIDES, SIDES, st.integers(1, 50), PATCHES)
def test_a_cropped_square_lies_in_the_middle_of_a_picture_that_covers_it(
    height: int, width: int, patches: int, patch: int
) -> None:
    size = patches * patch
    geometry = fitted((height, width), size, "crop", patch)
    assert lengths(geometry) == (size, size)
    assert min(geometry.height.scaled, geometry.width.scaled) == size
    for side in (geometry.height, geometry.width):
        after = side.scaled - side.cropped - size
        assert after - side.cropped in {0, 1}
        assert abs(side.scaled - side.original * size / min(height, width)) <= 0.5 + 1e-6


@given(st.integers(16, 2000), st.integers(16, 2000))
def test_cropping_without_a_size_scales_nothing(height: int, width: int) -> None:
    geometry = fitted((height, width), None, "crop", 16)
    for side in (geometry.height, geometry.width):
        assert side.scaled == side.original
        assert side.length == side.original // 16 * 16


def test_a_picture_smaller_than_a_patch_cannot_be_cropped() -> None:
    with pytest.raises(ImageError, match=r"100 x 15 .* no patch of 16 .* fit='pad'"):
        fitted((15, 100), None, "crop", 16)


@pytest.mark.parametrize(("size", "below", "above"), [(500, 496, 512), (7, 16, 32), (17, 16, 32)])
def test_a_crop_that_does_not_fit_is_answered_with_the_two_nearest(
    size: int, below: int, above: int
) -> None:
    with pytest.raises(ValueError, match=f"nearest that fit are {below} and {above}"):
        fitted((100, 100), size, "crop", 16)


@pytest.mark.parametrize("fit", ["", "stretch", "Resize"])
def test_an_unknown_fit_is_answered_with_the_known_ones(fit: str) -> None:
    with pytest.raises(ValueError, match="'resize', 'crop' or 'pad'"):
        fitted((100, 100), 64, fit, 16)


@pytest.mark.parametrize("size", [0, -16, True])
def test_a_size_that_is_no_number_of_pixels_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"size={size}"):
        fitted((100, 100), size, "resize", 16)
    with pytest.raises(ValueError, match=f"patch_size={size}"):
        fitted((100, 100), 64, "resize", size)


@pytest.mark.compiled  # without the shape hook, which would refuse these first
@pytest.mark.parametrize("size", [64.0, "64", (64, 64)])
def test_a_size_of_another_type_is_refused(size: Any) -> None:
    with pytest.raises(ValueError, match="size="):
        fitted((100, 100), size, "resize", 16)


def test_a_strip_that_would_become_huge_is_refused_with_what_to_do() -> None:
    strip = fitted((10, 10_000), 512, "resize", 16)
    with pytest.raises(ImageError, match=r"10000 x 10 .* 512000 x 512, .* fit='pad'"):
        check_result(strip, 10**8)
    check_result(strip, math.prod(lengths(strip)))
