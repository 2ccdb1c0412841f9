"""What a teacher knows besides its features: classes, and which patches and images are alike.

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

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from veca.distill.losses import SHORTEST, LossConfig

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
