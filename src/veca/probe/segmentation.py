"""Segmentation: a linear head tells the class of each pixel, judged at the pictures' own size."""

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from veca.data.images import DataError
from veca.data.sets.dataset import IGNORE_INDEX, LabeledDataset, Split
from veca.probe.dense_losses import CrossEntropy
from veca.probe.dense_run import Chosen, DenseRun, DenseTask, Head, showing_of, training_split
from veca.probe.feature_cache import RunContext, load_target
from veca.probe.features import CropTransform, Pair, PatchFeatures, Variant
from veca.probe.metrics import (
    MaskObjects,
    confusion,
    intersections,
    mean_iou,
    segmentation_metrics,
    size_recalls,
    unions,
)
from veca.probe.models import FrozenModel
from veca.probe.protocols import SegmentationAugment, SegmentationProtocol
from veca.probe.rows import Setting
from veca.probe.sliding_window import argmax_pixels
from veca.probe.transforms import DenseCrop, segmentation_crop


@dataclass(frozen=True, kw_only=True)
class SegmentationResult:
    """What a head is worth, and all that is needed to use it."""

    metrics: dict[str, float]
    """In percent, by full names: miou, macc, aacc, iou/NAME, recall/SIZE."""

    tensors: dict[str, Tensor]
    """Of the head, for a file."""

    facts: dict[str, Any]
    """Plain values that go with the tensors, to apply the head to a new picture."""

    counts: dict[str, int]
    """Pictures that it was fitted and judged on: 'train' and 'test'."""

    chosen: dict[str, Any]
    """The rate and the step that it stands for."""

    confusion: Int64[Tensor, "K K"]
    """Pixels of each class (row) that were told to be of each class (column), over all pictures."""

    intersections: Int64[Tensor, "N K"]
    """Pixels of each class that were told rightly, picture by picture."""

    unions: Int64[Tensor, "N K"]
    """Pixels that are of a class or were told to be, picture by picture."""

    objects: Int64[Tensor, "O 5"]
    """Picture, class, pixels, pixels told rightly and pixels of the picture, object by object."""


class JudgedClasses:
    """Counts of pixels, over all pictures and of each."""

    def __init__(self, num_pictures: int, num_classes: int) -> None:
        self.confusion = torch.zeros(num_classes, num_classes, dtype=torch.int64)
        self.intersections = torch.zeros(num_pictures, num_classes, dtype=torch.int64)
        self.unions = torch.zeros(num_pictures, num_classes, dtype=torch.int64)
        self.objects = torch.zeros(0, 5, dtype=torch.int64)
        """Of all workers, once their counts are joined."""
        self._of_picture: dict[int, Int64[Tensor, "_ 4"]] = {}

    def add(self, index: int, counts: Int64[Tensor, "K K"], objects: Int64[Tensor, "_ 4"]) -> None:
        """Count a picture."""
        self._of_picture[index] = objects
        self.confusion += counts
        self.intersections[index] = intersections(counts)
        self.unions[index] = unions(counts)

    def metrics(self, data: LabeledDataset) -> dict[str, float]:
        """What is made of the counts."""
        pixels = segmentation_metrics(self.confusion, data.classes, data.eval_classes)
        return pixels | size_recalls(self.objects, data.classes, data.eval_classes)

    def over(self, ctx: RunContext) -> "JudgedClasses":
        """The same over all workers, each of which has counted other pictures."""
        for name in ("confusion", "intersections", "unions"):
            setattr(self, name, ctx.ranks.all_reduce(getattr(self, name)))
        self.objects = self._all_objects(ctx)
        return self

    def _all_objects(self, ctx: RunContext) -> Int64[Tensor, "O 5"]:
        """The objects of all pictures in their order: each worker fills its own rows."""
        lengths = torch.zeros(len(self.unions), dtype=torch.int64)
        for index, objects in self._of_picture.items():
            lengths[index] = len(objects)
        ends = ctx.ranks.all_reduce(lengths).cumsum(0)
        found = torch.zeros(int(ends[-1]) if len(ends) else 0, 5, dtype=torch.int64)
        for index, objects in self._of_picture.items():
            rows = found[int(ends[index]) - len(objects) : int(ends[index])]
            rows[:, 0], rows[:, 1:] = index, objects
        return ctx.ranks.all_reduce(found)


