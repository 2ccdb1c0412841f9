"""A collection is whole after every shard, whatever fails while the next one is written."""

import dataclasses
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.embed.made_up import content, filled, wanted
from veca.data.listing import key
from veca.embed.collection import open_collection
from veca.embed.errors import CollectionError
from veca.embed.store import CollectionWriter, check_folder


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_what_was_committed_can_be_read(tmp_path: Path) -> None:
    filled(tmp_path, 3)
    collection = open_collection(tmp_path)
    assert len(collection) == 6
    for shard in range(3):
        made = content(shard, 2 * shard)
        np.testing.assert_array_equal(collection.vectors[2 * shard : 2 * shard + 2], made.vectors)
        np.testing.assert_array_equal(collection.patch_map(2 * shard + 1), made.maps[1])
        assert collection.entry(2 * shard) == made.entries[0]


def test_a_writer_knows_what_was_dealt_with(tmp_path: Path) -> None:
    writer = filled(tmp_path, 2)
    embedded, skipped = writer.embedded(), writer.skipped()
    assert embedded.keys.tolist() == [key(f"/{number}.jpg") for number in range(4)]
    assert embedded.sizes.tolist() == [10, 11, 10, 11]
    assert skipped.keys.tolist() == [key("/bad0-0.jpg"), key("/bad1-0.jpg")]
    assert [entry.index for entry in writer.entries()] == [0, 1, 2, 3]


def test_a_shard_in_which_everything_was_skipped_has_no_files(tmp_path: Path) -> None:
    writer = filled(tmp_path, 0)
    writer.commit(content(0, 0, count=0, skipped=3))
    writer.commit(content(1, 0))
    assert writer.record.shards == (0, 2)
    assert sorted(files(tmp_path)) == [
        "collection.json", "index.jsonl", "patches-00001.safetensors", "skipped.jsonl",
        "vectors-00001.safetensors",
    ]  # fmt: skip
    np.testing.assert_array_equal(open_collection(tmp_path).vectors[:], content(1, 0).vectors)


