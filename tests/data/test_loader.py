"""Batches depend on the seed, the images and their crops alone; workers end when they should."""

import multiprocessing
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from tests.data.pictures import encoded, write_pictures, write_shard
from veca.data import loader
from veca.data.augment import ViewConfig, center_view, inner_view, training_view
from veca.data.images import DataError, decode
from veca.data.listing import ImageIndex, ImageTable, open_image
from veca.data.loader import (
    NICENESS,
    PREFETCH,
    Batch,
    BatchSpec,
    batches,
    has_shared_memory,
    sample_order,
    worker_loader,
)

SEED = 5


def task_of(
    indices: Iterable[int], draw: int = 0, step: int = 0, resolution: int = 16
) -> BatchSpec:
    numbers = np.array(list(indices), np.int64)
    return BatchSpec(step, 0, numbers, np.full_like(numbers, draw), resolution)


def made(index: ImageIndex, tasks: Iterable[BatchSpec], **choices: Any) -> list[Batch]:
    usual: dict[str, Any] = {"seed": SEED, "config": ViewConfig(), "num_workers": 0}
    with closing(batches(index, tasks, **usual | choices)) as found:
        return list(found)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Eight images, half of them in a shard."""
    write_pictures(tmp_path / "images", 4)
    members = [(f"{number}.png", encoded(number)) for number in range(4, 8)]
    write_shard(tmp_path / "images" / "s.tar", members)
    return tmp_path / "images"


def test_a_view_depends_on_the_seed_the_crop_id_and_the_image(images: Path) -> None:
    index = ImageIndex.load_or_list(images)
    task = BatchSpec(3, 1, np.array([2, 0, 2, 2]), np.array([0, 0, 1, 0]), 16)
    ((found, views, unreadable),) = made(index, [task])
    assert found is task
    assert unreadable == {}
    for view, image, draw in zip(views, [2, 0, 2, 2], [0, 0, 1, 0], strict=True):
        picture = decode(index[image].name)
        numbers = random.Random(f"view/{SEED}/{draw}/{image}")
        assert torch.equal(view, training_view(picture, 16, numbers, ViewConfig()))
    assert torch.equal(views[0], views[3])
    assert not torch.equal(views[0], views[2])


def tasks_of(part: int, resolution: int = 24) -> Iterator[BatchSpec]:
    """Three steps of six samples of eight images, in parts."""
    for step in range(3):
        places, epochs = sample_order(8, 6, step, SEED)
        for start in range(0, 6, part):
            taken = slice(start, start + part)
            yield BatchSpec(step, start // part, places[taken], epochs[taken], resolution)


@pytest.mark.parametrize(("workers", "part"), [(1, 6), (3, 6), (0, 1), (2, 2)])
def test_views_do_not_depend_on_workers_or_on_how_a_batch_is_split(
    workers: int, part: int, images: Path
) -> None:
    index = ImageIndex.load_or_list(images)
    expected = torch.cat([batch.images for batch in made(index, tasks_of(6))])
    found = made(index, tasks_of(part), num_workers=workers)
    assert [batch.task.part for batch in found] == list(range(6 // part)) * 3
    assert torch.equal(torch.cat([batch.images for batch in found]), expected)


def test_little_shared_memory_changes_nothing(
    images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = ImageIndex.load_or_list(images)
    expected = made(index, tasks_of(6))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=0))
    found = made(index, tasks_of(6), num_workers=1)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one.images, other.images)
        assert not one.images.is_shared()


def test_validation_views_are_center_views_for_every_crop_id(images: Path) -> None:
    index = ImageIndex.load_or_list(images)
    ((_, views, _),) = made(index, [task_of(range(4), draw=7)], training=False)
    for number, view in enumerate(views):
        assert torch.equal(view, center_view(decode(index[number].name), 16, ViewConfig()))
    other = made(index, [task_of(range(4), draw=8)], training=False, seed=1)
    assert torch.equal(views, other[0].images)


def test_tasks_may_have_any_resolution_and_may_be_empty(images: Path) -> None:
    tasks = [task_of([0], resolution=16), task_of([], resolution=16), task_of([0], resolution=32)]
    shapes = [tuple(batch.images.shape) for batch in made(ImageIndex.load_or_list(images), tasks)]
    assert shapes == [(1, 3, 16, 16), (0, 3, 16, 16), (1, 3, 32, 32)]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("workers", [0, 2])
def test_an_unreadable_image_is_replaced_and_reported(
    workers: int, training: bool, images: Path
) -> None:
    index = ImageIndex.load_or_list(images)
    (before,) = made(index, [task_of(range(8))], training=training)
    (images / "0001.png").write_bytes(encoded(1)[:-40])
    (images / "0002.png").unlink()
    kept = np.array([0, 3, 4, 5])
    tasks = [task_of(range(8)), task_of([1]), task_of([2])]
    choices = {"num_workers": workers, "training": training, "replacements": kept}
    whole, one, two = made(index, tasks, **choices)
    assert set(whole.unreadable) == {1, 2}
    assert "truncated" in whole.unreadable[1]
    assert "does not exist" in whole.unreadable[2]
    assert set(one.unreadable) == {1}
    others = [0, 3, 4, 5, 6, 7]
    assert torch.equal(whole.images[others], before.images[others])
    assert torch.equal(whole.images[1:3], torch.cat((one.images, two.images)))
    for bad, view in zip((1, 2), whole.images[1:3], strict=True):
        possible = [view_in_place(index, other, bad, training) for other in kept.tolist()]
        assert any(torch.equal(view, each) for each in possible)


def view_in_place(index: ImageIndex, other: int, image: int, training: bool) -> torch.Tensor:
    """The view of a replacement."""
    with open_image(index[other]) as file:
        picture = decode(file)
    if not training:
        return center_view(picture, 16, ViewConfig())
    return training_view(picture, 16, random.Random(f"view/{SEED}/0/{image}"), ViewConfig())


def test_replacements_change_with_the_epoch_in_training_only(images: Path) -> None:
    index = ImageIndex.load_or_list(images)
    (images / "0001.png").unlink()
    plain = ViewConfig(flip=0.0, trivial_augment=False, margin=1.0)
    tasks = [task_of([1], draw=draw) for draw in range(12)]
    kinds = {}
    for training in (True, False):
        found = made(index, tasks, training=training, config=plain)
        kinds[training] = len({batch.images.numpy().tobytes() for batch in found})
    assert kinds[True] > 3
    assert kinds[False] == 1


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_names_the_image_if_none_can_be_read(workers: int, tmp_path: Path) -> None:
    for path in write_pictures(tmp_path, 3):
        path.write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"^\S+0001\.png cannot be read \(.*check that") as raised:
        made(ImageIndex.load_or_list(tmp_path), [task_of([1])], num_workers=workers)
    assert "Traceback" not in str(raised.value)


def in_order(steps: int, count: int, batch: int, seed: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """All samples of some steps, one after the other."""
    parts = [sample_order(count, batch, step, seed) for step in range(steps)]
    return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])


@given(count=st.integers(1, 40), batch=st.integers(1, 50), seed=st.integers(-3, 99))
def test_every_image_occurs_once_per_epoch_for_any_batch_size(
    count: int, batch: int, seed: int
) -> None:
    steps = -(-3 * count // batch)
    places, epochs = in_order(steps, count, batch, seed)
    for epoch in range(3):
        assert sorted(places[epoch * count : (epoch + 1) * count].tolist()) == list(range(count))
    assert epochs.tolist() == [number // count for number in range(steps * batch)]
    singly, _ = in_order(steps * batch, count, 1, seed)
    assert np.array_equal(places, singly)


def test_epochs_and_seeds_have_different_orders() -> None:
    places, _ = in_order(3, 100, 100, seed=0)
    other, _ = in_order(1, 100, 100, seed=1)
    first, second, third = places.reshape(3, 100)
    orders = (first, second, third, other, np.arange(100))
    assert len({order.tobytes() for order in orders}) == 5
    for order in orders[:4]:
        assert abs(np.corrcoef(order, np.arange(100))[0, 1]) < 0.3


def test_the_order_is_stable_across_versions() -> None:
    places, epochs = sample_order(10, 12, 0, seed=42)
    assert places.tolist() == [7, 0, 3, 4, 8, 5, 9, 2, 6, 1, 1, 4]
    assert epochs.tolist() == [0] * 10 + [1] * 2


@pytest.mark.parametrize(("count", "batch", "step"), [(0, 1, 0), (1, 0, 0), (1, 1, -1)])
def test_an_empty_batch_is_refused(count: int, batch: int, step: int) -> None:
    with pytest.raises(DataError, match=">= 1"):
        sample_order(count, batch, step, 0)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_margin_is_cut_off_if_it_is_not_wanted(
    images: Path, training: bool, num_workers: int
) -> None:
    index, choices = ImageIndex.load_or_list(images), {"training": training, "margin": 6}
    outer = made(index, tasks_of(3), **choices)
    inner = made(index, tasks_of(3), **choices, give_margin=False, num_workers=num_workers)
    for whole, part in zip(outer, inner, strict=True):
        assert whole.images.shape[1:] == (3, 36, 36)
        assert torch.equal(part.images, inner_view(whole.images, 24))
    picture, draw = decode(index[0].name), random.Random(f"view/{SEED}/0/0")
    wanted = (
        training_view(picture, 24, draw, ViewConfig(), margin=6)
        if training
        else center_view(picture, 24, ViewConfig(), margin=6)
    )
    (found,) = made(index, [task_of([0], resolution=24)], **choices)
    assert torch.equal(found.images[0], wanted)


linux_only = pytest.mark.skipif(sys.platform != "linux", reason="as workers are on Linux")


class Maker(Dataset[Any]):
    """Applies a function to each task."""

    def __init__(self, make: Callable[[Any], Any]) -> None:
        self.make = make

    def __getitem__(self, task: Any) -> Any:
        return self.make(task)


def until(condition: Callable[[], bool], seconds: float = 30.0) -> bool:
    """Whether a condition becomes true in time."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


