"""Inputs are opened wherever they lie, and failures are worded with the name of the input."""

from pathlib import Path

import pytest

from tests.data.pictures import encoded, write_shard
from veca.data.images import ImageError, read_size
from veca.data.listing import UNKNOWN, ImageEntry, exists, list_images, one_line, open_image


def test_files_and_members_are_opened_alike(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(encoded(1))
    shard = write_shard(tmp_path / "s.tar", [("x.png", encoded(0)), ("b.png", encoded(1))])
    table = list_images([tmp_path / "a.png", f"{shard}#b.png"]).table
    for row in range(2):
        with open_image(table[row]) as file:
            assert read_size(file) == (48, 32)


def test_a_member_that_is_no_picture_fails_like_a_file(tmp_path: Path) -> None:
    shard = write_shard(tmp_path / "s.tar", [("x.png", b"no picture")])
    with (
        open_image(list_images([shard]).table[0]) as file,
        pytest.raises(ImageError, match="in none of the formats"),
    ):
        read_size(file)


def test_a_failure_is_one_line_of_text() -> None:
    assert one_line(OSError("two\nlines \udcff")) == "two lines ?"
    assert one_line(MemoryError()) == "MemoryError"


def test_an_input_exists_as_long_as_its_file_or_shard_does(tmp_path: Path) -> None:
    (tmp_path / "s.tar").touch()
    assert exists(ImageEntry(f"{tmp_path}/s.tar#a", 0, f"{tmp_path}/s.tar", 0))
    assert not exists(ImageEntry(f"{tmp_path}/a", 0, None, UNKNOWN))
