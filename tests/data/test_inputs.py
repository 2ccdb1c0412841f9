"""What a user names becomes the pictures that are meant, in the order that is meant."""

import os
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.data.pictures import encoded, write_pictures, write_shard
from veca.data.images import DataError
from veca.data.listing import ImageList, list_images, member_name


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
    assert "make a plain .tar" in found.problems[1]


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
    assert not list_images([tmp_path]).stamps.unchanged()


def aged(folder: Path) -> Path:
    """A folder as if nothing in it had been touched for a minute."""
    before = time.time() - 60
    for path in (folder, *folder.rglob("*")):
        os.utime(path, (before, before), follow_symlinks=False)
    return folder


@pytest.mark.parametrize("given", ["", "sub", "s.tar", "list.txt", "*", "sub/a.jpg", "s.tar#a.png"])
def test_what_was_read_can_be_checked_for_changes(given: str, tmp_path: Path) -> None:
    touch(tmp_path, "sub/a.jpg")
    write_shard(tmp_path / "s.tar", [("a.png", encoded(0))])
    (tmp_path / "list.txt").write_text("sub\ns.tar#a.png\ns.tar#a.png\nmissing")
    stamps = list_images([os.path.join(aged(tmp_path), given)]).stamps  # noqa: PTH118
    assert stamps.unchanged()
    for path in ("sub/a.jpg", "s.tar"):
        (tmp_path / path).unlink()
    assert not stamps.unchanged()


def test_a_shard_that_could_not_be_opened_is_to_be_looked_at_again(tmp_path: Path) -> None:
    touch(tmp_path, "a.jpg")
    (tmp_path / "s.tar").symlink_to("nowhere.tar")
    found = list_images([aged(tmp_path)])
    assert "cannot be read" in found.problems[1]
    assert not found.stamps.unchanged()


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
    with pytest.raises(DataError, match=r"no picture was found in .*give files, folders"):
        list_images(paths)


def test_thousands_of_nested_folders_are_walked(tmp_path: Path) -> None:
    deep = tmp_path
    for _ in range(300):
        deep /= "f"
    deep.mkdir(parents=True)
    (deep / "a.jpg").touch()
    assert names(list_images([tmp_path])) == [str(deep / "a.jpg")]
