"""Opening a cache of teacher outputs: verify what is there, compute what is not.

Everything that is there is hashed, and a little of it compared with what the teacher says now,
which notices images, teachers and libraries that changed behind their names. What is missing or
damaged is computed, while nobody else may write there. Who only reads a complete cache locks
nothing.
"""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from veca.data.augment import ViewConfig
from veca.data.image_index import ImageIndex
from veca.distill.cache_company import Company
from veca.distill.cache_fill import LiveOutputs
from veca.distill.cache_outputs import TeacherOutputs
from veca.distill.cache_store import CacheError
from veca.distill.config import CacheConfig
from veca.distill.margin import Margin
from veca.distill.teacher_cache import TeacherCache
from veca.runtime.device import ResolvedPrecision
from veca.runtime.distributed import Ranks
from veca.teacher.teacher import Teacher

SPARE_ROOM = 1.05
"""Free space that is asked for, in what will be written."""


def open_teacher_cache(  # noqa: PLR0913 - a door
    folder: Path,
    *,
    index: ImageIndex,
    images: NDArray[np.int64],
    teachers: Sequence[Teacher],
    config: CacheConfig,
    views: ViewConfig,
    sizes: Sequence[int],
    patch_size: int,
    precision: ResolvedPrecision,
    margin: Margin = Margin(),  # noqa: B008 - it is frozen
    num_workers: int,
    teacher_batch: int,
    workers: Ranks,
    tell: Callable[[str], None],
    asked_to_stop: Callable[[], bool],
    shown: bool = True,
) -> TeacherCache:
    """Teacher outputs of some views of each image, computed now as far as they are not kept.

    Training must ask `batches` for the views with `config.seed`, crops as draws,
    `replacements=images` and the margin that is loaded: then a view is the one whose outputs are
    kept, also where an image cannot be read.

    Raises:
        CacheError: there is no room, a file is damaged on which others depend, what is kept is not
            what the teachers say now, or another run is filling it.
        StoppedError: `asked_to_stop` said so, in any process; finished chunks are kept.
    """
    _check_config(config)
    company = Company(workers=workers, tell=tell)
    found = []
    for teacher in teachers:
        live = LiveOutputs(
            teacher=teacher,
            index=index,
            images=np.sort(images),
            config=config,
            views=views,
            patch_size=patch_size,
            margin=margin,
            num_workers=num_workers,
            teacher_batch=teacher_batch,
            device=workers.device,
            precision=precision,
            asked_to_stop=asked_to_stop,
            shown=shown and workers.is_main,
        )
        found.append(TeacherOutputs.of(folder, live, sizes, company))
    return _completed(folder, found, company)


def _completed(folder: Path, found: Sequence[TeacherOutputs], company: Company) -> TeacherCache:
    """The outputs of all teachers, none of which is computed before there is room for all."""
    for outputs in found:
        outputs.survey()
    _check_room(folder, found, company)
    for outputs in found:
        outputs.complete()
    _tell_unreadable(found, company)
    live = found[0].live
    return TeacherCache(
        live.config.crops,
        live.images,
        [outputs.kept for outputs in found],
        [outputs.projection for outputs in found],
        live.precision,
    )


def _check_room(folder: Path, found: Sequence[TeacherOutputs], company: Company) -> None:
    """Say how much will be written, and refuse to begin what has no room."""
    chunks = [
        (outputs.resolutions[size].chunks, chunk)
        for outputs in found
        for size, missing in outputs.missing.items()
        for chunk in missing
    ]
    needed = sum(plan.num_bytes(chunk) for plan, chunk in chunks)
    views = sum(len(plan.numbers(chunk)) for plan, chunk in chunks)

    def check() -> None:
        there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        free = shutil.disk_usage(there).free
        company.say(
            f"Teacher outputs of {views:,} views are computed and kept in {folder}: {_size(needed)}"
            f" of {_size(free)} that are free."
        )
        if free < SPARE_ROOM * needed:
            raise CacheError(
                f"keeping the teacher outputs takes {_size(SPARE_ROOM * needed)}, but "
                f"{folder} has room for {_size(free)}; make room, choose another folder, or keep "
                "less, with fewer --cache.crops or --cache.channels or --cache.dtype int8."
            )

    if chunks:
        company.first_does(check)


def _tell_unreadable(found: Sequence[TeacherOutputs], company: Company) -> None:
    """Say how many images could not be read while outputs were computed."""
    flags = torch.zeros(len(found[0].live.index), dtype=torch.int32)
    for outputs in found:
        flags[sorted(outputs.live.unreadable)] = 1
    count = int((company.workers.all_reduce(flags) > 0).sum())
    if count:
        company.say(f"{count:,} images could not be read; others stand in for them.")


def _check_config(config: CacheConfig) -> None:
    """Refuse what cannot be kept."""
    if config.crops < 1:
        raise CacheError(f"{config.crops} views of each image cannot be kept; use 1 or more.")
    if config.channels is not None and config.channels < 1:
        raise CacheError(
            f"{config.channels} channels of each patch cannot be kept; use 1 or more, or none to "
            "keep all."
        )


def _size(num_bytes: int | float) -> str:
    """Bytes as people say them."""
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e8 else f"{num_bytes / 1e6:.1f} MB"
