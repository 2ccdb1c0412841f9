"""Images are resampled and prepared, and patches are mapped back to their pixels."""

import io
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

import veca
from tests.data.corpus import PHOTO, encoded, exif, photo
from veca.backbone.rope import patch_centers
from veca.data.images import Box, image_from_array, mirrored
from veca.data.transforms import (
    IMAGENET,
    MEAN,
    STD,
    Fit,
    Geometry,
    Mode,
    Normalization,
    Side,
    fitted,
)


def test_the_mean_becomes_0_and_a_deviation_more_becomes_1() -> None:
    mean, std = torch.tensor(MEAN), torch.tensor(STD)
    pixels = torch.stack([mean, mean + std], dim=1)[:, None]
    expected = torch.tensor([0.0, 1.0]).expand(3, 1, 2)
    torch.testing.assert_close(IMAGENET.normalize(pixels), expected)
    pixels = torch.randint(0, 256, (2, 3, 5, 4), dtype=torch.uint8)
    torch.testing.assert_close(IMAGENET.normalize(pixels), IMAGENET.normalize(pixels / 255))


@pytest.mark.parametrize("normalization", [IMAGENET, Normalization((0.5,) * 3, (0.25, 0.5, 1.0))])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_denormalizing_undoes_normalizing(normalization: Normalization, dtype: torch.dtype) -> None:
    pixels = torch.rand(2, 3, 4, 5, dtype=dtype)
    back = normalization.denormalize(normalization.normalize(pixels))
    torch.testing.assert_close(back, pixels)


def test_integers_other_than_bytes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"torch.int64, .* divide"):
        IMAGENET.normalize(torch.zeros(3, 2, 2, dtype=torch.int64))


def test_a_deviation_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="above zero"):
        Normalization(MEAN, (0.2, 0.0, 0.2))


SIDES = st.integers(1, 2000)
SIZES = st.none() | st.integers(1, 700)
PATCHES = st.sampled_from([1, 4, 14, 16])


