"""Paths, lists, patterns and shards become numbered images, each once, the same in every run."""

import io
import os
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data.pictures import encoded, write_pictures, write_shard
from veca.data.images import DataError, ImageError, decode
from veca.data.listing import (
    RAW_SUFFIX,
    ImageEntry,
    ImageIndex,
    ImageList,
    KeyedRows,
    TableBuilder,
    absolute,
    exists,
    key,
    list_images,
    members,
    one_line,
    open_image,
    possible_names,
    split_member,
    split_train_val,
)


def names(found: ImageList) -> list[str]:
    return [found.table[int(row)].name for row in found.rows]


def found_below(folder: Path, *paths: str) -> list[str]:
    """Names of what the paths mean, relative to their folder."""
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


def test_other_files_in_a_folder_are_counted_and_skipped(tmp_path: Path) -> None:
    touch(tmp_path, "a.jpg", "notes.md", "list.txt", "._a.jpg", ".hidden/b.jpg", "x/labels.json")
    found = list_images([tmp_path])
    assert names(found) == [str(tmp_path / "a.jpg")]
    assert found.others == 5


def test_unreadable_formats_and_named_files_of_any_name_are_listed(tmp_path: Path) -> None:
    touch(tmp_path, "a.heic", "b.svg", "picture", ".hidden.dat", "[ab].jpg")
    assert found_below(tmp_path, ".") == ["[ab].jpg", "a.heic", "b.svg"]
    given = ("picture", ".hidden.dat", "[ab].jpg")
    assert found_below(tmp_path, *given) == list(given)


def test_arguments_keep_their_order_and_an_image_is_listed_once(tmp_path: Path) -> None:
    touch(tmp_path, "b/1.jpg", "b/2.jpg", "a.jpg")
    given = ("b/2.jpg", "a.jpg", "b", "a.jpg", "b/../a.jpg")
    assert found_below(tmp_path, *given) == ["b/2.jpg", "a.jpg", "b/1.jpg"]


def test_a_pattern_gives_its_matches_by_name(tmp_path: Path) -> None:
    touch(tmp_path, "1/b.jpg", "1/a.jpg", "2/c.jpg", "2/d.png", "x.jpg")
    assert found_below(tmp_path, "*/*.jpg") == ["1/a.jpg", "1/b.jpg", "2/c.jpg"]
    assert found_below(tmp_path, "**/[cx].jpg") == ["2/c.jpg", "x.jpg"]
    assert found_below(tmp_path, "[2]") == ["2/c.jpg", "2/d.png"]


def test_a_shard_gives_its_images_in_their_order(tmp_path: Path) -> None:
    shard = write_shard(
        tmp_path / "s.tar",
        [("b.png", encoded(1)), ("b.json", b"{}"), ("a.png", encoded(0)), ("._c.png", b"")],
    )
    found = list_images([shard])
    assert names(found) == [f"{shard}#b.png", f"{shard}#a.png"]
    assert found.others == 2
    assert found.table[1].num_bytes == len(encoded(0))


def test_a_folder_of_shards_gives_their_images(tmp_path: Path) -> None:
    write_shard(tmp_path / "1.tar", [("a.png", encoded(0))])
    write_shard(tmp_path / "0.tar", [("b.png", encoded(1))])
    touch(tmp_path, "0.png")
    assert found_below(tmp_path, ".") == ["0.png", "0.tar#b.png", "1.tar#a.png"]


def test_one_member_of_a_shard_can_be_named(tmp_path: Path) -> None:
    write_shard(tmp_path / "s.tar", [("a.png", encoded(0)), ("./b.png", encoded(1))])
    assert found_below(tmp_path, "s.tar#./b.png") == ["s.tar#./b.png"]
    with pytest.raises(DataError, match=r"c\.png does not exist"):
        list_images([f"{tmp_path}/s.tar#c.png"])


