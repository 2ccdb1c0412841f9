"""Upright pictures; `corpus.py` holds every orientation in JPEG, and where else it can stand."""

import io

import numpy as np
import pytest
from PIL import Image, ImageOps

from tests.data.corpus import PHOTO, TURNED_UPRIGHT, encoded, exif
from veca.data.images import upright, upright_size


def stored(orientation: int) -> Image.Image:
    """A lossless picture that says how to turn it."""
    content = encoded(Image.fromarray(PHOTO), "PNG", exif=exif(orientation))
    return Image.open(io.BytesIO(content))


@pytest.mark.parametrize("orientation", TURNED_UPRIGHT)
def test_a_picture_is_turned_as_the_standard_defines(orientation: int) -> None:
    expected = TURNED_UPRIGHT[orientation](PHOTO)
    assert np.array_equal(np.asarray(upright(stored(orientation))), expected)


@pytest.mark.parametrize("orientation", [0, 9, 255])
def test_numbers_that_mean_nothing_leave_a_picture_as_it_is(orientation: int) -> None:
    assert np.array_equal(np.asarray(upright(stored(orientation))), PHOTO)


def test_a_picture_that_pillow_has_turned_is_not_turned_again() -> None:
    turned = ImageOps.exif_transpose(stored(6))
    assert np.array_equal(np.asarray(upright(turned)), TURNED_UPRIGHT[6](PHOTO))


@pytest.mark.parametrize("orientation", TURNED_UPRIGHT)
def test_the_upright_size_needs_no_pixels(orientation: int) -> None:
    content = encoded(Image.fromarray(PHOTO), "PNG", exif=exif(orientation))
    file = io.BytesIO(content[: content.index(b"IDAT") + 10])
    with Image.open(file) as image:
        height, width, _ = TURNED_UPRIGHT[orientation](PHOTO).shape
        assert upright_size(image, file) == (width, height)
