"""How well classes of pixels are told: counts over a whole set, and what is made of them.

Intersections and unions are summed over all pictures and divided once, as everyone reports it; the
mean of each picture's own ratio would be another number. A class that is neither there nor told has
no ratio and is left out of means.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float64, Int64, Shaped
from torch import Tensor

from veca.data.labelled import IGNORED


def confusion(
    labels: Shaped[Tensor, "*pixels"], found: Shaped[Tensor, "*pixels"], num_classes: int
) -> Int64[Tensor, "{num_classes} {num_classes}"]:
    """How many pixels of each class (row) were told to be of each class (column).

    Pixels whose class is `IGNORED` do not count, whatever was told of them.
    """
    counts = labels.flatten() != IGNORED
    labels, found = labels.flatten()[counts].long(), found.flatten()[counts].long()
    if len(labels) and int(torch.maximum(labels.max(), found.max())) >= num_classes:
        raise ValueError(
            f"pixels have the class {int(labels.max())} and were told to have "
            f"{int(found.max())}, but there are {num_classes} classes, from 0 on; check the map of "
            "the set's classes."
        )
    pairs = torch.bincount(labels * num_classes + found, minlength=num_classes**2)
    return pairs.reshape(num_classes, num_classes)


def intersections(counts: Int64[Tensor, "*sets K K"]) -> Int64[Tensor, "*sets K"]:
    """Pixels of each class that were told rightly."""
    return counts.diagonal(dim1=-2, dim2=-1)


def unions(counts: Int64[Tensor, "*sets K K"]) -> Int64[Tensor, "*sets K"]:
    """Pixels that are of a class, or were told to be."""
    return counts.sum(-1) + counts.sum(-2) - intersections(counts)


def mean_iou(
    intersection: Int64[Tensor, "*sets K"],
    union: Int64[Tensor, "*sets K"],
    scored: Sequence[int] | None = None,
) -> Float64[Tensor, "*sets"]:
    """The mean of the classes' intersection over union, in percent.

    Args:
        intersection: pixels of each class that were told rightly.
        union: pixels that are of a class or were told to be.
        scored: classes that the mean goes over; the others stay in the unions of these.
    """
    return 100 * _mean(_ratio(intersection, union), scored)


def segmentation_metrics(
    counts: Int64[Tensor, "K K"], classes: Sequence[str], scored: Sequence[int] | None = None
) -> dict[str, float]:
    """Every metric by its full name, in percent; those without a value are left out.

    miou        mean over classes of intersection / union
    macc        mean over classes of the share of its pixels that is told rightly
    aacc        share of all pixels that is told rightly, of whatever class
    iou/NAME    intersection / union of one class
    """
    inside, around, area = intersections(counts), unions(counts), counts.sum(1)
    found = {
        "miou": float(mean_iou(inside, around, scored)),
        "macc": 100 * float(_mean(_ratio(inside, area), scored)),
        "aacc": 100 * float(_ratio(inside.sum(), area.sum())),
    }
    ratios = (100 * _ratio(inside, around)).tolist()
    wanted = range(len(classes)) if scored is None else scored
    found |= {f"iou/{classes[number]}": ratios[number] for number in wanted}
    return {name: value for name, value in found.items() if not math.isnan(value)}


def _ratio(part: Int64[Tensor, "*any"], whole: Int64[Tensor, "*any"]) -> Float64[Tensor, "*any"]:
    """Part over whole; not a number where there is no whole."""
    return part.double() / whole.double()


def _mean(
    ratios: Float64[Tensor, "*sets K"], scored: Sequence[int] | None
) -> Float64[Tensor, "*sets"]:
    """The mean over classes that have a ratio."""
    return (ratios if scored is None else ratios[..., list(scored)]).nanmean(-1)