def is_running(process: int) -> bool:
    """Whether a process runs and is not a zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_results_have_the_order_of_the_tasks(workers: int) -> None:
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
        assert len(drawn) <= 5 + PREFETCH * workers


def test_random_state_and_signal_mask_of_the_process_do_not_change() -> None:
    before = torch.random.get_rng_state(), signal.pthread_sigmask(signal.SIG_BLOCK, ())
    list(worker_loader(Maker(int), range(3), 1))
    assert torch.equal(torch.random.get_rng_state(), before[0])
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before[1]


@linux_only
def test_a_worker_has_a_low_priority_and_one_thread() -> None:
    def make(task: int) -> tuple[int, int]:
        return os.nice(0), torch.get_num_threads()

    (found,) = worker_loader(Maker(make), range(1), 1)
    assert found == (min(os.nice(0) + NICENESS, 19), 1)


@linux_only
def test_a_worker_ignores_signals_to_the_whole_job() -> None:
    def make(task: int) -> int:
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(os.getpid(), number)
        time.sleep(0.1)
        return task

    assert list(worker_loader(Maker(make), range(2), 1)) == [0, 1]


@linux_only
def test_workers_end_with_the_loader() -> None:
    with closing(worker_loader(Maker(lambda task: os.getpid()), range(2), 1)) as results:
        worker = next(results)
        os.kill(worker, signal.SIGTERM)  # from its parent
        assert until(lambda: not is_running(worker))
    answers = worker_loader(Maker(lambda task: os.getpid()), range(10**9), 2)
    workers = {next(answers) for _ in range(6)}
    answers.close()
    assert until(lambda: not any(is_running(worker) for worker in workers))
    assert not multiprocessing.active_children()


def kill_at(place: int) -> Callable[[int], int]:
    """A function that kills its worker at one of the tasks."""

    def make(task: int) -> int:
        if task == place:
            os.kill(os.getpid(), signal.SIGKILL)
        return task

    return make


def test_a_killed_worker_is_an_error() -> None:
    with pytest.raises(DataError, match="fewer workers"):
        list(worker_loader(Maker(kill_at(0)), range(2), 1))


@linux_only
def test_a_worker_killed_while_it_hands_over_a_tensor_is_an_error() -> None:
    def make(task: int) -> Tensor:
        def deliver_challenge(asker: Connection, _: bytes) -> None:
            asker.close()  # as the system does, a moment before the process has ended
            time.sleep(0.2)
            os.kill(os.getpid(), signal.SIGKILL)

        multiprocessing.connection.deliver_challenge = deliver_challenge  # type: ignore[assignment]
        return torch.zeros(3)

    with pytest.raises(DataError, match="a data-loading worker was killed"):
        list(worker_loader(Maker(make), range(2), 1))


@pytest.mark.parametrize("kind", [RuntimeError, EOFError, ConnectionResetError])
def test_other_errors_of_workers_are_raised_as_they_are(kind: type[Exception]) -> None:
    def make(task: int) -> int:
        raise kind("a fault")

    for workers in (0, 1):
        with pytest.raises(kind, match="a fault") as raised:
            list(worker_loader(Maker(make), range(1), workers))
        assert not isinstance(raised.value, DataError)


def test_shared_memory_must_hold_the_prefetched_batches_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert has_shared_memory(0, 2)
    monkeypatch.setattr(loader, "SHARED_MEMORY", "/")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=140))
    assert has_shared_memory(9, 2)
    assert not has_shared_memory(10, 2)  # seven batches, twice
    monkeypatch.setattr(loader, "SHARED_MEMORY", "/nowhere")
    assert has_shared_memory(2**60, 2)


LEFT: list[Any] = []
"""Keeps a loader alive until its process ends."""


def leave_workers(sender: Connection, kills_itself: bool) -> None:
    """Start workers, send their ids, and end while they still have work."""
    answers = worker_loader(Maker(lambda task: os.getpid()), iter(int, 1), 2)
    LEFT.append(answers)
    sender.send([next(answers), next(answers)])
    if kills_itself:
        os.kill(os.getpid(), signal.SIGKILL)


@linux_only
@pytest.mark.parametrize("kills_itself", [True, False])
def test_workers_end_with_their_parent_even_if_it_is_killed(
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
    """Bytes that this process shares with no other."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private"))


@linux_only
def test_workers_share_the_memory_of_the_image_table() -> None:
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
