"""A whole run, from a configuration to trained weights: `distill` is the entry point."""

import dataclasses
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from signal import SIGTERM
from typing import NamedTuple

import torch

from veca.distill.config import DistillConfig, RunOptions
from veca.distill.images import check_batch, find_images
from veca.distill.run_folder import RunContext, RunError, RunFolder, check_same_config
from veca.distill.student import Initialize
from veca.distill.targets import find_margin
from veca.distill.teacher_cache import open_teacher_cache
from veca.distill.trainer import Trainer
from veca.runtime.distributed import init_distributed
from veca.runtime.files import lock_folder
from veca.runtime.logging import logger
from veca.runtime.shards import StoppedError
from veca.runtime.signals import stop_requests
from veca.teacher.registry import load_teacher
from veca.teacher.teacher import Teacher
from veca.train.checkpoint import Checkpoint, CheckpointError, CheckpointManager


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
    with ExitStack() as stack:
        request = stack.enter_context(stop_requests())
        ranks = stack.enter_context(init_distributed(options.device))
        # From here on it is not 'auto', and the same on every rank.
        precision = ranks.broadcast_object(options.resolved(ranks.device))
        options = dataclasses.replace(options, precision=precision)
        context = RunContext(
            folder=RunFolder(Path(out).expanduser()),
            ranks=ranks,
            stop=request.requested,
            resume=resume,
            show_progress=show_progress,
        )
        if ranks.is_main:
            context.folder.prepare(resume)
            stack.enter_context(lock_folder(context.folder.path))
        ranks.barrier()
        finished, step = _run(
            config, options, context,
            teachers=teachers, cache_teacher=cache_teacher, cache_only=cache_only,
            command=command, initialize=initialize,
        )  # fmt: skip
        signal = None if finished else request.signal or SIGTERM
        return TrainResult(finished, step, signal, context.folder.path)


def _run(  # noqa: PLR0913 - what `distill` is given
    config: DistillConfig,
    options: RunOptions,
    context: RunContext,
    *,
    teachers: Sequence[Teacher] | None,
    cache_teacher: Path | None,
    cache_only: bool,
    command: str | None,
    initialize: Initialize | None,
) -> tuple[bool, int]:
    """Run in a prepared folder; return whether the run is complete, and its step."""
    step = 0
    try:
        if cache_only and cache_teacher is not None:
            images = find_images(config, context)
            found = load_teachers(config, teachers)
            open_teacher_cache(
                cache_teacher, config, options, context, images=images, teachers=found
            )
            return True, step
        checkpoint = load_newest(config, context)
        if checkpoint is not None:
            step = checkpoint.step
            if _is_finished(config, checkpoint):
                logger.info("This run is finished at step %s; nothing to do.", f"{step:,}")
                return True, step
        trainer = build_trainer(
            config, options, context, checkpoint,
            teachers=teachers, cache_teacher=cache_teacher, command=command, initialize=initialize,
        )  # fmt: skip
        with closing(trainer.metrics):
            if checkpoint is None:
                trainer.fit_targets()
            finished = trainer.train()
        return finished, trainer.state.step
    except StoppedError:  # before the first step: there is nothing to save
        return False, step


def build_trainer(  # noqa: PLR0913 - what `distill` is given
    config: DistillConfig,
    options: RunOptions,
    context: RunContext,
    checkpoint: Checkpoint | None = None,
    *,
    teachers: Sequence[Teacher] | None = None,
    cache_teacher: Path | None = None,
    command: str | None = None,
    initialize: Initialize | None = None,
) -> Trainer:
    """Find images and teachers, fill the cache, and build what trains."""
    images = find_images(config, context)
    teachers = load_teachers(config, teachers)
    check_batch(config, options, context.ranks)
    if context.ranks.is_main:
        context.folder.begin(config, options, command, resuming=checkpoint is not None)
    cache = None
    if cache_teacher is not None:
        precision = None if checkpoint is None else checkpoint.metadata["cache_precision"]
        cache = open_teacher_cache(
            cache_teacher, config, options, context,
            images=images, teachers=teachers, precision=precision,
        )  # fmt: skip
    return Trainer(
        config, options, context, images, teachers,
        cache=cache, checkpoint=checkpoint, initialize=initialize, command=command,
    )  # fmt: skip


def load_newest(config: DistillConfig, context: RunContext) -> Checkpoint | None:
    """The newest verified checkpoint, on every rank: they need not share a disk."""
    ranks, manager = context.ranks, CheckpointManager(context.folder.checkpoints)
    reason, checkpoint = "", None
    if ranks.is_main:
        try:
            checkpoint = manager.latest()
        except CheckpointError as error:
            reason = str(error)
    if reason := ranks.broadcast_object(reason):
        raise RunError(reason)
    tensors = {} if checkpoint is None else checkpoint.tensors
    shapes = {name: [list(value.shape), str(value.dtype)] for name, value in tensors.items()}
    found = checkpoint and [checkpoint.step, checkpoint.metadata, shapes]
    found = ranks.broadcast_object(found)
    if found is None:
        return None
    step, metadata, shapes = found
    tensors = dict(tensors)
    for name, (shape, dtype) in shapes.items():
        if name not in tensors:
            tensors[name] = torch.empty(shape, dtype=getattr(torch, dtype.removeprefix("torch.")))
        tensors[name] = ranks.broadcast(tensors[name].to(ranks.device)).cpu()
    check_same_config(config, metadata["config"], step)
    return Checkpoint(step=step, path=manager.path(step), tensors=tensors, metadata=metadata)


def _is_finished(config: DistillConfig, checkpoint: Checkpoint) -> bool:
    """Whether a run is complete and not to be extended."""
    return checkpoint.metadata["state"]["finished"] and config.steps in {None, checkpoint.step}


def load_teachers(config: DistillConfig, given: Sequence[Teacher] | None = None) -> list[Teacher]:
    """The teachers that the configuration names, or the given ones."""
    teachers = list(given) if given is not None else [load_teacher(name) for name in config.teacher]
    if config.loss.classes > 0 and not any(teacher.num_classes for teacher in teachers):
        names = ", ".join(teacher.name for teacher in teachers)
        raise RunError(
            f"loss.classes={config.loss.classes} needs a teacher with a classifier, got {names}; "
            "add efficientnet-lite2, or set it to 0."
        )
    find_margin(config, teachers)  # raises where it does not fit
    return teachers
