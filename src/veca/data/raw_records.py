"""Pictures that lie as plain numbers in a larger file, such as CIFAR's, served as files in memory.

Whatever reads an input takes an encoded picture, so a record gets the header of a PPM file.
"""

import io
from math import isqrt

import numpy as np

from veca.data.errors import PictureError

RAW_SUFFIX = ".planar-rgb"
"""How the name of such a picture ends: a square of 8 bits, all of red, then green, then blue."""


def open_record(path: str, start: int, num_bytes: int) -> io.BytesIO:
    """A record as an open PPM file."""
    with io.FileIO(path) as file:
        file.seek(start)
        numbers = file.read(num_bytes)
    side = isqrt(num_bytes // 3)
    if len(numbers) != num_bytes or 3 * side * side != num_bytes:
        raise PictureError(
            f"{path} has {len(numbers):,} bytes at byte {start:,}, where a square picture of "
            f"{num_bytes:,} was expected; it was cut short or exchanged: get it again."
        )
    pixels = np.frombuffer(numbers, np.uint8).reshape(3, side, side).transpose(1, 2, 0)
    return io.BytesIO(b"P6 %d %d 255\n" % (side, side) + pixels.tobytes())
