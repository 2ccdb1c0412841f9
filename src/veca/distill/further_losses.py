"""What a teacher knows besides its features: which classes it sees, and which patches are alike.

Both are no part of the paper's loss. A weight of `LossConfig` switches each of them on; `loss` in
the log stays the paper's, so that runs can be compared, and `objective` is what training lowers.

    classes    T^2 * KL(softmax(scores wanted / T) || softmax(scores said / T))
    relations  mean of (cos of two patches said - cos of the same two wanted)^2

Scores of classes are those of the teacher's own classifier, given the image feature that is said
or wanted: no human label takes part. Relations are those of the student's own patches, before any
adaptor: an adaptor could turn patches that are all alike into good answers, a neighbour search
could not.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from veca.distill.losses import SHORTEST, LossConfig

FIELDS = ("classes", "relations")
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
