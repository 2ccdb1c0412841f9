"""Statistics of targets: their scaling and the constant predictor.

Sums over a teacher's target vectors: all that centering, scaling and a constant answer need.

The best answer that does not look at the image: what a student must beat to have learned.

With U the mean unit target, m the mean target and E the mean squared channel of a target, the
expected loss of a constant c of D channels is

    image    1 - (c/|c|).U
    patches  1 - (c/|c|).U  +  error * ((|c|^2 - 2c.m)/D + E)

so moments are all one needs, for the minimum as well as for the loss on other images.

Center and scale of a teacher's features.

Features that are all positive, or that have one huge channel, let a student that sees nothing of
the image come far by repeating their mean. Around their center it cannot.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from veca.distill.losses import SHORTEST, LossConfig, Losses
from veca.teacher.teacher import Targets


class Moments:
    """Sums over vectors of one width, in double precision, so that the order hardly matters."""

    def __init__(self, width: int) -> None:
        """No vectors yet."""
        self.count = torch.zeros((), dtype=torch.float64)
        self.sum = torch.zeros(width, dtype=torch.float64)
        self.unit_sum = torch.zeros(width, dtype=torch.float64)
        self.squared_norms = torch.zeros((), dtype=torch.float64)

    def add(self, vectors: Float[Tensor, "*batch D"]) -> None:
        """Take in more vectors."""
        rows = vectors.detach().to("cpu", torch.float64).reshape(-1, vectors.shape[-1])
        self.count += len(rows)
        self.sum += rows.sum(0)
        self.unit_sum += F.normalize(rows, dim=1, eps=SHORTEST).sum(0)
        self.squared_norms += rows.square().sum()

    def merge(self, other: "Moments") -> None:
        """Take in all that another one has seen."""
        for name, tensor in other.tensors().items():
            self.tensors()[name].add_(tensor)

    def tensors(self) -> dict[str, Tensor]:
        """The sums themselves: adding those of several processes merges them."""
        return {
            "count": self.count,
            "sum": self.sum,
            "unit_sum": self.unit_sum,
            "squared_norms": self.squared_norms,
        }

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from sums that `tensors` gave."""
        for name, tensor in self.tensors().items():
            tensor.copy_(tensors[name])

    @property
    def mean(self) -> Float[Tensor, " D"]:
        """The mean vector."""
        return self.sum / self._checked_count()

    @property
    def unit_mean(self) -> Float[Tensor, " D"]:
        """The mean of the vectors, each scaled to length one."""
        return self.unit_sum / self._checked_count()

    @property
    def mean_square(self) -> Float[Tensor, ""]:
        """The mean squared channel."""
        return self.squared_norms / self._checked_count() / len(self.sum)

    def _checked_count(self) -> Tensor:
        """The count, unless nothing was counted."""
        if self.count == 0:
            raise ValueError("moments of no vectors are not defined; add some first.")
        return self.count


SHORTEST_ANSWER = 2 * SHORTEST
"""As good as zero for the squared error, yet with a direction, which the cosine sees."""

ANGLES = 2001
"""Directions that each round of the search compares; a round narrows it a thousandfold."""

ROUNDS = 4


class Constants(NamedTuple):
    """One answer for every image."""

    image: Float[Tensor, " DI"]
    patches: Float[Tensor, " DP"]


def best_constants(image: Moments, patches: Moments, config: LossConfig) -> Constants:
    """The constants with the lowest loss on targets of these moments."""
    return Constants(image.unit_mean, _best_patch(patches, config.error))


def losses_of_constants(constants: Constants, image: Moments, patches: Moments) -> Losses:
    """Parts of the loss of constants on targets of these moments."""
    answer = constants.patches
    error = (answer.square() - 2 * answer * patches.mean).mean() + patches.mean_square
    return Losses(
        1 - _direction(constants.image) @ image.unit_mean,
        1 - _direction(answer) @ patches.unit_mean,
        error,
    )


def loss_of_constants(
    constants: Constants, image: Moments, patches: Moments, config: LossConfig
) -> float:
    """Loss of constants on targets of these moments."""
    return float(losses_of_constants(constants, image, patches).total(config))


