"""Worker processes that decode, and batches that depend on seed and step alone.

Tasks done by worker processes, in their order and a few ahead, while this process computes.

Torch's loader starts the workers and hands out the tasks. Around it: workers wait behind the
threads that compute; they outlive a signal that was meant for the whole job, so that this process
can finish what it is at; they end when this one ends, even by kill -9; and a worker that dies is
told of where the next answer is awaited, not in the middle of something else.

Batches of views, decoded by worker processes.

What a batch holds follows from the seed, the images and their draws alone: not from the number of
workers, of ranks or of images in a batch, nor from where an earlier run was stopped.
"""

import hashlib
import os
import random
import shutil
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from types import FrameType
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import UInt8
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from veca.data.augment import ViewConfig, center_view, inner_view, min_side, training_view
from veca.data.images import DataError, DecodedImage, ImageError, WorkerError, decode
from veca.data.listing import ImageIndex, one_line, open_image

AHEAD = 2
"""Answers that each worker has ready or under way."""

SHARED_MEMORY = "/dev/shm"
"""Where Linux keeps memory that processes share; containers often have little."""

NICENESS = 10
"""How far workers stand back. The threads of a product wait for the slowest of them: if a worker
holds one of their processors, all wait for its time slice to end. So workers take what is left."""

HEARTBEAT = 1.0
"""Seconds after which a worker has noticed that its parent is gone."""

Answer = TypeVar("Answer")

_awaited = threading.Event()
"""Whether the main thread waits for an answer of a worker."""


def worker_loader(
    maker: Dataset[Answer], tasks: Iterable[Any], num_workers: int
) -> Generator[Answer, None, None]:
    """What `maker[task]` is for every task, in order; tasks are drawn only a few ahead.

    With 0 workers everything is done here.

    Raises:
        WorkerError: a worker was ended from outside.
    """
    forks = sys.platform == "linux"  # then a script needs no `if __name__ == "__main__"`
    with warnings.catch_warnings(), _signals_held_back():
        warnings.filterwarnings("ignore", "This DataLoader will create")  # the user chose so many
        loader: DataLoader[Any] = DataLoader(
            maker,
            batch_size=None,  # a task is a batch already
            sampler=tasks,
            num_workers=num_workers,
            collate_fn=_as_it_is,
            worker_init_fn=_start_worker,
            prefetch_factor=AHEAD if num_workers else None,
            multiprocessing_context="fork" if forks and num_workers else None,
            generator=torch.Generator(),  # leaves the user's random numbers alone
        )
        answers: Any = iter(loader)  # starts the workers
    _quieten_torch()
    try:
        while True:
            try:
                with _awaiting():
                    answer = next(answers)
            except StopIteration:
                return
            yield answer
            del answer  # else it would be held while the next one is awaited
    except RuntimeError as error:
        if "DataLoader worker (pid" not in str(error):  # a fault of ours
            raise
        raise WorkerError(str(error)) from error
    finally:
        if num_workers:
            answers._shutdown_workers()  # now, and not when the last traceback lets go of it


def has_shared_memory(batch_bytes: int, num_workers: int) -> bool:
    """Whether answers of this size can wait in shared memory; where it is full, workers crash."""
    if not os.path.isdir(SHARED_MEMORY):  # noqa: PTH112
        return True
    waiting = num_workers * (AHEAD + 1) + 1
    return shutil.disk_usage(SHARED_MEMORY).free > 2 * waiting * batch_bytes


@contextmanager
def _signals_held_back() -> Iterator[None]:
    """Let signals wait, so that none reaches a worker before it is ready for it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _awaiting() -> Iterator[None]:
    """Mark the time in which the main thread waits for an answer."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _awaited.set()
    try:
        yield
    finally:
        _awaited.clear()


class _Deaths:
    """Tells that a worker died, but only while an answer is awaited.

    Torch raises from a signal handler, wherever the main thread is: within the step of an optimizer
    or the writing of a file. Where that is kept back, it finds out by itself in the next wait.
    """

    def __init__(self, tell: Callable[[int, FrameType | None], Any]) -> None:
        self._tell = tell

    def __call__(self, number: int, frame: FrameType | None) -> None:
        try:
            self._tell(number, frame)
        except RuntimeError:
            if _awaited.is_set():
                raise


