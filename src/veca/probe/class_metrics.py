"""What scores of classes are worth: accuracies and average precision, in percent.

Scores are those of a head or the votes of neighbours. Equal scores place the class of the lower
number first, so that a result depends on nothing but its numbers; a row that holds a score that is
not a number is wrong. Labels are class numbers, or booleans where a picture may have several
classes: then it is told right if the class in the first place is one of them, and pictures without
any class are left out, as ImageNet-ReaL has it.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from veca.probe.labels import Labels, check_labels, labelled_rows

Interpolation = Literal["11-point", "all-point", "step"]
"""How precision is read between the places of two right pictures.

'11-point': PASCAL VOC to 2009: the mean over recalls 0, 0.1, ..., 1 of the best precision at that
recall or a higher one. 'all-point': VOC from 2010 on: the same at every recall, an area. 'step':
the mean precision at the places of the right pictures, as scikit-learn has it.
"""

ROWS = 4096
"""Pictures that are compared at once."""


class MetricError(ValueError):
    """A metric that cannot be computed: what was got, what is allowed, what to do."""


def places(scores: Float[Tensor, "N K"], labels: Labels) -> Int64[Tensor, " N"]:
    """In which place the right class stands, from 0, or the best placed of several; K if in none.

    `places(...) == 0` says for each picture whether it is told right; `labels.labelled_rows` says
    which pictures count.
    """
    check_labels(labels, scores.shape[1])
    blocks = [
        _places(scores[start : start + ROWS], labels[start : start + ROWS])
        for start in range(0, len(scores), ROWS)
    ]
    return torch.cat(blocks) if blocks else labels.new_zeros(0, dtype=torch.int64)


def correct(scores: Float[Tensor, "N K"], labels: Labels) -> Bool[Tensor, " n"]:
    """Whether each picture is told right, of those that have a class: what a bootstrap takes."""
    return (places(scores, labels) == 0)[labelled_rows(labels)]


def top_k(scores: Float[Tensor, "N K"], labels: Labels, k: int) -> float:
    """Percent of the pictures with a right class in the first k places."""
    rows = labelled_rows(labels)
    if not len(rows):
        raise MetricError("no picture has a class, so no share of them is right; give some.")
    return _percent((places(scores, labels)[rows] < k).double().mean())


def top1(scores: Float[Tensor, "N K"], labels: Labels) -> float:
    """Percent of the pictures with a right class in the first place."""
    return top_k(scores, labels, 1)


def top5(scores: Float[Tensor, "N K"], labels: Labels) -> float:
    """Percent of the pictures with a right class in the first five places."""
    return top_k(scores, labels, 5)


def mean_per_class(scores: Float[Tensor, "N K"], labels: Labels) -> float:
    """The mean, over the classes that the labels have, of the percent of their pictures right.

    Of a picture with several classes each one counts as right if the told class is one of them.
    """
    right = (places(scores, labels) == 0).double()
    if labels.dtype == torch.bool:
        counts, sums = labels.double().sum(dim=0), right @ labels.double()
    else:
        counts = labels.long().bincount(minlength=scores.shape[1]).double()
        sums = torch.zeros_like(counts).index_add_(0, labels.long(), right)
    present = counts > 0
    if not bool(present.any()):
        raise MetricError("no picture has a class, so no class has a share right; give some.")
    return _percent((sums[present] / counts[present]).mean())


def average_precision(
    scores: Float[Tensor, " N"], present: Bool[Tensor, " N"], interpolation: Interpolation
) -> float:
    """Average precision of one class as a share of 1; equal scores stand in one place together."""
    if not bool(present.any()):
        raise MetricError("no picture has the class, so there is no recall; leave the class out.")
    order = scores.double().nan_to_num(nan=-torch.inf).sort(descending=True)
    right = present[order.indices].double().cumsum(0)
    # The last picture of each group of equals: a threshold lets in all of them or none.
    last = torch.ones(len(scores), dtype=torch.bool, device=scores.device)
    last[:-1] = order.values[1:] != order.values[:-1]
    taken = last.nonzero().flatten()
    right = right[taken]
    precision, recall = right / (taken + 1), right / right[-1]
    if interpolation != "step":
        precision = precision.flip(0).cummax(0).values.flip(0)
    if interpolation == "11-point":
        # Counted in pictures, since 0.3 and the like are no exact numbers.
        tenths = torch.arange(11, dtype=torch.float64, device=right.device) * right[-1]
        return float(precision[torch.searchsorted(right * 10, tenths)].mean())
    return float((recall.diff(prepend=recall.new_zeros(1)) * precision).sum())


def mean_average_precision(
    scores: Float[Tensor, "N K"],
    labels: Labels,
    interpolation: Interpolation = "11-point",
    counted: Bool[Tensor, "N K"] | None = None,
) -> float:
    """The mean of the average precisions of the classes that some picture has, in percent.

    All pictures count, also those without any class. Where `counted` is false a picture is passed
    over for that class, as VOC does where it shows only objects that are marked as difficult.
    """
    check_labels(labels, scores.shape[1])
    found = []
    for number in range(scores.shape[1]):
        has = labels[:, number] if labels.dtype == torch.bool else labels == number
        column = scores[:, number]
        if counted is not None:
            has, column = has[counted[:, number]], column[counted[:, number]]
        if bool(has.any()):
            found.append(average_precision(column, has, interpolation))
    if not found:
        raise MetricError("no picture has a class, so there is no precision; give some.")
    return _percent(torch.tensor(found, dtype=torch.float64).mean())


def _all_point(scores: Tensor, labels: Tensor) -> float:
    """Mean average precision as VOC has it from 2010 on."""
    return mean_average_precision(scores, labels, "all-point")


def _step(scores: Tensor, labels: Tensor) -> float:
    """Mean average precision as scikit-learn has it."""
    return mean_average_precision(scores, labels, "step")


METRICS: Mapping[str, Callable[[Tensor, Tensor], float]] = MappingProxyType(
    {
        "top1": top1,
        "top5": top5,
        "mean_per_class": mean_per_class,
        "map": mean_average_precision,
        "map_all_point": _all_point,
        "map_step": _step,
    }
)
"""By the names that reports use; 'map' is the metric of VOC 2007, with 11 points."""


def metrics(
    scores: Float[Tensor, "N K"], labels: Labels, names: Sequence[str] | None = None
) -> dict[str, float]:
    """Metrics by name, in percent: those of `names`, or what suits the labels.

    That is top1, top5 and mean_per_class for numbers, and top1, map and its other two kinds for
    booleans; ImageNet-ReaL is known by its top1 alone, so give names=("top1",) there. Top5 is left
    out where there are no more than five classes.

        metrics(head.scores(features), labels)    ->    {"top1": 81.93, "top5": ..., ...}
    """
    if names is None:
        booleans = labels.dtype == torch.bool
        more = ("map", "map_all_point", "map_step") if booleans else ("top5", "mean_per_class")
        names = [name for name in ("top1", *more) if name != "top5" or scores.shape[1] > 5]
    unknown = [name for name in names if name not in METRICS]
    if unknown:
        raise MetricError(f"{unknown[0]!r} is no metric of classes; use {', '.join(METRICS)}.")
    return {name: METRICS[name](scores, labels) for name in names}


def _places(scores: Tensor, labels: Tensor) -> Tensor:
    """The places of some rows."""
    classes = scores.shape[1]
    if labels.dtype == torch.bool:
        # The best placed right class: the highest score, and of equals the lowest number.
        masked = scores.masked_fill(~labels, -torch.inf)
        right = ((masked == masked.amax(dim=1, keepdim=True)) & labels).long().argmax(dim=1)
    else:
        right = labels.long()
    own = scores.gather(1, right[:, None])
    numbers = torch.arange(classes, device=scores.device)
    before = (scores > own) | ((scores == own) & (numbers < right[:, None]))
    found = before.sum(dim=1)
    missing = scores.isnan().any(dim=1)
    if labels.dtype == torch.bool:
        missing |= ~labels.any(dim=1)
    return found.masked_fill(missing, classes)


def _percent(share: Tensor) -> float:
    """A share of 1 in percent."""
    return 100 * float(share)