def _best_patch(moments: Moments, error: float) -> Float[Tensor, " D"]:
    """The constant with the lowest patch loss.

    In direction d the best length is max(0, d.m), which leaves d.U + error * max(0, d.m)^2 / D to
    be made large. Only the components of d along U and m count, so d lies in their plane.
    """
    mean, unit_mean = moments.mean, moments.unit_mean
    basis = _plane(unit_mean, mean)
    along_units, along_mean = basis @ unit_mean, basis @ mean
    middle, width = 0.0, math.pi
    for _ in range(ROUNDS):
        angles = torch.linspace(middle - width, middle + width, ANGLES, dtype=torch.float64)
        directions = torch.stack((angles.cos(), angles.sin()), dim=1)
        lengths = (directions @ along_mean).clamp(min=0)
        gain = directions @ along_units + error * lengths.square() / len(mean)
        best = int(gain.argmax())
        middle, width = float(angles[best]), 2 * width / (ANGLES - 1)
    return max(float(lengths[best]), SHORTEST_ANSWER) * (directions[best] @ basis)


def _plane(first: Float[Tensor, " D"], second: Float[Tensor, " D"]) -> Float[Tensor, "2 D"]:
    """Two directions at right angles that span both vectors; zeros where they span less."""
    one = _direction(first)
    rest = second - (second @ one) * one
    rest = rest - (rest @ one) * one  # once more: what the first left over is rounding
    return torch.stack((one, _direction(rest)))


def _direction(vector: Float[Tensor, " D"]) -> Float[Tensor, " D"]:
    """A vector scaled to length one, as the loss does it."""
    return vector / vector.norm().clamp(min=SHORTEST)


LEAST_VARIANCE = 1e-10
"""Share of the mean square below which features count as constant: what is left is rounding."""


class TargetScaling(nn.Module):
    """(target - center) / scale, with a center for each channel and one scale for all of them.

    One scale keeps the teacher's geometry: distances between features change by a factor.
    """

    image_center: Tensor
    image_scale: Tensor
    patch_center: Tensor
    patch_scale: Tensor
    anchors: Tensor | None
    """Scaled image targets of some training images, which the anchor loss compares images with;
    None where it is off."""

    def __init__(self, image_width: int, patch_width: int, anchors: int = 0) -> None:
        """Leave targets as they are."""
        super().__init__()
        self.register_buffer("image_center", torch.zeros(image_width))
        self.register_buffer("image_scale", torch.ones(()))
        self.register_buffer("patch_center", torch.zeros(patch_width))
        self.register_buffer("patch_scale", torch.ones(()))
        self.register_buffer("anchors", torch.zeros(anchors, image_width) if anchors else None)

    @classmethod
    def identity(cls, image_width: int, patch_width: int, anchors: int = 0) -> "TargetScaling":
        """Leave targets as they are, which the paper does."""
        return cls(image_width, patch_width, anchors)

    @classmethod
    def from_moments(cls, image: Moments, patches: Moments) -> "TargetScaling":
        """Give targets of these moments a mean of zero and channels of mean square one."""
        scaling = cls(len(image.sum), len(patches.sum))
        scaling.fit(image, patches)
        return scaling

    def fit(self, image: Moments, patches: Moments) -> None:
        """Take center and scale from other moments."""
        for kind, moments in (("image", image), ("patch", patches)):
            scale = _scale(kind, moments)
            cast(Tensor, getattr(self, f"{kind}_center")).copy_(moments.mean)
            cast(Tensor, getattr(self, f"{kind}_scale")).copy_(scale)

    def forward(self, targets: Targets) -> Targets:
        """Scale targets."""
        return Targets(
            (targets.image - self.image_center) / self.image_scale,
            (targets.patches - self.patch_center) / self.patch_scale,
        )

    def unscaled_image(self, image: Float[Tensor, "B DI"]) -> Float[Tensor, "B DI"]:
        """Image features as the teacher says them, from scaled ones."""
        return image * self.image_scale + self.image_center


def _scale(kind: str, moments: Moments) -> Tensor:
    """Root of the mean squared channel around the center."""
    variance = moments.mean_square - moments.mean.square().mean()
    if not variance > LEAST_VARIANCE * moments.mean_square:
        raise ValueError(
            f"the teacher's {kind} features are the same for all {int(moments.count)} samples, so "
            "there is nothing to learn from them; check the teacher and its images, or do not "
            "scale targets."
        )
    return variance.sqrt()
