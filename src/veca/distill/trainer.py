"""The training loop: validate, step, log, save, and stop in order when asked to.

A step draws its budget, FFN share and resolution from (seed, step), sends the parts of its batch
through teacher and student, and updates the weights once. It is skipped, weights unchanged, where a
loss or a gradient is not finite on any rank. Validation of step n happens before the update of step
n, and after the last one. Everything logged in metrics.jsonl depends on configuration and images
alone, so a run that was killed and resumed logs again what it had logged.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from veca.data.augment import inner_view
from veca.data.loader import Batch, BatchSpec, batches, sample_order
from veca.distill.images import ImageSplit, UnreadableImages, batch_specs
from veca.distill.losses import PART_NAMES, compare, loss_row, objective
from veca.distill.run_folder import (
    RunContext,
    RunError,
    as_json,
    provenance_of,
    publish,
    today,
)
from veca.distill.student import Initialize, build_student
from veca.distill.targets import TargetSource, TeacherCache, find_margin
from veca.distill.validation import Validator, eval_points
from veca.runtime import VERSION, VecaError
from veca.runtime.device import autocast, ran_out_of_memory, seed_for
from veca.runtime.logging import duration, logger
from veca.runtime.signals import StoppedError
from veca.teacher.teacher import Targets, Teacher
from veca.train.checkpoint import (
    Checkpoint,
    CheckpointError,
    CheckpointManager,
    refuse_non_finite,
)
from veca.train.metrics import SPEED_EVERY, Meter, MetricLogger, Speed, validation_table
from veca.train.optimizers import Optimizers, clip_gradients, gradient_norm
from veca.train.parallel import (
    EMA,
    compile_blocks,
    full_parameters,
    gradients_synchronized,
    load_full,
    wrap_student,
)
from veca.train.schedules import draw_share, learning_rate
from veca.weights.card import Provenance

MAX_FAILED_SAVES = 3
"""Consecutive failed saves after which a run stops, since it would keep nothing."""

STATISTICS_BATCH = 32
"""Images of a batch from which center, scale and constant predictor are computed."""


class NonFiniteError(VecaError, ValueError):
    """Training that does not recover from losses or gradients that are not finite."""


@dataclass
class TrainState:
    """Progress of a run."""

    step: int = 0
    """Steps taken, which is the number of the next one."""

    skipped: int = 0
    consecutive_skips: int = 0
    best_loss: float | None = None
    best_step: int | None = None
    finished: bool = False


class Trainer:
    """A run that is ready to train."""

    def __init__(  # noqa: PLR0913 - everything that a run consists of
        self,
        context: RunContext,
        images: ImageSplit,
        teachers: Sequence[Teacher],
        *,
        cache: TeacherCache | None = None,
        checkpoint: Checkpoint | None = None,
        initialize: Initialize | None = None,
        command: str | None = None,
    ) -> None:
        """Build student, optimizers and logs, and load the checkpoint if there is one.

        `initialize` gives a student that starts from scratch its first weights. Call `fit_targets`
        before training a run without a checkpoint.
        """
        self.context, self.config, self.options = context, context.config, context.options
        self.folder, self.ranks, self.stop = context.folder, context.ranks, context.stop
        config, options = self.config, self.options
        self.images, self.teachers, self.cache = images, teachers, cache
        self.state = TrainState()
        self.length = config.length(len(images.training))
        self.precision = options.resolved(self.ranks.device)
        self.num_statistics = min(config.statistics_images, len(images.training))
        margin = find_margin(config, teachers)
        self.source = TargetSource(teachers, options.teacher_batch, margin).to(self.ranks.device)
        self.student = build_student(
            config, self.source.widths, teachers,
            initialize=initialize, resuming=checkpoint is not None,
        ).to(self.ranks.device)  # fmt: skip
        self.model = self._wrapped_student()
        self.optimizers = Optimizers(self.student, config.optimizer, self.precision)
        self.ema = None if config.ema is None else EMA(self.student, config.ema)
        self.unreadable = UnreadableImages(images.index, len(images.training), context)
        self.validator = Validator(context, images, self.source, self.unreadable)
        self.checkpoints = CheckpointManager(self.folder.checkpoints)
        self._failed_saves = 0
        self._last_mean, self._losses = math.nan, list[float]()  # of the last validation, and since
        if checkpoint is not None:
            self.load_state_dict(checkpoint)
        else:
            self.provenance = provenance_of(config, teachers, len(images.training), command)
        if self.ranks.is_main:  # only now: a student that cannot be built must not claim the folder
            self.folder.begin(config, options, command, resuming=checkpoint is not None)
        self.meter = Meter(self.ranks.device)
        self.metrics = MetricLogger(
            self.folder.path if self.ranks.is_main else None, self.meter,
            total=self.length, done=self.state.step, shown=context.show_progress,
        )  # fmt: skip
        if checkpoint is not None:
            self._log_resume(checkpoint.metadata["precision"])

    def _wrapped_student(self) -> nn.Module:
        """The module to call in training: compiled, wrapped or sharded as the options say."""
        config, options, backbone = self.config, self.options, self.student.backbone
        blocks = list(backbone.blocks)
        backbone.checkpoint_activations = options.checkpoint_activations
        if options.compile:
            points = len(eval_points(config.student)) * max(1, len(config.student.ffn_shares))
            compile_blocks(blocks, options.compile_backend, 2 * points * len(config.sizes))
        return wrap_student(self.student, blocks, self.ranks, options.shard)

    def train(self) -> bool:
        """Train to the end (True) or until asked to stop (False); either way the run is saved."""
        state, first = self.state, self.state.step
        state.finished = False  # the run may have been extended
        with closing(self.batches()) as feed:
            try:
                while state.step < self.length:
                    if state.step % self.config.validate_every == 0:
                        self.validate()
                    row, stopping = self.train_step(feed)
                    speed = self.metrics.step(row, self.config.batch)
                    self._losses += [] if row["loss"] is None else [row["loss"]]
                    self._check_skips()
                    if state.step == first + max(1, min(SPEED_EVERY, (self.length - first) // 2)):
                        self._log_estimate(speed)
                    if stopping:
                        raise StoppedError
                    if state.step % self.options.save_every == 0 and state.step < self.length:
                        self.save()
                self.validate()
                state.finished = True
            except StoppedError:
                logger.info(
                    "Stopped at step %s; --resume continues it, %s is the model of this step.",
                    f"{state.step:,}",
                    self.folder.last,
                )
            self.save(final=True)
        return state.finished

    def train_step(self, feed: Generator[Batch, None, None]) -> tuple[dict[str, Any], bool]:
        """Take one step; return its row for the log, and whether any rank was asked to stop."""
        config, step = self.config, self.state.step
        budget = config.draw_budget(step, self.length)
        ffn = draw_share(config.student, config.seed, step, config.share_weights)
        rate = learning_rate(config.schedule, step, self.length)
        sums = torch.zeros(len(config.teacher), len(PART_NAMES), dtype=torch.float64)
        new_unreadable = 0
        self.model.train()
        for _ in range(self.options.accumulate):
            with self.meter.waiting():
                batch = next(feed)
            new_unreadable += self.unreadable.note(batch.unreadable)
            with _out_of_memory_advice():
                sums += self._backward(batch, budget, ffn)

        # One all-reduce decides loss, stop and skip for all ranks.
        means = (sums / self.ranks.world_size).flatten()
        flags = torch.tensor([float(self.stop()), float(new_unreadable)], dtype=torch.float64)
        reduced = self.ranks.all_reduce(torch.cat((means, flags)))
        losses, (stopping, unreadable) = reduced[:-2].view_as(sums), reduced[-2:].tolist()
        row = {"kind": "train", "step": step, "budget": budget, "ffn": ffn,
               "resolution": batch.task.resolution, "learning_rate": rate,
               **loss_row(losses, config.weights, config.loss)}  # fmt: skip
        self._update(row, rate)
        if unreadable:
            self.unreadable.synchronize()
        self.state.step += 1
        return row, bool(stopping)

    def _backward(
        self, batch: Batch, budget: int | None, ffn: float
    ) -> Float[Tensor, "teachers parts"]:
        """Add the gradients of a part of the batch; return its share of the batch's losses."""
        config, task, parts = self.config, batch.task, self.options.accumulate
        images = batch.images.to(self.ranks.device, non_blocking=True)
        with gradients_synchronized(self.model, task.part == parts - 1):
            with autocast(self.ranks.device, self.options.precision):
                torch.manual_seed(seed_for(config.seed, task.step, f"teachers/{task.part}"))
                targets = self._targets(task, images)
                # All parts and ranks jitter coordinates alike, as in one large batch.
                torch.manual_seed(seed_for(config.seed, task.step, "coordinates"))
                predictions = self.model(inner_view(images, task.resolution), budget, ffn)
                losses = compare(predictions, targets)
            (objective(losses, config.weights, config.loss) / parts).backward()
        return losses.detach().double().cpu() / parts

    def _targets(self, task: BatchSpec, images: Tensor) -> list[Targets]:
        """Scaled targets of a batch, from the cache or the teachers."""
        if self.cache is not None:
            return self.source.scaled(self.cache.lookup(task, self.ranks.device))
        side = task.resolution // self.config.student.patch_size
        return self.source(images, (side, side))

    def _update(self, row: dict[str, Any], rate: float) -> None:
        """Update the weights unless a value is not finite; complete the row of the log."""
        norm = float(gradient_norm(self.student.parameters()))
        finite = row["loss"] is not None and math.isfinite(norm)
        row["gradient_norm"] = norm if finite else None
        if finite:
            if self.config.clip is not None:
                clip_gradients(self.student.parameters(), norm, self.config.clip)
            self.optimizers.step(rate)
            if self.ema is not None:
                self.ema.update()
            self.state.consecutive_skips = 0
        else:
            row["skipped"] = True
            self.state.skipped += 1
            self.state.consecutive_skips += 1
        self.optimizers.zero_grad()

    def log_plan(self) -> None:
        """Log what is trained, on what and for how long."""
        config, images, student = self.config, self.images, self.config.student
        millions = sum(one.numel() for one in self.student.backbone.parameters()) / 1e6
        cores = f"{student.budgets[0]} to {student.budgets[-1]} cores"
        kind = "full attention" if student.attention == "full" else cores
        count, sizes = len(images.training), ", ".join(map(str, config.sizes))
        begun = f" from step {self.state.step:,} on," if self.state.step else ""
        ranks = self.ranks.world_size
        lines = (
            f"veca distill {config.recipe}: {millions:.1f} M parameters with {kind}, taught by "
            f"{', '.join(teacher.name for teacher in self.teachers)}",
            f"  images    {count:,} for training, {len(images.validation):,} for validation",
            f"  plan      {self.length:,} steps of {config.batch} images at {sizes} px,{begun} "
            f"{self.length * config.batch / count:,.1f} passes over the images",
            f"  progress  validation every {config.validate_every:,} steps, checkpoint every "
            f"{self.options.save_every:,}",
            f"  machine   {self.ranks.device}, {self.precision}, processes: {ranks}",
            f"  folder    {self.folder.path}",
        )
        logger.info("%s", "\n".join(lines))

    def _log_estimate(self, speed: Speed) -> None:
        """Log how long the rest will take, by the speed of the first steps."""
        images = (self.length - self.state.step) * self.config.batch
        if speed.images_per_second > 0:
            rest = duration(images / speed.images_per_second)
            logger.info(
                "%s images/s (%.0f%% waiting for images), %.2f GB of memory; about %s to go, "
                "besides validation.",
                f"{speed.images_per_second:,.1f}", 100 * speed.data_wait, speed.memory_mb / 1e3,
                rest,
            )  # fmt: skip

    def _log_validation(self, rows: Sequence[Mapping[str, Any]], mean: float) -> None:
        """Log the training loss since the last validation, and a table of this one."""
        before, best = self._last_mean, self.state.best_loss
        text = f"Step {self.state.step:,} of {self.length:,}: validation loss {mean:.4f}"
        text += f" ({mean - before:+.4f})" if math.isfinite(mean - before) else ""
        text += ", the best so far" if best is not None and mean < best else ""
        if self._losses:
            trained = sum(self._losses) / len(self._losses)
            text += f"; training loss {trained:.4f} over {len(self._losses):,} steps"
        logger.info("%s", "\n".join((text, *validation_table(rows))))
        self._last_mean, self._losses = mean, []

    def _check_skips(self) -> None:
        """End a run that does not recover."""
        skips = self.state.consecutive_skips
        if skips > self.config.max_skips:
            raise NonFiniteError(
                f"{skips} consecutive steps up to step {self.state.step} had a loss or gradient "
                "that is not finite; start another run with --start and best/, and a lower "
                "--schedule.peak or --clip 1.0."
            )

    def validate(self) -> None:
        """Log the loss at every budget; publish the weights as best/ if they are."""
        step, state = self.state.step, self.state
        with self.meter.paused():
            with nullcontext() if self.ema is None else self.ema.applied():
                rows = self.validator.run(self.student)
            rows = [{"kind": "validation", "step": step, **row} for row in rows]
            for row in rows:
                self.metrics.log(row)
            losses = [row["loss"] for row in rows]
            mean = math.nan if None in losses else sum(losses) / len(losses)
            self._log_validation(rows, mean)
            if None in losses:
                logger.warning("The validation loss is not finite; best/ stays as it is.")
                return
            if state.best_loss is None or mean < state.best_loss:
                state.best_loss, state.best_step = mean, step
                weights = self.published()
                self._try_to_write(
                    "the best model", lambda: self._publish(weights, self.folder.best)
                )

    def save(self, *, final: bool = False) -> None:
        """Save a checkpoint and the model of this step.

        A failed save, such as on a full disk, is logged and training continues, unless it is the
        `final` one or several fail in a row; earlier checkpoints stay intact.
        """
        with self.meter.paused():
            step = self.state.step
            tensors, metadata = self.state_dict()
            weights = self.published()

            def write() -> None:
                self.metrics.sync()  # no checkpoint is ahead of the logs
                refuse_non_finite(tensors)
                # The checkpoint comes last: one of a finished run without its model would keep an
                # old model for good if the run were killed in between.
                self._publish(weights, self.folder.last)
                self.checkpoints.save(step, tensors, metadata)

            reason = self._try_to_write(f"the checkpoint of step {step:,}", write)
        self._failed_saves = self._failed_saves + 1 if reason else 0
        if reason and (final or self._failed_saves >= MAX_FAILED_SAVES):
            raise RunError(
                f"the checkpoint of step {step:,} could not be saved ({reason}; failed saves in a "
                f"row: {self._failed_saves}); free disk space, then continue with --resume."
            )

    def _try_to_write(self, what: str, write: Callable[[], None]) -> str:
        """Write on rank 0; return, on every rank, why that failed, or nothing."""
        reason = ""
        if self.ranks.is_main:
            try:
                write()
            except (OSError, CheckpointError) as error:
                reason = " ".join(str(error).split()) or type(error).__name__
        reason = str(self.ranks.broadcast_object(reason))
        if reason:
            logger.warning(
                "Saving %s failed (%s); continuing, earlier files are intact.", what, reason
            )
        return reason

    def batches(self) -> Generator[Batch, None, None]:
        """Views of the training images for the remaining steps, decoded a few batches ahead.

        With cached teacher outputs, the cache's seed decides the views, and the margin that only
        teachers see is cut off.
        """
        config, images = self.config, self.images
        crops = None if self.cache is None else self.cache.crops
        steps = range(self.state.step, self.length)
        specs = batch_specs(self.context, images.training, steps, self.length, crops)
        return batches(
            images.index, specs,
            seed=config.seed if crops is None else config.cache.seed, config=config.views,
            num_workers=self.options.workers, replacements=images.training,
            margin=self.source.margin.loaded, give_margin=crops is None,
        )  # fmt: skip

    def published(self) -> dict[str, Tensor]:
        """The weights to publish: the average if there is one; every rank must call this."""
        return full_parameters(self.student) if self.ema is None else self.ema.state_dict()

    def _publish(self, weights: Mapping[str, Tensor], folder: Path) -> None:
        adaptors = self.options.publish_adaptors
        publish(weights, self.config, folder, self.provenance, adaptors)

    def state_dict(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and metadata of a checkpoint; every rank must call this."""
        groups: dict[str, Mapping[str, Tensor]] = {
            "student": full_parameters(self.student),
            "optimizer": self.optimizers.state_dict(),
            "ema": {} if self.ema is None else self.ema.state_dict(),
            "scaling": self.source.scalings.state_dict(),
            "unreadable": {"images": self.unreadable.tensor()},
        }
        tensors = {
            f"{group}/{name}": tensor.detach().cpu()
            for group, members in groups.items()
            for name, tensor in members.items()
        }
        metadata = {
            "veca": VERSION,
            "torch": torch.__version__,
            "config": as_json(self.config),
            "length": self.length,
            "precision": self.precision,
            "cache_precision": None if self.cache is None else self.cache.precision,
            "state": dataclasses.asdict(self.state),
            "ema_updates": 0 if self.ema is None else self.ema.updates,
            "images": self.images.fingerprint,
            "teachers": [teacher.digest for teacher in self.teachers],
            "provenance": self.provenance.known(),
        }
        return tensors, metadata

    def load_state_dict(self, checkpoint: Checkpoint) -> None:
        """Restore the run between two steps."""
        metadata = checkpoint.metadata
        self._check_resumable(metadata)

        def group(name: str) -> dict[str, Tensor]:
            return {
                key.removeprefix(f"{name}/"): tensor
                for key, tensor in checkpoint.tensors.items()
                if key.startswith(f"{name}/")
            }

        if self.config.steps is None:  # the length follows from the images it was started with
            self.length = metadata["length"]
        student = group("student")
        for name, parameter in self.student.named_parameters():
            load_full(parameter, student[name])
        self.optimizers.load_state_dict(group("optimizer"))
        if self.ema is not None:
            self.ema.load_state_dict(group("ema"), metadata["ema_updates"])
        self.source.scalings.load_state_dict(group("scaling"))
        self.state = TrainState(**metadata["state"])
        self.provenance = Provenance(**{**metadata["provenance"], "date": today()})
        if metadata["images"] == self.images.fingerprint:
            self.unreadable.load(group("unreadable")["images"])
        else:
            self.state.best_loss = self.state.best_step = None
            logger.warning(
                "The images have changed since the run began: order and validation images differ "
                "from now on, and the best model is chosen again."
            )

    def _check_resumable(self, metadata: Mapping[str, Any]) -> None:
        """Refuse other targets than before."""
        before = metadata["cache_precision"] is not None
        if before != (self.cache is not None):
            word = "with" if before else "without"
            raise RunError(
                f"the run was started {word} --cache-teacher, which decides its views and targets; "
                f"resume it {word} it."
            )
        for teacher, stored in zip(self.teachers, metadata["teachers"], strict=True):
            if None not in (stored, teacher.digest) and stored != teacher.digest:
                raise RunError(
                    f"the teacher {teacher.name} has other weights than when the run was started; "
                    "restore them, or start another run with --start."
                )

    def _log_resume(self, before: str) -> None:
        """Log that, and in which precision if it changed, the run was resumed."""
        step, now = self.state.step, self.precision
        self.metrics.log({"kind": "resume", "step": step})
        if before != now:
            self.metrics.log(
                {"kind": "precision", "step": step, "precision": now, "before": before}
            )
            logger.warning(
                "The run used %s up to step %s and continues in %s, so its losses differ from an "
                "uninterrupted run; --precision %s avoids that.",
                before, f"{step:,}", now, before,
            )  # fmt: skip

    def fit_targets(self) -> None:
        """Fit center and scale of the targets on rank 0; log the constant predictor's loss."""
        source, ranks, config = self.source, self.ranks, self.config
        constants = [
            Targets(torch.zeros(1, image), torch.zeros(1, 1, patches))
            for image, patches in source.widths
        ]
        raw: list[list[Targets]] = []
        if ranks.is_main:
            with closing(self._statistics_targets()) as found:
                raw = list(itertools.takewhile(lambda _: not self.stop(), found))
        if ranks.any(self.stop()):
            raise StoppedError
        if ranks.is_main:
            constants = source.fit(raw, config.scale_targets, config.loss)
        for tensor in (*source.scalings.state_dict().values(), *itertools.chain(*constants)):
            ranks.broadcast(tensor)
        losses = {size: self.validator.constant_loss(constants, size) for size in config.sizes}
        mean = sum(losses.values()) / len(losses)
        row: dict[str, Any] = {"kind": "baseline", "loss": mean, "resolution": min(losses)}
        if len(losses) > 1:
            row["by_resolution"] = {str(size): loss for size, loss in losses.items()}
        self.metrics.log(row)
        logger.info("The constant predictor has a validation loss of %.4f.", mean)

    def _statistics_targets(self) -> Generator[list[Targets], None, None]:
        """Unscaled targets of some training images in their first views, on the CPU."""
        config, device, training = self.config, self.ranks.device, self.images.training
        places, _ = sample_order(len(training), self.num_statistics, 0, config.seed)
        resolution = config.sizes[0]
        parts = np.array_split(training[places], -(-self.num_statistics // STATISTICS_BATCH))
        specs = [
            BatchSpec(0, part, some, np.zeros(len(some), np.int64), resolution)
            for part, some in enumerate(parts)
        ]
        if self.cache is not None:
            yield from (self.cache.lookup(spec, torch.device("cpu")) for spec in specs)
            return
        side = resolution // config.student.patch_size
        loaded = batches(
            self.images.index, specs,
            seed=config.seed, config=config.views, num_workers=self.options.workers,
            replacements=training, margin=self.source.margin.loaded,
        )  # fmt: skip
        with torch.no_grad(), autocast(device, self.options.precision):
            for batch in loaded:
                raw = self.source.raw(batch.images.to(device), (side, side))
                yield [Targets(*(part.cpu() for part in targets)) for targets in raw]


@contextmanager
def _out_of_memory_advice() -> Iterator[None]:
    """Name the options that save memory where it runs out."""
    try:
        yield
    except RuntimeError as error:  # torch's OutOfMemoryError is one
        if not ran_out_of_memory(error):
            raise
        raise RunError(
            f"out of memory ({str(error).splitlines()[0]}); use a larger --accumulate, "
            "--checkpoint-activations, or a smaller --teacher-batch."
        ) from error
