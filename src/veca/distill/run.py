"""A whole run, from a configuration to trained weights: `distill` is the entry point."""

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from signal import SIGTERM
from typing import Any, NamedTuple

import torch

from veca.distill.config import DistillConfig, RunOptions
from veca.distill.images import ImageSplit, check_batch, find_images
from veca.distill.run_folder import RunContext, RunError, RunFolder, check_same_config
from veca.distill.student import Initialize
from veca.distill.targets import TeacherCache, find_margin
from veca.distill.trainer import Trainer
from veca.runtime.device import ResolvedPrecision
from veca.runtime.distributed import init_distributed
from veca.runtime.files import lock_folder
from veca.runtime.logging import logger
from veca.runtime.signals import StopFlag, StoppedError, stop_requests
from veca.teacher.registry import load_teacher
from veca.teacher.teacher import Teacher
from veca.train.checkpoint import Checkpoint, CheckpointManager


class TrainResult(NamedTuple):
    """How a run ended."""

    finished: bool
    step: int
    signal: int | None
    """The signal that stopped it."""
    folder: Path


def distill(  # noqa: PLR0913 - the entry point
    config: DistillConfig,
    out: Path,
    options: RunOptions | None = None,
    *,
    teachers: Sequence[Teacher] | None = None,
    resume: bool = False,
    cache_teacher: Path | None = None,
    cache_only: bool = False,
    command: str | None = None,
    initialize: Initialize | None = None,
    show_progress: bool = True,
) -> TrainResult:
    """Train a student, or continue to.

    Args:
        config: everything that the results depend on.
        out: folder of the run.
        options: how to execute it.
        teachers: instead of those that the configuration names.
        resume: continue from the newest verified checkpoint in `out`, if there is one.
        cache_teacher: folder in which teacher outputs are cached.
        cache_only: return when they are, without training.
        command: the command that started the run, for the model card.
        initialize: gives the backbone of a run from scratch its initial weights.
        show_progress: show a progress line; messages go to the logger `veca`.
    """
    options = options or RunOptions()
    if cache_only and cache_teacher is None:
        raise RunError("--cache-only needs a folder for the outputs; add --cache-teacher DIR.")
    if teachers is not None:
        config = dataclasses.replace(config, teacher=tuple(teacher.name for teacher in teachers))
    folder = RunFolder(Path(out).expanduser())
    with _open_run(config, folder, options, resume, show_progress) as (run, flag):
        finished, step = True, 0
        try:
            if cache_only:
                prepare(run, teachers, cache_teacher)
            elif (checkpoint := load_newest(run)) and _is_finished(config, checkpoint):
                step = checkpoint.step
                logger.info("This run is finished at step %s; nothing to do.", f"{step:,}")
            else:
                step = 0 if checkpoint is None else checkpoint.step
                trainer = build_trainer(
                    run, checkpoint, teachers=teachers,
                    cache_teacher=cache_teacher, command=command, initialize=initialize,
                )  # fmt: skip
                trainer.log_plan()
                with closing(trainer.metrics):
                    if checkpoint is None:
                        trainer.fit_targets()
                    finished = trainer.train()
                step = trainer.state.step
        except StoppedError:  # before the first step: there is nothing to save
            finished = False
        signal = None if finished else flag.signal or SIGTERM
        return TrainResult(finished, step, signal, run.folder.path)


@contextmanager
def _open_run(
    config: DistillConfig, folder: RunFolder, options: RunOptions, resume: bool, show_progress: bool
) -> Iterator[tuple[RunContext, StopFlag]]:
    """Join the ranks, and prepare and lock the folder."""
    with stop_requests() as flag, init_distributed(options.device) as ranks, ExitStack() as stack:
        # From here on it is not 'auto', and the same on every rank.
        precision = ranks.broadcast_object(options.resolved(ranks.device))
        if ranks.is_main:
            folder.prepare(resume)
            stack.enter_context(lock_folder(folder.path))
        ranks.barrier()
        options = dataclasses.replace(options, precision=precision)
        context = RunContext(
            config=config, options=options, folder=folder, ranks=ranks, stop=flag.requested,
            resume=resume, show_progress=show_progress,
        )  # fmt: skip
        yield context, flag


def build_trainer(  # noqa: PLR0913 - what `distill` is given
    context: RunContext,
    checkpoint: Checkpoint | None = None,
    *,
    teachers: Sequence[Teacher] | None = None,
    cache_teacher: Path | None = None,
    command: str | None = None,
    initialize: Initialize | None = None,
) -> Trainer:
    """Build what trains, once its images, teachers and cached outputs are there."""
    check_batch(context)
    precision = None if checkpoint is None else checkpoint.metadata["cache_precision"]
    images, found, cache = prepare(context, teachers, cache_teacher, precision)
    return Trainer(
        context, images, found,
        cache=cache, checkpoint=checkpoint, initialize=initialize, command=command,
    )  # fmt: skip


def prepare(
    context: RunContext,
    teachers: Sequence[Teacher] | None,
    cache_teacher: Path | None,
    precision: ResolvedPrecision | None = None,
) -> tuple[ImageSplit, list[Teacher], TeacherCache | None]:
    """List the images, load the teachers, and fill the cache of their outputs, if there is one."""
    images, found = find_images(context), load_teachers(context.config, teachers)
    if cache_teacher is None:
        return images, found, None
    # Here, since most runs have no cache.
    from veca.distill.teacher_cache import open_teacher_cache  # noqa: PLC0415

    cache = open_teacher_cache(
        cache_teacher, context, images=images, teachers=found, precision=precision,
    )  # fmt: skip
    return images, found, cache


def load_newest(context: RunContext) -> Checkpoint | None:
    """The newest verified checkpoint, on every rank: they need not share a disk."""
    ranks, manager = context.ranks, CheckpointManager(context.folder.checkpoints)
    tensors: dict[str, torch.Tensor] = {}

    def latest() -> Any:  # noqa: ANN401 - all but the tensors
        checkpoint = manager.latest()
        if checkpoint is None:
            return None
        tensors.update(checkpoint.tensors)
        specs = {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}
        return checkpoint.step, checkpoint.metadata, specs

    found = ranks.on_main(latest)
    if found is None:
        return None
    step, metadata, specs = found
    for name, (shape, dtype) in specs.items():
        tensor = tensors[name] if ranks.is_main else torch.empty(shape, dtype=dtype)
        tensors[name] = ranks.broadcast(tensor.to(ranks.device)).cpu()
    check_same_config(context.config, metadata["config"], step)
    return Checkpoint(step=step, path=manager.path(step), tensors=tensors, metadata=metadata)


def _is_finished(config: DistillConfig, checkpoint: Checkpoint) -> bool:
    """Whether a run is complete and not to be extended."""
    return checkpoint.metadata["state"]["finished"] and config.steps in {None, checkpoint.step}


def load_teachers(config: DistillConfig, given: Sequence[Teacher] | None = None) -> list[Teacher]:
    """The teachers that the configuration names, or the given ones."""
    teachers = list(given) if given is not None else [load_teacher(name) for name in config.teacher]
    find_margin(config, teachers)  # raises where it does not fit
    return teachers
