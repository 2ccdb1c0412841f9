"""Metrics of classification, segmentation and depth.

Labels as probes use them: numbers, or booleans where a picture may have several classes.

What scores of classes are worth: accuracies and average precision, in percent.

Scores are those of a head or the votes of neighbors. Equal scores place the class of the lower
number first, so that a result depends on nothing but its numbers; a row that holds a score that is
not a number is wrong. Labels are class numbers, or booleans where a picture may have several
classes: then it is told right if the class in the first place is one of them, and pictures without
any class are left out, as ImageNet-ReaL has it.

How well classes and objects are told: counts over a whole set, and what is made of them.

Intersections and unions are summed over all pictures and divided once, as everyone reports it; the
mean of each picture's own ratio would be another number. A class that is neither there nor told has
no ratio and is left out of means.

An object is a connected part of one class in a mask. Its recall is the share of its pixels that is
told rightly; means go over the third of the objects that are smallest, the middle and the largest.

How well depth is told: errors of each picture, then their mean over pictures.

Papers report the mean of each picture's own error. Over the pixels of all pictures together the
root mean square is larger; it is reported too, as `rmse_pooled`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int, Int64, Shaped
from numpy.typing import NDArray
from torch import Tensor

from veca.data.sets.dataset import IGNORE_INDEX, DepthRange
from veca.probe.sliding_window import Sides
from veca.runtime import VecaError

Labels = Int[Tensor, " N"] | Bool[Tensor, "N K"]
"""The class of each picture, or whether it has each class."""


class LabelError(VecaError, ValueError):
    """Labels that no head can be fitted to or judged by."""


def check_labels(labels: Labels, num_classes: int) -> None:
    """Refuse labels of other classes than 0 to `num_classes` - 1."""
    if labels.dtype == torch.bool:
        if labels.shape[1] != num_classes:
            raise LabelError(
                f"the labels tell of {labels.shape[1]} classes, but there are {num_classes}; give "
                "one column for each class."
            )
    elif len(labels) and not 0 <= (least := int(labels.min())) <= int(labels.max()) < num_classes:
        raise LabelError(
            f"the labels reach from {least} to {int(labels.max())}, but the {num_classes} classes "
            f"are 0 to {num_classes - 1}; leave pictures of other classes out."
        )


def labeled_rows(labels: Labels) -> Int64[Tensor, " n"]:
    """The pictures that have at least one class; the others neither teach nor judge."""
    if labels.dtype == torch.bool:
        return labels.any(dim=1).nonzero().flatten()
    return torch.arange(len(labels), device=labels.device)


def target_shares(
    labels: Labels, num_classes: int, dtype: torch.dtype = torch.float32
) -> Float[Tensor, "N {num_classes}"]:
    """What a head should tell: 1 shared evenly among the classes that a picture has."""
    if labels.dtype == torch.bool:
        return labels.to(dtype) / labels.sum(dim=1, keepdim=True).clamp(min=1)
    one_hot = torch.zeros(len(labels), num_classes, dtype=dtype, device=labels.device)
    return one_hot.scatter_(1, labels.long()[:, None], 1.0)


Interpolation = Literal["11-point", "all-point", "step"]
"""How precision is read between the places of two right pictures.

'11-point': PASCAL VOC to 2009: the mean over recalls 0, 0.1, ..., 1 of the best precision at that
recall or a higher one. 'all-point': VOC from 2010 on: the same at every recall, an area. 'step':
the mean precision at the places of the right pictures, as scikit-learn has it.
"""

ROWS = 4096
"""Pictures that are compared at once."""


class MetricError(VecaError, ValueError):
    """A metric that cannot be computed: what was got, what is allowed, what to do."""


def places(scores: Float[Tensor, "N K"], labels: Labels) -> Int64[Tensor, " N"]:
    """In which place the right class stands, from 0, or the best placed of several; K if in none.

    `places(...) == 0` says for each picture whether it is told right; `labels.labeled_rows` says
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
    return (places(scores, labels) == 0)[labeled_rows(labels)]


def top_k(scores: Float[Tensor, "N K"], labels: Labels, k: int) -> float:
    """Percent of the pictures with a right class in the first k places."""
    rows = labeled_rows(labels)
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


SPECK = 1e-3
"""Share of a picture below which a connected part is no object: masks have stray pixels."""

