"""Numbers in memory as pictures."""

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.data.corpus import DEEP, GRAYS, PHOTO, on_white
from veca.data.images import DecodedImage, ImageError, image_from_array, image_from_tensor

RGBA = np.dstack([PHOTO, GRAYS])


def colors(picture: DecodedImage) -> np.ndarray:
    """What a picture looks like, (H, W, 3) within 0..1."""
    pixels = picture.pixels()
    scale = 255 if not pixels.is_floating_point() else 1
    return (pixels.permute(1, 2, 0) / scale).numpy()


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (GRAYS, np.dstack([GRAYS] * 3) / 255),
        (GRAYS[..., None], np.dstack([GRAYS] * 3) / 255),
        (PHOTO, PHOTO / 255),
        (PHOTO[:, ::-1], PHOTO[:, ::-1] / 255),
        (RGBA, on_white(PHOTO, GRAYS)),
        (RGBA / 255, on_white(PHOTO, GRAYS)),
        (DEEP[..., 0], np.dstack([DEEP[..., 0]] * 3) / 65535),
        (DEEP[..., :3], DEEP[..., :3] / 65535),
        (DEEP[..., :3].astype(">u2"), DEEP[..., :3] / 65535),
        (DEEP, DEEP[..., :3] / 65535 * (DEEP[..., 3:] / 65535) + 1 - DEEP[..., 3:] / 65535),
        (PHOTO / 255, PHOTO / 255),
        ((GRAYS / 255).astype(np.float16), np.dstack([GRAYS] * 3) / 255),
        (np.zeros((1, 1), np.uint8), np.zeros((1, 1, 3))),
    ],
)
def test_an_array_and_its_tensor_give_the_colors_in_them(
    array: np.ndarray, expected: np.ndarray
) -> None:
    assert np.abs(colors(image_from_array(array)) - expected).max() <= 1 / 255

    native = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("=")))
    tensor = torch.from_numpy(native)
    tensor = tensor.permute(2, 0, 1) if tensor.ndim == 3 else tensor
    assert np.abs(colors(image_from_tensor(tensor)) - expected).max() <= 1 / 255


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_floats_of_every_width_are_taken(dtype: torch.dtype) -> None:
    pixels = torch.tensor([0.0, 0.25, 1.0], dtype=dtype).reshape(3, 1, 1).requires_grad_()
    assert image_from_tensor(pixels).pixels().flatten().tolist() == [0, 0.25, 1]


@pytest.mark.parametrize("shape", [(3, 8, 8), (8, 8, 2), (8, 8, 5), (1, 8, 8, 3), (8,), ()])
def test_an_array_of_another_shape_is_refused_with_the_shapes_needed(
    shape: tuple[int, ...],
) -> None:
    with pytest.raises(ImageError, match=r"\(H, W, 3\) or \(H, W, 4\)"):
        image_from_array(np.zeros(shape, np.uint8))


@pytest.mark.parametrize("shape", [(8, 8, 3), (2, 8, 8), (1, 3, 8, 8), (8,)])
def test_a_tensor_of_another_shape_is_refused_with_the_shapes_needed(
    shape: tuple[int, ...],
) -> None:
    with pytest.raises(ImageError, match=r"\(3, H, W\) or \(4, H, W\)"):
        image_from_tensor(torch.zeros(shape))


@pytest.mark.parametrize("dtype", [bool, np.int32, np.int64, np.uint32, complex, object])
def test_an_array_of_another_type_is_refused_with_the_types_needed(dtype: type) -> None:
    with pytest.raises(ImageError, match=r"uint8, uint16 or floats in 0\.\.1"):
        image_from_array(np.zeros((4, 4), dtype))


@pytest.mark.parametrize("shape", [(0, 5), (5, 0, 3)])
def test_an_array_without_a_pixel_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ImageError, match="holds no pixel"):
        image_from_array(np.zeros(shape, np.uint8))


@pytest.mark.parametrize(
    "tensor",
    [torch.full((3, 2, 2), 255.0), torch.full((3, 2, 2), -1.0), torch.full((3, 2, 2), torch.nan)],
)
def test_floats_in_another_range_are_refused_with_the_range_found(tensor: Tensor) -> None:
    with pytest.raises(ImageError, match=r"floats from (255|-1|nan) to (255|-1|nan), .* divide"):
        image_from_tensor(tensor)


def test_floats_that_strayed_by_rounding_are_clipped() -> None:
    pixels = image_from_array(np.array([[-1e-6, 1 + 1e-6]])).pixels()
    assert (float(pixels.min()), float(pixels.max())) == (0, 1)
