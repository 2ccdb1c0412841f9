"""Batches of views that depend on the seed and the images alone, decoded by worker processes.

What a batch holds does not depend on the number of workers, of ranks or of images in a batch, nor
on where an earlier run was stopped.
"""

import hashlib
import os
import random
import shutil
import signal
import sys
import threading
import warnings
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import UInt8
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from veca.data.augment import ViewConfig, center_view, inner_view, min_side, training_view
from veca.data.images import DataError, DecodedImage, ImageError, decode, reason
from veca.data.listing import ImageIndex, one_line, open_image

PREFETCH = 2
"""Batches that each worker prepares ahead."""

SHARED_MEMORY = "/dev/shm"
"""Where Linux keeps memory that processes share; containers often have little."""

NICENESS = 10
"""Lower priority of workers. The threads of a matrix product wait for the slowest of them, so a
worker that takes one of their cores for a time slice stops them all."""

ATTEMPTS = 32
"""Other images that are tried in place of one that cannot be read."""

Result = TypeVar("Result")


def worker_loader(
    maker: Dataset[Result], tasks: Iterable[Any], num_workers: int
) -> Generator[Result, None, None]:
    """Yield `maker[task]` for every task, in order; tasks are drawn only a few ahead.

    Torch's loader does the work. Its workers run at low priority, ignore signals that are sent to
    the whole job, so that this process can finish its step, and end with this process, even if it
    is killed. With 0 workers everything is done in this process.

    Raises:
        DataError: a worker was killed.
    """
    fork = sys.platform == "linux"  # then a script needs no `if __name__ == "__main__"`
    with warnings.catch_warnings(), _signals_blocked():
        warnings.filterwarnings("ignore", "This DataLoader will create")  # more workers than cores
        loader: DataLoader[Any] = DataLoader(
            maker,
            batch_size=None,  # a task is a batch already
            sampler=tasks,
            num_workers=num_workers,
            collate_fn=_identity,
            worker_init_fn=_start_worker,
            prefetch_factor=PREFETCH if num_workers else None,
            multiprocessing_context="fork" if fork and num_workers else None,
            generator=torch.Generator(),  # leaves the global random numbers alone
        )
        results: Any = iter(loader)  # starts the workers
    try:
        for result in results:
            yield result
            del result  # frees it before waiting for the next one
    except (RuntimeError, ConnectionError, EOFError) as error:
        if not num_workers or not _worker_died(error):
            raise
        raise DataError(
            f"a data-loading worker was killed ({reason(error)}), perhaps because memory ran out; "
            "run the same command again with fewer workers."
        ) from error
    finally:
        if num_workers:
            results._shutdown_workers()  # now, not when the last traceback is released


def _worker_died(error: Exception) -> bool:
    """Whether an error says that a worker is gone, and not what it failed at."""
    if isinstance(error, RuntimeError):  # the second one: gone while it handed over a tensor
        return any(text in str(error) for text in ("DataLoader worker (pid", "ancillary data"))
    return not str(error).startswith("Caught ")  # as torch reports errors of tasks


def has_shared_memory(batch_bytes: int, num_workers: int) -> bool:
    """Whether shared memory can hold the prefetched batches; workers crash when it is full."""
    if not os.path.isdir(SHARED_MEMORY):  # noqa: PTH112
        return True
    waiting = num_workers * (PREFETCH + 1) + 1
    return shutil.disk_usage(SHARED_MEMORY).free > 2 * waiting * batch_bytes


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Block signals until workers are ready for them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start_worker(worker: int) -> None:
    """Set up a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    if sys.platform == "linux":
        os.nice(NICENESS)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_follow_parent, args=(os.getppid(),), daemon=True).start()


def _follow_parent(parent: int) -> None:
    """End this process when its parent ends or terminates it; ignore SIGTERM from others."""
    while os.getppid() == parent:
        received = signal.sigtimedwait({signal.SIGTERM}, 1.0)
        if received is not None and received.si_pid == parent:
            break
    os._exit(0)


def _identity(batch: Any) -> Any:  # noqa: ANN401 - the loader's type is that of a list
    """A task is a batch already."""
    return batch


class BatchSpec(NamedTuple):
    """A batch to make."""

    step: int
    """Of the training; passed through."""

    part: int
    """Of the step, if gradients are accumulated; passed through."""

    indices: NDArray[np.int64]
    """Numbers of the images in the index (B)."""

    crop_ids: NDArray[np.int64]
    """Which random view of each image, such as the epoch (B); unused outside training."""

    resolution: int
    """Sides of the views in pixels."""


class Batch(NamedTuple):
    """The images of a batch."""

    task: BatchSpec

    images: UInt8[Tensor, "B 3 S S"]
    """Of the task's resolution, plus the margin on each side if there is one."""

    unreadable: dict[int, str]
    """Images that could not be read and were replaced, with the reason."""


