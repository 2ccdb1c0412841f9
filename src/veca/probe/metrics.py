"""Metrics of classification, segmentation and depth.

Classification: labels are class indices, or booleans (N, K) for images of several classes;
a prediction is then correct if it is one of them, and images without a class are left out, as in
ImageNet-ReaL. Ties between scores are broken by class index, and a row with a NaN is wrong.

Segmentation: pixels are counted over the whole dataset before anything is divided. A class that is
neither present nor predicted has no IoU and is left out of means.

Depth: the mean over images of each image's error, as in papers; `rmse_pooled` is over all pixels.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int, Int64, Shaped
from numpy.typing import NDArray
from torch import Tensor

from veca.data.sets.dataset import IGNORE_INDEX, DepthRange

Labels = Int[Tensor, " N"] | Bool[Tensor, "N K"]
"""The class of each image, or whether it has each class."""

RANK_ROWS = 4096
"""Images that are ranked together, which bounds memory."""


def has_label(labels: Labels) -> Int64[Tensor, " n"]:
    """Indices of the images that have at least one class."""
    if labels.dtype == torch.bool:
        return labels.any(dim=1).nonzero().flatten()
    return torch.arange(len(labels), device=labels.device)


def soft_targets(
    labels: Labels, num_classes: int, dtype: torch.dtype = torch.float32
) -> Float[Tensor, "N {num_classes}"]:
    """Target probabilities: 1 shared evenly among the classes of an image."""
    if labels.dtype == torch.bool:
        return labels.to(dtype) / labels.sum(dim=1, keepdim=True).clamp(min=1)
    one_hot = torch.zeros(len(labels), num_classes, dtype=dtype, device=labels.device)
    return one_hot.scatter_(1, labels.long()[:, None], 1.0)


def target_rank(scores: Tensor, labels: Tensor) -> Int64[Tensor, " N"]:
    """Rank of the best-ranked true class, from 0; K if there is none."""
    found = []
    for rows, truth in zip(scores.split(RANK_ROWS), labels.split(RANK_ROWS), strict=True):
        true, invalid = truth.long(), rows.isnan().any(dim=1)
        if truth.dtype == torch.bool:
            # The highest score of a true class; of equals the lowest index.
            masked = rows.masked_fill(~truth, -torch.inf)
            best = (masked == masked.amax(dim=1, keepdim=True)) & truth
            true, invalid = best.long().argmax(dim=1), invalid | ~truth.any(dim=1)
        own = rows.gather(1, true[:, None])
        earlier = torch.arange(rows.shape[1], device=rows.device) < true[:, None]
        before = (rows > own) | ((rows == own) & earlier)
        found.append(before.sum(dim=1).masked_fill(invalid, rows.shape[1]))
    return torch.cat(found)


def correct(scores: Float[Tensor, "N K"], labels: Labels) -> Bool[Tensor, " n"]:
    """Whether the top prediction is correct, for each image that has a class."""
    return (target_rank(scores, labels) == 0)[has_label(labels)]


def top_k(scores: Float[Tensor, "N K"], labels: Labels, k: int) -> float:
    """Percent of the images with a true class among the top k predictions."""
    ranks = target_rank(scores, labels)[has_label(labels)]
    return 100 * float((ranks < k).double().mean())


def top1(scores: Float[Tensor, "N K"], labels: Labels) -> float:
    """Top-1 accuracy in percent."""
    return top_k(scores, labels, 1)


def mean_per_class(scores: Float[Tensor, "N K"], labels: Labels) -> float:
    """Mean accuracy over the classes that occur, in percent."""
    right = (target_rank(scores, labels) == 0).double()
    targets = labels if labels.dtype == torch.bool else soft_targets(labels, scores.shape[1])
    counts = targets.double().sum(dim=0)
    accuracies = (right @ targets.double()) / counts
    return 100 * float(accuracies[counts > 0].mean())


def average_precision(scores: Float[Tensor, " N"], present: Bool[Tensor, " N"]) -> float:
    """Average precision of one class as PASCAL VOC 2007 defines it, from 0 to 1.

    The mean over recalls of 0, 0.1, ..., 1 of the best precision at that recall or above. Images of
    equal score are retrieved together.
    """
    order = scores.double().nan_to_num(nan=-torch.inf).sort(descending=True)
    hits = present[order.indices].double().cumsum(0)
    is_last = torch.ones(len(scores), dtype=torch.bool, device=scores.device)
    is_last[:-1] = order.values[1:] != order.values[:-1]
    retrieved = is_last.nonzero().flatten()
    hits = hits[retrieved]
    precision = (hits / (retrieved + 1)).flip(0).cummax(0).values.flip(0)
    # Counted in images, since 0.3 and others are not exact.
    recalls = torch.arange(11, dtype=torch.float64, device=hits.device) * hits[-1]
    return float(precision[torch.searchsorted(hits * 10, recalls)].mean())


def mean_average_precision(
    scores: Float[Tensor, "N K"], labels: Labels, counted: Bool[Tensor, "N K"] | None = None
) -> float:
    """Mean over classes of `average_precision`, in percent.

    Images that are False in `counted` are left out for that class, as VOC does where all objects of
    a class are marked as difficult.
    """
    found = []
    for index in range(scores.shape[1]):
        present = labels[:, index] if labels.dtype == torch.bool else labels == index
        column = scores[:, index]
        if counted is not None:
            present, column = present[counted[:, index]], column[counted[:, index]]
        if bool(present.any()):
            found.append(average_precision(column, present))
    return 100 * float(torch.tensor(found, dtype=torch.float64).mean())


METRICS: Mapping[str, Callable[[Tensor, Tensor], float]] = {
    "top1": top1,
    "mean_per_class": mean_per_class,
    "map": mean_average_precision,
}
"""By which a head can be chosen."""


def classification_metrics(
    scores: Float[Tensor, "N K"], labels: Labels, counted: Bool[Tensor, "N K"] | None = None
) -> dict[str, float]:
    """Top-1 in percent, with mAP for labels of several classes, else top-5 and mean per class.

    Top-5 is left out for five classes or fewer.
    """
    found = {"top1": top1(scores, labels)}
    if labels.dtype == torch.bool:
        return found | {"map": mean_average_precision(scores, labels, counted)}
    if scores.shape[1] > 5:
        found["top5"] = top_k(scores, labels, 5)
    return found | {"mean_per_class": mean_per_class(scores, labels)}


def pixel_counts(
    labels: Shaped[Tensor, "*pixels"], predicted: Shaped[Tensor, "*pixels"], num_classes: int
) -> Int64[Tensor, "3 {num_classes}"]:
    """Pixels of each class that are correct, predicted or true, and true.

    Pixels labeled `IGNORE_INDEX` do not count.
    """
    counted = labels.flatten() != IGNORE_INDEX
    labels, predicted = labels.flatten()[counted].long(), predicted.flatten()[counted].long()
    if len(labels) and int(labels.max()) >= num_classes:
        raise ValueError(
            f"a mask has class {int(labels.max())}, but the dataset has {num_classes}, from "
            "0 on; check its label map."
        )
    correct, found, true = (
        torch.bincount(pixels, minlength=num_classes)
        for pixels in (labels[labels == predicted], predicted, labels)
    )
    return torch.stack((correct, found + true - correct, true))


def mean_ratio(
    part: Int64[Tensor, " K"], whole: Int64[Tensor, " K"], eval_classes: Sequence[int] | None = None
) -> float:
    """Mean over classes of part / whole in percent; a class without a whole is left out."""
    ratios = part.double() / whole
    return 100 * float((ratios if eval_classes is None else ratios[list(eval_classes)]).nanmean())


def segmentation_metrics(
    pixels: Int64[Tensor, "3 K"], classes: Sequence[str], eval_classes: Sequence[int] | None = None
) -> dict[str, float]:
    """Metrics in percent from the `pixel_counts` of all images; those without a value are left out.

    miou        mean over classes of intersection / union; classes outside `eval_classes` count in
                the unions of the others
    macc        mean over classes of the accuracy on their pixels
    aacc        accuracy on all pixels
    iou/NAME    intersection / union of one class
    """
    correct, union, true = pixels
    found = {
        "miou": mean_ratio(correct, union, eval_classes),
        "macc": mean_ratio(correct, true, eval_classes),
        "aacc": mean_ratio(correct.sum()[None], true.sum()[None]),
    }
    for index in range(len(classes)) if eval_classes is None else eval_classes:
        found[f"iou/{classes[index]}"] = mean_ratio(correct, union, [index])
    return {name: value for name, value in found.items() if not math.isnan(value)}


MIN_OBJECT_SHARE = 1e-3
"""Share of an image below which a connected component is not an object: masks have stray pixels."""

OBJECT_SIZES = ("small", "medium", "large")
"""Thirds of the objects of a dataset, by the share of the image that they cover."""

BACKGROUND = "background"
"""A class of this name is not an object."""


class MaskObjects:
    """The connected components of the mask of an image that count as objects."""

    def __init__(self, mask: NDArray[np.uint8], image: int = 0) -> None:
        self._mask, self._image = mask, image
        self._components = connected_components(mask).reshape(-1)
        self._areas = np.bincount(self._components)
        self._classes = np.empty_like(self._areas)
        self._classes[self._components] = mask.reshape(-1)
        large = self._areas >= MIN_OBJECT_SHARE * mask.size
        self._counted = large & (self._classes != IGNORE_INDEX)

    def recalled(self, predicted: Shaped[Tensor, "H W"]) -> Int64[Tensor, "O 5"]:
        """Image, class, pixels, correct pixels and pixels of the image, for each object."""
        right = (predicted.cpu().numpy() == self._mask).reshape(-1)
        hits = np.bincount(self._components[right], minlength=len(self._areas))
        image, size = (np.full_like(hits, value) for value in (self._image, self._mask.size))
        columns = np.stack((image, self._classes, self._areas, hits, size), 1)
        return torch.from_numpy(columns[self._counted].astype(np.int64))


def connected_components(mask: NDArray[np.generic]) -> NDArray[np.int64]:
    """The number of the 4-connected component of each pixel, from 0 on.

    Runs of equal pixels in a row are joined with those below; a component goes by its earliest run,
    until nothing changes.
    """
    starts = np.ones(mask.shape, bool)
    starts[:, 1:] = mask[:, 1:] != mask[:, :-1]
    runs = (np.cumsum(starts.reshape(-1)) - 1).reshape(mask.shape)
    # Two runs first touch at the start of one of them.
    touch = (mask[1:] == mask[:-1]) & (starts[1:] | starts[:-1])
    above, below = runs[:-1][touch], runs[1:][touch]
    earliest = every = np.arange(int(starts.sum()))
    while (earliest[above] != earliest[below]).any():
        ends = earliest[above], earliest[below]
        earliest = earliest.copy()
        np.minimum.at(earliest, np.maximum(*ends), np.minimum(*ends))
        while (earliest[earliest] != earliest).any():
            earliest = earliest[earliest]
    number = np.cumsum(earliest == every) - 1
    return number[earliest][runs]


def size_recalls(
    objects: Int64[Tensor, "O 5"],
    classes: Sequence[str],
    eval_classes: Sequence[int] | None = None,
) -> dict[str, float]:
    """Mean recall of small, medium and large objects in percent, as `recall/small`.

    Rows of `objects` are image, class, pixels, correct pixels and pixels of the image.
    """
    counted = [n for n in eval_classes or range(len(classes)) if classes[n] != BACKGROUND]
    found = objects[torch.isin(objects[:, 1], torch.tensor(counted))].numpy()
    if not len(found):
        return {}
    share, recall = found[:, 2] / found[:, 4], found[:, 3] / found[:, 2]
    third = np.searchsorted(np.quantile(share, [1 / 3, 2 / 3]), share)
    return {
        f"recall/{name}": 100 * float(recall[third == index].mean())
        for index, name in enumerate(OBJECT_SIZES)
        if (third == index).any()
    }


NYU_SIDES = (480, 640)

GARG_CROP = (0.40810811, 0.99189189, 0.03594771, 0.96405229)
"""First and last row and column of Garg's crop of KITTI, as shares of height and width."""

