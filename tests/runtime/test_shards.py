"""Chunks are computed once, on any number of ranks, through kills and damage, to equal bytes."""

import itertools
import json
import logging
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.runtime.faults import held
from tests.runtime.ranks import run_ranks
from veca.runtime.distributed import Ranks, RanksError
from veca.runtime.files import FileError, LockedError
from veca.runtime.shards import Compute, ShardStore, Task, fill
from veca.runtime.signals import StoppedError
from veca.runtime.tensors import DamagedFileError, TensorFile

ALONE = Ranks(device=torch.device("cpu"))
COUNT, CHUNK_SIZE = 23, 4


def store_in(root: Path, setting: int = 1, *, lazy: bool = False) -> ShardStore:
    """The store of one setting of a made-up model."""
    facts = {"model": "abc", "setting": setting}
    return ShardStore(root, facts, count=COUNT, chunk_size=CHUNK_SIZE, name="made up", lazy=lazy)


def item(setting: int, number: int) -> Tensor:
    """What the model of a setting gives for an item."""
    return torch.arange(6.0).reshape(2, 3) * setting + number


def content(store: ShardStore, chunk: int, setting: int = 1) -> dict[str, Tensor]:
    """A row per item, and a tensor of its own shape per item."""
    items = store.items(chunk)
    ragged = {f"{number}/patches": torch.full((number % 3, 2), number) for number in items}
    return {"image": torch.stack([item(setting, number) for number in items]), **ragged}


def computing(
    stores: Sequence[ShardStore], settings: Sequence[int], computed: list[Task]
) -> Compute:
    """A computation that notes what it was asked for."""

    def compute(tasks: Sequence[Task]) -> Iterator[Mapping[int, Mapping[str, Tensor]]]:
        for task in tasks:
            computed.append(task)
            yield {at: content(stores[at], task.chunk, settings[at]) for at in task.stores}

    return compute


def fill_one(store: ShardStore, ranks: Ranks = ALONE) -> list[int]:
    """Fill one store; the chunks that were computed."""
    computed: list[Task] = []
    fill([store], computing([store], [1], computed), ranks)
    return [task.chunk for task in computed]


