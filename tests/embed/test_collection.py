"""A collection reads like arrays and lists, a part at a time, and damage is told."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from tests.embed.made_up import WIDTH, content, filled, wanted
from veca.embed import collection as collection_module
from veca.embed.collection import Collection, open_collection
from veca.embed.errors import CollectionError
from veca.embed.store import CollectionWriter


@pytest.fixture
def opened(tmp_path: Path) -> Collection:
    """Shards of three, none and four pictures."""
    writer = CollectionWriter(tmp_path, wanted())
    writer.commit(content(0, 0, count=3))
    writer.commit(content(1, 3, count=0))
    writer.commit(content(2, 3, count=4))
    return open_collection(tmp_path)


def whole() -> np.ndarray:
    return np.concatenate([content(0, 0, count=3).vectors, content(2, 3, count=4).vectors])


def test_vectors_read_like_an_array(opened: Collection) -> None:
    vectors = opened.vectors
    assert len(opened) == len(vectors) == 7
    assert vectors.shape == (7, WIDTH)
    assert vectors.dtype == np.float32
    for rows in (0, 3, 6, -1, -7):
        np.testing.assert_array_equal(vectors[rows], whole()[rows])
    np.testing.assert_array_equal(np.asarray(vectors), whole())
    assert np.asarray(vectors, np.float16).dtype == np.float16


def test_slices_are_those_of_an_array(opened: Collection) -> None:
    expected = whole()
    starts, stops = (None, 0, 2, 3, 5, -2, 9), (None, 0, 3, 4, 7, -1, 9)
    for start, stop, step in itertools.product(starts, stops, (None, 1, 2, 3, -1, -2)):
        rows = slice(start, stop, step)
        np.testing.assert_array_equal(opened.vectors[rows], expected[rows])


def test_blocks_cover_everything_once(opened: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collection_module, "BLOCK_BYTES", 2 * 4 * WIDTH)
    blocks = list(opened.vectors.blocks())
    assert [start for start, _ in blocks] == [0, 2, 4, 6]
    np.testing.assert_array_equal(np.concatenate([block for _, block in blocks]), whole())


def test_paths_read_like_a_list(opened: Collection) -> None:
    expected = [f"/{number}.jpg" for number in range(7)]
    assert list(opened.paths) == expected
    assert opened.paths[-1] == expected[-1]
    assert opened.paths[1:4] == expected[1:4]
    assert "/3.jpg" in opened.paths


def test_the_index_reads_line_by_line(opened: Collection) -> None:
    expected = [*content(0, 0, count=3).entries, *content(2, 3, count=4).entries]
    assert list(opened.entries()) == expected


def test_a_picture_is_found_by_its_path(opened: Collection) -> None:
    assert opened.find("/5.jpg") == 5
    assert opened.find(Path("/x/../5.jpg")) == 5
    assert opened.find("/nothing.jpg") is None
    assert opened.find("/") is None


def test_a_patch_map_belongs_to_its_picture(opened: Collection) -> None:
    np.testing.assert_array_equal(opened.patch_map(5), content(2, 3, count=4).maps[2])


@pytest.mark.parametrize("index", [7, -8])
def test_places_outside_are_an_index_error(index: int, opened: Collection) -> None:
    with pytest.raises(IndexError, match="outside a collection of 7"):
        opened.entry(index)
    with pytest.raises(IndexError, match="outside a collection of 7"):
        opened.vectors[index]


def test_an_empty_collection_reads_as_one(tmp_path: Path) -> None:
    CollectionWriter(tmp_path, wanted())
    opened = open_collection(tmp_path)
    assert len(opened) == len(opened.vectors[:]) == len(list(opened.paths)) == 0
    assert opened.find("/0.jpg") is None
    assert not list(opened.vectors.blocks())


def test_a_reader_sees_only_what_was_committed(tmp_path: Path) -> None:
    filled(tmp_path, 2)
    with (tmp_path / "index.jsonl").open("ab") as file:
        file.write(b'{"torn')
    assert list(open_collection(tmp_path).paths) == [f"/{number}.jpg" for number in range(4)]


def test_a_collection_without_maps_says_how_to_get_them(tmp_path: Path) -> None:
    config = wanted().config
    plain = wanted(config=type(config)(budget=4, precision="fp32", dtype="float32"))
    writer = CollectionWriter(tmp_path, plain)
    writer.commit(content(0, 0)._replace(maps=[]))
    with pytest.raises(CollectionError, match=r"has no patch maps; embed .* with --patches"):
        open_collection(tmp_path).patch_map(0)


def test_a_shard_of_another_shape_is_refused(tmp_path: Path) -> None:
    filled(tmp_path, 2)
    writer = filled(tmp_path / "other", 0)
    writer.commit(content(0, 0, count=5))
    (tmp_path / "other" / "vectors-00000.safetensors").replace(
        tmp_path / "vectors-00000.safetensors"
    )
    with pytest.raises(CollectionError, match=r"shape \[5, 32\], but \[2, 32\] were written"):
        open_collection(tmp_path).vectors[0]


def test_an_index_that_lost_lines_is_refused(tmp_path: Path) -> None:
    filled(tmp_path, 2)
    path = tmp_path / "index.jsonl"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(CollectionError, match="has 3 lines, but 4 were written"):
        open_collection(tmp_path)


def test_a_long_index_is_read_in_strides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collection_module, "STRIDE", 50)
    filled(tmp_path, 3)
    assert list(open_collection(tmp_path).paths) == [f"/{number}.jpg" for number in range(6)]