def lengths(geometry: Geometry) -> tuple[int, int]:
    """Height and width of the prepared image."""
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
def test_sides_follow_the_rules(
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
def test_crop_takes_a_centered_square(height: int, width: int, patches: int, patch: int) -> None:
    size = patches * patch
    geometry = fitted((height, width), size, "crop", patch)
    assert lengths(geometry) == (size, size)
    assert min(geometry.height.scaled, geometry.width.scaled) == size
    for side in (geometry.height, geometry.width):
        after = side.scaled - side.cropped - size
        assert after - side.cropped in {0, 1}
        assert abs(side.scaled - side.original * size / min(height, width)) <= 0.5 + 1e-6


@pytest.mark.parametrize(
    ("original", "size", "fit", "patch", "words"),
    [
        ((15, 100), None, "crop", 16, r"100 x 15 .* smaller than a patch of 16; .* fit='pad'"),
        ((100, 100), 500, "crop", 16, "nearest that fit are 496 and 512"),
        ((100, 100), 7, "crop", 16, "nearest that fit are 16 and 32"),
        ((100, 100), 64, "stretch", 16, "'resize', 'crop' or 'pad'"),
        ((100, 100), 0, "resize", 16, "size=0"),
        ((100, 100), True, "resize", 16, "size=True"),
        ((100, 100), 64, "resize", -16, "patch_size=-16"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(
    original: tuple[int, int], size: int | None, fit: str, patch: int, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        fitted(original, size, fit, patch)


SMALL_PATCH = 8
FITS = ["resize", "crop", "pad"]


@st.composite
def geometries(draw: st.DrawFn, most: int) -> Geometry:
    """Images with sides up to `most`, fitted to patches in any way."""
    fit = draw(st.sampled_from(FITS))
    original = draw(st.tuples(st.integers(1, most), st.integers(1, most)))
    size = draw(st.integers(1, 12)) * SMALL_PATCH if fit == "crop" else draw(st.integers(1, 100))
    return fitted(original, size, fit, SMALL_PATCH)


@settings(max_examples=25)
@given(geometries(most=60), st.sampled_from(["nearest", "bilinear"]))
def test_a_map_is_mapped_back_like_pixel_by_pixel(geometry: Geometry, mode: Mode) -> None:
    patch_map = torch.randn(geometry.grid, dtype=torch.float64)
    oracle = nearest if mode == "nearest" else bilinear
    for fill in (None, -7.0):
        found = geometry.to_image(patch_map, mode, fill)
        expected = oracle(patch_map.numpy(), geometry, np.nan if fill is None else fill)
        np.testing.assert_allclose(found.numpy(), expected, atol=1e-9)


@given(geometries(most=2000))
@example(fitted((2000, 1), 1, "pad", SMALL_PATCH))
def test_patch_numbers_land_on_the_pixels_of_their_patches(
    geometry: Geometry,
) -> None:
    rows, columns = geometry.grid
    across = geometry.to_image(torch.arange(columns).expand(rows, -1), fill=-1)
    down = geometry.to_image(torch.arange(rows)[:, None].expand(-1, columns), fill=-1)
    height, width = geometry.original
    assert across.shape == down.shape == (height, width)
    for y, x in ((0, 0), (height - 1, width - 1), (height // 2, width // 3), (height // 3, 0)):
        row = patch_under(geometry.height, y)
        column = patch_under(geometry.width, x)
        if row is None or column is None:
            assert across[y, x] == down[y, x] == -1
            assert geometry.patch_of(x, y) is None
        else:
            assert (int(down[y, x]), int(across[y, x])) == (row, column)
            assert geometry.patch_of(x, y) == (row, column)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_bilinear_equals_torch_without_cropping(dtype: torch.dtype) -> None:
    geometry = fitted((64, 96), 64, "resize", SMALL_PATCH)
    patch_map = torch.randn(1, 1, *geometry.grid)
    expected = F.interpolate(patch_map, (64, 96), mode="bilinear", align_corners=False)
    found = geometry.to_image(patch_map.to(dtype), "bilinear")
    assert found.dtype == dtype
    torch.testing.assert_close(found.float(), expected, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool])
def test_integers_keep_their_type_and_need_a_fill_if_cropped(
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


@pytest.mark.parametrize("fit", FITS)
def test_patch_centers_are_mapped_to_pixels_of_their_patches(fit: str) -> None:
    geometry = fitted((90, 130), 64, fit, SMALL_PATCH)
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
    for outside in ((-1, 0), (0, -1), (130, 0), (0, 90)):
        with pytest.raises(ValueError, match="130 wide and 90 high"):
            geometry.patch_of(*outside)


def test_maps_that_do_not_fit_are_refused() -> None:
    geometry = fitted((64, 104), 64, "resize", SMALL_PATCH)
    for shape in ((8, 12), (3, 12, 7)):
        with pytest.raises(ValueError, match=r"end in the grid of this image, \(8, 13\)"):
            geometry.to_image(torch.zeros(shape))
    with pytest.raises(ValueError, match="use mode='nearest'"):
        geometry.to_image(torch.zeros(8, 13, dtype=torch.long), "bilinear")


@pytest.mark.compiled  # without the shape hook, which would refuse them first
def test_arguments_of_another_type_are_refused() -> None:
    size: Any = "64"
    with pytest.raises(ValueError, match="size='64'"):
        fitted((100, 100), size, "resize", 16)
    mode: Any = "cubic"
    with pytest.raises(ValueError, match="'nearest' or 'bilinear'"):
        fitted((64, 64), 64, "resize", SMALL_PATCH).to_image(torch.zeros(8, 8), mode)


PATCH = 16
WAYS = [("resize", 64), ("resize", 50), ("resize", None), ("crop", 64), ("crop", None)]
WAYS += [("pad", 64), ("pad", 50), ("pad", None)]


def colors_of(pixels: Tensor) -> np.ndarray:
    """Normalized pixels as colors, (H, W, 3) within 0..1."""
    return IMAGENET.denormalize(pixels).permute(1, 2, 0).numpy()


@pytest.mark.parametrize(("fit", "size"), WAYS)
@pytest.mark.parametrize("shape", [(40, 56), (57, 41), (30, 90)])
def test_prepare_equals_the_oracle_to_one_step(
    fit: Fit, size: int | None, shape: tuple[int, int]
) -> None:
    picture = photo(*shape)
    pixels, geometry = veca.prepare(picture, size, fit)
    height, width = geometry.height, geometry.width
    assert pixels.dtype == torch.float32
    assert pixels.shape == (3, height.patches * PATCH, width.patches * PATCH)

    whole = (0.0, 0.0, float(picture.shape[1]), float(picture.shape[0]))
    scaled = resampled_slowly(picture / 255, (height.scaled, width.scaled), whole, whole=True)
    seen = scaled[height.cropped :, width.cropped :][: height.length, : width.length]
    found = colors_of(pixels)[: seen.shape[0], : seen.shape[1]]
    assert np.abs(found - seen).max() <= 1 / 255 + 1e-6
    assert pixels[:, seen.shape[0] :].eq(0).all()
    assert pixels[:, :, seen.shape[1] :].eq(0).all()


@pytest.mark.parametrize(("fit", "size"), [("pad", None), ("crop", None)])
def test_pixels_do_not_change_without_scaling(fit: Fit, size: int | None) -> None:
    pixels, geometry = veca.prepare(PHOTO, size, fit)
    top, left = geometry.height.cropped, geometry.width.cropped
    expected = IMAGENET.normalize(torch.from_numpy(PHOTO).permute(2, 0, 1))[:, top:, left:]
    height, width = (min(a, b) for a, b in zip(pixels.shape[1:], expected.shape[1:], strict=True))
    assert torch.equal(pixels[:, :height, :width], expected[:, :height, :width])


@pytest.mark.parametrize(("fit", "size"), WAYS[::3])
def test_every_source_gives_the_same_pixels(fit: Fit, size: int | None, tmp_path: Path) -> None:
    path = tmp_path / "photo.png"
    path.write_bytes(encoded(Image.fromarray(PHOTO), "PNG"))
    sources: list[Any] = [path, str(path), path.read_bytes(), io.BytesIO(path.read_bytes())]
    sources += [Image.fromarray(PHOTO), torch.from_numpy(PHOTO).permute(2, 0, 1)]
    expected = veca.preprocess(PHOTO, size, fit)
    for source in sources:
        assert torch.equal(veca.preprocess(source, size, fit), expected)
    of_floats = veca.preprocess(PHOTO / 255, size, fit)
    assert np.abs(colors_of(of_floats) - colors_of(expected)).max() < 1.2 / 255


@settings(max_examples=15)
@given(
    st.integers(1, 1000),
    st.integers(1, 1000),
    st.sampled_from(["resize", "crop", "pad"]),
    st.integers(1, 8),
)
def test_a_map_of_pixel_positions_is_mapped_back_within_one_patch(
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


def test_a_prepared_image_goes_through_a_model_and_its_map_back() -> None:
    model = veca.build("tiny", layers=1, width=32, heads=2, patch_size=8, budgets=(2,)).eval()
    pixels, geometry = veca.prepare(PHOTO, 48, patch_size=model.config.patch_size)
    with torch.no_grad():
        features = model(pixels[None])
    assert features.grid == geometry.grid
    assert geometry.to_image(features.patch_map, "bilinear").shape == (1, 32, *PHOTO.shape[:2])
    assert geometry.to_pixels(features.core_points).shape == (1, 2, 2)


def test_normalization_can_be_replaced() -> None:
    plain = Normalization((0.0,) * 3, (1.0,) * 3)
    pixels = veca.preprocess(PHOTO, None, "pad", normalization=plain)
    assert torch.equal(pixels[:, :40, :56], torch.from_numpy(PHOTO).permute(2, 0, 1) / 255)


def test_a_long_strip_is_refused_before_it_fills_the_memory() -> None:
    strip = np.zeros((10, 10_000, 3), np.uint8)
    words = "would become 512000 x 512, which is 1,024,000 patches, but at most 262,144 are allowed"
    with pytest.raises(veca.ImageError, match=words):
        veca.preprocess(strip)
    narrow = encoded(Image.new("L", (1, 330)), "PNG")  # 72 bytes would take 2.2 GB
    with pytest.raises(veca.ImageError, match=r"1 x 330 pixels .* 337,920 patches"):
        veca.prepare(narrow)
    small = np.zeros((64, 64, 3), np.uint8)
    assert veca.prepare(small, 64, max_patches=16).geometry.grid == (4, 4)
    with pytest.raises(veca.ImageError, match=r"16 patches, but at most 15 .* a smaller size"):
        veca.prepare(small, 64, max_patches=15)
    with pytest.raises(veca.ImageError, match="at most 4,000 pixels"):
        veca.prepare(np.zeros((10, 10, 3), np.uint8), 64, max_pixels=4000)
    assert veca.preprocess(strip, fit="pad").shape == (3, 16, 512)
    assert veca.preprocess(strip, fit="crop").shape == (3, 512, 512)
    lying = encoded(Image.fromarray(PHOTO), "PNG", exif=exif(6))
    assert veca.prepare(lying, 32).geometry.original == (56, 40)


@pytest.mark.compiled  # without the shape hook, which takes ints of Python only
def test_sizes_may_be_numbers_of_numpy() -> None:
    side: Any = np.int64(64)
    small = np.zeros((64, 64, 3), np.uint8)
    assert veca.prepare(small, side, max_patches=16).geometry.grid == (4, 4)


def cubic(distance: float) -> float:
    """The kernel of Keys with a = -0.5."""
    d = abs(distance)
    if d < 1:
        return 1.5 * d**3 - 2.5 * d**2 + 1
    return -0.5 * d**3 + 2.5 * d**2 - 4 * d + 2 if d < 2 else 0.0


def weights(length: int, size: int, start: float, end: float) -> NDArray[Any]:
    """What each of `size` new pixels takes from each of `length` old ones."""
    scale = (end - start) / size
    widened = max(scale, 1.0)  # antialiasing: the kernel covers as much as a new pixel does
    matrix = np.zeros((size, length))
    for new in range(size):
        center = start + (new + 0.5) * scale
        row = [cubic((old + 0.5 - center) / widened) for old in range(length)]
        matrix[new] = np.array(row) / sum(row)
    return matrix


def resampled_slowly(
    picture: NDArray[Any], sides: tuple[int, int], box: Box, whole: bool = False
) -> NDArray[Any]:
    """A picture (H, W, 3) within 0..1 after a pass along x and one along y.

    Each pass ends within 0..1, and where `whole` is set at one of the 256 steps of 8 bits.
    """

    def in_range(values: NDArray[Any]) -> NDArray[Any]:
        values = np.clip(values, 0, 1)
        return np.floor(values * 255 + 0.5) / 255 if whole else values

    left, top, right, bottom = box
    height, width, _ = picture.shape
    wide = np.einsum("nw,hwc->hnc", weights(width, sides[1], left, right), picture)
    tall = np.einsum("mh,hnc->mnc", weights(height, sides[0], top, bottom), in_range(wide))
    return in_range(tall)


def place(side: Side, pixel: int) -> Fraction:
    """Where the center of an original pixel lies, in pixels of the prepared picture."""
    return Fraction(2 * pixel + 1, 2) * side.scaled / side.original - side.cropped


def patch_under(side: Side, pixel: int) -> int | None:
    """The patch on which an original pixel lies."""
    patch = math.floor(place(side, pixel) / side.patch_size)
    return patch if 0 <= patch < side.patches else None


def neighbors(side: Side, pixel: int) -> tuple[int, int, float]:
    """The patches between whose centers an original pixel lies, and the share of the second."""
    showing = [
        patch
        for patch in range(side.patches)
        if patch * side.patch_size < side.scaled - side.cropped
    ]
    exact = place(side, pixel) / side.patch_size - Fraction(1, 2)
    exact = min(max(exact, Fraction(showing[0])), Fraction(showing[-1]))
    first = math.floor(exact)
    return first, min(first + 1, showing[-1]), float(exact - first)


def nearest(patch_map: NDArray[Any], geometry: Geometry, fill: float) -> NDArray[Any]:
    """A patch map (rows, columns) on the original pixels, one pixel after the other."""
    height, width = geometry.original
    image = np.full((height, width), fill)
    for y in range(height):
        for x in range(width):
            row, column = patch_under(geometry.height, y), patch_under(geometry.width, x)
            if row is not None and column is not None:
                image[y, x] = patch_map[row, column]
    return image


def bilinear(patch_map: NDArray[Any], geometry: Geometry, fill: float) -> NDArray[Any]:
    """The same with blending."""
    height, width = geometry.original
    image = np.full((height, width), fill)
    for y in range(height):
        for x in range(width):
            if patch_under(geometry.height, y) is None or patch_under(geometry.width, x) is None:
                continue
            top, bottom, down = neighbors(geometry.height, y)
            left, right, across = neighbors(geometry.width, x)
            upper = patch_map[top, left] * (1 - across) + patch_map[top, right] * across
            lower = patch_map[bottom, left] * (1 - across) + patch_map[bottom, right] * across
            image[y, x] = upper * (1 - down) + lower * down
    return image


NOISE = np.random.default_rng(5).integers(0, 256, (37, 23, 3)).astype(np.uint8)
"""Noise overshoots everywhere, so that every pass clips."""

NEW_SIDES = [(37, 23), (16, 16), (64, 48), (9, 80), (80, 7), (1, 1)]
BOXES: list[Box] = [(0.0, 0.0, 23.0, 37.0), (2.0, 5.0, 20.0, 30.0), (0.75, 1.5, 21.25, 36.5)]


def our_resampled(picture: NDArray[Any], sides: tuple[int, int], box: Box) -> NDArray[Any]:
    """Resample an array, (H, W, 3) within 0..1."""
    pixels = image_from_array(picture).resampled(sides, box).pixels().permute(1, 2, 0).numpy()
    return pixels / 255 if picture.dtype == np.uint8 else pixels


@pytest.mark.parametrize("box", BOXES)
@pytest.mark.parametrize("sides", NEW_SIDES)
def test_bytes_are_resampled_like_a_convolution(sides: tuple[int, int], box: Box) -> None:
    found = our_resampled(NOISE, sides, box)
    expected = resampled_slowly(NOISE / 255, sides, box, whole=True)
    assert np.abs(found - expected).max() <= 1 / 255 + 1e-9
    assert np.mean(np.abs(found - expected) < 1e-6) > 0.99  # ties may fall either way


@pytest.mark.parametrize("box", BOXES)
@pytest.mark.parametrize("sides", NEW_SIDES)
def test_floats_are_resampled_like_a_convolution(sides: tuple[int, int], box: Box) -> None:
    found = our_resampled(NOISE / 255, sides, box)
    expected = resampled_slowly(NOISE / 255, sides, box)
    assert np.abs(found - expected).max() < 1e-5


@pytest.mark.parametrize("sides", NEW_SIDES)
def test_bytes_are_resampled_like_pillow_along_each_side(sides: tuple[int, int]) -> None:
    height, width = sides
    bicubic = Image.Resampling.BICUBIC
    expected = Image.fromarray(NOISE).resize((width, 37), bicubic).resize((width, height), bicubic)
    assert np.array_equal(our_resampled(NOISE, sides, BOXES[0]) * 255, np.asarray(expected))


@pytest.mark.parametrize("sides", NEW_SIDES)
def test_floats_are_resampled_like_torch_along_each_side(sides: tuple[int, int]) -> None:
    def stretched(pixels: Tensor, size: tuple[int, int]) -> Tensor:
        return F.interpolate(pixels, size, mode="bicubic", antialias=True).clamp(0, 1)

    pixels = torch.from_numpy(NOISE / 255).permute(2, 0, 1)[None]
    expected = stretched(stretched(pixels, (37, sides[1])), sides)[0].permute(1, 2, 0)
    assert np.abs(our_resampled(NOISE / 255, sides, BOXES[0]) - expected.numpy()).max() < 1e-5


@pytest.mark.parametrize("picture", [NOISE, NOISE / np.float32(255)])
def test_a_box_of_whole_pixels_at_its_own_size_is_a_slice(picture: NDArray[Any]) -> None:
    found = our_resampled(picture, (25, 18), BOXES[1])
    scale = 255 if picture.dtype == np.uint8 else 1
    assert np.allclose(found, picture[5:30, 2:20] / scale, atol=1e-7)


def test_gray_has_three_equal_colors() -> None:
    pixels = image_from_array(NOISE[..., 0] / 255).pixels()
    assert pixels.shape == (3, 37, 23)
    assert torch.equal(pixels[0], pixels[2])


@pytest.mark.parametrize("side", [1, 2, 5])
@pytest.mark.parametrize("margin", [0, 1, 4, 5, 6, 23])
def test_mirroring_is_numpys_symmetric_padding(side: int, margin: int) -> None:
    expected = np.pad(np.arange(side), margin, mode="symmetric")
    assert np.array_equal(mirrored(-margin, side + margin, side), expected)


@pytest.mark.parametrize("kind", [np.uint8, np.float32])
def test_an_image_is_mirrored_beyond_its_borders(kind: type) -> None:
    picture = NOISE if kind is np.uint8 else (NOISE / 255).astype(np.float32)
    padded = np.pad(picture, ((60, 60), (60, 60), (0, 0)), mode="symmetric")
    left, top, right, bottom = box = (-7.5, 4.0, 41.25, 50.5)
    around: Box = (left + 60, top + 60, right + 60, bottom + 60)
    found = image_from_array(picture).resampled_beyond((20, 31), box).pixels()
    assert torch.equal(found, image_from_array(padded).resampled((20, 31), around).pixels())
