"""A whole run, from a configuration to trained weights in a folder: `distill` is the way in."""

import dataclasses
from collections.abc import Generator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from signal import SIGTERM
from typing import Any, NamedTuple, cast

from veca.data.loader import Batch
from veca.distill.checkpoints import Checkpoints
from veca.distill.config import DistillConfig, Efficiency
from veca.distill.feed import Pictures, check_batch, tasks, training_batches
from veca.distill.journal import Journal
from veca.distill.live import Live, SilentLive
from veca.distill.loop import Loop
from veca.distill.publish import provenance_of, today
from veca.distill.run_folder import RunError, RunFolder, check_same_run
from veca.distill.setup import (
    Place,
    build_training,
    find_pictures,
    find_teachers,
    fit_to_teachers,
    keep_outputs,
    memory_lines,
)
from veca.distill.state import Stored, received, restore
from veca.distill.student import check_slices
from veca.distill.target_scaling import Constants
from veca.distill.targets import constant_predictor_loss
from veca.distill.tensorboard import open_tensorboard
from veca.distill.training import Training
from veca.distill.validation import Validation
from veca.runtime.device import resolve_precision
from veca.runtime.distributed import Ranks, init_distributed
from veca.runtime.files import lock_folder
from veca.runtime.shards import StoppedError
from veca.runtime.signals import StopFlag, stop_requests
from veca.runtime.snapshots import Snapshot, Snapshots
from veca.teacher.teacher import Teacher
from veca.weights.card import NOT_RECORDED, Provenance


class Outcome(NamedTuple):
    """How a run ended."""

    finished: bool
    step: int
    signal: int | None
    """The signal that stopped it."""
    folder: Path


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wishes:
    """What is asked of a run beside its configuration."""

    resume: bool = False
    """Continue the newest verified checkpoint of the folder, if there is one."""

    cache_teacher: Path | None = None
    """Folder in which the teachers' outputs are kept."""

    cache_only: bool = False
    """End when they are, before any training."""

    command: str | None = None
    """The command that began it, for the model card."""

    shown: bool = True
    """Whether to show how it goes."""


def distill(
    config: DistillConfig,
    out: Path,
    efficiency: Efficiency | None = None,
    wishes: Wishes | None = None,
    teachers: Sequence[Teacher] | None = None,
) -> Outcome:
    """Train a student, or continue to; `teachers` may be given instead of found by name."""
    efficiency, wishes = efficiency or Efficiency(), wishes or Wishes()
    if wishes.cache_only and wishes.cache_teacher is None:
        raise RunError("--cache-only has no folder to keep outputs in; add --cache-teacher DIR.")
    if teachers is not None:
        names = tuple(teacher.name for teacher in teachers)
        config = dataclasses.replace(config, teacher=names)
    with ExitStack() as stack:
        stop = stack.enter_context(stop_requests())
        workers = stack.enter_context(init_distributed(efficiency.device))
        # From here on it is not 'auto' any more, and the same in every process.
        precision = workers.broadcast_object(
            resolve_precision(efficiency.precision, workers.device)
        )
        efficiency = dataclasses.replace(efficiency, precision=precision)
        folder = RunFolder(Path(out).expanduser())
        if workers.is_main:
            folder.prepare(wishes.resume)
            stack.enter_context(lock_folder(folder.path))
        workers.barrier()
        shown = workers.is_main and wishes.shown
        live = stack.enter_context(Live(0) if shown else SilentLive(0))
        place = Place(
            folder=folder,
            workers=workers,
            say=live.say,
            asked_to_stop=lambda: stop.signal is not None,
            cache_folder=wishes.cache_teacher,
        )
        return _Run(config, efficiency, wishes, place, live).go(stop, teachers)