class Failing:
    """Makes the n-th call that reaches the disk fail, after the harm of half a write is done."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, call: int) -> None:
        self.calls = 0
        self.call = call
        for name in ("write", "fsync", "replace"):
            monkeypatch.setattr(os, name, self._watched(name, getattr(os, name)))

    def _watched(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            self.calls += 1
            if self.calls == self.call:
                if name == "write":
                    real(arguments[0], arguments[1][: len(arguments[1]) // 2])
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(*arguments)

        return call


def calls_of_a_commit(folder: Path) -> int:
    """How often a commit reaches the disk."""
    with pytest.MonkeyPatch.context() as patch:
        writer = filled(folder, 1)
        failing = Failing(patch, 0)
        writer.commit(content(1, 2))
    return failing.calls


def test_a_disk_that_is_full_at_any_moment_leaves_the_earlier_shards_whole(
    tmp_path: Path,
) -> None:
    expected = files(filled(tmp_path / "expected", 3).folder)
    number = calls_of_a_commit(tmp_path / "counted")
    assert number >= 15  # two shards, two lists and the record, each written and synced
    for call in range(1, number + 1):
        folder = tmp_path / str(call)
        writer = filled(folder, 1)
        with pytest.MonkeyPatch.context() as patch:
            Failing(patch, call)
            with pytest.raises(OSError, match="No space left"):
                writer.commit(content(1, 2))
        collection = open_collection(folder)
        assert len(collection) in {2, 4}  # 4 where the last step alone, after the commit, failed
        np.testing.assert_array_equal(collection.vectors[:2], content(0, 0).vectors)
        np.testing.assert_array_equal(collection.patch_map(1), content(0, 0).maps[1])
        assert files(filled(folder, 3).folder) == expected  # the next run goes on from there


def test_leftovers_of_a_stopped_run_are_removed(tmp_path: Path) -> None:
    filled(tmp_path, 2)
    expected = files(tmp_path)
    for name in ("vectors-00002.safetensors", "patches-00007.safetensors", ".x.0f.tmp"):
        (tmp_path / name).write_bytes(b"torn")
    for name in ("index.jsonl", "skipped.jsonl"):
        with (tmp_path / name).open("ab") as file:
            file.write(b'{"torn')
    CollectionWriter(tmp_path, wanted())
    assert files(tmp_path) == expected


def test_opening_what_is_whole_touches_nothing(tmp_path: Path) -> None:
    filled(tmp_path, 2).finish()
    before = {path: path.stat().st_mtime_ns for path in (tmp_path, *tmp_path.iterdir())}
    writer = CollectionWriter(tmp_path, wanted())
    writer.finish()
    writer.forget_skipped([])
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path, *tmp_path.iterdir())}


def test_an_index_that_lost_lines_is_refused(tmp_path: Path) -> None:
    filled(tmp_path, 1)
    (tmp_path / "index.jsonl").write_bytes(b"")
    with pytest.raises(CollectionError, match=r"has 0 bytes, but .* were written; restore it"):
        CollectionWriter(tmp_path, wanted())


def test_skipped_inputs_are_forgotten_for_another_try(tmp_path: Path) -> None:
    writer = filled(tmp_path, 3)
    writer.forget_skipped([key("/bad1-0.jpg")])
    assert [item.path for item in writer.skipped_inputs()] == ["/bad0-0.jpg", "/bad2-0.jpg"]
    assert writer.record.skipped == 2
    writer.commit(content(3, 6))
    assert [item.path for item in CollectionWriter(tmp_path, wanted()).skipped_inputs()] == [
        "/bad0-0.jpg", "/bad2-0.jpg", "/bad3-0.jpg",
    ]  # fmt: skip


def test_a_run_that_was_stopped_while_it_forgot_goes_on(tmp_path: Path) -> None:
    writer = filled(tmp_path, 2)
    with pytest.MonkeyPatch.context() as patch:
        Failing(patch, 6)  # the list is replaced, the record is not
        with pytest.raises(OSError, match="No space left"):
            writer.forget_skipped([key("/bad0-0.jpg")])
    again = CollectionWriter(tmp_path, wanted())
    assert [item.path for item in again.skipped_inputs()] == ["/bad1-0.jpg"]
    again.commit(content(2, 4))
    assert [item.path for item in again.skipped_inputs()] == ["/bad1-0.jpg", "/bad2-0.jpg"]
    assert again.record.skipped == 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"budget": 2}, r"with budget 4, but asked for was budget 2; repeat the settings"),
        ({"ffn": 0.5}, "with ffn all, but asked for was ffn 0.5"),
        ({"size": 512, "fit": "crop"}, "with size 256, fit resize, .* size 512, fit crop"),
        ({"dtype": "float16"}, "with dtype float32, .* dtype float16"),
        ({"patches": False}, "with patches stored, .* patches not stored"),
    ],
)
def test_other_settings_are_refused_with_what_differs(
    change: dict[str, Any], words: str, tmp_path: Path
) -> None:
    filled(tmp_path, 1)
    other = wanted(config=dataclasses.replace(wanted().config, **change))
    with pytest.raises(CollectionError, match=words):
        CollectionWriter(tmp_path, other)


def test_another_model_is_refused_and_one_that_moved_is_not(tmp_path: Path) -> None:
    filled(tmp_path, 1)
    model = wanted().model
    with pytest.raises(CollectionError, match=r"model m \(SHA-256 dddd.*model n \(SHA-256 eeee"):
        CollectionWriter(
            tmp_path, wanted(model=dataclasses.replace(model, name="n", digest="e" * 64))
        )
    writer = CollectionWriter(tmp_path, wanted(model=dataclasses.replace(model, name="moved")))
    writer.commit(content(1, 2))
    assert open_collection(tmp_path).record.model.name == "moved"


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    check_folder(tmp_path)
    check_folder(tmp_path / "new")
    (tmp_path / ".lock").touch()
    (tmp_path / ".collection.json.0f.tmp").touch()
    check_folder(tmp_path)
    (tmp_path / "photo.jpg").touch()
    with pytest.raises(CollectionError, match=r"holds other files \(photo.jpg\)"):
        check_folder(tmp_path)
    with pytest.raises(CollectionError, match="is a file"):
        check_folder(tmp_path / "photo.jpg")
