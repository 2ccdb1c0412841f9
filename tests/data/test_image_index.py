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
    """A folder with images, a folder of shards, a list, and files that are no images."""
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
    assert index.others == 2
    with open_image(index[1]) as file:
        assert not isinstance(file, str)
        assert file.read() == encoded(8)


@pytest.mark.parametrize(
    ("given", "count"), [("", 5), ("s.tar", 2), ("list.txt", 3), ("sub/*.png", 3), ("*", 6)]
)
def test_all_that_a_user_can_name_is_kept_and_found_again(
    given: str, count: int, images: Path, tmp_path: Path
) -> None:
    word, cache = os.path.join(images, given), tmp_path / "new" / "index"  # noqa: PTH118
    first = ImageIndex.load_or_list(word, cache)
    again = ImageIndex.load_or_list(word, cache, resume=True)
    assert len(first) == count
    assert names(again) == names(first)
    assert again.fingerprint() == first.fingerprint() == ImageIndex.load_or_list(word).fingerprint()
    assert [again[number] for number in range(count)] == [first[number] for number in range(count)]
    assert (again.problems, again.others) == (first.problems, first.others)


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


def test_an_excluded_folder_is_skipped(images: Path) -> None:
    assert len(ImageIndex.load_or_list(images, exclude=images / "sub")) == 2


@pytest.mark.parametrize("place", range(0, 1000, 93))
def test_a_stored_list_with_a_flipped_bit_is_not_used(
    place: int, images: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "index"
    expected = names(ImageIndex.load_or_list(images, cache))
    content = bytearray(cache.read_bytes())
    content[len(content) * place // 1000] ^= 0x10
    cache.write_bytes(content)
    assert names(ImageIndex.load_or_list(images, cache, resume=True)) == expected


@pytest.mark.parametrize("content", [b"", b"\0" * 100, b"\x02\0\0\0\0\0\0\0{}", b"text" * 99])
def test_a_file_that_is_not_a_list_is_replaced(
    content: bytes, images: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "index"
    cache.write_bytes(content)
    assert len(ImageIndex.load_or_list(images, cache, resume=True)) == 5
    assert cache.read_bytes() != content


def test_a_file_that_cannot_be_written_costs_nothing_but_time(images: Path, tmp_path: Path) -> None:
    assert len(ImageIndex.load_or_list(images, tmp_path)) == 5  # a folder
    assert len(ImageIndex.load_or_list(images, images / "list.txt" / "index")) == 5


def test_a_damaged_shard_is_told_and_is_no_image(images: Path, tmp_path: Path) -> None:
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


def test_names_that_are_no_text_survive(tmp_path: Path) -> None:
    name = os.fsdecode(b"\xff\xfe.png")
    write_pictures(tmp_path / "images", 1)[0].rename(tmp_path / "images" / name)
    (tmp_path / "images" / os.fsdecode(b"\xfd.tar.gz")).touch()
    first = ImageIndex.load_or_list(tmp_path / "images", tmp_path / "index")
    again = ImageIndex.load_or_list(tmp_path / "images", tmp_path / "index", resume=True)
    assert first[0].name == again[0].name == str(tmp_path / "images" / name)
    assert first.problems == again.problems


@pytest.mark.parametrize("given", ["", "s.tar", "list.txt", "sub/*.png", "s*/0*.png"])
def test_what_is_held_out_and_the_fingerprint_stay_when_the_folder_moves(
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


def test_one_member_of_a_shard_is_known_by_its_name_there(images: Path) -> None:
    one = ImageIndex.load_or_list(f"{images}/s.tar#c.png")
    assert one.keys[0] == ImageIndex.load_or_list(images / "s.tar").keys[1]


@given(count=st.integers(1, 200), wanted=st.integers(0, 50), seed=st.integers(0, 99))
def test_a_tenth_at_most_is_held_out_by_name_whatever_the_order(
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


def test_few_images_move_between_the_sides_when_more_come() -> None:
    named = [f"{number}.jpg" for number in range(2000)]
    before = {named[place] for place in split_train_val(indexed(named[:1900]), 100)[1]}
    after = {named[place] for place in split_train_val(indexed(named), 100)[1]}
    assert len(after & before) > 85


def test_a_negative_count_is_refused() -> None:
    with pytest.raises(DataError, match="0 or more"):
        split_train_val(indexed(["a"]), -1)


def test_the_fingerprint_tells_orders_and_names_apart() -> None:
    found = {indexed(named).fingerprint() for named in (["a", "b"], ["b", "a"], ["a", "c"], ["a"])}
    assert len(found) == 4
