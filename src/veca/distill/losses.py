"""Distillation losses: how far a student's features are from a teacher's.

The paper's loss, logged as `loss`:

    L = L_image + patches * L_patches
    L_image   = 1 - cos(image, target)
    L_patches = mean of 1 - cos(patch, target) + error * mean of (patch - target)^2

The image feature has no squared error, so its norm is free; patches learn the teacher's scale.

Auxiliary losses, each switched on by a weight of `LossConfig`; `objective` is the sum of all:

    classes    T^2 * KL(softmax(target scores / T) || softmax(predicted scores / T))
    relations  mean of (cos of two predicted patches - cos of the same two targets)^2
    anchors    KL(softmax(cos(target, anchors) / t) || softmax(cos(prediction, anchors) / t))

Class scores come from the teacher's own classifier, applied to predicted and target image features;
no human label is used. Relations compare the student's own patches, before any adaptor, which could
map patches that are all alike to good answers. Anchors are the teacher's features of some training
images: as the queue of past features of other methods, but fixed, so that a run has no such state.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from veca.teacher.teacher import Targets

SHORTEST = 1e-6
"""Smallest norm in a cosine, so that vectors of zeros have a gradient."""

AUXILIARY = ("classes", "relations", "anchors")
"""Weights of `LossConfig` that switch auxiliary losses on, in the order of the log."""


@dataclass(frozen=True, kw_only=True)
class LossConfig:
    """Weights of the parts of the loss."""

    patches: float = 1.0
    """Weight of the patch losses; lambda of the paper."""

    error: float = 1.0
    """Weight of the patches' squared error within the patch losses; beta of the paper."""

    classes: float = 0.0
    """Weight of the KL divergence of class scores, for teachers with a classifier."""

    temperature: float = 2.0
    """Temperature of the class scores."""

    relations: float = 0.0
    """Weight of the loss on cosines between the patches of an image."""

    anchors: float = 0.0
    """Weight of the KL divergence of similarities to other images."""

    anchor_temperature: float = 0.1
    """Temperature of these similarities."""

    def __post_init__(self) -> None:
        """Check ranges."""
        for name, value in vars(self).items():
            if "temperature" in name and not 0 < value < math.inf:
                raise ValueError(f"{name}={value} is invalid: it must be finite and > 0.")
            if not 0 <= value < math.inf:
                raise ValueError(f"{name}={value} is invalid: a loss weight is finite and >= 0.")


class Prediction(NamedTuple):
    """A student's prediction of one teacher's features."""

    image: Float[Tensor, "B DI"]
    patches: Float[Tensor, "B N DP"]
    student_patches: Float[Tensor, "B N D"]
    """The student's own patches, before the adaptor."""


class Losses(NamedTuple):
    """Parts of the paper's loss, means over the batch."""

    image: Float[Tensor, ""]
    patch_cosine: Float[Tensor, ""]
    patch_error: Float[Tensor, ""]

    def total(self, config: LossConfig) -> Float[Tensor, ""]:
        """The paper's loss."""
        return self.image + config.patches * (self.patch_cosine + config.error * self.patch_error)


PAPER_COLUMNS = len(Losses._fields)
"""Columns of the paper's loss among the parts."""


def auxiliary_losses(config: LossConfig) -> tuple[str, ...]:
    """The auxiliary losses that are switched on, in the order of the log."""
    return tuple(name for name in AUXILIARY if getattr(config, name) > 0)


def part_names(config: LossConfig) -> tuple[str, ...]:
    """Names of all parts in the log."""
    return tuple(f"loss_{name}" for name in (*Losses._fields, *auxiliary_losses(config)))


def distillation_losses(
    image: Float[Tensor, "B DI"], patches: Float[Tensor, "B N DP"], targets: Targets
) -> Losses:
    """Compare predicted features with a teacher's, in single precision."""
    image, patches = image.float(), patches.float()
    targets = Targets(targets.image.float(), targets.patches.float())
    return Losses(
        1 - F.cosine_similarity(image, targets.image, dim=-1, eps=SHORTEST).mean(),
        1 - F.cosine_similarity(patches, targets.patches, dim=-1, eps=SHORTEST).mean(),
        F.mse_loss(patches, targets.patches),
    )


def class_kl(
    pred: Float[Tensor, "B K"], target: Float[Tensor, "B K"], temperature: float
) -> Float[Tensor, ""]:
    """KL divergence of class scores, the mean over images."""
    pred = F.log_softmax(pred.float() / temperature, dim=-1)
    target = F.log_softmax(target.float() / temperature, dim=-1)
    return F.kl_div(pred, target, reduction="batchmean", log_target=True) * temperature**2


def anchor_kl(
    pred: Float[Tensor, "B DI"],
    target: Float[Tensor, "B DI"],
    anchors: Float[Tensor, "A DI"],
    temperature: float,
) -> Float[Tensor, ""]:
    """KL divergence of similarities to the anchors, the mean over images."""
    units = F.normalize(anchors.float(), dim=-1, eps=SHORTEST)
    with torch.autocast(pred.device.type, enabled=False):
        scores, target_scores = (
            F.normalize(image.float(), dim=-1, eps=SHORTEST) @ units.mT / temperature
            for image in (pred, target)
        )
    return class_kl(scores, target_scores, temperature=1.0)


def relation_loss(
    student_patches: Float[Tensor, "B N D"], target: Float[Tensor, "B N DP"]
) -> Float[Tensor, ""]:
    """Squared difference between the cosines of the student's patches and of the teacher's."""
    return (cosines(student_patches) - cosines(target)).square().mean()


def cosines(patches: Float[Tensor, "B N D"]) -> Float[Tensor, "B N N"]:
    """Cosines of all pairs of patches of each image, in single precision."""
    units = F.normalize(patches.float(), dim=-1, eps=SHORTEST)
    with torch.autocast(patches.device.type, enabled=False):
        return units @ units.transpose(1, 2)


def teacher_losses(
    parts: Float[Tensor, "teachers parts"], config: LossConfig
) -> Float[Tensor, " teachers"]:
    """The paper's loss against each teacher."""
    return torch.stack([Losses(*values[:PAPER_COLUMNS]).total(config) for values in parts])


def objective(
    parts: Float[Tensor, "teachers parts"], weights: Sequence[float], config: LossConfig
) -> Float[Tensor, ""]:
    """The value that training minimizes; `weights` are those of the teachers."""
    factors = torch.tensor(weights, dtype=parts.dtype, device=parts.device)
    total = (factors * teacher_losses(parts, config)).sum()
    for column, name in enumerate(auxiliary_losses(config), PAPER_COLUMNS):
        total = total + getattr(config, name) * (factors * parts[:, column]).sum()
    return total


def loss_row(
    parts: Float[Tensor, "teachers parts"], weights: Sequence[float], config: LossConfig
) -> dict[str, Any]:
    """The loss and its parts (weighted means over teachers), and per teacher if there are several.

    Non-finite values become None, since JSON has none.
    """
    factors = torch.tensor(weights, dtype=parts.dtype)
    totals, minimized = teacher_losses(parts, config), float(objective(parts, weights, config))
    row: dict[str, Any] = {"loss": float(factors @ totals)}
    row.update(zip(part_names(config), (factors @ parts).tolist(), strict=True))
    if auxiliary_losses(config):
        row["objective"] = minimized
    if len(totals) > 1:
        row["loss_by_teacher"] = totals.tolist()
    finite = math.isfinite(minimized) and bool(totals.isfinite().all())
    return row if finite else dict.fromkeys(row)
