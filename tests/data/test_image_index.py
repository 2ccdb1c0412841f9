"""Images are numbered the same from run to run, and found anew only when something changed."""

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data.pictures import encoded, write_pictures, write_shard
from veca.data import image_index as module
from veca.data.image_index import ImageIndex, held_out, image_index
from veca.data.images import DataError
from veca.data.listing import TableBuilder, list_images, open_image
from veca.runtime.files import write_atomic
from veca.runtime.tensors import tensor_pieces


def names(index: ImageIndex) -> list[str]:
    return [index[number].name for number in range(len(index))]


def settled(folder: Path) -> Path:
    """A folder as if nothing in it had been touched for a minute."""
    before = time.time() - 60
    for path in (folder, *folder.rglob("*")):
        os.utime(path, (before, before))
    return folder


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """A folder with images, a folder of shards, a list, and files that are no images."""
    folder = tmp_path / "images"
    write_pictures(folder / "sub", 3)
    write_shard(folder / "s.tar", [("a.png", encoded(7)), ("b.json", b""), ("c.png", encoded(8))])
    (folder / "list.txt").write_text("sub/0001.png\ns.tar#c.png\nmissing.png\n")
    return settled(folder)


def indexed(table_names: list[str]) -> ImageIndex:
    """An index of names that lie directly below what was given."""
    builder = TableBuilder()
    for name in table_names:
        builder.add_file(name)
    table = builder.table()
    return ImageIndex(table, np.arange(len(table)), table.keys)


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A list that grows by one whenever images are searched for."""
    found: list[Any] = []

    def search(*arguments: Any) -> Any:
        found.append(arguments)
        return list_images(*arguments)

    monkeypatch.setattr(module, "list_images", search)
    return found


def test_every_image_has_a_number_and_can_be_opened_by_it(images: Path) -> None:
    index = image_index(images)
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
    given: str, count: int, images: Path, tmp_path: Path, searches: list[Any]
) -> None:
    word, cache = os.path.join(images, given), tmp_path / "new" / "index"  # noqa: PTH118
    first = image_index(word, cache)
    again = image_index(word, cache)
    assert len(searches) == 1
    assert len(first) == count
    assert names(again) == names(first)
    assert again.fingerprint() == first.fingerprint() == image_index(word).fingerprint()
    assert [again[number] for number in range(count)] == [first[number] for number in range(count)]
    assert (again.problems, again.others) == (first.problems, first.others)


CHANGES: dict[str, Callable[[Path], object]] = {
    "a new image": lambda folder: write_pictures(folder / "sub", 1, first=9),
    "a new folder": lambda folder: write_pictures(folder / "sub" / "deep" / "er", 1),
    "an image less": lambda folder: (folder / "sub" / "0001.png").unlink(),
    "another name": lambda folder: (folder / "sub" / "0001.png").rename(folder / "sub" / "x.png"),
    "another shard": lambda folder: write_shard(folder / "s.tar", [("x.png", encoded(0))]),
    "a folder less": lambda folder: shutil.rmtree(folder / "sub"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=list(CHANGES))
def test_images_are_found_anew_when_something_changed(
    change: Callable[[Path], object], images: Path, tmp_path: Path
) -> None:
    before = image_index(images, tmp_path / "index")
    change(images)
    after = image_index(images, tmp_path / "index")
    assert names(after) == names(image_index(images)) != names(before)
    assert after.fingerprint() != before.fingerprint()


def test_a_list_and_a_pattern_are_read_anew_when_they_mean_something_else(
    images: Path, tmp_path: Path
) -> None:
    for word in ("list.txt", "sub/*.png"):
        image_index(images / word, tmp_path / word.replace("/", "-"))
    write_pictures(images / "sub", 1, first=9)
    (images / "list.txt").write_text("sub/0002.png\n")
    assert len(image_index(images / "list.txt", tmp_path / "list.txt")) == 1
    assert len(image_index(images / "sub/*.png", tmp_path / "sub-*.png")) == 4


def test_a_line_of_a_list_that_comes_into_being_is_looked_at(images: Path, tmp_path: Path) -> None:
    assert len(image_index(images / "list.txt", tmp_path / "index")) == 3
    write_pictures(images / "missing.png", 2)
    assert len(image_index(images / "list.txt", tmp_path / "index")) == 4


def test_a_file_of_another_source_is_not_used(images: Path, tmp_path: Path) -> None:
    image_index(images, tmp_path / "index")
    assert len(image_index(images / "sub", tmp_path / "index")) == 3
    assert len(image_index(images, tmp_path / "index", exclude=images / "sub")) == 2
    assert len(image_index(images, tmp_path / "index")) == 5


@pytest.mark.parametrize("place", range(0, 1000, 37))
def test_a_file_with_a_flipped_bit_is_made_anew(place: int, images: Path, tmp_path: Path) -> None:
    cache = tmp_path / "index"
    expected = names(image_index(images, cache))
    content = bytearray(cache.read_bytes())
    content[len(content) * place // 1000] ^= 0x10
    cache.write_bytes(content)
    assert names(image_index(images, cache)) == expected


@pytest.mark.parametrize("content", [b"", b"\0" * 100, b"\x02\0\0\0\0\0\0\0{}", b"text" * 99])
def test_a_file_that_is_no_index_is_made_anew(
    content: bytes, images: Path, tmp_path: Path, searches: list[Any]
) -> None:
    cache = tmp_path / "index"
    cache.write_bytes(content)
    assert len(image_index(images, cache)) == 5
    assert len(image_index(images, cache)) == 5
    assert len(searches) == 1


@pytest.mark.parametrize("about", ["no json", "[]", "{}", '{"facts": "{}", "sha256": "0"}'])
def test_a_foreign_tensor_file_is_made_anew(about: str, images: Path, tmp_path: Path) -> None:
    cache = tmp_path / "index"
    write_atomic(cache, tensor_pieces({"rows": np.arange(9)}, {module.METADATA_KEY: about}))
    assert len(image_index(images, cache)) == 5


def test_a_file_that_cannot_be_written_costs_nothing_but_time(images: Path, tmp_path: Path) -> None:
    assert len(image_index(images, tmp_path)) == 5  # a folder
    assert len(image_index(images, images / "list.txt" / "index")) == 5


def test_images_that_were_written_just_now_are_looked_at_again(
    tmp_path: Path, searches: list[Any]
) -> None:
    write_pictures(tmp_path / "images", 2)
    image_index(tmp_path / "images", tmp_path / "index")
    image_index(tmp_path / "images", tmp_path / "index")
    assert len(searches) == 2


def test_a_damaged_shard_is_told_and_is_no_image(images: Path, tmp_path: Path) -> None:
    content = (images / "s.tar").read_bytes()
    second = list_images([images / "s.tar"]).table[1]
    (images / "s.tar").write_bytes(content[: second.start - 100])
    settled(images)
    for _ in range(2):
        index = image_index(images, tmp_path / "index")
        assert len(index) == 4
        assert len(index.problems) == 1
        assert f"{images}/s.tar: the tar shard cannot be read to its end" in index.problems[0]


def test_inputs_with_nothing_but_problems_are_refused_with_the_first(tmp_path: Path) -> None:
    (tmp_path / "s.tar.gz").touch()
    with pytest.raises(DataError, match=r"no image was found in .*make a plain \.tar"):
        image_index(tmp_path)


def test_names_that_are_no_text_survive(tmp_path: Path) -> None:
    name = os.fsdecode(b"\xff\xfe.png")
    write_pictures(tmp_path / "images", 1)[0].rename(tmp_path / "images" / name)
    (tmp_path / "images" / os.fsdecode(b"\xfd.tar.gz")).touch()
    settled(tmp_path / "images")
    first = image_index(tmp_path / "images", tmp_path / "index")
    again = image_index(tmp_path / "images", tmp_path / "index")
    assert first[0].name == again[0].name == str(tmp_path / "images" / name)
    assert first.problems == again.problems


@pytest.mark.parametrize("given", ["", "s.tar", "list.txt", "sub/*.png", "s*/0*.png"])
def test_what_is_held_out_and_the_fingerprint_stay_when_the_folder_moves(
    given: str, images: Path, tmp_path: Path
) -> None:
    before = image_index(os.path.join(images, given))  # noqa: PTH118
    moved = tmp_path / "elsewhere" / "deeper"
    moved.parent.mkdir()
    images.rename(moved)
    after = image_index(os.path.join(moved, given))  # noqa: PTH118
    assert after.fingerprint() == before.fingerprint()
    assert [part.tolist() for part in held_out(after, 1)] == [
        part.tolist() for part in held_out(before, 1)
    ]


def test_one_member_of_a_shard_is_known_by_its_name_there(images: Path) -> None:
    one = image_index(f"{images}/s.tar#c.png")
    assert one.keys[0] == image_index(images / "s.tar").keys[1]


@given(count=st.integers(1, 200), wanted=st.integers(0, 50), seed=st.integers(0, 99))
def test_a_tenth_at_most_is_held_out_by_name_whatever_the_order(
    count: int, wanted: int, seed: int
) -> None:
    named = [f"{number}.jpg" for number in range(count)]
    shuffled = np.random.default_rng(seed).permutation(named).tolist()
    index, other = indexed(named), indexed(shuffled)
    training, validation = held_out(index, wanted)
    assert sorted([*training.tolist(), *validation.tolist()]) == list(range(count))
    assert np.all(np.diff(training) > 0)
    limit = max(count // 10, 1) if count > 1 else 0
    assert len(validation) == min(wanted, limit)
    assert [named[place] for place in validation] == [
        shuffled[place] for place in held_out(other, wanted)[1]
    ]


def test_few_images_move_between_the_sides_when_more_come() -> None:
    named = [f"{number}.jpg" for number in range(2000)]
    before = {named[place] for place in held_out(indexed(named[:1900]), 100)[1]}
    after = {named[place] for place in held_out(indexed(named), 100)[1]}
    assert len(after & before) > 85


def test_a_negative_count_is_refused() -> None:
    with pytest.raises(DataError, match="0 or more"):
        held_out(indexed(["a"]), -1)


def test_the_fingerprint_tells_orders_and_names_apart() -> None:
    found = {indexed(named).fingerprint() for named in (["a", "b"], ["b", "a"], ["a", "c"], ["a"])}
    assert len(found) == 4