class _Run:
    """The phases of one run."""

    def __init__(
        self,
        config: DistillConfig,
        efficiency: Efficiency,
        wishes: Wishes,
        place: Place,
        live: Live,
    ) -> None:
        self.config = config
        self.efficiency = efficiency
        self.wishes = wishes
        self.place = place
        self.live = live
        self.stored: Stored | None = None
        """The checkpoint that is continued."""

    @property
    def workers(self) -> Ranks:
        """The processes of the run."""
        return self.place.workers

    def go(self, stop: StopFlag, given: Sequence[Teacher] | None) -> Outcome:
        """Set up, train, and tell how it ended."""
        folder = self.place.folder
        if self.wishes.cache_only:
            kept = keep_outputs(self.config, self.efficiency, given, self.place)
            return Outcome(kept, 0, None if kept else stop.signal or SIGTERM, folder.path)
        snapshots = Snapshots(folder.checkpoints)
        stored = self.stored = self._stored(snapshots)
        step = 0 if stored is None else stored.progress.step
        if stored is not None and stored.progress.finished and self.config.steps in {None, step}:
            self.live.say(f"The run in {folder.path} is finished; there is nothing to do.")
            return Outcome(True, step, None, folder.path)
        try:
            pictures = find_pictures(self.config, self.place)
            teachers = find_teachers(self.config, given)
            check_batch(self.config, self.efficiency, self.workers)
            if stored is None:
                check_slices(self.config)
            self._begin(stored)
            for line in memory_lines(self.config, self.efficiency, self.workers, teachers):
                self.live.say(line)
            place = dataclasses.replace(
                self.place,
                resuming=stored is not None,
                kept_in=None if stored is None else stored.kept_in(self.workers.device),
            )
            training = build_training(self.config, self.efficiency, pictures, teachers, place)
            finished = self._train(training, pictures, stored, snapshots)
            step = training.progress.step
        except StoppedError:  # before the first step: there is nothing to save
            finished = False
        signal = None if finished else stop.signal or SIGTERM
        return Outcome(finished, step, signal, folder.path)

    def _begin(self, stored: Stored | None) -> None:
        """Make the folder that of a run, once all that was named has been found."""
        if not self.workers.is_main:
            return
        if stored is None:
            self.place.folder.start_logs()
        self.place.folder.write_config(self.config, self.efficiency, self.wishes.command)

    def _stored(self, snapshots: Snapshots) -> Stored | None:
        """The newest verified checkpoint, in every process."""
        newest = self._newest(snapshots) if self.workers.is_main else None
        stored = received(newest, self.workers)
        if stored is not None:
            check_same_run(self.config, stored.facts["config"], stored.progress.step)
        return stored

    def _newest(self, snapshots: Snapshots) -> Snapshot | None:
        """The newest verified checkpoint; each damaged one is told, and they must not be all."""
        damaged: list[str] = []
        newest = snapshots.newest(damaged.append)
        for sentence in damaged:
            self.live.say(sentence)
        if damaged and newest is None:
            raise RunError(
                f"every checkpoint in {self.place.folder.checkpoints} is damaged ({damaged[0]}); "
                "copy one from elsewhere, or begin another run with --start and best/ or last/."
            )
        return newest

    def _train(
        self,
        training: Training,
        pictures: Pictures,
        stored: Stored | None,
        snapshots: Snapshots,
    ) -> bool:
        """Take all steps; whether the run came to its end."""
        if stored is None:
            constants = fit_to_teachers(training, pictures, self.place.asked_to_stop)
        else:
            constants = stored.constants
            restore(training, stored, pictures.fingerprint)
            if stored.facts["images"] != pictures.fingerprint:
                self.live.say(
                    "The images have changed since the run began: their order and those to "
                    "validate on change with them, and the best model is chosen anew."
                )
        self.live.total = training.length
        with closing(self._journal(training, pictures)) as journal:
            validation = Validation(training, pictures, self.place.asked_to_stop)
            if stored is None:
                self._log_constant_predictor(training, validation, constants, journal)
            else:
                journal.row({"kind": "resume", "step": training.progress.step})
                self._log_precision(training, stored, journal)
            loop = Loop(
                training=training,
                validation=validation,
                checkpoints=self._checkpoints(training, pictures, constants, snapshots, journal),
                journal=journal,
                asked_to_stop=self.place.asked_to_stop,
            )
            with closing(self._feed(training, pictures)) as feed:
                finished = loop.run(feed)
            journal.summarize()
        return finished

    def _feed(self, training: Training, pictures: Pictures) -> Generator[Batch, None, None]:
        """The batches of all steps that are left."""
        cache = training.cache
        found = tasks(
            self.config,
            self.efficiency,
            pictures.training,
            self.workers,
            steps=range(training.progress.step, training.length),
            length=training.length,
            crops=None if cache is None else cache.crops,
        )
        seed = self.config.seed if cache is None else self.config.cache.seed
        return training_batches(
            pictures,
            found,
            self.config,
            self.efficiency,
            seed,
            margin=training.source.margin,
            give_margin=cache is None,
        )

    def _log_precision(self, training: Training, stored: Stored, journal: Journal) -> None:
        """Log it where a resumed run computes in another precision than before."""
        before, now = stored.precision(self.workers.device), training.precision
        if before == now:
            return
        step = training.progress.step
        journal.row({"kind": "precision", "step": step, "precision": now, "before": before})
        journal.say(
            f"The run was computed in {before} up to step {step:,} and goes on in {now}, so its "
            f"numbers differ from those of an uninterrupted run; give --precision {before} to keep "
            "them alike."
        )

    def _log_constant_predictor(
        self,
        training: Training,
        validation: Validation,
        constants: Sequence[Constants],
        journal: Journal,
    ) -> None:
        """Log what the constant predictor loses on the validation images."""
        losses = {
            size: constant_predictor_loss(
                constants, validation.moments(size), self.config.weights, self.config.loss
            )
            for size in self.config.sizes
        }
        mean = sum(losses.values()) / len(losses)
        row: dict[str, Any] = {"kind": "baseline", "loss": mean, "resolution": min(losses)}
        if len(losses) > 1:
            row["by_resolution"] = {str(size): loss for size, loss in losses.items()}
        journal.row(row)
        journal.say(f"The constant predictor has a validation loss of {mean:.4f}.")

    def _journal(self, training: Training, pictures: Pictures) -> Journal:
        """Where the run tells how it goes."""
        first = self.workers.is_main
        folder = self.place.folder if first else None
        teachers = training.source.teachers
        facts = {
            "recipe": self.config.recipe,
            "attention": self.config.attention,
            "teacher": ", ".join(str(teacher.name) for teacher in teachers),
            "licence of the teacher": ", ".join(
                str(teacher.licence or NOT_RECORDED) for teacher in teachers
            ),
            "images": f"{len(pictures.training):,} to train, {len(pictures.validation):,} to "
            "validate on",
            "steps": f"{training.length:,} of {self.config.batch} images",
            "seed": str(self.config.seed),
            "precision": training.precision,
            "processes": str(self.workers.world_size),
        }
        board = None
        if first:
            events = self.place.folder.path / "tensorboard"
            board = open_tensorboard(events, training.progress.step)
        return Journal(folder, self.live, training.meter, facts, board)

    def _provenance(self, pictures: Pictures, teachers: Sequence[Teacher]) -> Provenance:
        """Where the weights come from, with the teachers of the model that they started from."""
        if self.stored is not None:
            return Provenance(**{**self.stored.facts["provenance"], "date": today()})
        return provenance_of(self.config, teachers, len(pictures.training), self.wishes.command)

    def _checkpoints(
        self,
        training: Training,
        pictures: Pictures,
        constants: list[Constants],
        snapshots: Snapshots,
        journal: Journal,
    ) -> Checkpoints:
        """What the run keeps."""
        teachers = [cast(Teacher, teacher) for teacher in training.source.teachers]
        return Checkpoints(
            training=training,
            constants=constants,
            fingerprint=pictures.fingerprint,
            folder=self.place.folder,
            snapshots=snapshots,
            provenance=self._provenance(pictures, teachers),
            sync_logs=journal.sync,
            say=journal.say,
        )
