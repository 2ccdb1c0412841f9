"""A small run that is built but not begun, for tests that take single steps."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

from tests.distill.runs import ALONE, TINY, PixelTeacher, small_config
from veca.backbone.model import VECA
from veca.distill.config import RunOptions
from veca.distill.run import build_trainer
from veca.distill.run_folder import RunContext, RunFolder
from veca.distill.student import Adaptor, Student
from veca.distill.trainer import Trainer
from veca.runtime.distributed import Ranks
from veca.train.checkpoint import Checkpoint

CPU = torch.device("cpu")
ONE = Ranks(device=CPU)


def context_of(
    folder: Path, ranks: Ranks = ONE, stop: Callable[[], bool] = lambda: False
) -> RunContext:
    """The context of a run in a folder."""
    context = RunContext(folder=RunFolder(folder), ranks=ranks, stop=stop)
    context.folder.prepare(resume=True)
    return context


def build(
    images: Path,
    context: RunContext,
    options: RunOptions = ALONE,
    *,
    cache_teacher: Path | None = None,
    checkpoint: Checkpoint | None = None,
    **changes: Any,
) -> Trainer:
    """The small run of `runs.py` with its teacher."""
    config = small_config(images, **changes)
    teachers = [PixelTeacher(name) for name in config.teacher]
    return build_trainer(
        config, options, context, checkpoint, teachers=teachers, cache_teacher=cache_teacher
    )


def advance(trainer: Trainer, steps: int) -> list[dict[str, Any]]:
    """Take some steps; return their rows."""
    with closing(trainer.batches()) as feed:
        return [trainer.train_step(feed)[0] for _ in range(steps)]


def small_student(seed: int = 0) -> Student:
    """A student for one teacher with random weights."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        student = Student(VECA(TINY), [Adaptor(TINY.width, 12, 20, "linear")])
        with torch.no_grad():
            for parameter in student.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
    return student