SIZES = ("small", "medium", "large")
"""Thirds of the objects of a set, by the share of the picture that they cover."""

BACKGROUND = "background"
"""The class that is no object, where a set has one of this name."""


def confusion(
    labels: Shaped[Tensor, "*pixels"], found: Shaped[Tensor, "*pixels"], num_classes: int
) -> Int64[Tensor, "{num_classes} {num_classes}"]:
    """How many pixels of each class (row) were told to be of each class (column).

    Pixels whose class is `IGNORE_INDEX` do not count, whatever was told of them.
    """
    counts = labels.flatten() != IGNORE_INDEX
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


class MaskObjects:
    """The objects of a mask."""

    def __init__(self, labels: Shaped[Tensor, "H W"]) -> None:
        self._labels = labels.cpu().numpy()
        self._parts = connected_parts(self._labels).reshape(-1)
        self._areas = np.bincount(self._parts)
        self._classes = np.empty_like(self._areas)
        self._classes[self._parts] = self._labels.reshape(-1)
        big = self._areas >= SPECK * self._labels.size
        self._counted = big & (self._classes != IGNORE_INDEX)

    def told(self, found: Shaped[Tensor, "H W"]) -> Int64[Tensor, "O 4"]:
        """Class, pixels, pixels told rightly and pixels of the whole picture, object by object."""
        right = (found.cpu().numpy() == self._labels).reshape(-1)
        inside = np.bincount(self._parts[right], minlength=len(self._areas))
        whole = np.full_like(self._areas, self._labels.size)
        columns = np.stack((self._classes, self._areas, inside, whole), 1)
        return torch.from_numpy(columns[self._counted].astype(np.int64))


def connected_parts(mask: NDArray[np.generic]) -> NDArray[np.int64]:
    """A number for each pixel, from 0 on, the same where pixels of one value touch by their sides.

    Runs of equal pixels in a row are joined with those below: what is joined goes by its earliest
    run, until nothing changes.
    """
    begins = np.ones(mask.shape, bool)
    begins[:, 1:] = mask[:, 1:] != mask[:, :-1]
    runs = (np.cumsum(begins.reshape(-1)) - 1).reshape(mask.shape)
    # Two runs that lie above each other begin to do so where one of them begins.
    touch = (mask[1:] == mask[:-1]) & (begins[1:] | begins[:-1])
    above, below = runs[:-1][touch], runs[1:][touch]
    earliest = every = np.arange(int(begins.sum()))
    while (earliest[above] != earliest[below]).any():
        ends = earliest[above], earliest[below]
        earliest = earliest.copy()
        np.minimum.at(earliest, np.maximum(*ends), np.minimum(*ends))
        while (earliest[earliest] != earliest).any():
            earliest = earliest[earliest]
    number = np.cumsum(earliest == every) - 1
    return number[earliest][runs]


def size_recalls(
    objects: Int64[Tensor, "O 5"], classes: Sequence[str], scored: Sequence[int] | None = None
) -> dict[str, float]:
    """The mean recall of small, medium and large objects in percent, as `recall/small`.

    Args:
        objects: picture, class, pixels, pixels told rightly and pixels of the picture.
        classes: names; objects of the background do not count.
        scored: classes whose objects count.
    """
    wanted = [n for n in scored or range(len(classes)) if classes[n] != BACKGROUND]
    kept = objects[torch.isin(objects[:, 1], torch.tensor(wanted))].numpy()
    if not len(kept):
        return {}
    share, recall = kept[:, 2] / kept[:, 4], kept[:, 3] / kept[:, 2]
    third = np.searchsorted(np.quantile(share, [1 / 3, 2 / 3]), share)
    return {
        f"recall/{name}": 100 * float(recall[third == place].mean())
        for place, name in enumerate(SIZES)
        if (third == place).any()
    }


def _ratio(part: Int64[Tensor, "*any"], whole: Int64[Tensor, "*any"]) -> Float64[Tensor, "*any"]:
    """Part over whole; not a number where there is no whole."""
    return part.double() / whole.double()


def _mean(
    ratios: Float64[Tensor, "*sets K"], scored: Sequence[int] | None
) -> Float64[Tensor, "*sets"]:
    """The mean over classes that have a ratio."""
    return (ratios if scored is None else ratios[..., list(scored)]).nanmean(-1)