UNITS: Mapping[str, str] = {"rmse": "m", "rmse_pooled": "m", "abs_rel": "", "sq_rel": "m",
                            "log10": "", "rmse_log": "", "silog": ""}  # fmt: skip
"""Units of metrics that are not percentages. A percentage is better when it is higher, any other
number when it is lower."""

PER_IMAGE = ("rmse", "abs_rel", "sq_rel", "log10", "rmse_log", "silog", "delta1", "delta2",
             "delta3")  # fmt: skip
"""Depth errors of each image; 'silog' is 100 times the standard deviation of the log error."""


def eval_mask(
    depth: Float[Tensor, "height width"], facts: DepthRange
) -> Bool[Tensor, "height width"]:
    """Pixels of known depth in range and inside the dataset's evaluation crop."""
    height, width = depth.shape
    rows, columns = slice(None), slice(None)
    if facts.crop == "garg-kitti":
        top, bottom, left, right = GARG_CROP
        rows = slice(int(top * height), int(bottom * height))
        columns = slice(int(left * width), int(right * width))
    elif facts.crop == "eigen-nyu":
        if (height, width) != NYU_SIDES:
            raise ValueError(
                f"Eigen's crop of NYU needs images of 480 x 640, not {height} x {width}; use "
                "the images as published."
            )
        rows, columns = slice(45, 471), slice(41, 601)
    mask = torch.zeros_like(depth, dtype=torch.bool)
    mask[rows, columns] = True
    return mask & (depth > facts.min_depth) & (depth < facts.max_depth)


