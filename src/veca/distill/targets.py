"""Training targets: teacher features, their center and scale, and the constant predictor.

Statistics come first: features of some training images give each teacher its center and scale, and
the constant predictor, the best answer that ignores the image, which a student must beat to have
learned anything about images.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from jaxtyping import Float, UInt8
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from veca.data.images import mirrored
from veca.data.loader import BatchSpec
from veca.distill.config import DistillConfig, Surroundings
from veca.distill.losses import SHORTEST, LossConfig
from veca.runtime.device import ResolvedPrecision
from veca.teacher.teacher import Grid, Images, Targets, Teacher

TEACHER_PIXELS = 256 * 256
"""Pixels of an image to which `teacher_batch` refers."""

MIN_VARIANCE = 1e-10
"""Share of the mean square below which features count as constant: the rest is rounding."""

MIN_CONSTANT = 2 * SHORTEST
"""Smallest norm of a constant: zero for the squared error, yet with a direction for the cosine."""

ANGLES = 2001
"""Directions compared in each round of the search; a round narrows it a thousandfold."""

ROUNDS = 4


@dataclass(frozen=True, kw_only=True)
class Margin:
    """Border around the student's view that only teachers see and that is cut off their features.

    Networks that pad with zeros respond to an image border that is not in the photo, and a student
    would learn that response.
    """

    patches: int = 0
    """Width in patches of the student, which are cells of a teacher."""

    pixels: int = 0
    """Width in pixels of the student's view."""

    surroundings: Surroundings = "reflected"

    @property
    def loaded(self) -> int:
        """Pixels that views must contain around the student's part."""
        return self.pixels if self.surroundings == "contextual" else 0

    @property
    def reflected(self) -> int:
        """Pixels that are reflected from the view."""
        return self.pixels - self.loaded

    def ask(self, teacher: Teacher, images: Images, grid: Grid) -> Targets:
        """A teacher's features of views that contain the pixels to be loaded."""
        if not self.patches:
            return teacher(images, grid)
        return teacher(reflect(images, self.reflected), grid, self.patches)

    def facts(self) -> dict[str, Any]:
        """Facts for the key of cached outputs; empty without a margin."""
        if not self.patches:
            return {}
        return {"margin": {"patches": self.patches, "surroundings": self.surroundings}}


def find_margin(config: DistillConfig, teachers: Sequence[Teacher]) -> Margin:
    """The margin of a run, if it fits all of its teachers."""
    width = config.teacher_margin
    if not width:
        return Margin()
    for teacher in teachers:
        for stride in (teacher.stride, teacher.coarsest_stride):
            if width % stride:
                raise ValueError(
                    f"teacher_margin={width} is not a multiple of the stride {stride} of the "
                    f"teacher {teacher.name}; use 0 or {-(-width // stride) * stride}."
                )
    strides = sorted({teacher.stride for teacher in teachers})
    if len(strides) > 1:
        raise ValueError(
            f"teacher_margin={width} needs teachers of one stride, got strides "
            f"{', '.join(map(str, strides))}; choose such teachers, or use 0."
        )
    patches = width // strides[0]
    return Margin(
        patches=patches,
        pixels=patches * config.student.patch_size,
        surroundings=config.teacher_surroundings,
    )


def reflect(images: Images, margin: int) -> UInt8[Tensor, "B 3 height width"]:
    """Pad images by reflection, `margin` pixels on each side."""
    if not margin:
        return images
    for axis in (2, 3):
        side = images.shape[axis]
        places = torch.from_numpy(mirrored(-margin, side + margin, side))
        images = images.index_select(axis, places.to(images.device))
    return images


class Moments(NamedTuple):
    """Means over vectors of one width, in double precision."""

    total: int
    mean: Float[Tensor, " D"]
    unit_mean: Float[Tensor, " D"]
    """The mean of the normalized vectors."""
    mean_square: Float[Tensor, ""]
    """The mean squared channel."""


def moments(parts: Iterable[Tensor]) -> Moments:
    """Moments of the vectors (last axis) of all parts, which differ in their other axes."""
    count = 0
    total = unit_total = squares = torch.zeros((), dtype=torch.float64)
    for part in parts:
        rows = part.detach().to("cpu", torch.float64).flatten(0, -2)
        count += len(rows)
        total = total + rows.sum(0)
        unit_total = unit_total + F.normalize(rows, dim=1, eps=SHORTEST).sum(0)
        squares = squares + rows.square().sum()
    return Moments(count, total / count, unit_total / count, squares / count / len(total))


def best_patch(found: Moments, error: float) -> Float[Tensor, " D"]:
    """The constant with the lowest patch loss.

    With U the mean unit target, m the mean target and E the mean squared channel, the expected loss
    of a constant c of D channels is 1 - (c/|c|).U + error * ((|c|^2 - 2c.m)/D + E). In direction d
    the best length is max(0, d.m), which leaves d.U + error * max(0, d.m)^2 / D to be maximized.
    Only the components of d along U and m count, so d lies in their plane.
    """
    basis = _plane(found.unit_mean, found.mean)
    along_units, along_mean = basis @ found.unit_mean, basis @ found.mean
    middle, width = 0.0, math.pi
    for _ in range(ROUNDS):
        angles = torch.linspace(middle - width, middle + width, ANGLES, dtype=torch.float64)
        directions = torch.stack((angles.cos(), angles.sin()), dim=1)
        lengths = (directions @ along_mean).clamp(min=0)
        gain = directions @ along_units + error * lengths.square() / len(found.mean)
        best = int(gain.argmax())
        middle, width = float(angles[best]), 2 * width / (ANGLES - 1)
    return max(float(lengths[best]), MIN_CONSTANT) * (directions[best] @ basis)


