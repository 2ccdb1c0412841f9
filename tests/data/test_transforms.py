"""Preparing an image, and mapping patches back to its pixels."""

import io
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

import veca
from tests.data import oracles
from tests.data.corpus import PHOTO, encoded, exif, photo
from veca.data.images import ImageError
from veca.data.transforms import (
    IMAGENET,
    MEAN,
    STD,
    Fit,
    Geometry,
    Mode,
    Normalization,
    check_result,
    fitted,
)


def test_the_mean_color_becomes_zero_and_one_deviation_more_becomes_one() -> None:
    mean, std = torch.tensor(MEAN), torch.tensor(STD)
    pixels = torch.stack([mean, mean + std], dim=1)[:, None]
    expected = torch.tensor([0.0, 1.0]).expand(3, 1, 2)
    torch.testing.assert_close(IMAGENET.normalize(pixels), expected)


def test_bytes_count_as_parts_of_255() -> None:
    pixels = torch.randint(0, 256, (2, 3, 5, 4), dtype=torch.uint8)
    torch.testing.assert_close(IMAGENET.normalize(pixels), IMAGENET.normalize(pixels / 255))


@pytest.mark.parametrize("normalization", [IMAGENET, Normalization((0.5,) * 3, (0.25, 0.5, 1.0))])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_denormalizing_undoes_normalizing(normalization: Normalization, dtype: torch.dtype) -> None:
    pixels = torch.rand(2, 3, 4, 5, dtype=dtype)
    back = normalization.denormalize(normalization.normalize(pixels))
    torch.testing.assert_close(back, pixels)


def test_whole_numbers_other_than_bytes_are_refused_with_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"torch.int64, .* divide"):
        IMAGENET.normalize(torch.zeros(3, 2, 2, dtype=torch.int64))


def test_a_deviation_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="above zero"):
        Normalization(MEAN, (0.2, 0.0, 0.2))


def test_no_other_file_holds_the_mean() -> None:
    sources = Path(veca.__file__).parent.rglob("*.py")
    holders = [path.name for path in sources if str(MEAN[0]) in path.read_text("utf-8")]
    assert holders == ["transforms.py"]


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
    with pytest.raises(ImageError, match=r"100 x 15 .* smaller than a patch of 16; .* fit='pad'"):
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


SMALL_PATCH = 8
FITS = ["resize", "crop", "pad"]


@st.composite
def geometries(draw: st.DrawFn, most: int) -> Geometry:
    """Pictures with sides up to `most`, laid onto patches in any way."""
    fit = draw(st.sampled_from(FITS))
    original = draw(st.tuples(st.integers(1, most), st.integers(1, most)))
    size = draw(st.integers(1, 12)) * SMALL_PATCH if fit == "crop" else draw(st.integers(1, 100))
    return fitted(original, size, fit, SMALL_PATCH)


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
@example(fitted((2000, 1), 1, "pad", SMALL_PATCH))
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
        else:
            assert (int(down[y, x]), int(across[y, x])) == (row, column)


def test_leading_dimensions_are_kept() -> None:
    geometry = fitted((30, 50), 32, "resize", SMALL_PATCH)
    maps = torch.randn(2, 5, *geometry.grid)
    for mode in ("nearest", "bilinear"):
        images = geometry.to_image(maps, mode)
        assert images.shape == (2, 5, 30, 50)
        torch.testing.assert_close(images[1, 3], geometry.to_image(maps[1, 3], mode))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_without_cropping_blending_is_what_torch_calls_bilinear(dtype: torch.dtype) -> None:
    geometry = fitted((64, 96), 64, "resize", SMALL_PATCH)
    patch_map = torch.randn(1, 1, *geometry.grid)
    expected = F.interpolate(patch_map, (64, 96), mode="bilinear", align_corners=False)
    found = geometry.to_image(patch_map.to(dtype), "bilinear")
    assert found.dtype == dtype
    torch.testing.assert_close(found.float(), expected, atol=2e-2, rtol=2e-2)


def test_what_was_cropped_away_is_not_a_number() -> None:
    geometry = fitted((40, 80), 40, "crop", SMALL_PATCH)
    image = geometry.to_image(torch.ones(geometry.grid))
    assert image[:, 20:60].eq(1).all()
    assert image[:, :20].isnan().all()
    assert image[:, 60:].isnan().all()


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool])
def test_whole_numbers_keep_their_type_and_need_a_fill_where_something_was_cropped(
    dtype: torch.dtype,
) -> None:
    cropped, resized = (fitted((40, 80), 40, fit, SMALL_PATCH) for fit in ("crop", "resize"))
    labels = torch.ones(cropped.grid, dtype=dtype)
    image = cropped.to_image(labels, fill=0)
    assert image.dtype == dtype
    assert image.sum() == 40 * 40
    assert resized.to_image(torch.ones(resized.grid, dtype=dtype)).all()
    with pytest.raises(ValueError, match="pass a fill"):
        cropped.to_image(labels)


