"""Computing the teacher outputs that are not kept yet.

First some views give the projection and the steps of int8, which every later run then finds; then
come the chunks, of which each process takes its share. Whoever is stopped leaves whole chunks.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from veca.data.augment import ViewConfig
from veca.data.image_index import ImageIndex
from veca.data.loader import BatchSpec, batches
from veca.distill.cache_records import RecordLayout, Records, fit_scales, mean_cosine
from veca.distill.cache_store import CacheError, Kept, Measured
from veca.distill.config import CacheConfig
from veca.distill.margin import Margin
from veca.distill.projection import Projection
from veca.distill.targets import TEACHER_PIXELS
from veca.distill.validation import StoppedError
from veca.runtime.device import ResolvedPrecision, autocast
from veca.runtime.distributed import Ranks
from veca.runtime.logging import progress
from veca.teacher.teacher import Targets, Teacher

SAMPLE_VIEWS = 512
"""Views on which projection and steps are fitted."""

SAMPLE_PATCHES = 32
"""Patches of each of these views that are looked at."""

LARGEST_LOT = {"cpu": 16}
"""Views that are computed before the next look at whether to stop, by kind of device: a CPU is
slow, and with few of them as fast as with many."""

LARGEST_LOT_ELSEWHERE = 128


@dataclass(frozen=True, kw_only=True)
class LiveOutputs:
    """A teacher's outputs of numbered views, as it gives them now."""

    teacher: Teacher
    index: ImageIndex
    images: NDArray[np.int64]
    """Numbers of the images, rising; view v is of image v // crops."""
    config: CacheConfig
    views: ViewConfig
    patch_size: int
    num_workers: int
    teacher_batch: int
    device: torch.device
    precision: ResolvedPrecision
    """What the teacher computes with."""
    asked_to_stop: Callable[[], bool]
    margin: Margin = field(default_factory=Margin)
    shown: bool = False
    """Whether to show how far it has come."""
    unreadable: set[int] = field(default_factory=set)
    """Images that could not be read so far."""

    @property
    def count(self) -> int:
        """Views of all images."""
        return len(self.images) * self.config.crops

    def lots(self, numbers: range | NDArray[np.int64], resolution: int) -> list[NDArray[np.int64]]:
        """Views that go through the teacher together."""
        size = self.teacher_batch * TEACHER_PIXELS // (resolution + 2 * self.margin.pixels) ** 2
        largest = LARGEST_LOT.get(self.device.type, LARGEST_LOT_ELSEWHERE)
        size = min(largest, max(1, size))
        found = np.asarray(numbers, np.int64)
        return np.split(found, range(size, len(found), size))

    def grid(self, resolution: int) -> tuple[int, int]:
        """Rows and columns of patches."""
        return resolution // self.patch_size, resolution // self.patch_size

    def targets(
        self, lots: Iterable[NDArray[np.int64]], resolution: int, num_workers: int | None = None
    ) -> Generator[Targets, None, None]:
        """The outputs of each lot of views, in order."""
        found = batches(
            self.index,
            (self._task(lot, resolution) for lot in lots),
            seed=self.config.seed,
            config=self.views,
            num_workers=self.num_workers if num_workers is None else num_workers,
            replacements=self.images,
            margin=self.margin.loaded,
        )
        with closing(found):
            for batch in found:
                if self.asked_to_stop():
                    raise StoppedError
                self.unreadable.update(batch.unreadable)
                yield self._answer(batch.images, batch.task)

    def _task(self, numbers: NDArray[np.int64], resolution: int) -> BatchSpec:
        """The task of some views."""
        places, crops = np.divmod(numbers, self.config.crops)
        return BatchSpec(0, 0, self.images[places], crops, resolution)

    def _answer(self, images: Tensor, task: BatchSpec) -> Targets:
        """What the teacher says, if it is all numbers."""
        with torch.no_grad(), autocast(self.device, self.precision):
            shown, grid = images.to(self.device), self.grid(task.resolution)
            found = self.margin.ask(self.teacher, shown, grid)
        finite = found.image.isfinite().all(1) & found.patches.isfinite().flatten(1).all(1)
        if not finite.all():
            image = int(task.indices[int((~finite).nonzero()[0])])
            raise CacheError(
                f"the teacher {self.teacher.name} gives numbers that are not finite for "
                f"{self.index[image].name}; remove this image, or use another teacher."
            )
        return Targets(found.image.float(), found.patches.float())


