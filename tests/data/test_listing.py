"""Paths, lists, patterns and shards become images, in order, each once."""

import io
import os
import pickle
import tarfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.data.pictures import encoded, write_pictures, write_shard
from veca.data.images import DataError, ImageError, decode
from veca.data.listing import (
    RAW_SUFFIX,
    UNKNOWN,
    ImageEntry,
    ImageList,
    ImageTable,
    KeyedRows,
    TableBuilder,
    absolute,
    exists,
    key,
    list_images,
    member_name,
    members,
    one_line,
    open_image,
    possible_names,
    split_member,
)


def names(found: ImageList) -> list[str]:
    return [found.table[int(row)].name for row in found.rows]


def found_below(folder: Path, *paths: str) -> list[str]:
    """Names of what the paths mean, relative to the folder they are in."""
    found = names(list_images([str(folder / path) for path in paths]))
    return [name.removeprefix(f"{folder}{os.sep}") for name in found]


def touch(folder: Path, *paths: str) -> None:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(b"x")


def test_a_folder_gives_its_files_by_name_then_its_folders(tmp_path: Path) -> None:
    touch(tmp_path, "b/2.jpg", "b/1.png", "a/deep/er/x.webp", "z.JPG", "a.jpeg", "b/c/0.tif")
    assert found_below(tmp_path, ".") == [
        "a.jpeg", "z.JPG", "a/deep/er/x.webp", "b/1.png", "b/2.jpg", "b/c/0.tif",
    ]  # fmt: skip


def test_other_files_in_a_folder_are_counted_and_left_out(tmp_path: Path) -> None:
    touch(tmp_path, "a.jpg", "notes.md", "list.txt", "._a.jpg", ".hidden/b.jpg", "x/labels.json")
    found = list_images([tmp_path])
    assert names(found) == [str(tmp_path / "a.jpg")]
    assert found.others == 5


def test_formats_that_cannot_be_read_are_tried_so_that_they_are_listed(tmp_path: Path) -> None:
    touch(tmp_path, "a.heic", "b.svg")
    assert found_below(tmp_path, ".") == ["a.heic", "b.svg"]


def test_a_file_that_is_named_itself_is_taken_whatever_it_is_called(tmp_path: Path) -> None:
    touch(tmp_path, "picture", ".hidden.dat")
    assert found_below(tmp_path, "picture", ".hidden.dat") == ["picture", ".hidden.dat"]


def test_arguments_keep_their_order_and_what_is_meant_twice_comes_once(tmp_path: Path) -> None:
    touch(tmp_path, "b/1.jpg", "b/2.jpg", "a.jpg")
    given = ("b/2.jpg", "a.jpg", "b", "a.jpg", "b/../a.jpg")
    assert found_below(tmp_path, *given) == ["b/2.jpg", "a.jpg", "b/1.jpg"]


def test_a_pattern_gives_what_it_matches_by_name(tmp_path: Path) -> None:
    touch(tmp_path, "1/b.jpg", "1/a.jpg", "2/c.jpg", "2/d.png", "x.jpg")
    assert found_below(tmp_path, "*/*.jpg") == ["1/a.jpg", "1/b.jpg", "2/c.jpg"]
    assert found_below(tmp_path, "**/[cx].jpg") == ["2/c.jpg", "x.jpg"]
    assert found_below(tmp_path, "[2]") == ["2/c.jpg", "2/d.png"]


def test_a_file_whose_name_is_a_pattern_is_that_file(tmp_path: Path) -> None:
    touch(tmp_path, "[ab].jpg", "a.jpg")
    assert found_below(tmp_path, "[ab].jpg") == ["[ab].jpg"]


def test_a_shard_gives_its_pictures_in_their_order(tmp_path: Path) -> None:
    shard = write_shard(
        tmp_path / "s.tar",
        [("b.png", encoded(1)), ("b.json", b"{}"), ("a.png", encoded(0)), ("x/._a.png", b"")],
    )
    found = list_images([shard])
    assert names(found) == [member_name(str(shard), "b.png"), member_name(str(shard), "a.png")]
    assert found.others == 2
    assert found.table[1].num_bytes == len(encoded(0))


def test_a_folder_of_shards_gives_what_is_in_them(tmp_path: Path) -> None:
    write_shard(tmp_path / "1.tar", [("a.png", encoded(0))])
    write_shard(tmp_path / "0.tar", [("b.png", encoded(1))])
    touch(tmp_path, "0.png")
    assert found_below(tmp_path, ".") == ["0.png", "0.tar#b.png", "1.tar#a.png"]


