"""Tasks done by worker processes, in their order and a few ahead, while this process computes.

Torch's loader starts the workers and hands out the tasks. Around it: workers wait behind the
threads that compute; they outlive a signal that was meant for the whole job, so that this process
can finish what it is at; they end when this one ends, even by kill -9; and a worker that dies is
told of where the next answer is awaited, not in the middle of something else.
"""

import os
import shutil
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset

from veca.data.errors import WorkerError

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


def load_tasks(
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

    Torch raises from a signal handler, wherever the main thread is: within the step of an optimiser
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