def _plane(first: Float[Tensor, " D"], second: Float[Tensor, " D"]) -> Float[Tensor, "2 D"]:
    """Two orthogonal directions that span both vectors; zeros where these span less."""
    one = F.normalize(first, dim=0, eps=SHORTEST)
    rest = second - (second @ one) * one
    rest = rest - (rest @ one) * one  # twice, since the first pass leaves rounding errors
    return torch.stack((one, F.normalize(rest, dim=0, eps=SHORTEST)))


class TargetScaling(nn.Module):
    """(target - center) / scale, with a center for each channel and one scale for all of them.

    One scale preserves the teacher's geometry: distances between features change by a factor.
    Without centering, features that are all positive, or have one huge channel, let a student that
    ignores the image come far by repeating their mean.
    """

    image_center: Tensor
    image_scale: Tensor
    patch_center: Tensor
    patch_scale: Tensor

    def __init__(self, image_width: int, patch_width: int) -> None:
        """Start as the identity, which the paper uses."""
        super().__init__()
        self.register_buffer("image_center", torch.zeros(image_width))
        self.register_buffer("image_scale", torch.ones(()))
        self.register_buffer("patch_center", torch.zeros(patch_width))
        self.register_buffer("patch_scale", torch.ones(()))

    def fit(self, image: Moments, patches: Moments) -> None:
        """Give targets of these moments a mean of zero and channels of mean square one."""
        for kind, found in (("image", image), ("patch", patches)):
            variance = found.mean_square - found.mean.square().mean()
            if not variance > MIN_VARIANCE * found.mean_square:
                raise ValueError(
                    f"the teacher's {kind} features are the same for all {found.total} samples, so "
                    "there is nothing to learn; check the teacher and its images, or use "
                    "--no-scale-targets."
                )
            cast(Tensor, getattr(self, f"{kind}_center")).copy_(found.mean)
            cast(Tensor, getattr(self, f"{kind}_scale")).copy_(variance.sqrt())

    def forward(self, targets: Targets) -> Targets:
        """Scale targets."""
        return Targets(
            (targets.image - self.image_center) / self.image_scale,
            (targets.patches - self.patch_center) / self.patch_scale,
        )


class TargetSource(nn.Module):
    """Teachers, each with the scaling of its targets, and the losses against them."""

    def __init__(
        self,
        teachers: Sequence[Teacher],
        teacher_batch: int,
        margin: Margin = Margin(),  # noqa: B008 - it is frozen
    ) -> None:
        """Set up targets with identity scalings."""
        super().__init__()
        self.teachers = nn.ModuleList(teachers)
        self.widths = [(teacher.image_width, teacher.patch_width) for teacher in teachers]
        """Channels of each teacher's image and patch targets."""
        self.scalings = nn.ModuleList(TargetScaling(*widths) for widths in self.widths)
        self.margin = margin
        """Border that teachers see around the student's view."""
        self._teacher_batch = teacher_batch

    @torch.no_grad()
    def raw(self, images: UInt8[Tensor, "B 3 height width"], grid: Grid) -> list[Targets]:
        """Unscaled features of every teacher, in batches that fit into memory.

        Images contain the pixels around the student's view that the margin loads.
        """
        side = max(images.shape[2], images.shape[3]) + 2 * self.margin.reflected
        part = max(1, self._teacher_batch * TEACHER_PIXELS // (side * side))
        found = []
        for teacher in self.teachers:
            parts = [
                self.margin.ask(cast(Teacher, teacher), some, grid) for some in images.split(part)
            ]
            found.append(Targets(*(torch.cat(part).float() for part in zip(*parts, strict=True))))
        return found

    def scaled(self, targets: Sequence[Targets]) -> list[Targets]:
        """Scale each teacher's features."""
        return [scale(found) for scale, found in zip(self.scalings, targets, strict=True)]

    def forward(self, images: UInt8[Tensor, "B 3 height width"], grid: Grid) -> list[Targets]:
        """The student's targets for 8-bit images."""
        return self.scaled(self.raw(images, grid))

    def scaling(self, teacher: int) -> TargetScaling:
        """The scaling of one teacher's targets."""
        return cast(TargetScaling, self.scalings[teacher])

    def fit(
        self, raw: Sequence[Sequence[Targets]], scale: bool, config: LossConfig
    ) -> list[Targets]:
        """Fit scalings to batches of raw targets of training images.

        Returns the constant predictor of each teacher, as targets of one image with one patch.
        """
        constants = []
        for teacher, found in enumerate(zip(*raw, strict=True)):
            scaling = self.scaling(teacher)
            if scale:
                scaling.fit(moments(t.image for t in found), moments(t.patches for t in found))
            device = scaling.image_center.device
            scaled = [scaling(Targets(*(part.to(device) for part in t))) for t in found]
            image = moments(t.image for t in scaled).unit_mean
            patch = best_patch(moments(t.patches for t in scaled), config.error)
            constants.append(Targets(image[None].float(), patch[None, None].float()))
        return constants


@dataclass(frozen=True)
class TeacherCache:
    """Cached outputs of every teacher for the views of a training run (`teacher_cache.py`)."""

    images: NDArray[np.int64]
    """Sorted numbers of the images; view v is crop `v % crops` of image `v // crops`."""
    crops: int
    lookups: Sequence[Mapping[int, Callable[[NDArray[np.int64], torch.device], Targets]]]
    """Reads the outputs of views, for each teacher and resolution."""
    precision: ResolvedPrecision
    """Precision of the teachers."""

    def lookup(self, task: BatchSpec, device: torch.device) -> list[Targets]:
        """Each teacher's outputs for the views of a batch, in single precision."""
        views = np.searchsorted(self.images, task.indices) * self.crops + task.crop_ids
        return [lookup[task.resolution](views, device) for lookup in self.lookups]