def _quieten_torch() -> None:
    """Put `_Deaths` before torch's handler, which the first loader has set."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGCHLD"):
        return
    tell = signal.getsignal(signal.SIGCHLD)
    if callable(tell) and tell.__module__.startswith("torch."):
        signal.signal(signal.SIGCHLD, _Deaths(tell))


def _start_worker(worker: int) -> None:
    """Make a process a worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    if sys.platform == "linux":
        os.nice(NICENESS)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_obey_parent, args=(os.getppid(),), daemon=True).start()


def _obey_parent(parent: int) -> None:
    """End this process when its parent says so or is gone; anyone else's SIGTERM is ignored."""
    while os.getppid() == parent:
        told = signal.sigtimedwait({signal.SIGTERM}, HEARTBEAT)
        if told is not None and told.si_pid == parent:
            break
    os._exit(0)


def _as_it_is(answer: Any) -> Any:  # noqa: ANN401 - the loader's type is that of a list
    """The answer to a task needs no collation."""
    return answer


ATTEMPTS = 32
"""Other images that are tried in the place of one that cannot be read."""


class BatchSpec(NamedTuple):
    """A batch to make."""

    step: int
    """Of the training; the maker of the task gets it back and nobody else looks at it."""

    part: int
    """Of the step, where a batch is taken in several parts; likewise."""

    indices: NDArray[np.int64]
    """Numbers of the images in the index (B)."""

    crop_ids: NDArray[np.int64]
    """Which of its endless random views each image gives: the epoch, or a number of one's own (B).
    Of no effect outside training."""

    resolution: int
    """Sides of the views in pixels."""


class Batch(NamedTuple):
    """What became of a task."""

    task: BatchSpec

    images: UInt8[Tensor, "B 3 S S"]
    """Of the task's resolution, with the margin on each side where one is given."""

    unreadable: dict[int, str]
    """Numbers of images that could not be read, with the reason; others stand in their places."""