class Sample(NamedTuple):
    """Outputs on which things are fitted."""

    image: Float[Tensor, "S DI"]
    patches: Float[Tensor, "S P DP"]


def draw_sample(live: LiveOutputs, resolution: int) -> Sample:
    """Outputs of some views, spread over all of them, with some of their patches."""
    count = min(SAMPLE_VIEWS, live.count)
    numbers = np.arange(count) * live.count // count
    draw = torch.Generator().manual_seed(0)
    images, patches = [], []
    with progress(count, "sampled views", shown=live.shown) as tracker:
        for found in live.targets(live.lots(numbers, resolution), resolution):
            chosen = torch.randperm(found.patches.shape[1], generator=draw)[:SAMPLE_PATCHES]
            images.append(found.image.float().cpu())
            patches.append(found.patches[:, chosen.to(found.patches.device)].float().cpu())
            tracker.advance(len(found.image))
    return Sample(torch.cat(images), torch.cat(patches))


def fit_records(
    sample: Sample, projection: Projection | None, layout: RecordLayout
) -> tuple[Records, Measured]:
    """How outputs are kept, and how much of them that keeps."""
    live = as_kept(Targets(*sample), projection)
    live = Targets(live.image, live.patches.cpu())
    scales = fit_scales(live.patches) if layout.dtype == "int8" else None
    some = Records(layout=replace(layout, patches=live.patches.shape[1]), scales=scales)
    kept = some.unpack(some.pack(live), torch.device("cpu"))
    measured = Measured(
        mean_cosine(kept.image, live.image), mean_cosine(kept.patches, live.patches)
    )
    return Records(layout=layout, scales=scales), measured


def fill(  # noqa: PLR0913 - what to write, where it comes from, and who watches
    kept: Kept,
    missing: Sequence[int],
    live: LiveOutputs,
    *,
    resolution: int,
    projection: Projection | None,
    workers: Ranks,
) -> None:
    """Compute and write chunks, each process its share; all leave together when one is stopped."""
    mine = missing[workers.rank :: workers.world_size]
    total = sum(len(kept.chunks.numbers(chunk)) for chunk in mine)

    def lots(chunk: int) -> list[NDArray[np.int64]]:
        return live.lots(kept.chunks.numbers(chunk), resolution)

    every_lot = (lot for chunk in mine for lot in lots(chunk))
    with (
        closing(live.targets(every_lot, resolution)) as found,
        progress(total, "views", shown=live.shown) as tracker,
    ):

        def records(count: int) -> Iterator[NDArray[Any]]:
            for targets in islice(found, count):
                yield kept.records.pack(as_kept(targets, projection))
                tracker.advance(len(targets.image))

        for turn in range(-(-len(missing) // workers.world_size)):
            stopped = live.asked_to_stop()
            if turn < len(mine) and not stopped:
                stopped = not _written(kept, mine[turn], records(len(lots(mine[turn]))))
            if workers.any(stopped):
                raise StoppedError


def _written(kept: Kept, chunk: int, records: Iterator[NDArray[Any]]) -> bool:
    """Write a chunk; False where it was stopped and nothing was written."""
    try:
        kept.write(chunk, records)
    except StoppedError:
        return False
    except OSError as error:
        raise CacheError(
            f"{kept.path(chunk)} cannot be written ({error.strerror}); finished chunks are kept: "
            "make room or repair the disk, and start again."
        ) from error
    return True


def as_kept(targets: Targets, projection: Projection | None) -> Targets:
    """Outputs as they are kept."""
    if projection is None:
        return targets
    device = projection.center.device
    return Targets(targets.image, projection(targets.patches.to(device)))
