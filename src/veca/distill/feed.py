"""The images of every step: which ones, in which view, and what could not be read.

A pure function of configuration and step says which images a step takes, so a run that is resumed
in the middle of an epoch, or on another number of processes, sees what it would have seen.
"""

import random
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from veca.data.images import DataError
from veca.data.listing import ImageIndex
from veca.data.loader import Batch, BatchSpec, batches, sample_order
from veca.distill.config import DistillConfig, Efficiency
from veca.distill.margin import Margin
from veca.runtime.distributed import Ranks
from veca.runtime.files import JsonlWriter, read_jsonl
from veca.train.schedules import draw_resolution

UNKNOWN_REASON = "found earlier, or by another process"
"""Why an image cannot be read that this process has not tried."""


@dataclass(frozen=True, kw_only=True)
class Pictures:
    """Images of a run: numbers of an index."""

    index: ImageIndex
    training: NDArray[np.int64]
    validation_index: ImageIndex
    validation: NDArray[np.int64]

    @property
    def fingerprint(self) -> str:
        """Stands for all images in their order."""
        return f"{self.index.fingerprint()}/{self.validation_index.fingerprint()}"


def tasks(  # noqa: PLR0913 - what a batch depends on
    config: DistillConfig,
    efficiency: Efficiency,
    training: NDArray[np.int64],
    workers: Ranks,
    *,
    steps: range,
    length: int,
    crops: int | None = None,
) -> Iterator[BatchSpec]:
    """The parts of this process's share of each step's batch; `crops` are the kept views."""
    for step in steps:
        places, epochs = sample_order(len(training), config.batch, step, config.seed)
        resolution = draw_resolution(config.phases, config.seed, step, length)
        mine = workers.split(config.batch)
        images, draws = training[places[mine]], epochs[mine]
        if crops is not None:
            draws = _crop_numbers(config.seed, images, draws, crops)
        parts = zip(
            np.array_split(images, efficiency.accumulate),
            np.array_split(draws, efficiency.accumulate),
            strict=True,
        )
        for part, (some, their_draws) in enumerate(parts):
            yield BatchSpec(step, part, some, their_draws, resolution)


def check_batch(config: DistillConfig, efficiency: Efficiency, workers: Ranks) -> None:
    """Refuse a batch that cannot be cut into equal parts, whose mean would be another one."""
    parts = workers.world_size * efficiency.accumulate
    if config.batch % parts:
        raise ValueError(
            f"batch={config.batch} cannot be cut into {workers.world_size} processes x "
            f"{efficiency.accumulate} accumulated parts of equal size; use a multiple of {parts}."
        )


def training_batches(  # noqa: PLR0913 - which images, and how they are seen
    pictures: Pictures,
    found: Iterator[BatchSpec],
    config: DistillConfig,
    efficiency: Efficiency,
    seed: int,
    *,
    margin: Margin = Margin(),  # noqa: B008 - it is frozen
    give_margin: bool = True,
) -> Generator[Batch, None, None]:
    """Views of the training images, decoded a few batches ahead.

    Where teachers answer from the disk, nobody needs the margin; views are the same without it.
    """
    return batches(
        pictures.index,
        found,
        seed=seed,
        config=config.views,
        num_workers=efficiency.workers,
        replacements=pictures.training,
        margin=margin.loaded,
        give_margin=give_margin,
    )


class Unreadable:
    """Images that could not be read, over all processes."""

    def __init__(
        self, index: ImageIndex, total: int, share: float, workers: Ranks, path: Path
    ) -> None:
        self._index = index
        self._most = 0 if share == 0 else max(1, int(share * total))
        self._share = share
        self._workers = workers
        self._flags = torch.zeros(len(index), dtype=torch.int32)
        self._reasons: dict[int, str] = {}
        self._told: set[int] = set()
        self._path = path

    def beside(self, index: ImageIndex, total: int) -> "Unreadable":
        """A count of its own for images of another index, `total` of them in use, same list."""
        return Unreadable(index, total, self._share, self._workers, self._path)

    @property
    def count(self) -> int:
        """Images that could not be read."""
        return int(self._flags.sum())

    def note(self, found: dict[int, str]) -> int:
        """Take in what this process met; how many of these are new."""
        new = {image: why for image, why in found.items() if not self._flags[image]}
        self._reasons.update(new)
        for image in new:
            self._flags[image] = 1
        return len(new)

    def agree(self) -> None:
        """Make all processes know all of them, list the new ones, and stop if they are too many."""
        mine = self._flags.clone()
        self._flags = (self._workers.all_reduce(mine) > 0).to(torch.int32)
        new = [image for image in self.tensor().tolist() if image not in self._told]
        if new and self._workers.is_main:
            self._list(new)
        if self.count > self._most:
            reason = next(iter(self._reasons.values()), UNKNOWN_REASON)
            raise DataError(
                f"{self.count:,} images cannot be read ({reason}), more than the allowed share of "
                f"{self._share:g}; unreadable.jsonl in the run folder lists them: repair or remove "
                "them, or raise --max-unreadable."
            )

    def tensor(self) -> Tensor:
        """Their numbers, for a checkpoint."""
        return self._flags.nonzero().flatten()

    def load(self, numbers: Tensor) -> None:
        """Continue with those of a checkpoint, which are listed already."""
        self._flags[numbers] = 1
        self._told.update(numbers.tolist())

    def _list(self, images: Sequence[int]) -> None:
        """Write those that the list does not hold, of which a killed run may have written some."""
        with suppress(OSError), closing(JsonlWriter(self._path)) as lines:
            held = {row["image"] for row in read_jsonl(self._path)}
            for image in images:
                name = self._index[image].name
                if name not in held:
                    reason = self._reasons.get(image, UNKNOWN_REASON)
                    lines.write({"image": name, "reason": reason})
            self._told.update(images)


def _crop_numbers(
    seed: int, images: NDArray[np.int64], epochs: NDArray[np.int64], crops: int
) -> NDArray[np.int64]:
    """Which of the kept views of each image an epoch takes."""
    pairs = zip(images.tolist(), epochs.tolist(), strict=True)
    found = [
        random.Random(f"crop/{seed}/{epoch}/{image}").randrange(crops) for image, epoch in pairs
    ]
    return np.array(found, np.int64)
