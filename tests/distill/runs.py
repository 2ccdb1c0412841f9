"""A small run that the tests of distillation share, as a whole or built to take single steps."""

import dataclasses
import json
import os
import shlex
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from jaxtyping import UInt8
from torch import Tensor
from torch.nn import functional as F

from tests.data.pictures import write_pictures
from veca.backbone.config import BackboneConfig
from veca.backbone.model import VECA
from veca.distill.config import DistillConfig, RunOptions
from veca.distill.run import TrainResult, build_trainer, distill
from veca.distill.run_folder import RunContext, RunFolder
from veca.distill.student import Adaptor, Student
from veca.distill.trainer import Trainer
from veca.runtime.distributed import Ranks
from veca.teacher.teacher import Targets, Teacher, cut
from veca.train.checkpoint import Checkpoint
from veca.train.schedules import ResolutionPhase, ScheduleConfig

TINY = BackboneConfig(
    layers=2, width=32, heads=2, budgets=(2, 4), ffn_shares=(0.5, 1.0), patch_size=8
)

FLAGS = shlex.split(
    "--backbone.layers 2 --backbone.width 32 --backbone.heads 2 --backbone.patch-size 8 "
    "--backbone.budgets 2,4 --backbone.ffn-shares 0.5,1 --teacher tests.distill.runs:PixelTeacher "
    "--resolution 32 --batch 4 --validation-images 2 --statistics-images 8 --device cpu "
    "--precision fp32 --schedule.warmup-steps 2 --seed 3"
)
"""The small run of this file as flags of the recipe tiny."""

ALONE = RunOptions(device="cpu", precision="fp32", workers=0, save_every=4)


class PixelTeacher(Teacher):
    """Fixed random projections of mean colors, which a student can learn."""

    def __init__(self, name: str = "pixels", image_width: int = 12, patch_width: int = 20) -> None:
        super().__init__()
        self.name = name
        self.licence = "apache-2.0"
        self.image_width = image_width
        self.patch_width = patch_width
        draw = torch.Generator().manual_seed(len(name))
        self.register_buffer("image", torch.randn(3 * 4, image_width, generator=draw))
        self.register_buffer("patch", torch.randn(3, patch_width, generator=draw))

    def forward(
        self, images: UInt8[Tensor, "B 3 H W"], grid: tuple[int, int], margin: int = 0
    ) -> Targets:
        """Quarters of the image, and cells of the grid; with a margin blurred, to depend on it."""
        colors = images.float() / 255
        rows, columns = grid
        cells = F.adaptive_avg_pool2d(colors, (rows + 2 * margin, columns + 2 * margin))
        if margin:
            colors = cut(colors, margin * images.shape[2] // (rows + 2 * margin))
            cells = cut(F.avg_pool2d(cells, 3, stride=1, padding=1), margin)
        quarters = F.adaptive_avg_pool2d(colors, 2).flatten(1)
        cells = cells.flatten(2).transpose(1, 2)
        return Targets(quarters @ self.get_buffer("image"), cells @ self.get_buffer("patch"))


class PoisonedTeacher(PixelTeacher):
    """Returns NaN once, on the second of several ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(
        self, images: UInt8[Tensor, "B 3 H W"], grid: tuple[int, int], margin: int = 0
    ) -> Targets:
        """The features, or NaN at the fifth call."""
        self.calls += 1
        found = super().forward(images, grid, margin)
        bad = self.calls == 5 and os.environ.get("RANK") == "1"
        return Targets(found.image * float("nan"), found.patches) if bad else found


def small_config(images: Path, **changes: Any) -> DistillConfig:
    """A run of eight steps on two dozen pictures."""
    config = DistillConfig(
        recipe="test",
        backbone=TINY,
        images=str(images),
        teacher=("pixels",),
        scale_targets=True,
        adaptor="linear",
        validation_images=2,
        statistics_images=8,
        steps=8,
        batch=4,
        resolutions=(ResolutionPhase(sizes=(32,)),),
        schedule=ScheduleConfig(peak=5e-3, minimum=5e-4, warmup_steps=2),
        validate_every=4,
        seed=3,
    )
    return dataclasses.replace(config, **changes)


def run(
    config: DistillConfig, out: Path, options: RunOptions = ALONE, **changes: Any
) -> TrainResult:
    """Run with the small teacher."""
    teachers = [PixelTeacher(name) for name in config.teacher]
    return distill(config, out, options, teachers=teachers, show_progress=False, **changes)


def pictures(folder: Path, count: int = 24) -> Path:
    """Pictures to train on."""
    write_pictures(folder, count)
    return folder


def rows(out: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """The rows of a run's log, of one kind if given."""
    lines = (out / "metrics.jsonl").read_text("utf-8").splitlines()
    found = [json.loads(line) for line in lines]
    return [row for row in found if kind is None or row["kind"] == kind]


CPU = torch.device("cpu")
ONE = Ranks(device=CPU)


def context_of(
    folder: Path,
    ranks: Ranks = ONE,
    stop: Callable[[], bool] = lambda: False,
    config: DistillConfig | None = None,
) -> RunContext:
    """The context of a run in a folder."""
    config = config or small_config(folder)
    context = RunContext(config=config, folder=RunFolder(folder), ranks=ranks, stop=stop)
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
    context = dataclasses.replace(context, config=config, options=options)
    return build_trainer(context, checkpoint, teachers=teachers, cache_teacher=cache_teacher)


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
