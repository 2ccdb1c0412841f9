"""The way back from patches to pixels, against one that goes pixel by pixel."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from tests.data import oracles
from veca.backbone.rope import patch_centers
from veca.data.transforms import Geometry, Mode, fitted

PATCH = 8
FITS = ["resize", "crop", "pad"]


@st.composite
def geometries(draw: st.DrawFn, most: int) -> Geometry:
    """Pictures with sides up to `most`, laid onto patches in any way."""
    fit = draw(st.sampled_from(FITS))
    original = draw(st.tuples(st.integers(1, most), st.integers(1, most)))
    size = draw(st.integers(1, 12)) * PATCH if fit == "crop" else draw(st.integers(1, 100))
    return fitted(original, size, fit, PATCH)


@settings(max_examples=40)
@given(geometries(most=60), st.sampled_from(["nearest", "bilinear"]))
def test_a_map_comes_back_as_it_does_pixel_by_pixel(geometry: Geometry, mode: Mode) -> None:
    patch_map = torch.randn(geometry.grid, dtype=torch.float64)
    oracle = oracles.nearest if mode == "nearest" else oracles.bilinear
    for fill in (None, -7.0):
        found = geometry.to_image(patch_map, mode, fill)
        expected = oracle(patch_map.numpy(), geometry, np.nan if fill is None else fill)
        np.testing.assert_allclose(found.numpy(), expected, atol=1e-9)


@given(geometries(most=2000))
@example(fitted((2000, 1), 1, "pad", PATCH))
def test_row_and_column_numbers_land_on_the_pixels_that_their_patches_show(
    geometry: Geometry,
) -> None:
    rows, columns = geometry.grid
    across = geometry.to_image(torch.arange(columns).expand(rows, -1), fill=-1)
    down = geometry.to_image(torch.arange(rows)[:, None].expand(-1, columns), fill=-1)
    height, width = geometry.original
    assert across.shape == down.shape == (height, width)
    for y, x in ((0, 0), (height - 1, width - 1), (height // 2, width // 3), (height // 3, 0)):
        row = oracles.patch_under(geometry.height, y)
        column = oracles.patch_under(geometry.width, x)
        if row is None or column is None:
            assert across[y, x] == down[y, x] == -1
            assert geometry.patch_of(x, y) is None
        else:
            assert (int(down[y, x]), int(across[y, x])) == (row, column)
            assert geometry.patch_of(x, y) == (row, column)


def test_leading_dimensions_are_kept() -> None:
    geometry = fitted((30, 50), 32, "resize", PATCH)
    maps = torch.randn(2, 5, *geometry.grid)
    for mode in ("nearest", "bilinear"):
        images = geometry.to_image(maps, mode)
        assert images.shape == (2, 5, 30, 50)
        torch.testing.assert_close(images[1, 3], geometry.to_image(maps[1, 3], mode))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_without_cropping_blending_is_what_torch_calls_bilinear(dtype: torch.dtype) -> None:
    geometry = fitted((64, 96), 64, "resize", PATCH)
    patch_map = torch.randn(1, 1, *geometry.grid)
    expected = F.interpolate(patch_map, (64, 96), mode="bilinear", align_corners=False)
    found = geometry.to_image(patch_map.to(dtype), "bilinear")
    assert found.dtype == dtype
    torch.testing.assert_close(found.float(), expected, atol=2e-2, rtol=2e-2)


def test_what_was_cropped_away_is_not_a_number() -> None:
    geometry = fitted((40, 80), 40, "crop", PATCH)
    image = geometry.to_image(torch.ones(geometry.grid))
    assert image[:, 20:60].eq(1).all()
    assert image[:, :20].isnan().all()
    assert image[:, 60:].isnan().all()


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool])
def test_whole_numbers_keep_their_type_and_need_a_fill_where_something_was_cropped(
    dtype: torch.dtype,
) -> None:
    cropped, resized = (fitted((40, 80), 40, fit, PATCH) for fit in ("crop", "resize"))
    labels = torch.ones(cropped.grid, dtype=dtype)
    image = cropped.to_image(labels, fill=0)
    assert image.dtype == dtype
    assert image.sum() == 40 * 40
    assert resized.to_image(torch.ones(resized.grid, dtype=dtype)).all()
    with pytest.raises(ValueError, match="pass a fill"):
        cropped.to_image(labels)


def test_padding_is_cut_away() -> None:
    geometry = fitted((9, 64), 64, "pad", PATCH)  # the second row shows one pixel of the picture
    assert geometry.grid == (2, 8)
    patch_map = torch.tensor([0.0, 1.0])[:, None].expand(2, 8)
    image = geometry.to_image(patch_map)
    assert image.shape == (9, 64)
    assert image[:8].eq(0).all()
    assert image[8:].eq(1).all()


@pytest.mark.parametrize("fit", FITS)
def test_points_of_patch_centers_lie_on_pixels_of_their_patches(fit: str) -> None:
    geometry = fitted((90, 130), 64, fit, PATCH)
    _, columns = geometry.grid
    points = geometry.to_pixels(patch_centers(geometry.grid, torch.device("cpu")))
    for number, (x, y) in enumerate(points.tolist()):
        if x < geometry.original[1] and y < geometry.original[0]:  # not in the padding
            assert geometry.patch_of(int(x), int(y)) == divmod(number, columns)
    corners = geometry.to_pixels(torch.tensor([[-1.0, -1.0], [1.0, 1.0]]))
    (top, _), (left, _) = geometry.height.box(), geometry.width.box()
    torch.testing.assert_close(corners[0], torch.tensor([left, top]))
    if fit == "resize":
        assert corners[1].tolist() == [130, 90]


@pytest.mark.parametrize(("x", "y"), [(-1, 0), (0, -1), (130, 0), (0, 90)])
def test_a_pixel_outside_the_picture_is_refused(x: int, y: int) -> None:
    with pytest.raises(ValueError, match="130 wide and 90 high"):
        fitted((90, 130), 64, "resize", PATCH).patch_of(x, y)


@pytest.mark.parametrize("shape", [(8, 12), (12, 8), (3, 12, 7)])
def test_a_map_of_other_patches_is_refused_with_the_grid(shape: tuple[int, ...]) -> None:
    geometry = fitted((64, 104), 64, "resize", PATCH)
    with pytest.raises(ValueError, match=r"end in the grid of this picture, \(8, 13\)"):
        geometry.to_image(torch.zeros(shape))


def test_whole_numbers_cannot_be_blended() -> None:
    geometry = fitted((64, 64), 64, "resize", PATCH)
    with pytest.raises(ValueError, match="use mode='nearest'"):
        geometry.to_image(torch.zeros(8, 8, dtype=torch.long), "bilinear")


@pytest.mark.compiled  # without the shape hook, which would refuse it first
@pytest.mark.parametrize("mode", ["cubic", None])
def test_an_unknown_mode_is_refused(mode: Any) -> None:
    geometry = fitted((64, 64), 64, "resize", PATCH)
    with pytest.raises(ValueError, match="'nearest' or 'bilinear'"):
        geometry.to_image(torch.zeros(8, 8), mode)
