"""A small teacher, pictures and a cache of its outputs, for the tests of the cache."""

import dataclasses
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from tests.data.pictures import write_pictures
from veca.data.augment import ViewConfig
from veca.data.image_index import ImageIndex, image_index
from veca.data.loader import BatchSpec, batches
from veca.distill.cache_fill import LiveOutputs
from veca.distill.cache_opening import open_teacher_cache
from veca.distill.config import CacheConfig
from veca.distill.margin import Margin
from veca.distill.teacher_cache import TeacherCache
from veca.runtime.distributed import Ranks
from veca.teacher.teacher import Targets, Teacher, cut

CPU = torch.device("cpu")
SIZE = 32
NO_MARGIN = Margin()
PATCH_SIZE = 8
PLAIN = ViewConfig(trivial_augment=False)
SMALL = CacheConfig(crops=2, dtype="float16", channels=6)


class CellTeacher(Teacher):
    """Features of the pixels of each cell, through random weights; counts what it is asked."""

    def __init__(self, name: str = "cells", seed: int = 0, image_width: int = 5) -> None:
        super().__init__()
        self.name = name
        self.licence = None
        self.image_width = image_width
        self.patch_width = 16
        self.stride = 1
        draw = torch.Generator().manual_seed(seed)
        self.register_buffer("weight", torch.randn(12, 16, generator=draw))
        self.register_buffer("offset", 3 * torch.rand(16, generator=draw))
        self.asked = 0
        """Images that it was asked about."""
        self.before_answer: Callable[[], None] = lambda: None

    def forward(
        self, images: UInt8[Tensor, "B 3 H W"], grid: tuple[int, int], margin: int = 0
    ) -> Targets:
        """Four points of every cell, mixed and bent; with a margin blurred, to depend on it."""
        self.asked += len(images)
        self.before_answer()
        rows, columns = (side + 2 * margin for side in grid)
        points = F.adaptive_avg_pool2d(images.float() / 255, (2 * rows, 2 * columns))
        if margin:
            points = cut(F.avg_pool2d(points, 5, stride=1, padding=2), 2 * margin)
        cells = F.unfold(points, kernel_size=2, stride=2).transpose(1, 2)
        patches = torch.tanh((cells - 0.5) @ self.get_buffer("weight")) + self.get_buffer("offset")
        return Targets(patches.mean(1)[:, : self.image_width], patches)


def pictures(folder: Path, count: int = 6) -> ImageIndex:
    """The index of some pictures."""
    write_pictures(folder, count)
    return image_index(folder)


def opened(
    folder: Path,
    index: ImageIndex,
    teachers: Sequence[Teacher] | None = None,
    config: CacheConfig = SMALL,
    **changes: Any,
) -> TeacherCache:
    """The cache of a small training, filled as far as it is not."""
    wanted: dict[str, Any] = {
        "index": index,
        "images": np.arange(len(index)),
        "teachers": [CellTeacher()] if teachers is None else teachers,
        "config": config,
        "views": PLAIN,
        "sizes": [SIZE],
        "patch_size": PATCH_SIZE,
        "precision": "fp32",
        "num_workers": 0,
        "teacher_batch": 1,  # at 32 pixels 64 views go together
        "workers": Ranks(device=CPU),
        "tell": lambda _: None,
        "asked_to_stop": lambda: False,
        "shown": False,
    }
    return open_teacher_cache(folder, **{**wanted, **changes})


def live_outputs(index: ImageIndex, **changes: Any) -> LiveOutputs:
    """Outputs of the small teacher."""
    live = LiveOutputs(
        teacher=CellTeacher(),
        index=index,
        images=np.arange(len(index)),
        config=SMALL,
        views=PLAIN,
        patch_size=PATCH_SIZE,
        precision="fp32",
        num_workers=0,
        teacher_batch=1,
        device=CPU,
        asked_to_stop=lambda: False,
    )
    return dataclasses.replace(live, **changes)


def task_of(images: Sequence[int], crops: Sequence[int], size: int = SIZE) -> BatchSpec:
    """The task of a training step."""
    return BatchSpec(0, 0, np.array(images), np.array(crops), size)


def live_targets(
    cache: TeacherCache,
    task: BatchSpec,
    index: ImageIndex,
    teacher: Teacher,
    *,
    seed: int = 0,
    margin: Margin = NO_MARGIN,
) -> Targets:
    """What the teacher says of exactly the views that a training would get."""
    replacements: NDArray[np.int64] = np.arange(len(index))
    (batch,) = batches(
        index,
        [task],
        seed=seed,
        config=PLAIN,
        num_workers=0,
        replacements=replacements,
        margin=margin.loaded,
    )
    side = task.resolution // PATCH_SIZE
    found = margin.ask(teacher, batch.images, (side, side))
    (projection,) = cache.projections
    patches = found.patches if projection is None else projection(found.patches)
    return Targets(found.image, patches)


def chunk_files(folder: Path) -> list[Path]:
    """All chunks below a folder."""
    return sorted(folder.rglob("chunk-*.bin"))


def teacher_that_dies(views: int) -> CellTeacher:
    """A teacher whose process is killed when it has been asked about so many views."""
    teacher = CellTeacher()

    def die() -> None:
        if teacher.asked > views:
            os.kill(os.getpid(), signal.SIGKILL)

    teacher.before_answer = die
    return teacher