class SegmentationTask(DenseTask[JudgedClasses]):
    """What segmentation adds to a dense task."""

    def __init__(self, data: LabeledDataset, protocol: SegmentationProtocol) -> None:
        self.outputs = num_classes(data)
        self._data, self._protocol = data, protocol

    def recipe(self, side: int, multiple: int) -> CropTransform:
        """Squares of the side of test pictures."""
        del multiple
        augment = self._protocol.augment
        facts = {"task": "segmentation", "side": side, **asdict(augment)}
        return CropTransform(facts, partial(_view, side, augment))

    def loss(self, seed: int, ctx: RunContext) -> CrossEntropy:
        """Cross-entropy of pixels."""
        return CrossEntropy(self._protocol, self.outputs, seed, ctx.ranks)

    def judge(
        self, heads: Sequence[Head], split: Split, features: PatchFeatures, ctx: RunContext
    ) -> list[JudgedClasses]:
        """Count the pixels of every picture for every head."""
        judged = [JudgedClasses(len(split), self.outputs) for _ in heads]
        for index in range(ctx.ranks.rank, len(split), ctx.ranks.world_size):
            labels = class_target(split, index, ctx)
            objects = MaskObjects(labels)
            for setting in dict.fromkeys(head.setting for head in heads):
                observed, layout = features(index, Variant(setting))
                check_size(split, index, labels, layout.original)
                for head, counts in zip(heads, judged, strict=True):
                    if head.setting == setting:
                        found = argmax_pixels(head.head.maps(observed), layout)
                        pixels = confusion(labels, found, self.outputs).cpu()
                        counts.add(index, pixels, objects.told(found))
        return [counts.over(ctx) for counts in judged]

    def goodness(self, judged: JudgedClasses) -> float:
        """The mean over classes of intersection over union."""
        counts = judged.confusion
        return float(mean_iou(intersections(counts), unions(counts), self._data.eval_classes))


def run_segmentation(  # noqa: PLR0913, PLR0917 - the door of a task
    model: FrozenModel,
    settings: Sequence[Setting],
    data: LabeledDataset,
    protocol: SegmentationProtocol,
    seeds: Sequence[int],
    ctx: RunContext,
) -> dict[tuple[Setting, int], SegmentationResult]:
    """Fit a head for every setting and seed, all settings on the same batches, and judge them."""
    training_split(data, "masks")
    task = SegmentationTask(data, protocol)
    run = DenseRun(task, model, data, protocol, ctx)
    showing = asdict(showing_of(model, protocol))
    return {
        key: _result(chosen, data, showing) for key, chosen in run.results(settings, seeds).items()
    }


def num_classes(data: LabeledDataset) -> int:
    """Classes of a set with masks."""
    if not 1 < len(data.classes) <= IGNORE_INDEX:
        raise DataError(
            f"{data.name} has {len(data.classes)} classes; masks of 8 bits have 2 to {IGNORE_INDEX}."
        )
    return len(data.classes)


def class_target(split: Split, index: int, ctx: RunContext) -> Tensor:
    """The classes of a picture's pixels, on the workers' device."""
    target = np.array(load_target(split, index))
    return torch.from_numpy(target).to(ctx.ranks.device)


def check_size(split: Split, index: int, target: Tensor, sides: tuple[int, int]) -> None:
    """Refuse a target that is not of the size of its picture."""
    if tuple(target.shape) != sides:
        raise DataError(
            f"{split.targets[index]} has {tuple(target.shape)} pixels, but its picture has "
            f"{sides} (height, width, upright); get both again, or take them out of the set."
        )


def _view(side: int, augment: SegmentationAugment, pair: Pair, draw: random.Random) -> DenseCrop:
    """A training view."""
    mask = pair.target.astype(np.uint8, copy=False)
    return segmentation_crop(pair.picture, mask, side, draw, augment)


def _result(
    chosen: Chosen[JudgedClasses], data: LabeledDataset, showing: dict[str, Any]
) -> SegmentationResult:
    """The outcome for one setting and seed."""
    judged = chosen.judged
    return SegmentationResult(
        metrics=judged.metrics(data),
        tensors=chosen.head.tensors(),
        facts={**chosen.head.facts(), "showing": showing},
        counts={"train": chosen.trained_on, "test": len(data.test)},
        chosen={"rate": chosen.candidate.rate, "step": chosen.candidate.step},
        confusion=judged.confusion,
        intersections=judged.intersections,
        unions=judged.unions,
        objects=judged.objects,
    )