NYU_SIDES = (480, 640)

CROPS: Mapping[str, tuple[float, float, float, float]] = {
    "garg-kitti": (0.40810811, 0.99189189, 0.03594771, 0.96405229),
    "eigen-kitti": (0.3324324, 0.91351351, 0.0359477, 0.96405229),
}
"""First and last row and column that count, as shares of the height and width, cut to whole pixels;
of the picture as it is used, so after KITTI's cut to 352 x 1216 where that is made."""

UNITS: Mapping[str, str] = {
    "rmse": "m",
    "rmse_pooled": "m",
    "abs_rel": "",
    "sq_rel": "m",
    "log10": "",
    "rmse_log": "",
    "silog": "",
    "delta1": "%",
    "delta2": "%",
    "delta3": "%",
}
"""Every metric with its unit. 'silog' is a hundred times the deviation of the logarithm's error."""

PER_PICTURE = tuple(name for name in UNITS if name != "rmse_pooled")


def crop_mask(sides: Sides, crop: str) -> Bool[Tensor, "height width"]:
    """The pixels of a test picture that count, by the set's convention."""
    mask = torch.zeros(sides, dtype=torch.bool)
    if crop == "none":
        mask[:] = True
    elif crop == "eigen-nyu":
        if sides != NYU_SIDES:
            raise ValueError(
                f"Eigen's crop of NYU is for pictures of 480 x 640, not {sides[0]} x {sides[1]}; "
                "use the pictures as published, or crop='none'."
            )
        mask[45:471, 41:601] = True
    elif crop in CROPS:
        top, bottom, left, right = CROPS[crop]
        height, width = sides
        mask[int(top * height) : int(bottom * height), int(left * width) : int(right * width)] = 1
    else:
        raise ValueError(f"crop={crop!r} is unknown; use 'none', 'eigen-nyu', {', '.join(CROPS)}.")
    return mask


def counted(
    depth: Float[Tensor, "height width"], facts: DepthRange
) -> Bool[Tensor, "height width"]:
    """The pixels whose depth is known, in range and within the crop."""
    height, width = depth.shape
    mask = crop_mask((height, width), facts.crop).to(depth.device)
    return mask & (depth > facts.min_depth) & (depth < facts.max_depth)


def picture_errors(
    found: Float[Tensor, "height width"],
    depth: Float[Tensor, "height width"],
    mask: Bool[Tensor, "height width"],
) -> NDArray[np.float64]:
    """The errors of one picture in the order of `PER_PICTURE`, then squares and pixels to pool.

    Where no pixel counts, errors are not a number and the rest is 0.
    """
    told, true = found[mask].double(), depth[mask].double()
    if not len(true):
        return np.array([np.nan] * len(PER_PICTURE) + [0.0, 0.0])
    squares = (told - true).square()
    log = told.log() - true.log()
    ratio = torch.maximum(told / true, true / told)
    values = {
        "rmse": squares.mean().sqrt(),
        "abs_rel": ((told - true).abs() / true).mean(),
        "sq_rel": (squares / true).mean(),
        "log10": (told.log10() - true.log10()).abs().mean(),
        "rmse_log": log.square().mean().sqrt(),
        # Rounding may leave a variance of nothing just below 0.
        "silog": 100 * (log.square().mean() - log.mean().square()).clamp(min=0).sqrt(),
        **{f"delta{n}": 100 * (ratio < 1.25**n).double().mean() for n in (1, 2, 3)},
    }
    errors = [float(values[name]) for name in PER_PICTURE]
    return np.array([*errors, float(squares.sum()), float(len(true))])


def depth_metrics(errors: NDArray[np.float64]) -> dict[str, float]:
    """Every metric by its name, from the errors of all pictures (N, ...)."""
    judged = errors[errors[:, -1] > 0]
    if not len(judged):
        raise ValueError(
            "no pixel of any test picture has a known depth in range; check the unit of the depth "
            "files and the least and most depth of the set."
        )
    found = dict(zip(PER_PICTURE, judged[:, : len(PER_PICTURE)].mean(0).tolist(), strict=True))
    squares, pixels = judged[:, -2:].sum(0).tolist()
    return found | {"rmse_pooled": float(np.sqrt(squares / pixels))}