def test_one_member_of_a_shard_can_be_named(tmp_path: Path) -> None:
    write_shard(tmp_path / "s.tar", [("a.png", encoded(0)), ("./b.png", encoded(1))])
    assert found_below(tmp_path, "s.tar#./b.png") == ["s.tar#./b.png"]
    with pytest.raises(DataError, match=r"c\.png does not exist"):
        list_images([f"{tmp_path}/s.tar#c.png"])


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("name", ["list.txt", "list.lst"])
def test_a_list_is_read_relative_to_its_own_folder(
    name: str, ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch(tmp_path, "lists/sub/b.jpg", "lists/a b.jpg", "other.jpg", "lists/folder/c.jpg")
    write_shard(tmp_path / "lists" / "s.tar", [("d.png", encoded(0)), ("e.png", encoded(1))])
    lines = ["sub/b.jpg", "", "a b.jpg", str(tmp_path / "other.jpg"), "folder", "s.tar#e.png"]
    (tmp_path / "lists" / name).write_bytes(
        b"\xef\xbb\xbf" + ending.join([*lines, "missing.jpg"]).encode()
    )
    monkeypatch.chdir("/")
    found = found_below(tmp_path, f"lists/{name}")
    assert found == [
        "lists/sub/b.jpg", "lists/a b.jpg", "other.jpg", "lists/folder/c.jpg",
        "lists/s.tar#e.png", "lists/missing.jpg",
    ]  # fmt: skip


def test_strange_lines_of_a_list_are_tried_and_do_not_stop_it(tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    path.write_bytes(b"nul\0byte.jpg\n\xff\xfe.jpg\nhttps://example.org/a.jpg\nother.txt\n~x.jpg\n")
    found = list_images([path])
    assert len(names(found)) == 5
    assert os.fsencode(names(found)[1]).endswith(b"\xff\xfe.jpg")


def test_a_damaged_shard_is_a_problem_and_the_pictures_before_the_damage_are_taken(
    tmp_path: Path,
) -> None:
    shard = write_shard(tmp_path / "s.tar", [("a.png", encoded(0)), ("b.png", encoded(1))])
    second = list_images([shard]).table[1]
    shard.write_bytes(shard.read_bytes()[: second.start - 100])  # within its header
    found = list_images([tmp_path])
    assert names(found) == [member_name(str(shard), "a.png"), str(shard)]
    (problem,) = found.problems.items()
    assert problem[0] == 1
    assert "cannot be read to its end" in problem[1]


def test_a_compressed_shard_is_a_problem_with_advice(tmp_path: Path) -> None:
    touch(tmp_path, "s.tar.gz", "a.jpg")
    found = list_images([tmp_path])
    assert names(found) == [str(tmp_path / "a.jpg"), str(tmp_path / "s.tar.gz")]
    assert "create a plain .tar" in found.problems[1]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root reads all")
def test_a_folder_that_cannot_be_read_is_a_problem(tmp_path: Path) -> None:
    touch(tmp_path, "a.jpg", "closed/b.jpg")
    (tmp_path / "closed").chmod(0)
    try:
        assert "cannot be read" in list_images([tmp_path]).problems[1]
    finally:
        (tmp_path / "closed").chmod(0o700)


def test_a_folder_that_vanishes_meanwhile_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch(tmp_path, "a.jpg", "gone/b.jpg")
    real = os.listdir

    def listdir(folder: str) -> list[str]:
        if folder.endswith("gone"):
            raise FileNotFoundError(2, "No such file or directory")
        return real(folder)

    monkeypatch.setattr(os, "listdir", listdir)
    assert list_images([tmp_path]).problems == {
        1: "the folder cannot be read (No such file or directory)."
    }


def test_links_that_lead_in_circles_end(tmp_path: Path) -> None:
    touch(tmp_path, "a/1.jpg")
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert found_below(tmp_path, ".") == ["a/1.jpg"]


def test_a_dangling_link_is_tried(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").symlink_to("nowhere.jpg")
    assert found_below(tmp_path, ".") == found_below(tmp_path, "a.jpg") == ["a.jpg"]


def test_the_folder_of_the_collection_is_left_out(tmp_path: Path) -> None:
    touch(tmp_path, "a.jpg", "out/sheet.png")
    assert names(list_images([tmp_path], exclude=tmp_path / "out")) == [str(tmp_path / "a.jpg")]


def test_a_path_that_does_not_exist_is_refused_at_once(tmp_path: Path) -> None:
    write_pictures(tmp_path, 1)
    with pytest.raises(DataError, match=r"missing\.jpg does not exist"):
        list_images([tmp_path, tmp_path / "missing.jpg"])


@pytest.mark.parametrize("paths", [[], ["."]])
def test_inputs_without_a_picture_are_refused_with_what_could_be_given(
    paths: Sequence[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch(tmp_path, "notes.md")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"no image was found in .*give files, folders"):
        list_images(paths)


def test_thousands_of_nested_folders_are_walked(tmp_path: Path) -> None:
    deep = tmp_path
    for _ in range(300):
        deep /= "f"
    deep.mkdir(parents=True)
    (deep / "a.jpg").touch()
    assert names(list_images([tmp_path])) == [str(deep / "a.jpg")]


def table_of(*names: str) -> ImageTable:
    builder = TableBuilder()
    for name in names:
        builder.add(ImageEntry(name))
    return builder.table()


def test_inputs_come_back_as_they_were_added() -> None:
    builder = TableBuilder()
    builder.add(ImageEntry("/photos/\u6d77.jpg", 5))
    builder.add(ImageEntry("/s.tar#in/b#c.jpg", 7, "/s.tar", 512))
    builder.add(ImageEntry("", 0))
    table = builder.table()
    assert len(builder) == len(table) == 3
    assert table[0] == ImageEntry("/photos/\u6d77.jpg", 5, None, UNKNOWN)
    assert table[1] == ImageEntry("/s.tar#in/b#c.jpg", 7, "/s.tar", 512)
    assert table[2] == ImageEntry("", 0, None, UNKNOWN)


def test_a_member_knows_its_name_in_the_shard() -> None:
    assert ImageEntry("/s.tar#in/b#c.jpg", 7, "/s.tar", 512).member == "in/b#c.jpg"
    assert ImageEntry("/a.jpg", 7, None, UNKNOWN).member is None


def test_names_that_are_no_text_come_back_byte_for_byte() -> None:
    name = os.fsdecode(b"/photos/\xff\xfe.jpg")
    assert table_of(name)[0].name == name


def test_a_table_takes_some_bytes_for_each_name_and_travels_to_other_processes() -> None:
    table = table_of(*(f"/photos/{number:07}.jpg" for number in range(10_000)))
    copy = pickle.loads(pickle.dumps(table))
    assert copy[9_999].name == "/photos/0009999.jpg"
    assert len(pickle.dumps(table)) < 10_000 * (len("/photos/0000000.jpg") + 41)


def test_rows_are_found_by_key() -> None:
    rows = KeyedRows(np.array([7, 3, 7, 2**63], np.uint64))
    wanted = np.array([2**63, 4, 7, 3, 0], np.uint64)
    assert rows.find(wanted).tolist() == [3, -1, 0, 1, -1]
    assert KeyedRows(np.empty(0, np.uint64)).find(wanted).tolist() == [-1] * 5


def test_a_file_is_called_by_its_absolute_path_with_links_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.chdir(tmp_path)
    assert absolute("real/../link/a.jpg") == str(tmp_path / "link" / "a.jpg")


def test_a_home_folder_is_spelled_out() -> None:
    assert absolute("~/a.jpg") == str(Path.home() / "a.jpg")


@pytest.mark.parametrize("shard", ["photos.tar", "PHOTOS.TAR"])
def test_the_name_of_a_member_comes_apart_again(
    shard: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert split_member(f"{shard}#./a/../b#c.jpg") == (str(tmp_path / shard), "./a/../b#c.jpg")


def test_a_file_is_no_member() -> None:
    assert split_member("a#b.jpg") is None


def test_a_word_can_mean_a_file_and_a_member(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shard = str(tmp_path / "s.tar")
    assert member_name(shard, "./a.jpg") in possible_names("s.tar#./a.jpg")
    assert possible_names("a.jpg") == [str(tmp_path / "a.jpg")]


def test_keys_are_64_bits_that_tell_names_apart() -> None:
    assert len({key(f"{number}.jpg") for number in range(10_000)}) == 10_000
    assert 0 <= key("a") == key(b"a") < 2**64


def test_files_and_members_are_opened_alike(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(encoded(1))
    shard = write_shard(tmp_path / "s.tar", [("x.png", encoded(0)), ("b.png", encoded(1))])
    table = list_images([tmp_path / "a.png", f"{shard}#b.png"]).table
    for row in range(2):
        with open_image(table[row]) as file:
            assert decode(file).sides == (32, 48)


def test_a_member_that_is_no_picture_fails_like_a_file(tmp_path: Path) -> None:
    shard = write_shard(tmp_path / "s.tar", [("x.png", b"no picture")])
    with (
        open_image(list_images([shard]).table[0]) as file,
        pytest.raises(ImageError, match="one of the formats"),
    ):
        decode(file)


def test_a_failure_is_one_line_of_text() -> None:
    assert one_line(OSError("two\nlines \udcff")) == "two lines ?"
    assert one_line(MemoryError()) == "MemoryError"


def test_an_input_exists_as_long_as_its_file_or_shard_does(tmp_path: Path) -> None:
    (tmp_path / "s.tar").touch()
    assert exists(ImageEntry(f"{tmp_path}/s.tar#a", 0, f"{tmp_path}/s.tar", 0))
    assert not exists(ImageEntry(f"{tmp_path}/a", 0, None, UNKNOWN))


SIDE = 5


def records(path: Path) -> NDArray[np.uint8]:
    """Three planes of chance, twice, each after one byte of something else."""
    numbers = np.random.default_rng(0).integers(0, 256, (2, 3, SIDE, SIDE), np.uint8)
    path.write_bytes(b"".join(b"L" + picture.tobytes() for picture in numbers))
    return numbers


def test_an_input_of_that_name_is_opened_as_a_picture(tmp_path: Path) -> None:
    numbers = records(tmp_path / "all.bin")
    name = f"{tmp_path}/all.bin#1{RAW_SUFFIX}"
    with open_image(ImageEntry(name, 3 * SIDE * SIDE, f"{tmp_path}/all.bin", 77)) as file:
        np.testing.assert_array_equal(decode(file).pixels(), numbers[1])


@pytest.mark.parametrize(("start", "num_bytes"), [(100, 75), (0, 74), (0, 60)])
def test_a_record_that_is_cut_short_or_no_square_is_refused(
    tmp_path: Path, start: int, num_bytes: int
) -> None:
    records(tmp_path / "all.bin")
    entry = ImageEntry(f"x{RAW_SUFFIX}", num_bytes, str(tmp_path / "all.bin"), start)
    with pytest.raises(ImageError, match="a square image"), open_image(entry):
        pass


CONTENTS = [(f"folder/{number}.jpg", bytes([number]) * (700 * number + 1)) for number in range(5)]


def test_members_are_listed_in_order_with_the_position_of_their_bytes(tmp_path: Path) -> None:
    path = write_shard(tmp_path / "s.tar", CONTENTS)
    content = path.read_bytes()
    for member, (name, expected) in zip(members(str(path)), CONTENTS, strict=True):
        assert (member.member, member.name) == (name, f"{path}#{name}")
        assert content[member.start : member.start + member.num_bytes] == expected


def test_long_names_are_read_and_links_and_folders_skipped(tmp_path: Path) -> None:
    path, name = tmp_path / "s.tar", "\u6d77" * 150 + ".jpg"
    with tarfile.open(path, "w") as shard:
        for other, kind in (("folder", tarfile.DIRTYPE), ("link.jpg", tarfile.SYMTYPE)):
            info = tarfile.TarInfo(other)
            info.type, info.linkname = kind, "folder"
            shard.addfile(info)
        info = tarfile.TarInfo(name)
        info.size = 3
        shard.addfile(info, io.BytesIO(b"abc"))
    (found,) = members(str(path))
    assert found.member == name
    with open_image(found) as file:
        assert not isinstance(file, str)
        assert file.read() == b"abc"


def test_a_damaged_header_is_an_error_after_the_members_before_it(tmp_path: Path) -> None:
    path = write_shard(tmp_path / "s.tar", CONTENTS)
    third = list(members(str(path)))[2]
    content = bytearray(path.read_bytes())
    content[third.start - 512 : third.start - 500] = b"\xff" * 12
    path.write_bytes(content)
    found = members(str(path))
    assert [next(found).member, next(found).member] == ["folder/0.jpg", "folder/1.jpg"]
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
