"""Semantic segmentation by a linear head, evaluated at the original size of the images."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import UInt8
from torch import Tensor

from veca.data.images import DataError
from veca.data.sets.dataset import IGNORE_INDEX, LabeledDataset, Split
from veca.probe.dense import (
    Backward,
    DenseScorer,
    DenseTask,
    Predict,
    SampledPixels,
    Scores,
    View,
    fit_and_evaluate,
)
from veca.probe.feature_cache import load_target
from veca.probe.features import DenseBatch, DrawCrop, check_size
from veca.probe.metrics import (
    MaskObjects,
    mean_ratio,
    pixel_counts,
    segmentation_metrics,
    size_recalls,
)
from veca.probe.protocols import ProbeInputs, SegmentationProtocol
from veca.probe.rows import ProbeResult
from veca.probe.sliding_window import Sides, argmax_pixels
from veca.probe.transforms import segmentation_crop
from veca.runtime.distributed import Ranks

MAX_LOGITS = 1 << 26
"""Logits of pixels that are in memory at once; the images of a batch follow one another."""


def evaluate_segmentation(inputs: ProbeInputs[SegmentationProtocol]) -> Iterator[ProbeResult]:
    """Fit and evaluate a head for every setting and seed."""
    return fit_and_evaluate(SegmentationTask(inputs.data, inputs.protocol), inputs)


class MaskTarget(NamedTuple):
    """The mask of an image, with its objects."""

    labels: UInt8[Tensor, "height width"]
    objects: MaskObjects


class MaskScorer(DenseScorer):
    """Scores of segmentation.

    `pixels` has the `pixel_counts` of each image, `objects` the `MaskObjects.recalled`.
    """

    def __init__(self, data: LabeledDataset) -> None:
        if not 1 < len(data.classes) <= IGNORE_INDEX:
            raise DataError(
                f"{data.name} has {len(data.classes)} classes; use a dataset with 2 to "
                f"{IGNORE_INDEX}, which masks of 8 bits can hold."
            )
        self.data = data
        self.no_scores = {
            "pixels": torch.zeros(0, 3, len(data.classes), dtype=torch.int64),
            "objects": torch.zeros(0, 5, dtype=torch.int64),
        }

    def target(self, split: Split, index: int, sides: Sides, device: torch.device) -> MaskTarget:
        """The mask of an image."""
        mask = np.array(load_target(split, index), np.uint8)
        check_size(split, index, mask, sides)
        return MaskTarget(torch.from_numpy(mask).to(device), MaskObjects(mask, index))

    def predict(
        self, head: Callable[..., Tensor], views: Sequence[View]
    ) -> UInt8[Tensor, "height width"]:
        """The class of each pixel."""
        features, grid = views[0]
        return argmax_pixels(head(features), grid)

    @torch.no_grad()
    def score(
        self, head: Callable[..., Tensor], views: Sequence[View], target: MaskTarget
    ) -> Scores:
        """Counts of pixels."""
        predicted = self.predict(head, views)
        pixels = pixel_counts(target.labels, predicted, len(self.data.classes)).cpu()
        return {"pixels": pixels[None], "objects": target.objects.recalled(predicted)}

    def metrics(self, scores: Scores) -> dict[str, float]:
        """In percent: miou, macc, aacc, iou/NAME, recall/SIZE."""
        classes, eval_classes = self.data.classes, self.data.eval_classes
        found = segmentation_metrics(scores["pixels"].sum(0), classes, eval_classes)
        return found | size_recalls(scores["objects"], classes, eval_classes)

    def selection_metric(self, scores: Scores) -> float:
        """Mean IoU."""
        correct, union, _ = scores["pixels"].sum(0)
        return mean_ratio(correct, union, self.data.eval_classes)

    def per_image(self, scores: Scores) -> dict[str, Tensor]:
        """Counts of each image and object."""
        correct, union, _ = (one.contiguous() for one in scores["pixels"].unbind(1))
        return {"intersections": correct, "unions": union, "objects": scores["objects"]}


class SegmentationTask(MaskScorer, DenseTask):
    """Crops and loss of segmentation."""

    def __init__(self, data: LabeledDataset, protocol: SegmentationProtocol) -> None:
        super().__init__(data)
        self.protocol, self._augment = protocol, protocol.augment
        self.outputs, self.head_facts = len(data.classes), {}

    def transform(self, short_side: int, multiple: int) -> tuple[DrawCrop, dict[str, Any]]:
        """Squares with the short side of test images."""
        del multiple
        facts = {"task": "segmentation", "side": short_side, **asdict(self._augment)}
        return partial(segmentation_crop, side=short_side, augment=self._augment), facts

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
