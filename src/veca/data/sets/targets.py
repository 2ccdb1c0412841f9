"""Reading what is told of pixels: masks, whose numbers are indices, and depth, in 16 bits.

The masks of VOC are PNG files with a palette. Their indices are the classes; the colours are only
for the eye, and so are those of a depth map of 8 bits.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veca.data.errors import DataError, PictureError
from veca.data.opening import MOST_PIXELS, check_size, load, opened
from veca.data.sets.matlab_sets import read_matlab
from veca.data.sets.remaps import Table, remap
from veca.data.strictness import strict_pillow

MASK_MODES = ("P", "L", "1")
"""Pillow's names for 8 bits with and without a palette, and for 1 bit, which it spreads to 0, 255.
"""

DEPTH_MODE = "I;16"

MATLAB = ".mat"


def read_mask(path: str, table: Table) -> NDArray[np.uint8]:
    """The classes of the pixels of a PNG file, or of one of the MATLAB files of SBD."""
    numbers = _sbd_numbers(path) if path.endswith(MATLAB) else _indices(path)
    try:
        return remap(numbers, table)
    except DataError as error:
        raise PictureError(f"{path}: {error}") from error


def read_depth(path: str, per_metre: int) -> NDArray[np.float32]:
    """Metres from a PNG file of 16 bits, so many steps to a metre; 0 stays 0, unknown."""
    mode, numbers = _png(path)
    if mode != DEPTH_MODE:
        raise PictureError(
            f"{path} has the mode {mode}, but depth needs one channel of 16 bits; give the depth "
            "as it was published, not a picture of it."
        )
    return numbers.astype(np.float32) / np.float32(per_metre)


def _indices(path: str) -> NDArray[np.uint8]:
    """The numbers of a mask, never by way of colours."""
    mode, numbers = _png(path)
    if mode not in MASK_MODES:
        raise PictureError(
            f"{path} has the mode {mode}, but a mask needs one channel of 8 bits with the number "
            "of a class at each pixel; give the masks as they were published, not coloured ones."
        )
    return numbers.astype(np.uint8) * np.uint8(255) if mode == "1" else numbers


def _png(path: str) -> tuple[str, NDArray[Any]]:
    """Mode and numbers of a PNG file; others are refused, since JPEG would change the numbers."""
    with strict_pillow(MOST_PIXELS), opened(path) as (name, image, _):
        if image.format != "PNG":
            raise PictureError(
                f"{path} is a {image.format} file, but masks and depth are read from PNG files, "
                "which keep numbers as they are; give the published files."
            )
        check_size(name, image, MOST_PIXELS)
        load(name, image)
        return image.mode, np.array(image)


def _sbd_numbers(path: str) -> NDArray[np.uint8]:
    """`GTcls.Segmentation` of a file of the Semantic Boundaries Dataset."""
    record = read_matlab(Path(path), "GTcls")
    numbers = record["Segmentation"][0] if "Segmentation" in (record.dtype.names or ()) else record
    if numbers.dtype != np.uint8 or numbers.ndim != 2:
        raise PictureError(
            f"{path} holds no mask as GTcls.Segmentation; get the Semantic Boundaries Dataset "
            "again."
        )
    return numbers
