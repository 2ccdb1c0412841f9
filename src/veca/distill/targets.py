"""What the student has to predict: the teachers' features, scaled.

Statistics come first: the features of some training images give each teacher its center and scale,
and the constant predictor, which a student must beat to have learned anything about images.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, cast

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from veca.distill.losses import LossConfig
from veca.distill.margin import Margin
from veca.distill.target_scaling import (
    Constants,
    Moments,
    TargetScaling,
    best_constants,
    loss_of_constants,
)
from veca.teacher.teacher import Targets, Teacher

TEACHER_PIXELS = 256 * 256
"""Pixels of an image to which `teacher_batch` refers."""

Grid = tuple[int, int]


class TargetMoments(NamedTuple):
    """Statistics of one teacher's targets."""

    image: Moments
    patches: Moments

    def add(self, targets: Targets) -> None:
        """Count more targets."""
        self.image.add(targets.image)
        self.patches.add(targets.patches)


class TargetSource(nn.Module):
    """Teachers, each with a scaling of its outputs."""

    def __init__(
        self,
        teachers: Sequence[Teacher],
        teacher_batch: int,
        margin: Margin = Margin(),  # noqa: B008 - it is frozen
        anchors: int = 0,
    ) -> None:
        """Set up targets; `anchors` image features are kept for the anchor loss."""
        super().__init__()
        self.teachers = nn.ModuleList(teachers)
        self.widths = [(teacher.image_width, teacher.patch_width) for teacher in teachers]
        """Channels of each teacher's image and patch targets."""
        self.scalings = nn.ModuleList(
            TargetScaling.identity(*widths, anchors) for widths in self.widths
        )
        self.margin = margin
        """What teachers see around the student's view."""
        self._teacher_batch = teacher_batch

    @torch.no_grad()
    def raw(self, images: UInt8[Tensor, "B 3 height width"], grid: Grid) -> list[Targets]:
        """Features of every teacher, not scaled; in parts that fit into memory.

        Images bring the pixels around the student's view that the margin says are loaded.
        """
        side = max(images.shape[2], images.shape[3]) + 2 * self.margin.reflected
        part = max(1, self._teacher_batch * TEACHER_PIXELS // (side * side))
        found = []
        for teacher in self.teachers:
            teller = cast(Teacher, teacher)
            parts = [self.margin.ask(teller, some, grid) for some in images.split(part)]
            image = torch.cat([targets.image for targets in parts]).float()
            patches = torch.cat([targets.patches for targets in parts]).float()
            found.append(Targets(image, patches))
        return found

    def scaled(self, targets: Sequence[Targets]) -> list[Targets]:
        """Targets as the student has to predict them."""
        return [scale(found) for scale, found in zip(self.scalings, targets, strict=True)]

    def forward(self, images: UInt8[Tensor, "B 3 height width"], grid: Grid) -> list[Targets]:
        """What the student has to predict of 8-bit images."""
        return self.scaled(self.raw(images, grid))

    def classes(self, teacher: int, image: Float[Tensor, "B DI"]) -> Float[Tensor, "B K"] | None:
        """What classes one teacher tells from scaled image features; None where it knows none."""
        teller = cast(Teacher, self.teachers[teacher])
        if not teller.num_classes:
            return None
        with torch.autocast(image.device.type, enabled=False):
            return teller.classes(self.scaling(teacher).unscaled_image(image.float()))

    def moments(self) -> list[TargetMoments]:
        """Empty statistics, one for each teacher."""
        return [TargetMoments(Moments(image), Moments(patches)) for image, patches in self.widths]

    def scaling(self, teacher: int) -> TargetScaling:
        """The scaling of one teacher's targets."""
        return cast(TargetScaling, self.scalings[teacher])


def fit_targets(
    source: TargetSource, raw: Iterable[Sequence[Targets]], scale: bool, config: LossConfig
) -> list[Constants]:
    """Set the scalings by the raw targets of training images; the best constant answers."""
    kept = list(raw)
    if scale:
        moments = source.moments()
        for targets in kept:
            for found, more in zip(moments, targets, strict=True):
                found.add(more)
        for teacher, found in enumerate(moments):
            source.scaling(teacher).fit(found.image, found.patches)
    moments = source.moments()
    scaled = [source.scaled(targets) for targets in kept]
    for targets in scaled:
        for found, more in zip(moments, targets, strict=True):
            found.add(more)
    _keep_anchors(source, scaled)
    return [best_constants(found.image, found.patches, config) for found in moments]


def _keep_anchors(source: TargetSource, scaled: Sequence[Sequence[Targets]]) -> None:
    """Keep image targets to compare images with, where the anchor loss is on."""
    for teacher in range(len(source.widths)):
        anchors = source.scaling(teacher).anchors
        if anchors is not None:
            anchors.copy_(torch.cat([targets[teacher].image for targets in scaled]))


def constant_predictor_loss(
    constants: Sequence[Constants],
    moments: Sequence[TargetMoments],
    weights: Sequence[float],
    config: LossConfig,
) -> float:
    """Loss of the constant answers on other images, given the moments of their targets."""
    return sum(
        weight * loss_of_constants(answer, found.image, found.patches, config)
        for answer, found, weight in zip(constants, moments, weights, strict=True)
    )
