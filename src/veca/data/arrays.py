"""From numbers in memory to a `Picture`.

Numpy arrays have the channels last: (H, W), (H, W, 1), (H, W, 3) or (H, W, 4). Torch tensors have
them first: (H, W), (1, H, W), (3, H, W) or (4, H, W). A fourth channel is opacity. Bytes run to
255, 16 bits to 65535, floats from 0 to 1.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from veca.data.colours import GREATEST_16_BIT, opaque
from veca.data.errors import PictureError
from veca.data.picture import Picture, checked_floats, plane

CHANNELS = (1, 3, 4)


def picture_of_tensor(tensor: Tensor) -> Picture:
    """A picture from a tensor on any device."""
    if tensor.ndim == 3 and tensor.shape[0] in CHANNELS:
        tensor = tensor.permute(1, 2, 0)
    elif tensor.ndim != 2:
        raise _wrong_shape("tensor", tensor.shape, "(H, W), (1, H, W), (3, H, W) or (4, H, W)")
    tensor = tensor.detach().cpu()
    if tensor.is_floating_point():
        tensor = tensor.float()  # numpy knows fewer types of floats
    return _picture("the tensor given", tensor.numpy())


def picture_of_array(array: NDArray[Any]) -> Picture:
    """A picture from a numpy array."""
    if array.ndim != 2 and not (array.ndim == 3 and array.shape[2] in CHANNELS):
        raise _wrong_shape("array", array.shape, "(H, W), (H, W, 1), (H, W, 3) or (H, W, 4)")
    return _picture("the array given", array)


def _picture(name: str, array: NDArray[Any]) -> Picture:
    """A picture from an array whose shape is right."""
    if array.size == 0:
        raise PictureError(
            f"{name} has the shape {array.shape}, which holds no pixel; pass a picture with sides "
            "of at least 1."
        )
    channels = array.reshape(*array.shape[:2], -1)
    if channels.dtype == np.uint8:
        grey = channels.shape[2] == 1
        return Picture((opaque(Image.fromarray(channels[..., 0] if grey else channels)),))
    floats = _floats(name, channels)
    colours = floats[..., :3]
    if floats.shape[2] == 4:
        opacity = floats[..., 3:]
        colours = colours * opacity + (1 - opacity)  # on white, as everywhere
    return Picture(tuple(plane(colours[..., band]) for band in range(colours.shape[2])))


def _floats(name: str, array: NDArray[Any]) -> NDArray[Any]:
    """Values in 0..1, whatever type they came in."""
    if array.dtype.kind == "u" and array.dtype.itemsize == 2:
        return array.astype(np.float32) / GREATEST_16_BIT
    if array.dtype.kind == "f":
        return checked_floats(name, array).astype(np.float32)
    raise PictureError(
        f"{name} holds {array.dtype} numbers, but uint8, uint16 or floats in 0..1 are needed; "
        "convert it with astype or to."
    )


def _wrong_shape(kind: str, shape: tuple[int, ...], allowed: str) -> PictureError:
    """The error for what is no single picture."""
    return PictureError(
        f"the {kind} given has the shape {tuple(shape)}, but one picture of shape {allowed} is "
        "needed; pass pictures one by one, and move the axes to this order."
    )
