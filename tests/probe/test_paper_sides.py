"""The sizes of the paper for patches of 14 pixels are whole patches, and those of its tables."""

import pytest

from veca.probe.models import PATCH_14, paper_side


def test_sizes_for_patches_of_14_are_whole_patches() -> None:
    assert all(own % 14 == 0 and usual % 16 == 0 for usual, own in PATCH_14.items())


@pytest.mark.parametrize(
    ("pixels", "stride", "side"),
    [(512, 14, 518), (256, 14, 252), (480, 14, 480), (518, 14, 518), (512, 16, 512), (512, 8, 512)],
)
def test_only_patches_of_14_see_other_sizes(pixels: int, stride: int, side: int) -> None:
    assert paper_side(pixels, stride) == side
