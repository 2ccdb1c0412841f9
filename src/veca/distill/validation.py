"""The loss at every budget, on the same images in the same view, each image counted once.

Every process scores its part of the images. Teachers answer once for each image: where the answers
fit into memory they are kept from one validation to the next.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from veca.backbone.config import BackboneConfig
from veca.data.augment import inner_view
from veca.data.loader import BatchSpec, batches
from veca.distill.comparison import compare, part_names
from veca.distill.feed import Pictures
from veca.distill.student import Prediction
from veca.distill.targets import TargetMoments
from veca.distill.training import Training, loss_row
from veca.runtime.device import autocast
from veca.runtime.shards import StoppedError
from veca.teacher.teacher import Targets

MOST_KEPT_BYTES = 512 * 2**20
"""Images and targets of one process that are kept in memory."""

BATCH_PIXELS = 32 * 256 * 256
"""Pixels that go through student and teacher together."""


class Cell(NamedTuple):
    """One way to run the student."""

    budget: int | None
    share: float


class Portion(NamedTuple):
    """Images of a batch with what a student has to predict of them."""

    images: Tensor
    targets: list[Targets]
    counted: int
    """Images, from the first, that count; the rest only keeps processes in step."""


def cells(config: BackboneConfig) -> list[Cell]:
    """Every budget with all hidden units, and every smaller share with all cores."""
    budgets = [None] if config.attention == "full" else list(config.budgets)
    whole = [Cell(budget, 1.0) for budget in budgets]
    return whole + [Cell(budgets[-1], share) for share in config.ffn_shares[:-1]]


class Validation:
    """Scores a student on images that it does not train on."""

    def __init__(
        self, training: Training, pictures: Pictures, asked_to_stop: Callable[[], bool]
    ) -> None:
        self._training = training
        self._pictures = pictures
        self._asked_to_stop = asked_to_stop
        self._kept: dict[int, list[Portion]] = {}
        self._columns = len(part_names(training.config.loss))
        self._unlisted = 0
        self._unreadable = training.unreadable
        if pictures.validation_index is not pictures.index:
            count = len(pictures.validation)
            self._unreadable = self._unreadable.beside(pictures.validation_index, count)

    @torch.no_grad()
    def rows(self) -> list[dict[str, Any]]:
        """A row of the log for each resolution, budget and share."""
        if self._training.average is None:
            return self._rows()
        with self._training.average.in_place():
            return self._rows()

    @torch.no_grad()
    def moments(self, resolution: int) -> list[TargetMoments]:
        """Statistics of the teachers' targets over all validation images and processes."""
        found = self._training.source.moments()
        for portion in self._portions(resolution):
            for moments, targets in zip(found, portion.targets, strict=True):
                count = portion.counted
                if count:
                    moments.add(Targets(targets.image[:count], targets.patches[:count]))
        if self._training.workers.any(self._unlisted > 0):
            self._unreadable.agree()
            self._unlisted = 0
        for moments in found:
            for part in moments:
                sums = part.tensors()
                part.load({name: self._training.workers.all_reduce(sums[name]) for name in sums})
        return found

    def _rows(self) -> list[dict[str, Any]]:
        """The rows, with the weights that the student has now."""
        training = self._training
        training.student.eval()
        found = []
        for resolution in training.config.sizes:
            ways = cells(training.config.student)
            shape = (len(ways), len(training.config.teacher), self._columns)
            sums = torch.zeros(shape, dtype=torch.float64)
            for portion in self._portions(resolution):
                for number, way in enumerate(ways):
                    sums[number] += portion.counted * self._losses(portion, way)
            sums = training.workers.all_reduce(sums)
            means = sums / len(self._pictures.validation)
            found += [
                {"kind": "validation", "step": training.progress.step, "budget": way.budget,
                 "ffn": way.share, "resolution": resolution, **loss_row(training.config, parts)}
                for way, parts in zip(ways, means, strict=True)
            ]  # fmt: skip
        return found

    def _losses(self, portion: Portion, way: Cell) -> Tensor:
        """Mean losses against each teacher over the images of a portion that count."""
        with autocast(self._training.workers.device, self._training.precision):
            said = self._training.student(portion.images, way.budget, way.share)
        if not portion.counted:
            return torch.zeros(len(said), self._columns, dtype=torch.float64)
        count = portion.counted
        parts = compare(
            [Prediction(*(tensor[:count] for tensor in mine)) for mine in said],
            [Targets(*(tensor[:count] for tensor in wanted)) for wanted in portion.targets],
            self._training.source,
            self._training.config.loss,
        )
        return parts.double().cpu()

    def _portions(self, resolution: int) -> Iterator[Portion]:
        """The images of this process, kept in memory where there is room."""
        if resolution in self._kept:
            for portion in self._kept[resolution]:
                self._check_stop()
                yield portion
            return
        kept: list[Portion] | None = []
        num_bytes = sum(_num_bytes(portion) for some in self._kept.values() for portion in some)
        for portion in self._computed(resolution):
            self._check_stop()
            num_bytes += _num_bytes(portion)
            kept = None if kept is None or num_bytes > MOST_KEPT_BYTES else [*kept, portion]
            yield portion
        if kept is not None:
            self._kept[resolution] = kept

    def _computed(self, resolution: int) -> Iterator[Portion]:
        """The images of this process with fresh answers of the teachers."""
        training, workers = self._training, self._training.workers
        mine, real = _dealt(self._pictures.validation, workers.rank, workers.world_size)
        size = max(1, BATCH_PIXELS // resolution**2)
        tasks = [
            BatchSpec(0, part, some, np.zeros(len(some), np.int64), resolution)
            for part, some in enumerate(np.split(mine, range(size, len(mine), size)))
        ]
        side = training.config.student.patch_size
        grid = (resolution // side, resolution // side)
        found = batches(
            self._pictures.validation_index,
            tasks,
            seed=training.config.seed,
            config=training.config.views,
            num_workers=min(1, training.efficiency.workers),
            training=False,
            replacements=self._pictures.validation,
            margin=training.source.margin.loaded,
        )
        for number, batch in enumerate(found):
            self._unlisted += self._unreadable.note(batch.unreadable)
            images = batch.images.to(workers.device)
            with autocast(workers.device, training.precision):
                targets = training.source(images, grid)
            images = inner_view(images, resolution)
            yield Portion(images, targets, min(max(0, real - number * size), len(images)))

    def _check_stop(self) -> None:
        """Leave, all processes together, if any was asked to stop."""
        if self._training.workers.any(self._asked_to_stop()):
            raise StoppedError


def _dealt(images: Sequence[int] | np.ndarray, rank: int, count: int) -> tuple[np.ndarray, int]:
    """The images of one process, filled up so that all have equally many; how many are its own."""
    numbers = np.asarray(images)
    mine = numbers[rank::count]
    most = -(-len(numbers) // count)
    filled = np.concatenate((mine, np.repeat(numbers[:1], most - len(mine))))
    return filled, len(mine)


def _num_bytes(portion: Portion) -> int:
    """Memory that a portion takes."""
    tensors = [portion.images, *(tensor for targets in portion.targets for tensor in targets)]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
