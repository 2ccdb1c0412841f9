"""Members of tar shards are read where they lie, and damage is never silent."""

import io
import tarfile
from pathlib import Path

import pytest

from tests.data.pictures import write_shard
from veca.data.images import DataError
from veca.data.listing import members, open_member

CONTENTS = [(f"folder/{number}.jpg", bytes([number]) * (700 * number + 1)) for number in range(5)]


def test_members_come_in_order_with_the_place_of_their_bytes(tmp_path: Path) -> None:
    path = write_shard(tmp_path / "s.tar", CONTENTS)
    found = list(members(str(path)))
    assert [member.name for member in found] == [name for name, _ in CONTENTS]
    whole = path.read_bytes()
    for member, (_, content) in zip(found, CONTENTS, strict=True):
        assert whole[member.start : member.start + member.num_bytes] == content


def test_long_names_links_and_folders_do_not_disturb(tmp_path: Path) -> None:
    path = tmp_path / "s.tar"
    with tarfile.open(path, "w") as shard:
        folder = tarfile.TarInfo("folder")
        folder.type = tarfile.DIRTYPE
        shard.addfile(folder)
        link = tarfile.TarInfo("link.jpg")
        link.type, link.linkname = tarfile.SYMTYPE, "folder"
        shard.addfile(link)
        picture = tarfile.TarInfo("\u6d77" * 150 + ".jpg")
        picture.size = 3
        shard.addfile(picture, io.BytesIO(b"abc"))
    (found,) = members(str(path))
    assert found.name == "\u6d77" * 150 + ".jpg"
    with open_member(str(path), found.start, found.num_bytes) as file:
        assert file.read() == b"abc"


def test_a_member_is_a_file_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"before0123456789after")
    with open_member(str(path), 6, 10) as file:
        assert file.read() == b"0123456789"
        assert file.seek(-3, io.SEEK_END) == 7
        assert file.read(100) == b"789"
        assert file.seek(2) == 2
        file.read(1)
        assert file.seek(1, io.SEEK_CUR) == 4
        assert file.read(2) == b"45"
        assert file.seek(50) == 50
        assert file.read() == b""
        assert file.readable()
        with pytest.raises(ValueError, match="before the start"):
            file.seek(-1)
        raw = file.raw
    assert raw.closed


def test_a_damaged_header_gives_what_lies_before_it_and_then_an_error(tmp_path: Path) -> None:
    path = write_shard(tmp_path / "s.tar", CONTENTS)
    third = list(members(str(path)))[2]
    content = bytearray(path.read_bytes())
    content[third.start - 512 : third.start - 500] = b"\xff" * 12
    path.write_bytes(content)
    found = members(str(path))
    assert [next(found).name, next(found).name] == ["folder/0.jpg", "folder/1.jpg"]
    with pytest.raises(DataError, match="cannot be read to its end"):
        next(found)


@pytest.mark.parametrize("length", [100, 1000, 1536, 2000])
def test_a_shard_that_was_cut_within_a_file_is_damaged(length: int, tmp_path: Path) -> None:
    path = write_shard(tmp_path / "s.tar", CONTENTS)
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(DataError, match="cannot be read to its end"):
        list(members(str(path)))


@pytest.mark.parametrize("content", [b"", b"no tar at all", b"\x1f\x8b" + bytes(600)])
def test_what_is_no_shard_is_an_error(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "s.tar"
    path.write_bytes(content)
    with pytest.raises(DataError, match="cannot be read to its end"):
        list(members(str(path)))


def test_a_shard_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No such file"):
        list(members(str(tmp_path / "s.tar")))
