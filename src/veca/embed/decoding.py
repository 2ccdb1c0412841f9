"""Pictures decoded by worker processes, batch by batch, while the model runs in this one.

Torch's loader starts the workers, hands out tasks in order, keeps a few batches ahead, and ends the
workers when this process ends, even by kill -9.
"""

import os
import shutil
import signal
import sys
import warnings
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from veca.data.errors import PictureError
from veca.data.fit import Fit
from veca.data.input_table import InputTable
from veca.data.prepare import prepare
from veca.data.reading import failure, open_input
from veca.embed.errors import CollectionError
from veca.embed.windows import Task

AHEAD = 2
"""Batches that each worker has ready or under way."""

SHARED_MEMORY = "/dev/shm"
"""Where Linux keeps memory that processes share; containers often have little."""


class Group(NamedTuple):
    """Pictures of a batch whose sides agree: all of it, unless a header was wrong."""

    places: NDArray[np.int64]
    """In their window."""

    images: Float[Tensor, "B 3 height width"] | Float[np.ndarray, "B 3 height width"]

    originals: NDArray[np.int64]
    """Height and width of the upright originals (B, 2)."""


class Decoded(NamedTuple):
    """What became of a task."""

    window: int
    groups: list[Group]
    skipped: dict[int, str]
    """Places of what could not be decoded, with the reason."""


@dataclass(frozen=True, kw_only=True)
class Decoder(Dataset[Decoded]):
    """Turns tasks into tensors; a copy of it lives in every worker."""

    table: InputTable
    size: int
    fit: Fit
    patch_size: int

    shares_memory: bool = True
    """Whether tensors go to the main process by shared memory, or else as bytes through a pipe."""

    def __getitem__(self, task: Task) -> Decoded:
        """Decode the pictures of a task."""
        found: dict[tuple[int, int], list[tuple[int, Tensor, tuple[int, int]]]] = {}
        skipped: dict[int, str] = {}
        for place, row in zip(task.places.tolist(), task.rows.tolist(), strict=True):
            source = self.table[row]
            try:
                with open_input(source) as file:
                    pixels, geometry = prepare(
                        file, self.size, self.fit, patch_size=self.patch_size
                    )
            except (PictureError, OSError, MemoryError) as error:
                skipped[place] = failure(error)
            else:
                found.setdefault(geometry.grid, []).append((place, pixels, geometry.original))
        return Decoded(task.window, [self._group(items) for items in found.values()], skipped)

    def _group(self, items: list[tuple[int, Tensor, tuple[int, int]]]) -> Group:
        """Pictures of one size."""
        places, pixels, originals = zip(*items, strict=True)
        images = torch.stack(pixels)
        return Group(
            np.array(places),
            images if self.shares_memory else images.numpy(),
            np.array(originals),
        )


def decoded_batches(
    decoder: Decoder, tasks: Iterable[Task], num_workers: int
) -> Generator[Decoded, None, None]:
    """Decode tasks in their order; they are drawn only a few ahead."""
    forks = sys.platform == "linux"  # then a script needs no `if __name__ == "__main__"`
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This DataLoader will create")  # the user chose so many
        loader: DataLoader[Any] = DataLoader(
            decoder,
            batch_size=None,  # a task is a batch already
            sampler=tasks,
            num_workers=num_workers,
            collate_fn=_as_it_is,
            worker_init_fn=_start_worker,
            prefetch_factor=AHEAD if num_workers else None,
            multiprocessing_context="fork" if forks and num_workers else None,
            generator=torch.Generator(),  # leaves the user's random numbers alone
        )
        batches = iter(loader)  # starts the workers
    try:
        yield from batches
    except RuntimeError as error:
        if "DataLoader worker (pid" not in str(error):  # a fault of ours
            raise
        raise CollectionError(
            f"a decoding process was ended from outside ({error}), perhaps because memory ran "
            "out; what is done is kept: run the same command again, with fewer workers."
        ) from error


def has_shared_memory(batch_bytes: int, num_workers: int) -> bool:
    """Whether batches of this size can wait in shared memory; where it is full, workers crash."""
    if not os.path.isdir(SHARED_MEMORY):  # noqa: PTH112
        return True
    waiting = num_workers * (AHEAD + 1) + 1
    return shutil.disk_usage(SHARED_MEMORY).free > 2 * waiting * batch_bytes


def _start_worker(worker: int) -> None:
    """Leave Ctrl-C to the main process, which ends the workers in order."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _as_it_is(decoded: Any) -> Any:  # noqa: ANN401 - the loader's type is that of a list
    """The answer to a task needs no collation."""
    return decoded
