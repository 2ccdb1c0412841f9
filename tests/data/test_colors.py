"""Color modes of images that are already open; `corpus.py` has those of files."""

import io

import numpy as np
import pytest
from PIL import Image

from tests.data.corpus import GRAYS, PHOTO, encoded
from veca.data.images import ImageError, image_from_pillow, opaque


def colors(image: Image.Image) -> np.ndarray:
    """What a decoded image looks like, (H, W, 3) within 0..1."""
    pixels = image_from_pillow("it", image).pixels()
    scale = 255 if not pixels.is_floating_point() else 1
    return (pixels.permute(1, 2, 0) / scale).numpy()


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "RGBX", "RGBa", "CMYK", "YCbCr", "HSV"])
def test_a_color_image_looks_the_same_in_every_mode(mode: str) -> None:
    image = Image.fromarray(PHOTO)
    image = image.convert("RGBA") if mode == "RGBa" else image
    assert np.abs(colors(image.convert(mode)) - PHOTO / 255).max() < 8 / 255


def test_lab_is_turned_into_colors() -> None:
    reds = Image.new("RGB", (2, 2), (180, 60, 50)).convert("LAB")
    assert np.abs(colors(reds) * 255 - (180, 60, 50)).max() < 4


@pytest.mark.parametrize("mode", ["L", "LA", "La", "RGB", "P"])
def test_a_gray_image_looks_the_same_in_every_mode(mode: str) -> None:
    image = Image.fromarray(GRAYS)
    image = image.convert("LA") if mode == "La" else image
    assert np.array_equal(colors(image.convert(mode)), np.dstack([GRAYS] * 3) / np.float32(255))


def test_what_is_transparent_is_white_whatever_color_it_hides() -> None:
    hidden = Image.new("RGBA", (3, 2), (200, 10, 10, 0))
    assert opaque(hidden).getcolors() == [(6, (255, 255, 255))]


def test_half_transparent_black_is_gray() -> None:
    assert opaque(Image.new("LA", (1, 1), (0, 128))).getpixel((0, 0)) == (127, 127, 127)


@pytest.mark.parametrize("dtype", ["<u2", ">u2", "i4"])
def test_sixteen_bits_are_scaled_and_not_clipped(dtype: str) -> None:
    values = np.array([[0, 255, 256, 40_000, 65_535]])
    image = Image.fromarray(values.astype(dtype))
    assert np.allclose(colors(image)[..., 0], values / 65535, atol=1e-7)


@pytest.mark.parametrize("values", [[[-1, 5]], [[0, 65_536]]])
def test_whole_numbers_beyond_sixteen_bits_are_refused(values: list[list[int]]) -> None:
    with pytest.raises(ImageError, match=r"whole numbers from .* 0\.\.65535"):
        colors(Image.fromarray(np.array(values, "i4")))


@pytest.mark.parametrize("value", [-0.01, 1.01, 255.0, np.nan, np.inf])
def test_floats_outside_their_range_are_refused(value: float) -> None:
    image = Image.fromarray(np.array([[0.5, value]], np.float32))
    with pytest.raises(ImageError, match=r"it holds floats from .* 0\.\.1"):
        colors(image)


def test_a_mode_without_a_way_to_colors_is_refused() -> None:
    broken = Image.new("P", (2, 2))
    broken.info["transparency"] = (1, 2, 3)
    with pytest.raises(ImageError, match="mode P"):
        colors(broken)


def test_an_image_that_was_passed_in_stays_as_it_was() -> None:
    image = Image.open(io.BytesIO(encoded(Image.fromarray(PHOTO), "PNG", transparency=(1, 2, 3))))
    image.load()
    before = image.tobytes(), image.mode, dict(image.info)
    colors(image)
    assert (image.tobytes(), image.mode, image.info) == before
