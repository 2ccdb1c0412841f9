"""Windows cover every pixel; merged maps equal those resized and averaged step by step."""

import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.data.corpus import photo
from veca.data.images import image_from_array
from veca.probe import sliding_window as windows
from veca.probe.sliding_window import (
    WindowGrid,
    argmax_pixels,
    bilinear,
    cut_windows,
    eight_bit,
    merge_windows,
    slide,
    whole_image,
    window_starts,
)


def step_by_step(maps: Tensor, grid: WindowGrid) -> Tensor:
    """Each window scaled to its pixels, the mean where they overlap, scaled to the original."""
    total = torch.zeros(maps.shape[1], *grid.scaled)
    count = torch.zeros(grid.scaled)
    corners = [(top, left) for top in grid.tops for left in grid.lefts]
    for (top, left), cells in zip(corners, maps, strict=True):
        here = slice(top, top + grid.window[0]), slice(left, left + grid.window[1])
        total[:, *here] += scaled(cells[None], grid.window)[0]
        count[here] += 1
    return scaled((total / count)[None], grid.original)[0]


def scaled(maps: Tensor, sides: tuple[int, int]) -> Tensor:
    return F.interpolate(maps, sides, mode="bilinear", align_corners=False)


def test_windows_cover_every_pixel_of_ten_thousand_sides() -> None:
    draw = random.Random(0)
    for _ in range(10_000):
        length, window = draw.randint(1, 900), draw.randint(1, 600)
        stride = draw.randint(1, window)
        starts = window_starts(length, window, stride)
        covered = np.zeros(length, int)
        for start in starts:
            assert start >= 0
            covered[start : start + window] += 1
        assert covered.min() >= 1
        assert starts[-1] + min(window, length) == length
        assert len(starts) == max(length - window + stride - 1, 0) // stride + 1


def test_the_windows_of_the_usual_protocol_are_where_they_usually_are() -> None:
    grid = slide((375, 500), 512, 512, 341)
    assert grid.scaled == (512, 683)
    assert (grid.tops, grid.lefts) == ((0,), (0, 171))
    assert grid.count == 2


@given(cells=st.integers(1, 40), pixels=st.integers(1, 90))
def test_the_matrix_scales_as_torch_does(cells: int, pixels: int) -> None:
    values = torch.randn(cells)
    expected = F.interpolate(values[None, None], pixels, mode="linear", align_corners=False)[0, 0]
    torch.testing.assert_close(bilinear(cells, pixels).float() @ values, expected)


@given(
    original=st.tuples(st.integers(20, 90), st.integers(20, 90)),
    stride=st.integers(3, 24),
    classes=st.integers(1, 4),
)
def test_merged_maps_are_those_of_the_steps(
    original: tuple[int, int], stride: int, classes: int
) -> None:
    grid = slide(original, 24, 24, stride)
    maps = torch.randn(grid.count, classes, 3, 3)
    torch.testing.assert_close(
        merge_windows(maps, grid), step_by_step(maps, grid), rtol=1e-4, atol=1e-5
    )


@given(original=st.tuples(st.integers(8, 90), st.integers(8, 90)))
def test_a_picture_shown_whole_is_scaled_twice(original: tuple[int, int]) -> None:
    grid = whole_image(original, 32, 8)
    rows, columns = (side // 8 for side in grid.scaled)
    maps = torch.randn(1, 2, rows, columns)
    torch.testing.assert_close(
        merge_windows(maps, grid), step_by_step(maps, grid), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("original", [(33, 47), (64, 64), (70, 31)])
def test_a_window_as_large_as_the_picture_is_the_whole_picture(original: tuple[int, int]) -> None:
    one = whole_image(original, 32, 1)
    large = slide(original, 32, 4 * max(original), 7)
    assert one == large
    maps = torch.randn(1, 3, 5, 6)
    assert torch.equal(merge_windows(maps, one), merge_windows(maps, large))


def test_equal_values_stay_equal_whatever_the_windows() -> None:
    grid = slide((61, 133), 48, 48, 17)
    maps = torch.full((grid.count, 2, 3, 3), 2.5)
    torch.testing.assert_close(merge_windows(maps, grid), torch.full((2, 61, 133), 2.5))


def test_the_strongest_class_does_not_depend_on_strips(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = slide((37, 53), 32, 32, 20)
    maps = torch.randn(grid.count, 5, 4, 4)
    expected = step_by_step(maps, grid).argmax(0)
    assert torch.equal(argmax_pixels(maps, grid).long(), expected)
    monkeypatch.setattr(windows, "MAX_STRIP_NUMBERS", 1)  # row by row
    assert torch.equal(argmax_pixels(maps, grid).long(), expected)


def test_whole_pictures_keep_their_proportions_to_the_nearest_patch() -> None:
    assert whole_image((480, 640), 512, 16).scaled == (512, 688)
    assert whole_image((375, 500), 252, 14).scaled == (252, 336)
    assert whole_image((10, 1000), 32, 16).scaled == (32, 3200)


def test_windows_are_cut_out_of_the_scaled_picture() -> None:
    picture = image_from_array(photo(50, 90))
    grid = slide((50, 90), 40, 40, 13)
    everything = eight_bit(picture.resampled(grid.scaled, (0.0, 0.0, 90.0, 50.0)))
    found = cut_windows(picture, grid)
    assert found.shape == (grid.count, 3, 40, 40)
    for window, left in zip(found, grid.lefts, strict=True):
        assert torch.equal(window, everything[:, :, left : left + 40])
    mirrored = cut_windows(picture, grid, flipped=True)
    assert torch.equal(mirrored[0], everything.flip(-1)[:, :, :40])


def test_finer_colors_are_rounded_to_bytes() -> None:
    pixels = np.linspace(0, 1, 4 * 5 * 3, dtype=np.float32).reshape(4, 5, 3)
    found = eight_bit(image_from_array(pixels))
    assert found.dtype == torch.uint8
    np.testing.assert_array_equal(found.permute(1, 2, 0).numpy(), np.rint(pixels * 255))
