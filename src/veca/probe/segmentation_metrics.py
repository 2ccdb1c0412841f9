"""How well classes and objects are told: counts over a whole set, and what is made of them.

Intersections and unions are summed over all pictures and divided once, as everyone reports it; the
mean of each picture's own ratio would be another number. A class that is neither there nor told has
no ratio and is left out of means.

An object is a connected part of one class in a mask. Its recall is the share of its pixels that is
told rightly; means go over the third of the objects that are smallest, the middle and the largest.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float64, Int64, Shaped
from numpy.typing import NDArray
from torch import Tensor

from veca.data.labelled import IGNORED

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


class MaskObjects:
    """The objects of a mask."""

    def __init__(self, labels: Shaped[Tensor, "H W"]) -> None:
        self._labels = labels.cpu().numpy()
        self._parts = connected_parts(self._labels).reshape(-1)
        self._areas = np.bincount(self._parts)
        self._classes = np.empty_like(self._areas)
        self._classes[self._parts] = self._labels.reshape(-1)
        big = self._areas >= SPECK * self._labels.size
        self._counted = big & (self._classes != IGNORED)

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
