"""Pictures decoded by worker processes, batch by batch, while the model runs in this one."""

from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from veca.data.images import ImageError, WorkerError
from veca.data.listing import ImageTable, one_line, open_image
from veca.data.loader import worker_loader
from veca.data.transforms import Fit, prepare
from veca.embed.errors import CollectionError
from veca.embed.windows import Task


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

    table: ImageTable
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
                with open_image(source) as file:
                    pixels, geometry = prepare(
                        file, self.size, self.fit, patch_size=self.patch_size
                    )
            except (ImageError, OSError, MemoryError) as error:
                skipped[place] = one_line(error)
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
    try:
        yield from worker_loader(decoder, tasks, num_workers)
    except WorkerError as error:
        raise CollectionError(
            f"a decoding process was ended from outside ({error}), perhaps because memory ran "
            "out; what is done is kept: run the same command again, with fewer workers."
        ) from error
