"""Every part of the objective at once: the paper's losses, then what else is switched on.

One row for each teacher, one column for each part; the log has the same names in the same order.
"""

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from veca.distill.config import DistillConfig
from veca.distill.losses import (
    PARTS,
    LossConfig,
    Losses,
    anchor_divergence,
    class_divergence,
    distillation_losses,
    further_parts,
    relation_error,
)
from veca.distill.student import Prediction
from veca.distill.targets import TargetSource
from veca.teacher.teacher import Targets

PAPER_COLUMNS = len(PARTS)
"""Columns of the paper's loss."""


def part_names(config: LossConfig) -> tuple[str, ...]:
    """Names of the columns in the log."""
    return (*PARTS, *(f"loss_{part.name}" for part in further_parts(config)))


def compare(
    predictions: Sequence[Prediction],
    targets: Sequence[Targets],
    source: TargetSource,
    config: LossConfig,
) -> Float[Tensor, "teachers parts"]:
    """What is said against what each teacher wants, as means over the images."""
    return torch.stack([
        torch.stack([
            *distillation_losses(said.image, said.patches, wanted),
            *_further(said, wanted, source, number, config),
        ])
        for number, (said, wanted) in enumerate(zip(predictions, targets, strict=True))
    ])  # fmt: skip


def _further(
    said: Prediction,
    wanted: Targets,
    source: TargetSource,
    teacher: int,
    config: LossConfig,
) -> Iterator[Float[Tensor, ""]]:
    """Parts that the paper's loss does not have, in the order of `further_parts`."""
    if config.classes > 0:
        scores, aims = (source.classes(teacher, image) for image in (said.image, wanted.image))
        if scores is None or aims is None:  # other teachers tell classes
            yield said.image.new_zeros((), dtype=torch.float32)
        else:
            yield class_divergence(scores, aims, config.temperature)
    if config.relations > 0:
        yield relation_error(said.own, wanted.patches)
    anchors = source.scaling(teacher).anchors
    if config.anchors > 0 and anchors is not None:
        yield anchor_divergence(said.image, wanted.image, anchors, config.anchor_temperature)


def teacher_losses(
    parts: Float[Tensor, "teachers parts"], config: LossConfig
) -> Float[Tensor, " teachers"]:
    """The paper's loss against each teacher."""
    return torch.stack([Losses(*values[:PAPER_COLUMNS]).total(config) for values in parts])


def objective(parts: Float[Tensor, "teachers parts"], config: DistillConfig) -> Float[Tensor, ""]:
    """What training lowers: the teachers' losses and further parts, weighted."""
    weights = torch.tensor(config.weights, dtype=parts.dtype, device=parts.device)
    found = (weights * teacher_losses(parts, config.loss)).sum()
    for column, part in enumerate(further_parts(config.loss), PAPER_COLUMNS):
        found = found + part.weight * (weights * parts[:, column]).sum()
    return found