def test_padding_is_cut_away() -> None:
    geometry = fitted(
        (9, 64), 64, "pad", SMALL_PATCH
    )  # the second row shows one pixel of the picture
    assert geometry.grid == (2, 8)
    patch_map = torch.tensor([0.0, 1.0])[:, None].expand(2, 8)
    image = geometry.to_image(patch_map)
    assert image.shape == (9, 64)
    assert image[:8].eq(0).all()
    assert image[8:].eq(1).all()


@pytest.mark.parametrize("shape", [(8, 12), (12, 8), (3, 12, 7)])
def test_a_map_of_other_patches_is_refused_with_the_grid(shape: tuple[int, ...]) -> None:
    geometry = fitted((64, 104), 64, "resize", SMALL_PATCH)
    with pytest.raises(ValueError, match=r"end in the grid of this image, \(8, 13\)"):
        geometry.to_image(torch.zeros(shape))


def test_whole_numbers_cannot_be_blended() -> None:
    geometry = fitted((64, 64), 64, "resize", SMALL_PATCH)
    with pytest.raises(ValueError, match="use mode='nearest'"):
        geometry.to_image(torch.zeros(8, 8, dtype=torch.long), "bilinear")


@pytest.mark.compiled  # without the shape hook, which would refuse it first
@pytest.mark.parametrize("mode", ["cubic", None])
def test_an_unknown_mode_is_refused(mode: Any) -> None:
    geometry = fitted((64, 64), 64, "resize", SMALL_PATCH)
    with pytest.raises(ValueError, match="'nearest' or 'bilinear'"):
        geometry.to_image(torch.zeros(8, 8), mode)


PATCH = 16
WAYS = [("resize", 64), ("resize", 50), ("resize", None), ("crop", 64), ("crop", None)]
WAYS += [("pad", 64), ("pad", 50), ("pad", None)]


def bytes_seen(pixels: Tensor) -> np.ndarray:
    """Normalized pixels as colors, (H, W, 3) within 0..1."""
    return IMAGENET.denormalize(pixels).permute(1, 2, 0).numpy()


@pytest.mark.parametrize(("fit", "size"), WAYS)
@pytest.mark.parametrize("shape", [(40, 56), (57, 41), (30, 90)])
def test_a_prepared_picture_equals_one_made_by_hand_to_one_step(
    fit: Fit, size: int | None, shape: tuple[int, int]
) -> None:
    picture = photo(*shape)
    pixels, geometry = veca.prepare(picture, size, fit)
    height, width = geometry.height, geometry.width
    assert pixels.dtype == torch.float32
    assert pixels.shape == (3, height.patches * PATCH, width.patches * PATCH)

    whole = (0.0, 0.0, float(picture.shape[1]), float(picture.shape[0]))
    scaled = oracles.resampled(picture / 255, (height.scaled, width.scaled), whole, whole=True)
    seen = scaled[height.cropped :, width.cropped :][: height.length, : width.length]
    found = bytes_seen(pixels)[: seen.shape[0], : seen.shape[1]]
    assert np.abs(found - seen).max() <= 1 / 255 + 1e-6
    assert pixels[:, seen.shape[0] :].eq(0).all()
    assert pixels[:, :, seen.shape[1] :].eq(0).all()


@pytest.mark.parametrize(("fit", "size"), [("pad", None), ("crop", None)])
def test_without_scaling_every_pixel_stays_as_it_is(fit: Fit, size: int | None) -> None:
    pixels, geometry = veca.prepare(PHOTO, size, fit)
    top, left = geometry.height.cropped, geometry.width.cropped
    expected = IMAGENET.normalize(torch.from_numpy(PHOTO).permute(2, 0, 1))[:, top:, left:]
    height, width = (min(a, b) for a, b in zip(pixels.shape[1:], expected.shape[1:], strict=True))
    assert torch.equal(pixels[:, :height, :width], expected[:, :height, :width])


