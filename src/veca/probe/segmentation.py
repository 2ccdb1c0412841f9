"""Semantic segmentation by a linear head, evaluated at the original size of the images."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Int64, UInt8
from torch import Tensor

from veca.data.images import DataError
from veca.data.sets.dataset import IGNORE_INDEX, LabeledDataset, Split
from veca.probe.dense import (
    Backward,
    DenseScorer,
    DenseScores,
    DenseTask,
    Predict,
    SampledPixels,
    View,
    check_size,
    fit_and_evaluate,
)
from veca.probe.feature_cache import RunContext, load_target
from veca.probe.features import CropTransform, DenseBatch, Pair
from veca.probe.metrics import (
    MaskObjects,
    confusion_matrix,
    intersections,
    mean_iou,
    segmentation_metrics,
    size_recalls,
    unions,
)
from veca.probe.models import FrozenModel
from veca.probe.protocols import SegmentationAugment, SegmentationProtocol
from veca.probe.rows import ProbeResult, Setting
from veca.probe.sliding_window import Sides, argmax_pixels
from veca.probe.transforms import DenseCrop, segmentation_crop
from veca.runtime.distributed import Ranks

MAX_LOGITS = 1 << 26
"""Logits of pixels that are in memory at once; the images of a batch follow one another."""


def evaluate_segmentation(  # noqa: PLR0913, PLR0917
    model: FrozenModel,
    settings: Sequence[Setting],
    data: LabeledDataset,
    protocol: SegmentationProtocol,
    seeds: Sequence[int],
    ctx: RunContext,
) -> Iterator[ProbeResult]:
    """Fit and evaluate a head for every setting and seed."""
    return fit_and_evaluate(SegmentationTask(data, protocol), model, settings, seeds, ctx)


class MaskTarget(NamedTuple):
    """The mask of an image, with its objects."""

    labels: UInt8[Tensor, "height width"]
    objects: MaskObjects


class SegmentationScores(DenseScores):
    """Counts of pixels, over all images and for each."""

    def __init__(self, num_images: int, data: LabeledDataset) -> None:
        num_classes = len(data.classes)
        self._data = data
        self.confusion: Int64[Tensor, "K K"] = torch.zeros(
            num_classes, num_classes, dtype=torch.int64
        )
        self.intersections: Int64[Tensor, "N K"] = torch.zeros(
            num_images, num_classes, dtype=torch.int64
        )
        self.unions: Int64[Tensor, "N K"] = torch.zeros_like(self.intersections)
        self.objects: Int64[Tensor, "O 5"] = torch.zeros(0, 5, dtype=torch.int64)
        """Image, class, pixels, correct pixels and pixels of the image; filled by `reduce`."""
        self._own_objects: dict[int, Int64[Tensor, "_ 4"]] = {}

    def update(
        self, index: int, head: Callable[..., Tensor], views: Sequence[View], target: MaskTarget
    ) -> None:
        """Count the pixels of an image."""
        features, grid = views[0]
        with torch.no_grad():
            predicted = argmax_pixels(head(features), grid)
        counts = confusion_matrix(target.labels, predicted, len(self.confusion)).cpu()
        self.confusion += counts
        self.intersections[index], self.unions[index] = intersections(counts), unions(counts)
        self._own_objects[index] = target.objects.recalled(predicted)

    def reduce(self, ranks: Ranks) -> None:
        """Sum over ranks; each fills in the objects of its own images."""
        self.confusion = ranks.all_reduce(self.confusion)
        self.intersections = ranks.all_reduce(self.intersections)
        self.unions = ranks.all_reduce(self.unions)
        lengths = torch.zeros(len(self.unions), dtype=torch.int64)
        for index, objects in self._own_objects.items():
            lengths[index] = len(objects)
        ends = ranks.all_reduce(lengths).cumsum(0)
        found = torch.zeros(int(ends[-1]) if len(ends) else 0, 5, dtype=torch.int64)
        for index, objects in self._own_objects.items():
            rows = found[int(ends[index]) - len(objects) : int(ends[index])]
            rows[:, 0], rows[:, 1:] = index, objects
        self.objects = ranks.all_reduce(found)

    def metrics(self) -> dict[str, float]:
        """In percent: miou, macc, aacc, iou/NAME, recall/SIZE."""
        classes, eval_classes = self._data.classes, self._data.eval_classes
        found = segmentation_metrics(self.confusion, classes, eval_classes)
        return found | size_recalls(self.objects, classes, eval_classes)

    def selection_metric(self) -> float:
        """Mean IoU."""
        hits, union = intersections(self.confusion), unions(self.confusion)
        return float(mean_iou(hits, union, self._data.eval_classes))

    def per_image(self) -> dict[str, Tensor]:
        """Counts of each image and object."""
        return {
            "intersections": self.intersections,
            "unions": self.unions,
            "objects": self.objects,
        }


class MaskScorer(DenseScorer):
    """Scores of segmentation."""

    def __init__(self, data: LabeledDataset) -> None:
        if not 1 < len(data.classes) <= IGNORE_INDEX:
            raise DataError(
                f"{data.name} has {len(data.classes)} classes; use a dataset with 2 to "
                f"{IGNORE_INDEX}, which masks of 8 bits can hold."
            )
        self.data = data

    def target(self, split: Split, index: int, sides: Sides, device: torch.device) -> MaskTarget:
        """The mask of an image."""
        mask = np.array(load_target(split, index))
        check_size(split, index, (mask.shape[0], mask.shape[1]), sides)
        labels = torch.from_numpy(mask).to(device)
        return MaskTarget(labels, MaskObjects(labels))

    def scores(self, num_images: int) -> SegmentationScores:
        """Zero counts."""
        return SegmentationScores(num_images, self.data)


class SegmentationTask(MaskScorer, DenseTask):
    """Crops and loss of segmentation."""

    def __init__(self, data: LabeledDataset, protocol: SegmentationProtocol) -> None:
        super().__init__(data)
        self.protocol, self._augment = protocol, protocol.augment
        self.outputs = len(data.classes)

    def transform(self, short_side: int, multiple: int) -> CropTransform:
        """Squares with the short side of test images."""
        del multiple
        facts = {"task": "segmentation", "side": short_side, **asdict(self._augment)}
        return CropTransform(facts, partial(_crop, short_side, self._augment))

    def loss(self, batch: DenseBatch, step: int, seed: int, ranks: Ranks) -> Backward:
        """Cross-entropy of pixels; as in MMSegmentation the mean includes ignored pixels."""
        pixels = SampledPixels(batch, self.protocol.pixel_stride, seed, step)
        targets = pixels.targets.long()
        total = ranks.all_reduce(torch.tensor(targets.numel(), device=targets.device))
        group = max(1, MAX_LOGITS // (targets[:1].numel() * self.outputs))

        def backward(predict: Predict) -> None:
            for first in range(0, len(targets), group):
                images = slice(first, first + group)
                logits = pixels.upsample(predict(images))
                loss = F.cross_entropy(
                    logits, targets[images], ignore_index=IGNORE_INDEX, reduction="sum"
                )
                (loss / total).backward()

        return backward


def _crop(side: int, augment: SegmentationAugment, pair: Pair, draw: random.Random) -> DenseCrop:
    mask = pair.target.astype(np.uint8, copy=False)
    return segmentation_crop(pair.picture, mask, side, draw, augment)
