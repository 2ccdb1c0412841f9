"""Ranks stand back, outlive signals meant for others, and end with their parent."""

import multiprocessing
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from veca.data import loader as loading
from veca.data.images import WorkerError
from veca.data.listing import ImageIndex, ImageTable
from veca.data.loader import AHEAD, NICENESS, has_shared_memory, worker_loader

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="as workers are on Linux")


class Maker(Dataset[Any]):
    """Does what it is told with each task."""

    def __init__(self, make: Callable[[Any], Any]) -> None:
        self.make = make

    def __getitem__(self, task: Any) -> Any:
        return self.make(task)


def until(condition: Callable[[], bool], seconds: float = 30.0) -> bool:
    """Whether something comes true in time."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


def is_running(process: int) -> bool:
    """Whether a process runs: one that has ended stays as a zombie until someone asks."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_answers_come_in_the_order_of_the_tasks(workers: int) -> None:
    def make(task: int) -> int:
        time.sleep(0.001 * (task % 3))
        return task * task

    assert list(worker_loader(Maker(make), range(20), workers)) == [task**2 for task in range(20)]


@pytest.mark.parametrize("workers", [0, 2])
def test_tasks_are_drawn_only_a_few_ahead(workers: int) -> None:
    drawn = []

    def tasks() -> Iterator[int]:
        for task in range(10**9):
            drawn.append(task)
            yield task

    with closing(worker_loader(Maker(int), tasks(), workers)) as answers:
        for _ in range(5):
            next(answers)
        assert len(drawn) <= 5 + AHEAD * workers


def test_random_numbers_and_the_signals_of_this_process_stay() -> None:
    before = torch.random.get_rng_state(), signal.pthread_sigmask(signal.SIG_BLOCK, ())
    list(worker_loader(Maker(int), range(3), 1))
    assert torch.equal(torch.random.get_rng_state(), before[0])
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before[1]


@linux_only
def test_a_worker_stands_back_and_computes_with_one_thread() -> None:
    def make(task: int) -> tuple[int, int]:
        return os.nice(0), torch.get_num_threads()

    (found,) = worker_loader(Maker(make), range(1), 1)
    assert found == (min(os.nice(0) + NICENESS, 19), 1)


@linux_only
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_outlives_a_signal_to_the_whole_job(number: int) -> None:
    def make(task: int) -> int:
        os.kill(os.getpid(), number)
        time.sleep(0.1)
        return task

    assert list(worker_loader(Maker(make), range(2), 1)) == [0, 1]


@linux_only
def test_a_worker_ends_when_its_parent_says_so() -> None:
    with closing(worker_loader(Maker(lambda task: os.getpid()), range(2), 1)) as answers:
        worker = next(answers)
        os.kill(worker, signal.SIGTERM)
        assert until(lambda: not is_running(worker))


@linux_only
def test_workers_end_when_nobody_wants_more() -> None:
    answers = worker_loader(Maker(lambda task: os.getpid()), range(10**9), 2)
    workers = {next(answers) for _ in range(6)}
    answers.close()
    assert until(lambda: not any(is_running(worker) for worker in workers))
    assert not multiprocessing.active_children()


def kill_at(place: int) -> Callable[[int], int]:
    """A worker that is killed at one of its tasks."""

    def make(task: int) -> int:
        if task == place:
            os.kill(os.getpid(), signal.SIGKILL)
        return task

    return make


def test_a_worker_that_is_killed_is_told() -> None:
    with pytest.raises(WorkerError, match="DataLoader worker"):
        list(worker_loader(Maker(kill_at(0)), range(2), 1))


@linux_only
def test_a_worker_that_is_killed_meanwhile_is_told_when_its_answer_is_due(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wait = _MultiProcessingDataLoaderIter._try_get_data
    monkeypatch.setattr(wait, "__defaults__", (0.2,))  # seconds after which torch looks; else 5
    answers = worker_loader(Maker(lambda task: (task, os.getpid())), range(10**9), 1)
    _, worker = next(answers)
    os.kill(worker, signal.SIGKILL)
    until(lambda: not is_running(worker))
    time.sleep(0.2)  # in which torch alone would have raised
    with pytest.raises(WorkerError, match="DataLoader worker"):
        list(answers)


def test_a_fault_of_ours_is_none_of_a_worker_that_was_ended() -> None:
    def make(task: int) -> int:
        raise RuntimeError("a fault")

    for workers in (0, 1):
        with pytest.raises(RuntimeError, match="a fault") as raised:
            list(worker_loader(Maker(make), range(1), workers))
        assert not isinstance(raised.value, WorkerError)


def test_a_thread_can_load_too() -> None:
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.extend(worker_loader(Maker(int), range(3), 1)))
    thread.start()
    thread.join()
    assert found == [0, 1, 2]


@linux_only
def test_a_process_ends_when_it_finds_itself_with_another_parent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended: list[int] = []
    parents = iter((7, 7, 1))
    monkeypatch.setattr(os, "getppid", lambda: next(parents))
    monkeypatch.setattr(os, "_exit", ended.append)
    monkeypatch.setattr(loading, "HEARTBEAT", 0.01)
    loading._obey_parent(7)
    assert ended == [0]
    assert not list(parents)


def test_little_shared_memory_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert has_shared_memory(0, 2)
    monkeypatch.setattr(loading, "SHARED_MEMORY", "/")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=140))
    assert has_shared_memory(9, 2)
    assert not has_shared_memory(10, 2)  # seven batches, twice
    monkeypatch.setattr(loading, "SHARED_MEMORY", "/nowhere")
    assert has_shared_memory(2**60, 2)


LEFT: list[Any] = []
"""What a process still holds when it ends."""


def leave_workers(told: Connection, kills_itself: bool) -> None:
    """Start workers, tell who they are, and go while they still have work."""
    answers = worker_loader(Maker(lambda task: os.getpid()), iter(int, 1), 2)
    LEFT.append(answers)
    told.send([next(answers), next(answers)])
    if kills_itself:
        os.kill(os.getpid(), signal.SIGKILL)


@linux_only
@pytest.mark.parametrize("kills_itself", [True, False])
def test_no_worker_is_left_when_a_process_is_killed_or_leaves_in_the_middle(
    kills_itself: bool,
) -> None:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=leave_workers, args=(theirs, kills_itself))
    process.start()
    workers = ours.recv()
    assert len(set(workers)) == 2
    process.join(30)
    assert process.exitcode == (-signal.SIGKILL if kills_itself else 0)
    assert until(lambda: not any(is_running(worker) for worker in workers))


def own_memory() -> int:
    """Bytes of this process that it shares with no other."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private"))


@linux_only
def test_workers_share_the_names_of_all_images() -> None:
    count = 200_000
    names = [f"/some/folder/of/images/{number:07}.jpg".encode() for number in range(count)]
    numbers = np.arange(count)
    table = ImageTable(
        names=np.frombuffer(b"".join(names), np.uint8),
        ends=(numbers + 1) * len(names[0]),
        sizes=numbers,
        starts=numbers,
        shard_lengths=np.zeros_like(numbers),
        keys=numbers.astype(np.uint64),
    )
    index = ImageIndex(table, numbers, table.keys)

    def make(task: int) -> tuple[int, int]:
        index[0]
        before = own_memory()
        length = sum(len(index[number].name) for number in range(0, count, 20))  # on every page
        return length, own_memory() - before

    for length, growth in worker_loader(Maker(make), range(2), 1):
        assert length == count // 20 * len(names[0])
        assert growth < 1_000_000  # the names alone are seven times as much
