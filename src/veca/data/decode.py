"""From anything that is a picture to its colours, or to its size alone."""

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from veca.data.arrays import picture_of_array, picture_of_tensor
from veca.data.colours import match_transparency, picture_of_image
from veca.data.opening import MOST_PIXELS, BinaryFile, check_size, load, opened
from veca.data.orientation import upright_size
from veca.data.picture import Picture
from veca.data.strictness import strict_pillow

EncodedSource = str | os.PathLike[str] | bytes | bytearray | memoryview | BinaryFile
"""A path, the bytes of a file, or an open binary file, which is read from its start."""

Source = EncodedSource | Image.Image | NDArray[Any] | Tensor
"""Everything that is taken for a picture; arrays and tensors as `arrays.py` says."""


def decode(
    source: object, most_pixels: int = MOST_PIXELS, least_side: int | None = None
) -> Picture:
    """The picture, upright and opaque: the first frame, or the one that a PIL image stands at.

    Where `least_side` is given, an encoded JPEG comes at 1, 1/2, 1/4 or 1/8 of its size, the
    smallest with that many pixels on both sides: its decoder can leave the finest detail out, which
    makes large photographs several times faster to read.
    """
    if isinstance(source, np.ndarray):
        return picture_of_array(source)
    if isinstance(source, Tensor):
        return picture_of_tensor(source)
    with strict_pillow(most_pixels):
        if isinstance(source, Image.Image):
            return _decoded("the image given", source, most_pixels)
        with opened(source) as (name, image, _):
            match_transparency(image)
            check_size(name, image, most_pixels)  # of the whole picture
            if least_side is not None:
                image.draft(None, (least_side, least_side))
            return _decoded(name, image, most_pixels)


def read_size(source: EncodedSource) -> tuple[int, int]:
    """Width and height of the upright picture, from the header alone."""
    with strict_pillow(MOST_PIXELS), opened(source) as (_, image, file):
        return upright_size(image, file)


def _decoded(name: str, image: Image.Image, most_pixels: int) -> Picture:
    """Decode an image whose size is allowed."""
    check_size(name, image, most_pixels)
    load(name, image)
    return picture_of_image(name, image)