def sample_order(
    count: int, batch: int, step: int, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Which of `count` images a step takes, and in which epoch.

    Sample n of the whole training belongs to epoch n // count, at position n % count of a shuffle
    that depends on the seed and the epoch; so every image occurs once per epoch.
    """
    if count < 1 or batch < 1 or step < 0:
        raise DataError(
            f"count={count}, batch={batch}, step={step} is invalid: count and batch must be "
            ">= 1, step >= 0."
        )
    epochs, places = np.divmod(np.arange(step * batch, (step + 1) * batch), count)
    images = np.empty(batch, np.int64)
    for epoch in np.unique(epochs).tolist():
        now = epochs == epoch
        images[now] = _shuffle(count, seed, epoch)[places[now]]
    return images, epochs


@lru_cache(maxsize=2)  # a batch may hold the end of an epoch and the start of the next
def _shuffle(count: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Shuffle the numbers below `count`.

    Sorted by the raw stream of a bit generator, which numpy keeps stable, unlike its shuffles.
    """
    digest = hashlib.sha256(f"order/{seed}/{epoch}".encode()).digest()
    stream = np.random.PCG64(int.from_bytes(digest, "big"))
    order = np.argsort(stream.random_raw(count), kind="stable")
    order.setflags(write=False)
    return order


def batches(  # noqa: PLR0913 - each is a choice of the caller
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
) -> Generator[Batch, None, None]:
    """Yield the views of every task, in order; tasks are drawn only a few ahead.

    The view of an image depends on (seed, crop id, image): a random one in training, else the
    center view. With a margin a view shows that many more pixels on each side; they are cut off
    again without `give_margin`. An image that cannot be read is replaced by another one of
    `replacements`, by default all; pass the training or validation split that the tasks are from.
    Photographs far larger than a view are decoded at a fraction of their size (`min_side` of
    `decode`). With 0 workers everything is decoded in this process.

    Raises:
        DataError: no image could be read in place of another, or a worker was killed.
    """
    if replacements is None:
        replacements = np.arange(len(index))
    viewer = _Viewer(index, seed, config, training, num_workers, replacements, margin, give_margin)
    with closing(worker_loader(viewer, tasks, num_workers)) as made:
        for batch in made:
            if isinstance(batch, DataError):
                raise batch
            yield batch._replace(images=torch.as_tensor(batch.images))


@dataclass(frozen=True)
class _Viewer(Dataset[Batch | DataError]):
    """Turns tasks into views; every worker has a copy."""

    index: ImageIndex
    seed: int
    config: ViewConfig
    training: bool
    num_workers: int
    replacements: NDArray[np.int64]
    margin: int
    give_margin: bool

    def __getitem__(self, task: BatchSpec) -> Batch | DataError:
        """Make the views of a task; an error is returned, since the loader would reword it."""
        resolution, unreadable = task.resolution, dict[int, str]()
        side = resolution + 2 * self.margin * self.give_margin
        images = torch.empty((len(task.indices), 3, side, side), dtype=torch.uint8)
        places = zip(task.indices.tolist(), task.crop_ids.tolist(), strict=True)
        try:
            for place, (image, draw) in enumerate(places):
                decoded = self._decode(image, draw, resolution, unreadable)
                if self.training:
                    numbers = random.Random(f"view/{self.seed}/{draw}/{image}")
                    view = training_view(decoded, resolution, numbers, self.config, self.margin)
                else:
                    view = center_view(decoded, resolution, self.config, self.margin)
                images[place] = view if self.give_margin else inner_view(view, resolution)
        except DataError as error:
            return error
        if not has_shared_memory(images.nbytes, self.num_workers):
            images = images.numpy()  # type: ignore[assignment] # goes through a pipe
        return Batch(task, images, unreadable)

    def _decode(
        self, image: int, draw: int, resolution: int, unreadable: dict[int, str]
    ) -> DecodedImage:
        """Decode an image, or the first replacement that can be read; adds to `unreadable`."""
        least, tried = min_side(resolution, self.config), image
        for attempt in range(ATTEMPTS + 1):
            if attempt:
                epoch = draw if self.training else 0
                numbers = random.Random(f"replacement/{self.seed}/{epoch}/{image}/{attempt}")
                tried = int(self.replacements[int(numbers.random() * len(self.replacements))])
            if tried in unreadable:
                continue
            try:
                with open_image(self.index[tried]) as file:
                    return decode(file, min_side=least)
            except (ImageError, OSError, MemoryError) as error:
                unreadable[tried] = one_line(error)
        raise DataError(
            f"{self.index[image].name} cannot be read ({unreadable[image]}), nor can "
            f"{ATTEMPTS} replacements; check that the images are still there and readable."
        )
