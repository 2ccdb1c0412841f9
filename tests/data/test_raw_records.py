"""A record of plain numbers is served as a picture."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from veca.data.images import ImageError, decode
from veca.data.listing import RAW_SUFFIX, TableBuilder, open_image, open_record

SIDE = 5


def records(path: Path) -> NDArray[np.uint8]:
    """Three planes of chance, twice, each after one byte of something else."""
    numbers = np.random.default_rng(0).integers(0, 256, (2, 3, SIDE, SIDE), np.uint8)
    path.write_bytes(b"".join(b"L" + picture.tobytes() for picture in numbers))
    return numbers


def test_planes_become_colors(tmp_path: Path) -> None:
    numbers = records(tmp_path / "all.bin")
    size = 3 * SIDE * SIDE
    for row in range(2):
        file = open_record(str(tmp_path / "all.bin"), row * (size + 1) + 1, size)
        np.testing.assert_array_equal(decode(file).pixels(), numbers[row])


def test_an_input_of_that_name_is_opened_as_a_picture(tmp_path: Path) -> None:
    numbers = records(tmp_path / "all.bin")
    builder = TableBuilder()
    builder.add_member(str(tmp_path / "all.bin"), f"1{RAW_SUFFIX}", 3 * SIDE * SIDE, 77)
    with open_image(builder.table()[0]) as file:
        np.testing.assert_array_equal(decode(file).pixels(), numbers[1])


@pytest.mark.parametrize(("start", "num_bytes"), [(100, 75), (0, 74), (0, 60)])
def test_a_record_that_is_cut_short_or_no_square_is_refused(
    tmp_path: Path, start: int, num_bytes: int
) -> None:
    records(tmp_path / "all.bin")
    with pytest.raises(ImageError, match="a square picture"):
        open_record(str(tmp_path / "all.bin"), start, num_bytes)
