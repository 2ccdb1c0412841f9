"""The validation loss at every budget, on the same images in the same view, each counted once.

Every rank scores its share of the images. Teachers see each image once: where images and targets
fit into memory, they are cached from one validation to the next.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from veca.backbone.config import BackboneConfig
from veca.data.augment import inner_view
from veca.data.loader import BatchSpec, batches
from veca.distill.config import DistillConfig, RunOptions
from veca.distill.images import ImageSplit, UnreadableImages
from veca.distill.losses import Prediction, loss_row, part_names
from veca.distill.run_folder import RunContext
from veca.distill.student import Student
from veca.distill.targets import TargetMoments, TargetSource
from veca.runtime.device import autocast
from veca.runtime.shards import StoppedError
from veca.teacher.teacher import Targets

MAX_CACHED_BYTES = 512 * 2**20
"""Images and targets that each rank caches in memory."""

BATCH_PIXELS = 32 * 256 * 256
"""Pixels of a batch."""


class EvalPoint(NamedTuple):
    """A configuration of the student to score."""

    budget: int | None
    ffn: float


class ValidationBatch(NamedTuple):
    """Images with their targets."""

    images: Tensor
    targets: list[Targets]
    counted: int
    """Leading images that count; the rest only gives all ranks equally many batches."""

    @property
    def nbytes(self) -> int:
        """Memory of all tensors."""
        tensors = [self.images, *(tensor for targets in self.targets for tensor in targets)]
        return sum(tensor.nbytes for tensor in tensors)


def eval_points(config: BackboneConfig) -> list[EvalPoint]:
    """Every budget with all hidden units, and every smaller FFN share with all cores."""
    budgets = [None] if config.attention == "full" else list(config.budgets)
    full = [EvalPoint(budget, 1.0) for budget in budgets]
    return full + [EvalPoint(budgets[-1], share) for share in config.ffn_shares[:-1]]


class Validator:
    """Scores a student on the validation images."""

    def __init__(  # noqa: PLR0913 - parts of a run
        self,
        config: DistillConfig,
        options: RunOptions,
        context: RunContext,
        *,
        images: ImageSplit,
        source: TargetSource,
        unreadable: UnreadableImages,
    ) -> None:
        self.config = config
        self.options = options
        self.ranks = context.ranks
        self.stop = context.stop
        """Polled between batches, which then raise StoppedError on all ranks."""
        self.images = images
        self.source = source
        if images.validation_index is not images.index:
            unreadable = unreadable.for_index(images.validation_index, len(images.validation))
        self._unreadable = unreadable
        self._new_unreadable = 0
        self._cache: dict[int, list[ValidationBatch]] = {}

    @torch.no_grad()
    def run(self, student: Student) -> list[dict[str, Any]]:
        """Losses at each resolution, budget and FFN share, as rows of the log without a step."""
        config, points = self.config, eval_points(self.config.student)
        student.eval()
        rows = []
        for resolution in config.sizes:
            columns = len(part_names(config.loss))
            sums = torch.zeros(len(points), len(config.teacher), columns, dtype=torch.float64)
            for batch in self._batches(resolution):
                for at, point in enumerate(points):
                    sums[at] += batch.counted * self._losses(student, batch, point)
            means = self.ranks.all_reduce(sums) / len(self.images.validation)
            for point, parts in zip(points, means, strict=True):
                losses = loss_row(parts, config.weights, config.loss)
                rows.append({**point._asdict(), "resolution": resolution, **losses})
        return rows

    @torch.no_grad()
    def moments(self, resolution: int) -> list[TargetMoments]:
        """Moments of the teachers' targets over all validation images."""
        found = self.source.moments()
        for batch in self._batches(resolution):
            for moments, targets in zip(found, batch.targets, strict=True):
                if batch.counted:
                    moments.add(Targets(*(tensor[: batch.counted] for tensor in targets)))
        if self.ranks.any(self._new_unreadable > 0):
            self._unreadable.synchronize()
            self._new_unreadable = 0
        for moments in found:
            for tensor in (*moments.image.tensors(), *moments.patches.tensors()):
                tensor.copy_(self.ranks.all_reduce(tensor))
        return found

    def _losses(self, student: Student, batch: ValidationBatch, point: EvalPoint) -> Tensor:
        """Mean losses against each teacher over the images that count."""
        with autocast(self.ranks.device, self.options.precision):
            predictions = student(batch.images, point.budget, point.ffn)
        count = batch.counted
        if not count:
            columns = len(part_names(self.config.loss))
            return torch.zeros(len(predictions), columns, dtype=torch.float64)
        parts = self.source.compare(
            [Prediction(*(tensor[:count] for tensor in pred)) for pred in predictions],
            [Targets(*(tensor[:count] for tensor in target)) for target in batch.targets],
            self.config.loss,
        )
        return parts.double().cpu()

    def _batches(self, resolution: int) -> Iterator[ValidationBatch]:
        """The images of this rank with targets, from the cache in memory if they are there."""
        if resolution in self._cache:
            for batch in self._cache[resolution]:
                self._check_stop()
                yield batch
            return
        used = sum(batch.nbytes for cached in self._cache.values() for batch in cached)
        cached: list[ValidationBatch] | None = []
        for batch in self._computed(resolution):
            self._check_stop()
            used += batch.nbytes
            cached = None if cached is None or used > MAX_CACHED_BYTES else [*cached, batch]
            yield batch
        if cached is not None:
            self._cache[resolution] = cached

    def _computed(self, resolution: int) -> Iterator[ValidationBatch]:
        """The images of this rank with newly computed targets."""
        config, ranks = self.config, self.ranks
        mine, counted = _share(self.images.validation, ranks.rank, ranks.world_size)
        size = max(1, BATCH_PIXELS // resolution**2)
        specs = [
            BatchSpec(0, part, some, np.zeros(len(some), np.int64), resolution)
            for part, some in enumerate(np.split(mine, range(size, len(mine), size)))
        ]
        side = resolution // config.student.patch_size
        loaded = batches(
            self.images.validation_index,
            specs,
            seed=config.seed,
            config=config.views,
            num_workers=min(1, self.options.workers),
            training=False,
            replacements=self.images.validation,
            margin=self.source.margin.loaded,
        )
        for number, batch in enumerate(loaded):
            self._new_unreadable += self._unreadable.note(batch.unreadable)
            images = batch.images.to(ranks.device)
            with autocast(ranks.device, self.options.precision):
                targets = self.source(images, (side, side))
            images = inner_view(images, resolution)
            left = max(0, counted - number * size)
            yield ValidationBatch(images, targets, min(left, len(images)))

    def _check_stop(self) -> None:
        """Stop on all ranks together if any of them was asked to."""
        if self.ranks.any(self.stop()):
            raise StoppedError


def _share(images: NDArray[np.int64], rank: int, world_size: int) -> tuple[NDArray[np.int64], int]:
    """The images of one rank, padded so that all ranks have equally many; how many are its own."""
    mine = images[rank::world_size]
    padding = -(-len(images) // world_size) - len(mine)
    return np.concatenate((mine, np.repeat(images[:1], padding))), len(mine)
