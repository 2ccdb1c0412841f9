"""The whole way from a picture to what a model sees, and back."""

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

import veca
from tests.data import oracles
from tests.data.corpus import PHOTO, encoded, exif, photo
from veca.data.transforms import IMAGENET, Fit, Normalization

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
    assert geometry.to_pixels(features.core_points).shape == (1, 2, 2)


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
    with pytest.raises(veca.ImageError, match="a picture cannot be a"):
        veca.preprocess(source)
