"""A small teacher, pictures and a cache of its outputs, for the tests of the cache."""

import dataclasses
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
from tests.distill.runs import ALONE, small_config
from veca.data.augment import ViewConfig
from veca.data.listing import ImageIndex
from veca.data.loader import BatchSpec, batches
from veca.distill.config import CacheConfig, DistillConfig
from veca.distill.images import ImageSplit
from veca.distill.run_folder import RunContext, RunFolder
from veca.distill.targets import TeacherCache, find_margin
from veca.distill.teacher_cache import OutputStore, open_teacher_cache
from veca.runtime.distributed import Ranks
from veca.teacher.teacher import Targets, Teacher, cut

CPU = torch.device("cpu")
SIZE = 32
PATCH_SIZE = 8
NO_FOLDER = RunFolder(Path("unused"))
HALF = CacheConfig(crops=2, dtype="float16")
OPTIONS = dataclasses.replace(ALONE, teacher_batch=1)
"""With which 64 views of 32 pixels fit into a batch, of which a CPU takes 16."""


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
    return ImageIndex.load_or_list(folder)


def run_config(cache: CacheConfig = HALF, **changes: Any) -> DistillConfig:
    """A run at 32 pixels, with plain views."""
    wanted = {"resolution": SIZE, "views": ViewConfig(trivial_augment=False), **changes}
    return small_config(Path("unused"), cache=cache, **wanted)


def opened(
    folder: Path,
    index: ImageIndex,
    teachers: Sequence[Teacher] | None = None,
    cache: CacheConfig = HALF,
    *,
    ranks: Ranks | None = None,
    stop: Callable[[], bool] = lambda: False,
    count: int | None = None,
    **changes: Any,
) -> TeacherCache:
    """The cache of a small run on the first images, filled as far as it is not."""
    images = split_of(index, np.arange(len(index) if count is None else count))
    context = RunContext(folder=NO_FOLDER, ranks=ranks or Ranks(device=CPU), stop=stop)
    teachers = [CellTeacher()] if teachers is None else teachers
    return open_teacher_cache(
        folder, run_config(cache, **changes), OPTIONS, context, images=images, teachers=teachers
    )


def split_of(index: ImageIndex, training: NDArray[np.int64]) -> ImageSplit:
    """Images to train on, and none for validation."""
    return ImageSplit(
        index=index, training=training, validation_index=index, validation=training[:0]
    )


def store_of(
    index: ImageIndex,
    root: Path = NO_FOLDER.path,
    *,
    teacher: Teacher | None = None,
    resolution: int = SIZE,
    images: NDArray[np.int64] | None = None,
    **changes: Any,
) -> OutputStore:
    """The outputs of the small teacher at one resolution."""
    split = split_of(index, np.arange(len(index)) if images is None else images)
    given: dict[str, Any] = {
        "config": run_config(), "options": OPTIONS, "precision": "fp32",
        "context": RunContext(folder=NO_FOLDER, ranks=Ranks(device=CPU)), **changes,
    }  # fmt: skip
    return OutputStore(root, teacher or CellTeacher(), resolution, images=split, **given)


def task_of(images: Sequence[int], crops: Sequence[int], size: int = SIZE) -> BatchSpec:
    """The batch of a training step."""
    return BatchSpec(0, 0, np.array(images), np.array(crops), size)


def live_targets(task: BatchSpec, index: ImageIndex, config: DistillConfig) -> Targets:
    """What the small teacher answers to exactly the views that training would load."""
    teacher = CellTeacher()
    margin = find_margin(config, [teacher])
    (batch,) = batches(
        index,
        [task],
        seed=config.cache.seed,
        config=config.views,
        num_workers=0,
        replacements=np.arange(len(index)),
        margin=margin.loaded,
    )
    side = task.resolution // PATCH_SIZE
    return margin.ask(teacher, batch.images, (side, side))


def chunk_files(folder: Path) -> list[Path]:
    """All chunks below a folder."""
    return sorted(folder.rglob("chunk-*.safetensors"))
