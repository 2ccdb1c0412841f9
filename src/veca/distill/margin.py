"""The margin around the student's view that teachers see and that is cut off their features.

A network that pads with zeros says something of the border of an image that is not in the image,
and what it says of a patch depends on what lies around it. Students would learn both.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import UInt8
from torch import Tensor

from veca.data.images import mirrored
from veca.distill.config import DistillConfig, Surroundings
from veca.distill.run_folder import RunError
from veca.teacher.teacher import Targets, Teacher


@dataclass(frozen=True, kw_only=True)
class Margin:
    """What teachers see more than the student, on each side; by default nothing."""

    patches: int = 0
    """Of the student, and cells of a teacher."""

    pixels: int = 0
    """Of the student's view."""

    surroundings: Surroundings = "reflected"

    @property
    def loaded(self) -> int:
        """Pixels that views must bring from the picture."""
        return self.pixels if self.surroundings == "contextual" else 0

    @property
    def reflected(self) -> int:
        """Pixels that are made out of the view."""
        return self.pixels - self.loaded

    def ask(
        self, teacher: Teacher, images: UInt8[Tensor, "B 3 H W"], grid: tuple[int, int]
    ) -> Targets:
        """What a teacher says of views that bring the pixels that must be loaded."""
        if not self.patches:
            return teacher(images, grid)
        return teacher(with_mirror_images(images, self.reflected), grid, self.patches)

    def facts(self) -> dict[str, Any]:
        """What kept outputs depend on beside all else; nothing where there is no margin."""
        if not self.patches:
            return {}
        return {"margin": {"patches": self.patches, "surroundings": self.surroundings}}


def find_margin(config: DistillConfig, teachers: Sequence[Teacher]) -> Margin:
    """The margin of a run, if all its teachers can have it."""
    wanted = config.teacher_margin
    if not wanted:
        return Margin()
    for teacher in teachers:
        for stride in (teacher.stride, teacher.coarsest_stride):
            if wanted % stride:
                raise RunError(
                    f"teacher_margin={wanted} does not end with a cell of the teacher "
                    f"{teacher.name}, which has {stride} pixels; use 0 or a multiple of {stride}, "
                    f"such as {-(-wanted // stride) * stride}."
                )
    strides = sorted({teacher.stride for teacher in teachers})
    if len(strides) > 1:
        raise RunError(
            f"teacher_margin={wanted} is not the same part of the student's view for teachers of "
            f"the strides {', '.join(map(str, strides))}; use teachers of one stride, or 0."
        )
    patches = wanted // strides[0]
    return Margin(
        patches=patches,
        pixels=patches * config.student.patch_size,
        surroundings=config.teacher_surroundings,
    )


def with_mirror_images(
    images: UInt8[Tensor, "B 3 H W"], margin: int
) -> UInt8[Tensor, "B 3 height width"]:
    """Views with their own mirror images around them, so many pixels on each side."""
    if not margin:
        return images
    for axis in (2, 3):
        side = images.shape[axis]
        places = torch.from_numpy(mirrored(-margin, side + margin, side))
        images = images.index_select(axis, places.to(images.device))
    return images