def image_errors(
    predicted: Float[Tensor, "height width"],
    depth: Float[Tensor, "height width"],
    mask: Bool[Tensor, "height width"],
) -> Float64[Tensor, " errors"]:
    """Errors of one image in the order of `PER_IMAGE`, then its sum of squares and its pixels.

    Without a pixel in `mask`, errors are NaN and the sums are 0.
    """
    found, true = predicted[mask].double(), depth[mask].double()
    squares, log = (found - true).square(), found.log() - true.log()
    ratio = torch.maximum(found / true, true / found)
    values = {
        "rmse": squares.mean().sqrt(),
        "abs_rel": ((found - true).abs() / true).mean(),
        "sq_rel": (squares / true).mean(),
        "log10": (found.log10() - true.log10()).abs().mean(),
        "rmse_log": log.square().mean().sqrt(),
        # Rounding may leave a variance of zero just below 0.
        "silog": 100 * (log.square().mean() - log.mean().square()).clamp(min=0).sqrt(),
        **{f"delta{n}": 100 * (ratio < 1.25**n).double().mean() for n in (1, 2, 3)},
    }
    pixels = squares.new_tensor(len(true))
    return torch.stack([*(values[name] for name in PER_IMAGE), squares.sum(), pixels]).cpu()


def depth_metrics(errors: Float64[Tensor, "N errors"]) -> dict[str, float]:
    """All metrics from the `image_errors` of all images."""
    valid = errors[errors[:, -1] > 0]
    if not len(valid):
        raise ValueError(
            "no test image has a pixel of known depth in range; check the unit of the depth files "
            "and the depth range of the dataset."
        )
    found = dict(zip(PER_IMAGE, valid.mean(0).tolist(), strict=False))
    squares, pixels = valid[:, -2:].sum(0).tolist()
    return found | {"rmse_pooled": math.sqrt(squares / pixels)}
