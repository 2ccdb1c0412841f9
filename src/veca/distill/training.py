"""One step of training, and the state that steps change.

A step draws its budget, FFN share and resolution from (seed, step), sends the parts of its batch
through teacher and student, and updates the weights once. It is skipped, weights untouched, where
a loss or a gradient is not finite on any process.
"""

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from veca.data.augment import inner_view
from veca.data.loader import Batch
from veca.distill.comparison import PAPER_COLUMNS, compare, objective, part_names, teacher_losses
from veca.distill.config import DistillConfig, Efficiency
from veca.distill.feed import Unreadable
from veca.distill.meter import Meter
from veca.distill.parallel import EMA, copy_whole, gradients_synchronized
from veca.distill.student import Student
from veca.distill.targets import TargetSource
from veca.distill.teacher_cache import TeacherCache
from veca.runtime import VecaError
from veca.runtime.device import ResolvedPrecision, autocast, resolve_precision, seed_for
from veca.runtime.distributed import Ranks
from veca.teacher.teacher import Targets
from veca.train.optimizers import Optimizers, clip_gradients, gradient_norm
from veca.train.parallel import whole
from veca.train.schedules import draw_share, learning_rate


class NonFiniteError(VecaError, ValueError):
    """Training that does not recover from losses or gradients that are not finite."""


class StepReport(NamedTuple):
    """What a step did."""

    row: dict[str, Any]
    """For the log."""

    images: int
    """Images of this step over all processes."""

    stop: bool
    """Whether any process was asked to stop."""


@dataclass
class Progress:
    """How far a run has come; all that a resume needs beside tensors."""

    step: int = 0
    """Steps taken, which is the number of the next one."""

    skipped: int = 0
    """Steps that were skipped for numbers that are not finite."""

    consecutive_skips: int = 0
    best_loss: float | None = None
    best_step: int | None = None
    finished: bool = False


