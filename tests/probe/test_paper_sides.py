"""The sizes of the paper for patches of 14 pixels are whole patches, and those of its tables."""

import pytest
from veca.probe.published import published_rows

from veca.probe.models import PATCH_14, paper_side


def test_sizes_for_patches_of_14_are_whole_patches() -> None:
    assert all(own % 14 == 0 and usual % 16 == 0 for usual, own in PATCH_14.items())


def test_sizes_are_those_of_the_published_tables() -> None:
    published = {row.resolution for row in published_rows() if row.model.startswith("DINOv2")}
    assert set(PATCH_14.values()) <= published


@pytest.mark.parametrize(
    ("pixels", "stride", "side"),
    [(512, 14, 518), (256, 14, 252), (480, 14, 480), (518, 14, 518), (512, 16, 512), (512, 8, 512)],
)
def test_only_patches_of_14_see_other_sizes(pixels: int, stride: int, side: int) -> None:
    assert paper_side(pixels, stride) == side
