"""Teacher outputs from the disk instead of from the teacher (`--cache-teacher DIR`).

Of every training image a few views are kept, drawn once from a seed of their own. The student sees
exactly these views, since a view follows from (seed, crop, image), and the teacher, which costs
most of a step, computes nothing any more. `cache_opening.py` makes one.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from veca.data.loader import BatchSpec
from veca.distill.cache_store import CacheError, Kept
from veca.distill.projection import Projection
from veca.runtime.device import ResolvedPrecision
from veca.teacher.teacher import Targets


class TeacherCache:
    """Outputs of every teacher for the views of a training."""

    def __init__(
        self,
        crops: int,
        images: NDArray[np.int64],
        kept: Sequence[Mapping[int, Kept]],
        projections: Sequence[Projection | None],
        precision: ResolvedPrecision,
    ) -> None:
        """Read what is kept of each teacher at each resolution of these images, which rise."""
        self.crops = crops
        """Views of each image; a task's draws lie below it."""
        self.projections = list(projections)
        """What was done to each teacher's patches before they were kept."""
        self.precision: ResolvedPrecision = precision
        """What the teachers computed with."""
        self._images = images
        self._kept = kept

    def lookup(self, task: BatchSpec, device: torch.device) -> list[Targets]:
        """Each teacher's outputs for the views of a task, in single precision."""
        views = self._places(task) * self.crops + task.crop_ids
        return [self._at(kept, task.resolution).read(views, device) for kept in self._kept]

    def _places(self, task: BatchSpec) -> NDArray[np.int64]:
        """Where the images of a task stand among those that are kept."""
        places = np.minimum(np.searchsorted(self._images, task.indices), len(self._images) - 1)
        strange = task.indices[self._images[places] != task.indices]
        if len(strange):
            raise CacheError(
                f"image {strange[0]} is none of the {len(self._images):,} images whose teacher "
                "outputs are kept; ask for training images only."
            )
        if len(task.crop_ids) and not (
            task.crop_ids.min() >= 0 and task.crop_ids.max() < self.crops
        ):
            raise CacheError(
                f"views {task.crop_ids.min()} to {task.crop_ids.max()} were asked for, but "
                f"{self.crops} of each image are kept; draw from 0 to {self.crops - 1}."
            )
        return places

    @staticmethod
    def _at(kept: Mapping[int, Kept], resolution: int) -> Kept:
        """What is kept at a resolution."""
        if resolution not in kept:
            raise CacheError(
                f"no teacher outputs are kept at {resolution} px, only at "
                f"{', '.join(map(str, sorted(kept)))}; open the cache with all sizes of the run."
            )
        return kept[resolution]
