"""The validation loss at every budget, on the same images in the same view, each counted once.

Every rank scores its share of the images. Teachers see each image once: where images and targets
fit into memory, they are cached from one validation to the next.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, UInt8
from numpy.typing import NDArray
from torch import Tensor

from veca.backbone.config import BackboneConfig
from veca.data.augment import inner_view
from veca.data.loader import BatchSpec, batches
from veca.distill.images import ImageSplit, UnreadableImages
from veca.distill.losses import PART_NAMES, Prediction, compare, loss_row, teacher_losses
from veca.distill.run_folder import RunContext
from veca.distill.student import Student
from veca.distill.targets import TargetSource
from veca.runtime.device import autocast
from veca.runtime.signals import StoppedError
from veca.teacher.teacher import Targets

MAX_CACHED_BYTES = 512 * 2**20
"""Images and targets that each rank caches in memory."""

BATCH_PIXELS = 32 * 256 * 256
"""Pixels of a batch."""

Predict = Callable[[UInt8[Tensor, "B 3 S S"]], Sequence[Prediction]]
"""Predicts every teacher's features."""


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

    def __init__(
        self,
        context: RunContext,
        images: ImageSplit,
        source: TargetSource,
        unreadable: UnreadableImages,
    ) -> None:
        self.config, self.options = context.config, context.options
        self.ranks, self.stop = context.ranks, context.stop
        self.images, self.source = images, source
        if images.validation_index is not images.index:
            count = len(images.validation)
            unreadable = UnreadableImages(images.validation_index, count, context)
        self._unreadable = unreadable
        self._cache: dict[int, list[ValidationBatch]] = {}

    def run(self, student: Student) -> list[dict[str, Any]]:
        """Losses at each resolution, budget and FFN share, as rows of the log without a step."""
        config, points = self.config, eval_points(self.config.student)
        student.eval()
        predicts = [partial(student, budget=point.budget, ffn=point.ffn) for point in points]
        return [
            {**point._asdict(), "resolution": size, **loss_row(parts, config.weights, config.loss)}
            for size in config.sizes
            for point, parts in zip(points, self._mean_losses(size, predicts), strict=True)
        ]

    def constant_loss(self, constants: Sequence[Targets], resolution: int) -> float:
        """The loss of constants, given as targets of one image with one patch."""
        device = self.ranks.device
        patches = (resolution // self.config.student.patch_size) ** 2

        def predict(images: Tensor) -> list[Prediction]:
            answers = []
            for constant in constants:
                image = constant.image.to(device).expand(len(images), -1)
                patch = constant.patches.to(device).expand(len(images), patches, -1)
                answers.append(Prediction(image, patch))
            return answers

        (parts,) = self._mean_losses(resolution, [predict])
        weights = torch.tensor(self.config.weights, dtype=parts.dtype)
        return float(weights @ teacher_losses(parts, self.config.loss))

    @torch.no_grad()
    def _mean_losses(
        self, resolution: int, predicts: Sequence[Predict]
    ) -> Float[Tensor, "points teachers parts"]:
        """Means over all images of each part of the loss; stops on all ranks if asked to."""
        config, columns = self.config, len(PART_NAMES)
        sums = torch.zeros(len(predicts), len(config.teacher), columns, dtype=torch.float64)
        for images, targets, count in self._batches(resolution):
            if self.ranks.any(self.stop()):
                raise StoppedError
            for point, predict in enumerate(predicts):
                # Ranks whose images do not count predict too: sharded weights are gathered by all.
                with autocast(self.ranks.device, self.options.precision):
                    predictions = predict(images)
                if count:
                    parts = compare(
                        [Prediction(*(part[:count] for part in one)) for one in predictions],
                        [Targets(*(part[:count] for part in one)) for one in targets],
                    )
                    sums[point] += count * parts.double().cpu()
        return self.ranks.all_reduce(sums) / len(self.images.validation)

    def _batches(self, resolution: int) -> Iterator[ValidationBatch]:
        """The images of this rank with targets, from the cache in memory if they are there."""
        if resolution in self._cache:
            yield from self._cache[resolution]
            return
        used = sum(batch.nbytes for cached in self._cache.values() for batch in cached)
        cached: list[ValidationBatch] = []
        for batch in self._computed(resolution):
            used += batch.nbytes
            if used <= MAX_CACHED_BYTES:
                cached.append(batch)
            yield batch
        self._unreadable.synchronize()
        if used <= MAX_CACHED_BYTES:
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
            self._unreadable.note(batch.unreadable)
            images = batch.images.to(ranks.device)
            with autocast(ranks.device, self.options.precision):
                targets = self.source(images, (side, side))
            count = min(len(images), max(0, counted - number * size))
            yield ValidationBatch(inner_view(images, resolution), targets, count)


def _share(images: NDArray[np.int64], rank: int, world_size: int) -> tuple[NDArray[np.int64], int]:
    """The images of one rank, padded so that all ranks have equally many; how many are its own."""
    mine = images[rank::world_size]
    padding = -(-len(images) // world_size) - len(mine)
    return np.concatenate((mine, np.repeat(images[:1], padding))), len(mine)