@pytest.mark.parametrize(("fit", "size"), WAYS)
def test_every_kind_of_source_gives_the_same(fit: Fit, size: int | None, tmp_path: Path) -> None:
    path = tmp_path / "photo.png"
    path.write_bytes(encoded(Image.fromarray(PHOTO), "PNG"))
    sources: list[Any] = [path, str(path), path.read_bytes(), io.BytesIO(path.read_bytes())]
    sources += [Image.fromarray(PHOTO), torch.from_numpy(PHOTO).permute(2, 0, 1)]
    expected = veca.preprocess(PHOTO, size, fit)
    for source in sources:
        assert torch.equal(veca.preprocess(source, size, fit), expected)
    of_floats = veca.preprocess(PHOTO / 255, size, fit)
    assert np.abs(bytes_seen(of_floats) - bytes_seen(expected)).max() < 1.2 / 255


@settings(max_examples=30)
@given(
    st.integers(1, 2000),
    st.integers(1, 2000),
    st.sampled_from(["resize", "crop", "pad"]),
    st.integers(1, 8),
)
def test_a_map_painted_from_a_picture_comes_back_within_one_patch(
    height: int, width: int, fit: Fit, patches: int
) -> None:
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    places = torch.stack([(x + 0.5) / width, (y + 0.5) / height, torch.zeros(height, width)])
    try:
        pixels, geometry = veca.prepare(places, patches * PATCH, fit, max_pixels=10**6)
    except veca.ImageError:
        assert fit == "resize"
        return
    assert pixels.shape[1] % PATCH == pixels.shape[2] % PATCH == 0

    painted = IMAGENET.denormalize(pixels)[:2, ::PATCH, ::PATCH]  # what each patch begins with
    back = geometry.to_image(painted)
    for band, side in ((0, geometry.width), (1, geometry.height)):
        seen = back[band][~back[band].isnan()]
        meant = places[band][~back[band].isnan()]
        one_patch = (PATCH + 2) / side.scaled + 2 / side.original  # and the edge of the kernel
        assert (seen - meant).abs().max() <= one_patch


def test_the_geometry_is_of_the_upright_picture() -> None:
    lying = encoded(Image.fromarray(PHOTO), "PNG", exif=exif(6))
    assert veca.prepare(lying, 32).geometry.original == (56, 40)


def test_a_model_takes_what_comes_out_and_its_map_goes_back() -> None:
    model = veca.build("tiny", layers=1, width=32, heads=2, patch_size=8, budgets=(2,)).eval()
    pixels, geometry = veca.prepare(PHOTO, 48, patch_size=model.config.patch_size)
    with torch.no_grad():
        features = model(pixels[None])
    assert features.grid == geometry.grid
    assert geometry.to_image(features.patch_map, "bilinear").shape == (1, 32, *PHOTO.shape[:2])


def test_another_normalization_takes_the_place_of_ours() -> None:
    plain = Normalization((0.0,) * 3, (1.0,) * 3)
    pixels = veca.preprocess(PHOTO, None, "pad", normalization=plain)
    assert torch.equal(pixels[:, :40, :56], torch.from_numpy(PHOTO).permute(2, 0, 1) / 255)


def test_a_strip_is_refused_before_it_fills_the_memory_and_can_be_padded() -> None:
    strip = np.zeros((10, 10_000, 3), np.uint8)
    with pytest.raises(veca.ImageError, match="would become 512000 x 512"):
        veca.preprocess(strip)
    assert veca.preprocess(strip, fit="pad").shape == (3, 16, 512)
    assert veca.preprocess(strip, fit="crop").shape == (3, 512, 512)


@pytest.mark.parametrize("shape", [(40, 90), (90, 40)])
@pytest.mark.parametrize("fit", ["resize", "crop", "pad"])
def test_a_limit_above_that_of_pillow_counts_to_the_end(
    fit: Fit, shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = veca.preprocess(photo(*shape), 32, fit)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 9)
    content = encoded(Image.fromarray(photo(*shape)), "TIFF")
    assert torch.equal(veca.preprocess(content, 32, fit, max_pixels=10**6), expected)


def test_geometry_travels_between_processes() -> None:
    geometry = veca.prepare(PHOTO, 32, "crop").geometry
    assert pickle.loads(pickle.dumps(geometry)) == geometry


def test_preparing_twice_gives_the_same_bits() -> None:
    assert torch.equal(veca.preprocess(PHOTO, 48), veca.preprocess(PHOTO, 48))


@pytest.mark.compiled  # without the shape hook, which would refuse these first
@pytest.mark.parametrize("source", [None, 42, ["photo.png"]])
def test_what_is_no_picture_is_refused(source: Any) -> None:
    with pytest.raises(veca.ImageError, match="is not an image"):
        veca.preprocess(source)