def files_of(folder: Path) -> dict[str, bytes]:
    """Every file below a folder but the lock."""
    paths = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with a store that was filled without interruption."""
    root = tmp_path_factory.mktemp("whole")
    fill_one(store_in(root))
    return root


def test_a_store_is_filled_once_and_read_back(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    assert fill_one(store) == list(range(6))
    assert fill_one(store) == fill_one(store_in(tmp_path)) == []
    assert store.read(5, ["image"])["image"].shape == (3, 2, 3)
    for chunk in range(store.num_chunks):
        wanted = content(store, chunk)
        found = store.read(chunk, wanted)
        assert found.keys() == wanted.keys()
        assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    with store.open(4) as file:
        assert torch.equal(file.read("17/patches"), torch.full((2, 2), 17))


@given(st.lists(st.integers(0, COUNT - 1), max_size=30))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
def test_rows_come_in_the_order_they_were_asked_for(whole: Path, numbers: list[int]) -> None:
    found = store_in(whole).rows("image", np.array(numbers, np.int64))
    assert found.shape == (len(numbers), 2, 3)
    for row, number in zip(found, numbers, strict=True):
        assert torch.equal(row, item(1, number))


def test_the_folder_depends_on_all_facts_and_lists_them(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    again = ShardStore(tmp_path, {"setting": 1, "model": "abc"}, count=COUNT, chunk_size=CHUNK_SIZE)
    assert store.key == again.key
    assert store.folder.name == f"made-up-{again.folder.name}"
    others = [
        ShardStore(tmp_path, {"model": "abc", "setting": 1}, count=COUNT, chunk_size=5),
        ShardStore(tmp_path, {"model": "abc", "setting": 1}, count=COUNT + 1, chunk_size=4),
        store_in(tmp_path, setting=2),
    ]
    assert len({other.folder.name for other in [again, *others]}) == 4
    fill_one(store)
    assert json.loads((store.folder / "facts.json").read_text()) == {
        "facts": {"model": "abc", "setting": 1},
        "count": COUNT,
        "chunk_size": CHUNK_SIZE,
    }


def test_several_stores_are_filled_in_one_pass_and_only_where_they_lack_something(
    tmp_path: Path,
) -> None:
    stores = [store_in(tmp_path, setting) for setting in (1, 2, 3)]
    fill_one(stores[0])
    stores[1].write(2, content(stores[1], 2, 2))
    computed: list[Task] = []
    fill(stores, computing(stores, [1, 2, 3], computed), ALONE)
    assert computed == [Task(chunk, (2,) if chunk == 2 else (1, 2)) for chunk in range(6)]
    for setting, store in enumerate(stores, 1):
        assert torch.equal(store.rows("image", np.array([9]))[0], item(setting, 9))


# Damage.


def flip(path: Path) -> None:
    damaged = bytearray(path.read_bytes())
    damaged[-3] ^= 4
    path.write_bytes(damaged)


def cut(path: Path) -> None:
    os.truncate(path, 100)


def swap(path: Path) -> None:
    shutil.copyfile(path.with_name("chunk-00001.safetensors"), path)


def replace_by_another_store(path: Path) -> None:
    other = store_in(path.parents[1], setting=2)
    other.write(3, content(other, 3, 2))
    shutil.copyfile(other.path(3), path)


def delete(path: Path) -> None:
    path.unlink()


DAMAGES = [flip, cut, swap, replace_by_another_store, delete]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_chunk_is_found_in_the_next_run_and_computed_again(
    damage: Callable[[Path], None], whole: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    damage(store_in(tmp_path).path(3))
    with pytest.raises(FileError, match=r"cannot be used: .*; delete it and run"):
        store_in(tmp_path).read(3, ["image"])
    store = store_in(tmp_path)
    with caplog.at_level(logging.WARNING, "veca"):
        assert fill_one(store) == [3]
    reported = [message for message in caplog.messages if "chunk-00003" in message]
    assert len(reported) == (damage is not delete)
    assert files_of(store.folder) == files_of(store_in(whole).folder)


def test_a_chunk_is_hashed_once_per_run(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[Path] = []
    monkeypatch.setattr(
        "veca.runtime.tensors.TensorFile.verify", lambda file: hashed.append(file.path)
    )
    store = store_in(whole)
    for _ in range(3):
        fill_one(store)
        store.rows("image", np.arange(COUNT))
    assert hashed == [store.path(chunk) for chunk in range(6)]


def test_a_lazy_store_hashes_a_chunk_when_it_is_first_read(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    hashed: list[Path] = []
    verify = TensorFile.verify

    def noted(file: TensorFile) -> None:
        hashed.append(file.path)
        verify(file)

    monkeypatch.setattr(TensorFile, "verify", noted)
    store = store_in(tmp_path, lazy=True)
    flip(store.path(3))
    assert fill_one(store) == []
    assert hashed == []
    for _ in range(2):
        store.rows("image", np.arange(2 * CHUNK_SIZE))
    assert hashed == [store.path(0), store.path(1)]
    with pytest.raises(FileError, match="cannot be used: its tensors do not match their SHA-256"):
        store.read(3, ["image"])
    store.path(3).unlink()
    assert fill_one(store) == [3]
    assert files_of(store.folder) == files_of(store_in(whole).folder)


# Stops and failures.


def test_a_stop_is_honored_between_chunks_and_the_next_run_continues(tmp_path: Path) -> None:
    store, computed = store_in(tmp_path), list[Task]()
    with pytest.raises(StoppedError):
        fill([store], computing([store], [1], computed), ALONE, stop=lambda: len(computed) == 2)
    assert [task.chunk for task in computed] == [0, 1]
    with pytest.raises(StoppedError):
        fill([store], computing([store], [1], computed), ALONE, stop=lambda: True)
    assert fill_one(store_in(tmp_path)) == [2, 3, 4, 5]


def test_a_computation_is_closed_whatever_ends_it(tmp_path: Path) -> None:
    store, ended = store_in(tmp_path), list[str]()

    def compute(tasks: Sequence[Task]) -> Iterator[Mapping[int, Mapping[str, Tensor]]]:
        try:
            yield {0: content(store, 0)}
            raise KeyError("broken")
        finally:
            ended.append("closed")

    with pytest.raises(KeyError, match="broken"):
        fill([store], compute, ALONE)
    with pytest.raises(StoppedError):
        fill([store], compute, ALONE, stop=lambda: store.path(1).exists())
    assert ended == ["closed"] * 2


def test_a_folder_that_another_run_fills_is_refused(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    store.folder.mkdir()
    with held(store.folder), pytest.raises(LockedError, match="another process is writing into"):
        fill_one(store)
    fill_one(store)
    with held(store.folder):
        assert fill_one(store_in(tmp_path)) == []  # a complete store needs no lock


def test_another_rank_that_fails_or_writes_elsewhere_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FileError, match="is not visible to this one; use a folder that all"):
        store_in(tmp_path).complete()
    monkeypatch.setattr(Ranks, "any", lambda _ranks, _flag: True)
    with pytest.raises(RanksError, match="another rank failed"):
        fill_one(store_in(tmp_path))


def test_a_write_error_names_the_chunk(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FileError, match=r"cannot be written .*; use a folder on a writable disk"):
        fill_one(store_in(tmp_path / "file"))
    store = store_in(tmp_path)
    store.path(2).mkdir(parents=True)
    with pytest.raises(FileError, match=r"chunk-00002\.safetensors cannot be written .*room"):
        fill_one(store)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows starts no copies of a process")
def test_kills_at_random_moments_leave_whole_chunks_and_the_result_has_equal_bytes(
    whole: Path, tmp_path: Path
) -> None:
    draw, kills = random.Random(0), 0
    for attempt in itertools.count(1):
        child = os.fork()
        if not child:
            try:
                fill_one(store_in(tmp_path))
            finally:
                os._exit(0)
        time.sleep(draw.uniform(0, 0.004 * attempt))  # rising, so that one gets to the end
        os.kill(child, signal.SIGKILL)
        killed = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) < 0
        kills += killed
        for path in tmp_path.rglob("chunk-*"):
            assert path.read_bytes() == (whole / path.relative_to(tmp_path)).read_bytes()
        if not killed:
            break
    assert kills >= 3
    assert files_of(tmp_path) == files_of(whole)


# Two ranks.


@pytest.mark.workers
def test_two_ranks_share_the_work_and_write_what_one_would(whole: Path, tmp_path: Path) -> None:
    def work(ranks: Ranks) -> None:
        store = store_in(tmp_path / "root")
        (tmp_path / f"computed{ranks.rank}").write_text(str(fill_one(store, ranks)))
        assert store.rows("image", np.arange(COUNT)).shape == (COUNT, 2, 3)
        ranks.barrier()  # nobody reads any more
        if ranks.is_main:
            flip(store.path(5))
        ranks.barrier()
        assert fill_one(store_in(tmp_path / "root"), ranks) == ([5] if ranks.is_main else [])

    run_ranks(work, tmp_path)
    assert (tmp_path / "computed0").read_text() == "[0, 2, 4]"
    assert (tmp_path / "computed1").read_text() == "[1, 3, 5]"
    assert files_of(tmp_path / "root") == files_of(whole)


@pytest.mark.workers
def test_one_rank_that_fails_or_stops_ends_all(whole: Path, tmp_path: Path) -> None:
    def work(ranks: Ranks) -> None:
        store = store_in(tmp_path / "root")

        def failing(tasks: Sequence[Task]) -> Iterator[Mapping[int, Mapping[str, Tensor]]]:
            yield {0: content(store, tasks[0].chunk)}
            if not ranks.is_main:
                raise DamagedFileError(Path("image"), "no image")
            yield {0: content(store, tasks[1].chunk)}

        wanted = RanksError if ranks.is_main else DamagedFileError
        with pytest.raises(wanted, match="another rank failed" if ranks.is_main else "no image"):
            fill([store], failing, ranks)
        with pytest.raises(StoppedError):
            fill([store], computing([store], [1], []), ranks, stop=lambda: not ranks.is_main)
        fill_one(store, ranks)

    run_ranks(work, tmp_path)
    assert files_of(tmp_path / "root") == files_of(whole)
