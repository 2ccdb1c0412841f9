"""Distillation losses: how far a student's features are from a teacher's.

The paper's loss, logged as `loss`:

    L = L_image + patches * L_patches
    L_image   = 1 - cos(image, target)
    L_patches = mean of 1 - cos(patch, target) + error * mean of (patch - target)^2

The image feature has no squared error, so its norm is free; patches learn the teacher's scale.
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


@dataclass(frozen=True, kw_only=True)
class LossConfig:
    """Weights of the parts of the loss."""

    patches: float = 1.0
    """Weight of the patch losses; lambda of the paper."""

    error: float = 1.0
    """Weight of the patches' squared error within the patch losses; beta of the paper."""

    def __post_init__(self) -> None:
        """Check ranges."""
        for name, value in vars(self).items():
            if not 0 <= value < math.inf:
                raise ValueError(f"{name}={value} is invalid: a loss weight is finite and >= 0.")


class Prediction(NamedTuple):
    """A student's prediction of one teacher's features."""

    image: Float[Tensor, "B DI"]
    patches: Float[Tensor, "B N DP"]


class Losses(NamedTuple):
    """Parts of the paper's loss, means over the batch."""

    image: Float[Tensor, ""]
    patch_cosine: Float[Tensor, ""]
    patch_error: Float[Tensor, ""]

    def total(self, config: LossConfig) -> Float[Tensor, ""]:
        """The paper's loss."""
        return self.image + config.patches * (self.patch_cosine + config.error * self.patch_error)


PART_NAMES = tuple(f"loss_{name}" for name in Losses._fields)
"""Names of the parts in the log."""


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


def compare(
    predictions: Sequence[Prediction], targets: Sequence[Targets]
) -> Float[Tensor, "teachers parts"]:
    """All parts of the loss (columns of `PART_NAMES`) against each teacher."""
    pairs = zip(predictions, targets, strict=True)
    return torch.stack(
        [torch.stack(distillation_losses(pred.image, pred.patches, aim)) for pred, aim in pairs]
    )


def teacher_losses(
    parts: Float[Tensor, "teachers parts"], config: LossConfig
) -> Float[Tensor, " teachers"]:
    """The paper's loss against each teacher."""
    return torch.stack([Losses(*values).total(config) for values in parts])


def objective(
    parts: Float[Tensor, "teachers parts"], weights: Sequence[float], config: LossConfig
) -> Float[Tensor, ""]:
    """The value that training minimizes; `weights` are those of the teachers."""
    factors = torch.tensor(weights, dtype=parts.dtype, device=parts.device)
    return (factors * teacher_losses(parts, config)).sum()


def loss_row(
    parts: Float[Tensor, "teachers parts"], weights: Sequence[float], config: LossConfig
) -> dict[str, Any]:
    """The loss and its parts (weighted means over teachers), and per teacher if there are several.

    Non-finite values become None, since JSON has none.
    """
    factors = torch.tensor(weights, dtype=parts.dtype)
    totals = teacher_losses(parts, config)
    row: dict[str, Any] = {"loss": float(factors @ totals)}
    row.update(zip(PART_NAMES, (factors @ parts).tolist(), strict=True))
    if len(totals) > 1:
        row["loss_by_teacher"] = totals.tolist()
    return row if totals.isfinite().all() else dict.fromkeys(row)
