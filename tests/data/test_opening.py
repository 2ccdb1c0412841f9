"""What is opened, what is refused, and how soon."""

import io
import os
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.data.corpus import PHOTO, encoded
from veca.data.images import FORMATS, MAX_PIXELS, ImageError, check_size, decode, opened

PNG = encoded(Image.fromarray(PHOTO), "PNG")


def is_the_photo(source: object) -> bool:
    """Whether a source is read as the photo that it holds."""
    return np.array_equal(decode(source).pixels().permute(1, 2, 0).numpy(), PHOTO)


def test_a_path_is_opened_as_text_and_as_an_object(tmp_path: Path) -> None:
    path = tmp_path / "ph\u00f6to.png"
    path.write_bytes(PNG)
    assert is_the_photo(path)
    assert is_the_photo(str(path))


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_bytes_are_opened(kind: Any) -> None:
    assert is_the_photo(kind(PNG))


def test_an_open_file_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "photo.png"
    path.write_bytes(PNG)
    with path.open("rb") as file:
        file.seek(100)
        assert is_the_photo(file)
        assert is_the_photo(file)


def test_a_member_of_an_archive_is_read() -> None:
    shard = io.BytesIO()
    with tarfile.open(fileobj=shard, mode="w") as archive:
        for name in ("a.png", "b.png"):
            member = tarfile.TarInfo(name)
            member.size = len(PNG)
            archive.addfile(member, io.BytesIO(PNG))
    with tarfile.open(fileobj=io.BytesIO(shard.getvalue())) as archive:
        assert is_the_photo(archive.extractfile("b.png"))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=r"nowhere.png does not exist; check the path"):
        decode(tmp_path / "nowhere.png")


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="is a folder; pass"):
        decode(tmp_path)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such pipes")
def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(ImageError, match="device or a pipe"):
        decode(tmp_path / "pipe.png")


def test_a_path_that_no_file_can_have_is_refused() -> None:
    with pytest.raises(ImageError, match="cannot be opened"):
        decode("photo\0.png")


class Stream(io.RawIOBase):
    """What comes over a wire: read once, from front to back."""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return 0


def test_a_stream_that_cannot_be_rewound_is_refused_with_what_to_do() -> None:
    with pytest.raises(ImageError, match=r"pass its bytes, as in file.read\(\)"):
        decode(Stream())


def test_a_closed_file_is_refused() -> None:
    file = io.BytesIO(PNG)
    file.close()
    with pytest.raises(ImageError, match="closed file"):
        decode(file)


def test_a_text_file_is_refused_with_how_to_open_it() -> None:
    with pytest.raises(ImageError, match="binary mode"):
        decode(io.StringIO("words"))


@pytest.mark.parametrize("source", [None, 42, 3.5, ["photo.png"], {"a": 1}, object()])
def test_what_is_no_picture_is_refused_with_what_is_one(source: object) -> None:
    with pytest.raises(ImageError, match=f"a {type(source).__name__}; pass a path, bytes"):
        decode(source)


def test_formats_that_run_programs_or_read_other_files_stay_closed() -> None:
    assert {"EPS", "PDF", "WMF", "FITS", "PSD", "ICNS"}.isdisjoint(FORMATS)
    assert set(FORMATS) <= set(Image.OPEN)


def test_opening_decodes_nothing() -> None:
    with opened(PNG[: PNG.index(b"IDAT") + 20]) as (_, image, _):
        assert image.size == (56, 40)


def test_as_many_pixels_as_allowed_are_decoded_and_no_more() -> None:
    assert is_the_photo(PNG)
    assert decode(PNG, max_pixels=56 * 40).sides == (40, 56)
    words = r"56 x 40 pixels, but at most 2,239 .* higher max_pixels"
    for source in (PNG, Image.fromarray(PHOTO)):
        with pytest.raises(ImageError, match=words):
            decode(source, max_pixels=56 * 40 - 1)


def test_the_default_limit_is_where_pillow_begins_to_warn() -> None:
    assert MAX_PIXELS == Image.MAX_IMAGE_PIXELS


@pytest.mark.parametrize("format_", ["PNG", "TIFF", "WEBP", "GIF"])
def test_a_limit_above_that_of_pillow_counts(format_: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    content = encoded(Image.fromarray(PHOTO), format_)
    assert decode(content, max_pixels=10_000).sides == (40, 56)


def test_a_side_that_cannot_be_resampled_is_refused() -> None:
    with pytest.raises(ImageError, match="a side of at most 16,777,216"):
        check_size("a rope", Image.new("1", (1, 2**24 + 1)), MAX_PIXELS)
