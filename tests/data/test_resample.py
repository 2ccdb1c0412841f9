"""Resampling equals Pillow, torch and a convolution written out."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from tests.data import oracles
from veca.data.images import Box, image_from_array, mirrored

NOISE = np.random.default_rng(5).integers(0, 256, (37, 23, 3)).astype(np.uint8)
"""Noise overshoots everywhere, so that every pass clips."""

SIDES = [(37, 23), (16, 16), (64, 48), (9, 80), (80, 7), (1, 1)]
BOXES: list[Box] = [(0.0, 0.0, 23.0, 37.0), (2.0, 5.0, 20.0, 30.0), (0.75, 1.5, 21.25, 36.5)]


def resampled(picture: NDArray[Any], sides: tuple[int, int], box: Box) -> NDArray[Any]:
    """Resample an array, (H, W, 3) within 0..1."""
    pixels = image_from_array(picture).resampled(sides, box).pixels().permute(1, 2, 0).numpy()
    return pixels / 255 if picture.dtype == np.uint8 else pixels


@pytest.mark.parametrize("box", BOXES)
@pytest.mark.parametrize("sides", SIDES)
def test_bytes_are_resampled_like_a_convolution(sides: tuple[int, int], box: Box) -> None:
    found = resampled(NOISE, sides, box)
    expected = oracles.resampled(NOISE / 255, sides, box, whole=True)
    assert np.abs(found - expected).max() <= 1 / 255 + 1e-9
    assert np.mean(np.abs(found - expected) < 1e-6) > 0.99  # ties may fall either way


@pytest.mark.parametrize("box", BOXES)
@pytest.mark.parametrize("sides", SIDES)
def test_floats_are_resampled_like_a_convolution(sides: tuple[int, int], box: Box) -> None:
    found = resampled(NOISE / 255, sides, box)
    expected = oracles.resampled(NOISE / 255, sides, box)
    assert np.abs(found - expected).max() < 1e-5


@pytest.mark.parametrize("sides", SIDES)
def test_bytes_are_resampled_like_pillow_along_each_side(sides: tuple[int, int]) -> None:
    height, width = sides
    bicubic = Image.Resampling.BICUBIC
    expected = Image.fromarray(NOISE).resize((width, 37), bicubic).resize((width, height), bicubic)
    assert np.array_equal(resampled(NOISE, sides, BOXES[0]) * 255, np.asarray(expected))


@pytest.mark.parametrize("sides", SIDES)
def test_floats_are_resampled_like_torch_along_each_side(sides: tuple[int, int]) -> None:
    def stretched(pixels: Tensor, size: tuple[int, int]) -> Tensor:
        return F.interpolate(pixels, size, mode="bicubic", antialias=True).clamp(0, 1)

    pixels = torch.from_numpy(NOISE / 255).permute(2, 0, 1)[None]
    expected = stretched(stretched(pixels, (37, sides[1])), sides)[0].permute(1, 2, 0)
    assert np.abs(resampled(NOISE / 255, sides, BOXES[0]) - expected.numpy()).max() < 1e-5


@pytest.mark.parametrize("picture", [NOISE, NOISE / np.float32(255)])
def test_a_box_of_whole_pixels_at_its_own_size_is_a_slice(picture: NDArray[Any]) -> None:
    found = resampled(picture, (25, 18), BOXES[1])
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
