"""Distillation losses.

How far a student's features are from a teacher's.

    L = L_image + patches * L_patches
    L_image   = 1 - cos(image, target)
    L_patches = mean of 1 - cos(patch, target) + error * mean of (patch - target)^2

The image feature has no squared error, so its length is free; patches take the teacher's scale.

What a teacher knows besides its features: classes, and which patches and images are alike.

None is a part of the paper's loss. A weight of `LossConfig` switches each of them on; `loss` in
the log stays the paper's, so that runs can be compared, and `objective` is what training lowers.

    classes    T^2 * KL(softmax(scores wanted / T) || softmax(scores said / T))
    relations  mean of (cos of two patches said - cos of the same two wanted)^2
    anchors    KL(softmax(cos(wanted, anchors) / t) || softmax(cos(said, anchors) / t))

Scores of classes are those of the teacher's own classifier, given the image feature that is said
or wanted: no human label takes part. Relations are those of the student's own patches, before any
adaptor: an adaptor could turn patches that are all alike into good answers, a neighbor search
could not. Anchors are the teacher's features of some training images: a classifier with as many
classes, as a queue of past features is, but fixed, so that a run has no state to lose.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from veca.teacher.teacher import Targets

SHORTEST = 1e-6
"""Vectors shorter than this count as this long in a cosine, so that one of zeros has a gradient."""


@dataclass(frozen=True, kw_only=True)
class LossConfig:
    """Weights of the parts of the loss."""

    patches: float = 1.0
    """Weight of the patches beside the image; lambda of the paper."""

    error: float = 1.0
    """Weight of the patches' squared error beside their cosine; beta of the paper."""

    classes: float = 0.0
    """Weight of the classes that a teacher with a classifier sees (`further_losses.py`)."""

    temperature: float = 2.0
    """Of the scores of classes: the higher, the more the unlikely ones count."""

    relations: float = 0.0
    """Weight of which patches are alike (`further_losses.py`)."""

    anchors: float = 0.0
    """Weight of which other images an image is like (`further_losses.py`)."""

    anchor_temperature: float = 0.1
    """Of the cosines to these images: the lower, the more the nearest ones count."""

    def __post_init__(self) -> None:
        """Refuse weights that reward being wrong."""
        for name in ("temperature", "anchor_temperature"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(
                    f"{name}={getattr(self, name)} is not usable; use a finite number above 0."
                )
        for name in ("patches", "error", "classes", "relations", "anchors"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(
                    f"{name}={getattr(self, name)} is not usable as a weight of the loss; "
                    "use a finite number of 0 or more."
                )


class Losses(NamedTuple):
    """Parts of the loss, means over the batch."""

    image: Float[Tensor, ""]
    """1 - cosine of the image feature."""

    patch_cosine: Float[Tensor, ""]
    """1 - cosine of a patch."""

    patch_error: Float[Tensor, ""]
    """Squared error of a channel of a patch."""

    def total(self, config: LossConfig) -> Float[Tensor, ""]:
        """The paper's loss; `comparison.objective` adds what else is switched on."""
        return self.image + config.patches * (self.patch_cosine + config.error * self.patch_error)


PARTS = tuple(f"loss_{part}" for part in Losses._fields)
"""Names of the parts in the log."""


def distillation_losses(
    image: Float[Tensor, "B DI"], patches: Float[Tensor, "B N DP"], targets: Targets
) -> Losses:
    """Compare predicted features with a teacher's, in single precision whatever comes in."""
    image, patches = image.float(), patches.float()
    wanted = Targets(targets.image.float(), targets.patches.float())
    return Losses(
        1 - F.cosine_similarity(image, wanted.image, dim=-1, eps=SHORTEST).mean(),
        1 - F.cosine_similarity(patches, wanted.patches, dim=-1, eps=SHORTEST).mean(),
        F.mse_loss(patches, wanted.patches),
    )


FIELDS = ("classes", "relations", "anchors")
"""Weights of `LossConfig` that switch parts on, in the order of the log."""

NAMES = tuple(f"loss_{field}" for field in FIELDS)
"""Of the parts in the log, where they are switched on."""


class FurtherPart(NamedTuple):
    """A part of the objective that is not one of the loss."""

    name: str
    weight: float


def further_parts(config: LossConfig) -> tuple[FurtherPart, ...]:
    """The parts that a configuration switches on, in the order of the log."""
    parts = (FurtherPart(field, getattr(config, field)) for field in FIELDS)
    return tuple(part for part in parts if part.weight > 0)


def class_divergence(
    said: Float[Tensor, "B K"], wanted: Float[Tensor, "B K"], temperature: float
) -> Float[Tensor, ""]:
    """How far the classes said are from those wanted; the mean over images."""
    logs = F.log_softmax(said.float() / temperature, dim=-1)
    aims = F.log_softmax(wanted.float() / temperature, dim=-1)
    found = F.kl_div(logs, aims, reduction="batchmean", log_target=True)
    return found * temperature**2


def anchor_divergence(
    said: Float[Tensor, "B DI"],
    wanted: Float[Tensor, "B DI"],
    anchors: Float[Tensor, "A DI"],
    temperature: float,
) -> Float[Tensor, ""]:
    """How far the likeness to anchors that is said is from what is wanted; the mean over images."""
    units = F.normalize(anchors.float(), dim=-1, eps=SHORTEST)
    with torch.autocast(said.device.type, enabled=False):
        scores, aims = (
            F.normalize(image.float(), dim=-1, eps=SHORTEST) @ units.mT / temperature
            for image in (said, wanted)
        )
    return class_divergence(scores, aims, temperature=1.0)


def relation_error(
    own: Float[Tensor, "B N D"], wanted: Float[Tensor, "B N DP"]
) -> Float[Tensor, ""]:
    """How far cosines between the student's patches are from those between the teacher's."""
    return (cosines(own) - cosines(wanted)).square().mean()


def cosines(patches: Float[Tensor, "B N D"]) -> Float[Tensor, "B N N"]:
    """Cosines of all pairs of patches of each image, in single precision."""
    units = F.normalize(patches.float(), dim=-1, eps=SHORTEST)
    with torch.autocast(patches.device.type, enabled=False):
        return units @ units.transpose(1, 2)