@dataclass(kw_only=True)
class Training:
    """The live objects of a run."""

    config: DistillConfig
    efficiency: Efficiency
    length: int
    """Steps of the whole run."""
    workers: Ranks
    student: Student
    model: nn.Module
    """The student as it is called: itself, or spread over processes."""
    source: TargetSource
    cache: TeacherCache | None
    optimizers: Optimizers
    average: EMA | None
    unreadable: Unreadable
    meter: Meter
    progress: Progress = field(default_factory=Progress)

    @property
    def precision(self) -> ResolvedPrecision:
        """What student and teachers compute with."""
        return resolve_precision(self.efficiency.precision, self.workers.device)

    def take_step(self, feed: Generator[Batch, None, None], asked_to_stop: bool) -> StepReport:
        """Take the next step of the run."""
        config, step = self.config, self.progress.step
        budget = config.draw_budget(step, self.length)
        share = draw_share(config.student, config.seed, step, config.share_weights)
        rate = learning_rate(config.schedule, step, self.length)
        columns = len(part_names(config.loss))
        parts = torch.zeros(len(config.teacher), columns, dtype=torch.float64)
        new_unreadable = resolution = 0
        self.model.train()
        for part in range(self.efficiency.accumulate):
            with self.meter.waiting():
                batch = next(feed)
            resolution = batch.task.resolution
            new_unreadable += self.unreadable.note(batch.unreadable)
            last = part == self.efficiency.accumulate - 1
            parts += self._accumulate(batch, budget, share, last)
        told = self._reduced(parts, asked_to_stop, new_unreadable)
        norm = float(gradient_norm(self.student.parameters()))
        row = {"kind": "train", "step": step, "budget": budget, "ffn": share,
               "resolution": resolution, "learning_rate": rate}  # fmt: skip
        self._update(row, told.parts, norm, rate)
        if told.unreadable:
            self.unreadable.agree()
        self.progress.step += 1
        return StepReport(row, config.batch, told.stop)

    def _accumulate(
        self, batch: Batch, budget: int | None, share: float, last: bool
    ) -> Float[Tensor, "teachers parts"]:
        """Add the gradient of a part of the batch; its losses as a part of the batch's mean."""
        images = batch.images.to(self.workers.device, non_blocking=True)
        with gradients_synchronized(self.model, last):
            with autocast(self.workers.device, self.precision):
                targets = self._targets(batch, images)
                # Coordinates are jittered alike in all parts and processes, as in a large batch.
                torch.manual_seed(seed_for(self.config.seed, self.progress.step, "coordinates"))
                seen = inner_view(images, batch.task.resolution)
                said = self.model(seen, budget, share)
                parts = compare(said, targets, self.source, self.config.loss)
            (objective(parts, self.config) / self.efficiency.accumulate).backward()
        return parts.detach().double().cpu() / self.efficiency.accumulate

    def _targets(self, batch: Batch, images: Tensor) -> list[Targets]:
        """What the student has to predict of a batch."""
        if self.cache is not None:
            return self.source.scaled(self.cache.lookup(batch.task, self.workers.device))
        side = batch.task.resolution // self.config.student.patch_size
        return self.source(images, (side, side))

    class _Told(NamedTuple):
        """What all processes together saw."""

        parts: Float[Tensor, "teachers parts"]
        stop: bool
        unreadable: bool

    def _reduced(
        self, parts: Float[Tensor, "teachers parts"], stop: bool, unreadable: int
    ) -> "_Told":
        """Means of the losses over the processes and what any of them met: one exchange."""
        flags = torch.tensor([float(stop), float(unreadable)], dtype=torch.float64)
        both = torch.cat((parts.flatten() / self.workers.world_size, flags))
        told = self.workers.all_reduce(both)
        return self._Told(told[:-2].view_as(parts), bool(told[-2] > 0), bool(told[-1] > 0))

    def _update(self, row: dict[str, Any], parts: Tensor, norm: float, rate: float) -> None:
        """Update the weights, unless a number is not finite; fill in the row of the log."""
        row.update(loss_row(self.config, parts))
        finite = row["loss"] is not None and norm - norm == 0
        row["gradient_norm"] = norm if finite else None
        if finite:
            if self.config.clip is not None:
                clip_gradients(self.student.parameters(), norm, self.config.clip)
            self.optimizers.step(rate)
            if self.average is not None:
                self.average.update()
            self.progress.consecutive_skips = 0
        else:
            row["skipped"] = True
            self.progress.skipped += 1
            self.progress.consecutive_skips += 1
        self.optimizers.zero_grad()

    def check_skips(self) -> None:
        """Stop a run that does not recover."""
        if self.progress.consecutive_skips > self.config.max_skips:
            raise NonFiniteError(
                f"{self.progress.consecutive_skips} steps in a row had a loss or gradient that is "
                f"not finite, up to step {self.progress.step}; begin another run with --start and "
                "best/, and a lower --schedule.peak or --clip 1.0."
            )


def loss_row(config: DistillConfig, parts: Float[Tensor, "teachers parts"]) -> dict[str, Any]:
    """The loss, its parts (weighted over teachers), and each teacher's loss if there are several.

    What is not finite becomes null, since JSON has no such numbers.
    """
    weights = torch.tensor(config.weights, dtype=parts.dtype)
    totals = teacher_losses(parts, config.loss)
    names, lowered = part_names(config.loss), float(objective(parts, config))
    row: dict[str, Any] = {"loss": float(weights @ totals)}
    row.update(zip(names, (weights @ parts).tolist(), strict=True))
    if len(names) > PAPER_COLUMNS:
        row["objective"] = lowered
    if len(totals) > 1:
        row["loss_by_teacher"] = totals.tolist()
    if all(value - value == 0 for value in (lowered, *totals.tolist())):
        return row
    return dict.fromkeys(row)


def student_tensors(training: Training) -> dict[str, Tensor]:
    """The student's weights, whole; every process must ask."""
    return {
        name: whole(value.detach()).cpu() for name, value in training.student.named_parameters()
    }


def published_tensors(training: Training) -> dict[str, Tensor]:
    """The weights that are published: the average where there is one."""
    if training.average is not None:
        return training.average.tensors()
    return student_tensors(training)


def load_student(training: Training, tensors: Mapping[str, Tensor]) -> None:
    """Continue with stored weights."""
    for name, parameter in training.student.named_parameters():
        copy_whole(parameter, tensors[name])