@pytest.mark.parametrize(("name", "ending"), [("list.txt", "\n"), ("list.lst", "\r\n")])
def test_a_list_is_read_relative_to_its_own_folder(
    name: str, ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch(tmp_path, "lists/sub/b.jpg", "lists/a b.jpg", "other.jpg", "lists/folder/c.jpg")
    write_shard(tmp_path / "lists" / "s.tar", [("d.png", encoded(0)), ("e.png", encoded(1))])
    lines = ["sub/b.jpg", "", "a b.jpg", str(tmp_path / "other.jpg"), "folder", "s.tar#e.png"]
    content = ending.join([*lines, "missing.jpg"])
    (tmp_path / "lists" / name).write_bytes(b"\xef\xbb\xbf" + content.encode())
    monkeypatch.chdir("/")
    assert found_below(tmp_path, f"lists/{name}") == [
        "lists/sub/b.jpg", "lists/a b.jpg", "other.jpg", "lists/folder/c.jpg",
        "lists/s.tar#e.png", "lists/missing.jpg",
    ]  # fmt: skip


def test_strange_lines_of_a_list_are_listed_too(tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    path.write_bytes(b"nul\0byte.jpg\n\xff\xfe.jpg\nhttps://example.org/a.jpg\nother.txt\n~x.jpg\n")
    found = list_images([path])
    assert len(names(found)) == 5
    assert os.fsencode(names(found)[1]).endswith(b"\xff\xfe.jpg")


def test_a_damaged_shard_is_a_problem_after_the_images_before_the_damage(tmp_path: Path) -> None:
    shard = write_shard(tmp_path / "s.tar", [("a.png", encoded(0)), ("b.png", encoded(1))])
    second = list_images([shard]).table[1]
    shard.write_bytes(shard.read_bytes()[: second.start - 100])  # within its header
    found = list_images([tmp_path])
    assert names(found) == [f"{shard}#a.png", str(shard)]
    assert list(found.problems) == [1]
    assert "cannot be read to its end" in found.problems[1]


def test_a_compressed_shard_is_a_problem_with_advice(tmp_path: Path) -> None:
    touch(tmp_path, "s.tar.gz", "a.jpg")
    found = list_images([tmp_path])
    assert names(found) == [str(tmp_path / "a.jpg"), str(tmp_path / "s.tar.gz")]
    assert "create a plain .tar" in found.problems[1]


def test_a_folder_that_cannot_be_read_is_a_problem(
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


def test_links_are_followed_once_and_dangling_ones_listed(tmp_path: Path) -> None:
    touch(tmp_path, "a/1.jpg")
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    (tmp_path / "b").symlink_to(tmp_path / "a")
    (tmp_path / "x.jpg").symlink_to("nowhere.jpg")
    assert found_below(tmp_path, ".") == ["x.jpg", "a/1.jpg"]
    assert found_below(tmp_path, "x.jpg") == ["x.jpg"]


def test_an_excluded_folder_is_skipped(tmp_path: Path) -> None:
    touch(tmp_path, "a.jpg", "out/sheet.png")
    assert names(list_images([tmp_path], exclude=tmp_path / "out")) == [str(tmp_path / "a.jpg")]


def test_missing_paths_and_inputs_without_images_are_refused(tmp_path: Path) -> None:
    write_pictures(tmp_path, 1)
    with pytest.raises(DataError, match=r"missing\.jpg does not exist"):
        list_images([tmp_path, tmp_path / "missing.jpg"])
    touch(tmp_path, "empty/notes.md")
    for paths in ([], [tmp_path / "empty"]):
        with pytest.raises(DataError, match=r"no image was found in .*give files, folders"):
            list_images(paths)


def test_deeply_nested_folders_are_walked(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*"f" * 300)
    deep.mkdir(parents=True)
    (deep / "a.jpg").touch()
    assert names(list_images([tmp_path])) == [str(deep / "a.jpg")]


def test_a_table_returns_its_entries() -> None:
    entries = [
        ImageEntry("/photos/\u6d77.jpg", 5),
        ImageEntry("/s.tar#in/b#c.jpg", 7, "/s.tar", 512),
        ImageEntry("", 0),
        ImageEntry(os.fsdecode(b"/photos/\xff\xfe.jpg")),  # names need not be UTF-8
    ]
    builder = TableBuilder()
    assert len(builder.table()) == 0
    builder = TableBuilder()
    for entry in entries:
        builder.add(entry)
    table = builder.table()
    assert len(builder) == len(table) == 4
    assert [table[row] for row in range(4)] == entries
    assert [entry.member for entry in entries] == [None, "in/b#c.jpg", None, None]


def test_a_pickled_table_takes_few_bytes_per_name() -> None:
    builder = TableBuilder()
    for number in range(10_000):
        builder.add(ImageEntry(f"/photos/{number:07}.jpg"))
    content = pickle.dumps(builder.table())
    assert pickle.loads(content)[9_999].name == "/photos/0009999.jpg"
    assert len(content) < 10_000 * (len("/photos/0000000.jpg") + 41)


def test_rows_are_found_by_key() -> None:
    rows = KeyedRows(np.array([7, 3, 7, 2**63], np.uint64))
    wanted = np.array([2**63, 4, 7, 3, 0], np.uint64)
    assert rows.find(wanted).tolist() == [3, -1, 0, 1, -1]
    assert KeyedRows(np.empty(0, np.uint64)).find(wanted).tolist() == [-1] * 5


def test_absolute_paths_keep_links_and_expand_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.chdir(tmp_path)
    assert absolute("real/../link/a.jpg") == str(tmp_path / "link" / "a.jpg")
    assert absolute("~/a.jpg") == str(Path.home() / "a.jpg")


def test_the_name_of_a_member_is_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for shard in ("photos.tar", "PHOTOS.TAR"):
        path = str(tmp_path / shard)
        assert split_member(f"{shard}#./a/../b#c.jpg") == (path, "./a/../b#c.jpg")
        assert f"{path}#./a.jpg" in possible_names(f"{shard}#./a.jpg")
    assert split_member("a#b.jpg") is None
    assert possible_names("a.jpg") == [str(tmp_path / "a.jpg")]


def test_keys_are_64_bit_hashes() -> None:
    assert len({key(f"{number}.jpg") for number in range(10_000)}) == 10_000
    assert 0 <= key("a") == key(b"a") < 2**64


def test_files_and_members_are_opened_alike(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(encoded(1))
    members = [("x.png", encoded(0)), ("b.png", encoded(1)), ("c.png", b"no image")]
    shard = write_shard(tmp_path / "s.tar", members)
    table = list_images([tmp_path / "a.png", f"{shard}#b.png", f"{shard}#c.png"]).table
    for row in range(2):
        with open_image(table[row]) as file:
            assert decode(file).sides == (32, 48)
    with open_image(table[2]) as file, pytest.raises(ImageError, match="one of the formats"):
        decode(file)
    assert all(exists(table[row]) for row in range(3))
    shard.unlink()
    assert [exists(table[row]) for row in range(3)] == [True, False, False]


def test_an_error_is_reported_on_one_line() -> None:
    assert one_line(OSError("two\nlines \udcff")) == "two lines ?"
    assert one_line(MemoryError()) == "MemoryError"


SIDE = 5


def test_raw_records_are_images(tmp_path: Path) -> None:
    numbers = np.random.default_rng(0).integers(0, 256, (2, 3, SIDE, SIDE), np.uint8)
    path = tmp_path / "all.bin"
    path.write_bytes(b"".join(b"L" + planes.tobytes() for planes in numbers))
    entry = ImageEntry(f"{path}#1{RAW_SUFFIX}", 3 * SIDE * SIDE, str(path), 77)
    with open_image(entry) as file:
        np.testing.assert_array_equal(decode(file).pixels(), numbers[1])
    for start, num_bytes in ((100, 75), (0, 74), (0, 60)):  # truncated, or not a square
        with (
            pytest.raises(ImageError, match="a square image"),
            open_image(entry._replace(start=start, num_bytes=num_bytes)),
        ):
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


@pytest.mark.parametrize("content", [b"", b"not a tar", b"\x1f\x8b" + bytes(600), 100, 1000, 1536])
def test_truncated_and_other_files_are_not_shards(content: bytes | int, tmp_path: Path) -> None:
    path = write_shard(tmp_path / "s.tar", CONTENTS)
    whole = path.read_bytes()
    path.write_bytes(whole[:content] if isinstance(content, int) else content)
    with pytest.raises(DataError, match="cannot be read to its end"):
        list(members(str(path)))
    path.unlink()
    with pytest.raises(DataError, match="No such file"):
        list(members(str(path)))


def names_of(index: ImageIndex) -> list[str]:
    return [index[number].name for number in range(len(index))]


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """A folder with images, a folder of shards, a list, and files that are not images."""
    folder = tmp_path / "images"
    write_pictures(folder / "sub", 3)
    write_shard(folder / "s.tar", [("a.png", encoded(7)), ("b.json", b""), ("c.png", encoded(8))])
    (folder / "list.txt").write_text("sub/0001.png\ns.tar#c.png\nmissing.png\n")
    return folder


def indexed(table_names: list[str]) -> ImageIndex:
    """An index of names that lie directly below what was given."""
    builder = TableBuilder()
    for name in table_names:
        builder.add(ImageEntry(name))
    table = builder.table()
    return ImageIndex(table, np.arange(len(table)), table.keys)


def test_every_image_has_a_number_and_can_be_opened_by_it(images: Path) -> None:
    index = ImageIndex.load_or_list(images)
    assert [name.removeprefix(f"{images}/") for name in names_of(index)] == [
        "s.tar#a.png", "s.tar#c.png", "sub/0000.png", "sub/0001.png", "sub/0002.png",
    ]  # fmt: skip
    assert len(index) == 5
    with open_image(index[1]) as file:
        assert not isinstance(file, str)
        assert file.read() == encoded(8)


@pytest.mark.parametrize(
    ("given", "count"), [("", 5), ("s.tar", 2), ("list.txt", 3), ("sub/*.png", 3), ("*", 6)]
)
def test_every_kind_of_input_is_stored_and_loaded_again(
    given: str, count: int, images: Path, tmp_path: Path
) -> None:
    path, cache = os.path.join(images, given), tmp_path / "new" / "index"  # noqa: PTH118
    first = ImageIndex.load_or_list(path, cache)
    again = ImageIndex.load_or_list(path, cache, resume=True)
    assert len(first) == count
    assert names_of(again) == names_of(first)
    assert again.fingerprint() == first.fingerprint() == ImageIndex.load_or_list(path).fingerprint()
    assert [again[number] for number in range(count)] == [first[number] for number in range(count)]
    assert again.problems == first.problems


def test_a_resumed_run_keeps_its_images_and_a_new_one_lists_them_again(
    images: Path, tmp_path: Path
) -> None:
    before = ImageIndex.load_or_list(images, tmp_path / "index")
    write_pictures(images / "sub", 1, first=9)
    assert names_of(ImageIndex.load_or_list(images, tmp_path / "index", resume=True)) == names_of(
        before
    )
    assert len(ImageIndex.load_or_list(images, tmp_path / "index")) == 6
    assert len(ImageIndex.load_or_list(images, tmp_path / "index", resume=True)) == 6


def test_the_list_of_another_source_is_not_used(images: Path, tmp_path: Path) -> None:
    ImageIndex.load_or_list(images, tmp_path / "index")
    assert len(ImageIndex.load_or_list(images / "sub", tmp_path / "index", resume=True)) == 3


@pytest.mark.parametrize("content", [b"", b"text" * 99, None])
def test_a_damaged_list_is_replaced(content: bytes | None, images: Path, tmp_path: Path) -> None:
    cache = tmp_path / "index"
    expected = names_of(ImageIndex.load_or_list(images, cache))
    stored = cache.read_bytes()
    flipped = stored[:500] + bytes([stored[500] ^ 16]) + stored[501:]
    cache.write_bytes(flipped if content is None else content)
    assert names_of(ImageIndex.load_or_list(images, cache, resume=True)) == expected
    assert cache.read_bytes() == stored


def test_a_list_that_cannot_be_stored_is_listed_again(images: Path, tmp_path: Path) -> None:
    for cache in (tmp_path, images / "list.txt" / "index"):  # a folder, and below a file
        assert len(ImageIndex.load_or_list(images, cache)) == 5


def test_a_damaged_shard_is_a_problem_and_not_an_image(images: Path, tmp_path: Path) -> None:
    content = (images / "s.tar").read_bytes()
    second = list_images([images / "s.tar"]).table[1]
    (images / "s.tar").write_bytes(content[: second.start - 100])
    for resume in (False, True):
        index = ImageIndex.load_or_list(images, tmp_path / "index", resume=resume)
        assert len(index) == 4
        assert len(index.problems) == 1
        assert f"{images}/s.tar: the tar shard cannot be read to its end" in index.problems[0]


def test_inputs_with_nothing_but_problems_are_refused_with_the_first(tmp_path: Path) -> None:
    (tmp_path / "s.tar.gz").touch()
    with pytest.raises(DataError, match=r"no image was found in .*create a plain \.tar"):
        ImageIndex.load_or_list(tmp_path)


def test_names_need_not_be_utf_8(tmp_path: Path) -> None:
    name = os.fsdecode(b"\xff\xfe.png")
    write_pictures(tmp_path / "images", 1)[0].rename(tmp_path / "images" / name)
    (tmp_path / "images" / os.fsdecode(b"\xfd.tar.gz")).touch()
    first = ImageIndex.load_or_list(tmp_path / "images", tmp_path / "index")
    again = ImageIndex.load_or_list(tmp_path / "images", tmp_path / "index", resume=True)
    assert first[0].name == again[0].name == str(tmp_path / "images" / name)
    assert first.problems == again.problems


@pytest.mark.parametrize("given", ["", "s.tar", "list.txt", "sub/*.png", "s*/0*.png"])
def test_the_split_and_the_fingerprint_do_not_depend_on_the_folder(
    given: str, images: Path, tmp_path: Path
) -> None:
    before = ImageIndex.load_or_list(os.path.join(images, given))  # noqa: PTH118
    moved = tmp_path / "elsewhere" / "deeper"
    moved.parent.mkdir()
    images.rename(moved)
    after = ImageIndex.load_or_list(os.path.join(moved, given))  # noqa: PTH118
    assert after.fingerprint() == before.fingerprint()
    assert [part.tolist() for part in split_train_val(after, 1)] == [
        part.tolist() for part in split_train_val(before, 1)
    ]


def test_the_key_of_a_single_member_is_that_of_its_name(images: Path) -> None:
    one = ImageIndex.load_or_list(f"{images}/s.tar#c.png")
    assert one.keys[0] == ImageIndex.load_or_list(images / "s.tar").keys[1]


@given(count=st.integers(1, 200), wanted=st.integers(0, 50), seed=st.integers(0, 99))
def test_at_most_a_tenth_is_held_out_by_name_in_any_order(
    count: int, wanted: int, seed: int
) -> None:
    named = [f"{number}.jpg" for number in range(count)]
    shuffled = np.random.default_rng(seed).permutation(named).tolist()
    index, other = indexed(named), indexed(shuffled)
    training, validation = split_train_val(index, wanted)
    assert sorted([*training.tolist(), *validation.tolist()]) == list(range(count))
    assert np.all(np.diff(training) > 0)
    limit = max(count // 10, 1) if count > 1 else 0
    assert len(validation) == min(wanted, limit)
    assert [named[place] for place in validation] == [
        shuffled[place] for place in split_train_val(other, wanted)[1]
    ]


def test_few_images_change_sides_when_images_are_added() -> None:
    named = [f"{number}.jpg" for number in range(2000)]
    before = {named[place] for place in split_train_val(indexed(named[:1900]), 100)[1]}
    after = {named[place] for place in split_train_val(indexed(named), 100)[1]}
    assert len(after & before) > 85


def test_a_negative_count_is_refused() -> None:
    with pytest.raises(DataError, match="0 or more"):
        split_train_val(indexed(["a"]), -1)


def test_the_fingerprint_depends_on_order_and_names() -> None:
    found = {indexed(named).fingerprint() for named in (["a", "b"], ["b", "a"], ["a", "c"], ["a"])}
    assert len(found) == 4