def sample_order(
    count: int, batch: int, step: int, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Which of `count` images the samples of a step are, and in which epoch.

    Samples are counted through the whole training: number n belongs to epoch n // count, and is
    there at place n % count of a shuffle that depends on the seed and the epoch. So every image
    comes once in an epoch, whatever the batch.
    """
    if count < 1 or batch < 1 or step < 0:
        raise DataError(
            f"count={count}, batch={batch}, step={step} is no batch of images; count and batch "
            "are at least 1, steps begin at 0."
        )
    epochs, places = np.divmod(np.arange(step * batch, (step + 1) * batch), count)
    images = np.empty(batch, np.int64)
    for epoch in np.unique(epochs).tolist():
        now = epochs == epoch
        images[now] = _shuffle(count, seed, epoch)[places[now]]
    return images, epochs


@lru_cache(maxsize=2)  # a batch may hold the end of an epoch and the start of the next
def _shuffle(count: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """The numbers below `count` in an order of chance.

    They are sorted by the raw stream of a bit generator, which numpy promises to keep; its own
    shuffles may change from version to version.
    """
    digest = hashlib.sha256(f"order/{seed}/{epoch}".encode()).digest()
    stream = np.random.PCG64(int.from_bytes(digest, "big"))
    order = np.argsort(stream.random_raw(count), kind="stable")
    order.setflags(write=False)
    return order


def batches(  # noqa: PLR0913 - a door
    index: ImageIndex,
    tasks: Iterable[BatchSpec],
    *,
    seed: int,
    config: ViewConfig,
    num_workers: int,
    training: bool = True,
    replacements: NDArray[np.int64] | None = None,
    margin: int = 0,
    give_margin: bool = True,
    what_to_do: str = "start again with --resume and fewer workers",
) -> Generator[Batch, None, None]:
    """The views of every task, in order; tasks are drawn only a few ahead.

    The view of an image is drawn from (seed, draw, image). An image that cannot be read is replaced
    by another one, drawn from (seed, draw, image) too; its random numbers stay those of its place.
    Photographs far larger than a view are decoded at a part of their size (`decode`, `min_side`).

    Args:
        index: the images that tasks speak of.
        tasks: batches to make; they may go on for ever.
        seed: of the views.
        config: how views are made.
        num_workers: processes that decode; 0 decodes in this one.
        training: random views; else those from the middle, whatever the draws are.
        replacements: numbers of the images that may stand in for others, by default all; give the
            side of the split that the tasks are from.
        margin: pixels of a view that it shows more on each side, whatever its resolution.
        give_margin: whether views come with it; else it is cut off, and the rest is the same.
        what_to_do: words for when a worker was ended from outside, perhaps for want of memory.

    Raises:
        DataError: no image could be read in the place of another, or a worker was ended.
    """
    viewer = _Viewer(
        index=index,
        seed=seed,
        config=config,
        training=training,
        num_workers=num_workers,
        replacements=replacements,
        margin=margin,
        give_margin=give_margin,
    )
    with closing(worker_loader(viewer, tasks, num_workers)) as answers:
        try:
            for answer in answers:
                if answer.failure is not None:
                    raise DataError(answer.failure)
                yield Batch(answer.task, torch.as_tensor(answer.images), answer.unreadable)
        except WorkerError as error:
            raise DataError(
                f"a process that decodes images was ended from outside ({error}), perhaps because "
                f"memory ran out; {what_to_do}."
            ) from error


class _Answer(NamedTuple):
    """A batch on its way to the main process."""

    task: BatchSpec
    images: Tensor | NDArray[np.uint8]
    """An array goes through a pipe, a tensor by shared memory."""
    unreadable: dict[int, str]
    failure: str | None
    """Why there is no batch."""


@dataclass(frozen=True, kw_only=True)
class _Viewer(Dataset[_Answer]):
    """Turns tasks into views; a copy of it lives in every worker."""

    index: ImageIndex
    seed: int
    config: ViewConfig
    training: bool
    num_workers: int
    replacements: NDArray[np.int64] | None
    margin: int
    give_margin: bool

    def __getitem__(self, task: BatchSpec) -> _Answer:
        """Make the views of a task."""
        resolution, unreadable = task.resolution, dict[int, str]()
        side = resolution + 2 * self.margin * self.give_margin
        images = torch.empty((len(task.indices), 3, side, side), dtype=torch.uint8)
        places = zip(task.indices.tolist(), task.crop_ids.tolist(), strict=True)
        try:
            for place, (image, draw) in enumerate(places):
                view = self._view(image, draw, resolution, unreadable)
                images[place] = view if self.give_margin else inner_view(view, resolution)
        except DataError as error:
            return _Answer(task, images[:0].clone(), unreadable, str(error))
        shares = has_shared_memory(images.nbytes, self.num_workers)
        return _Answer(task, images if shares else images.numpy(), unreadable, None)

    def _view(
        self, image: int, draw: int, resolution: int, unreadable: dict[int, str]
    ) -> UInt8[Tensor, "3 S S"]:
        """The view of an image, or of one in its place; notes what could not be read."""
        picture = self._picture(image, draw, resolution, unreadable)
        if not self.training:
            return center_view(picture, resolution, self.config, self.margin)
        numbers = random.Random(f"view/{self.seed}/{draw}/{image}")
        return training_view(picture, resolution, numbers, self.config, self.margin)

    def _picture(
        self, image: int, draw: int, resolution: int, unreadable: dict[int, str]
    ) -> DecodedImage:
        """The picture of an image, or of the first one in its place that can be read."""
        least, tried = min_side(resolution, self.config), image
        for attempt in range(ATTEMPTS + 1):
            if attempt:
                tried = self._replacement(image, draw, attempt)
            if tried in unreadable:
                continue
            try:
                with open_image(self.index[tried]) as file:
                    return decode(file, min_side=least)
            except (ImageError, OSError, MemoryError) as error:
                unreadable[tried] = one_line(error)
        raise DataError(
            f"{self.index[image].name} cannot be read ({unreadable[image]}), and none of "
            f"{ATTEMPTS} other images that were tried in its place; check that the images are "
            "where they were and can be read."
        )

    def _replacement(self, image: int, draw: int, attempt: int) -> int:
        """The image to try in the place of another."""
        epoch = draw if self.training else 0
        numbers = random.Random(f"replacement/{self.seed}/{epoch}/{image}/{attempt}")
        if self.replacements is None:
            return int(numbers.random() * len(self.index))
        return int(self.replacements[int(numbers.random() * len(self.replacements))])
