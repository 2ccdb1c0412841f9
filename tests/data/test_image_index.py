"""Training images are numbered the same from run to run."""

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data.pictures import encoded, write_pictures, write_shard
from veca.data.images import DataError
from veca.data.listing import (
    ImageEntry,
    ImageIndex,
    TableBuilder,
    list_images,
    open_image,
    split_train_val,
)


def names(index: ImageIndex) -> list[str]:
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
    assert [name.removeprefix(f"{images}/") for name in names(index)] == [
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
    assert names(again) == names(first)
    assert again.fingerprint() == first.fingerprint() == ImageIndex.load_or_list(path).fingerprint()
    assert [again[number] for number in range(count)] == [first[number] for number in range(count)]
    assert again.problems == first.problems


def test_a_resumed_run_keeps_its_images_and_a_new_one_lists_them_again(
    images: Path, tmp_path: Path
) -> None:
    before = ImageIndex.load_or_list(images, tmp_path / "index")
    write_pictures(images / "sub", 1, first=9)
    assert names(ImageIndex.load_or_list(images, tmp_path / "index", resume=True)) == names(before)
    assert len(ImageIndex.load_or_list(images, tmp_path / "index")) == 6
    assert len(ImageIndex.load_or_list(images, tmp_path / "index", resume=True)) == 6


def test_the_list_of_another_source_is_not_used(images: Path, tmp_path: Path) -> None:
    ImageIndex.load_or_list(images, tmp_path / "index")
    assert len(ImageIndex.load_or_list(images / "sub", tmp_path / "index", resume=True)) == 3


@pytest.mark.parametrize("content", [b"", b"text" * 99, None])
def test_a_damaged_list_is_replaced(content: bytes | None, images: Path, tmp_path: Path) -> None:
    cache = tmp_path / "index"
    expected = names(ImageIndex.load_or_list(images, cache))
    stored = cache.read_bytes()
    flipped = stored[:500] + bytes([stored[500] ^ 16]) + stored[501:]
    cache.write_bytes(flipped if content is None else content)
    assert names(ImageIndex.load_or_list(images, cache, resume=True)) == expected
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
