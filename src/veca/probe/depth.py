"""Monocular depth by a linear head, evaluated at the original size of the images."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from veca.data.sets.dataset import DepthRange, LabeledDataset, Split
from veca.probe.dense import (
    Backward,
    DenseTask,
    Predict,
    SampledPixels,
    Scores,
    View,
    fit_and_evaluate,
)
from veca.probe.feature_cache import load_target
from veca.probe.features import DenseBatch, DrawCrop, check_size, prefix_errors
from veca.probe.metrics import PER_IMAGE, depth_metrics, eval_mask, image_errors
from veca.probe.protocols import DepthProtocol, ProbeInputs
from veca.probe.rows import ProbeResult
from veca.probe.sliding_window import Sides, bilinear, merge_windows
from veca.probe.transforms import crop_target, depth_crop, kitti_benchmark_crop
from veca.runtime.distributed import Ranks

MIN_WEIGHT = 0.1
"""Added to every output, so that zeros mean the middle of the range."""

LOG_SHIFT = 1e-3
"""Meters that are added before a logarithm is taken."""

FLIPS = (False, True)
"""Predictions are averaged with those for the mirror image."""


def evaluate_depth(inputs: ProbeInputs[DepthProtocol]) -> Iterator[ProbeResult]:
    """Fit and evaluate a head for every setting and seed."""
    return fit_and_evaluate(DepthTask(inputs.data, inputs.protocol), inputs)


@dataclass(frozen=True, kw_only=True)
class DepthBins:
    """From the outputs of a head to meters: the mean of fixed depths, weighted by the outputs."""

    min_depth: float
    max_depth: float
    bins: int
    upsample: int
    """Bilinear upsampling of the outputs before they become meters."""

    def centers(self) -> Float[Tensor, " bins"]:
        """Meters of each output, ascending."""
        ends = self.min_depth, self.max_depth
        return torch.linspace(*ends, self.bins, dtype=torch.float64).float()

    def meters(
        self, outputs: Float[Tensor, "b bins rows columns"]
    ) -> Float[Tensor, "b 1 up_rows up_columns"]:
        """Meters of each cell, `upsample` times as many along each side as patches."""
        rows, columns = outputs.shape[2:]
        if self.upsample > 1:
            down = bilinear(rows, rows * self.upsample).to(outputs)
            across = bilinear(columns, columns * self.upsample).to(outputs)
            outputs = down @ outputs @ across.T
        weights = outputs.relu() + MIN_WEIGHT
        sums = torch.einsum("k,bkrc->brc", self.centers().to(weights), weights) / weights.sum(1)
        return sums[:, None]


@torch.no_grad()
def predict_depth_map(
    head: Callable[..., Tensor], bins: DepthBins, views: Sequence[View]
) -> Float[Tensor, "height width"]:
    """Meters of each pixel: mean over an image and its mirror image, in the order of `FLIPS`."""
    maps = []
    for (features, grid), flipped in zip(views, FLIPS, strict=True):
        found = merge_windows(bins.meters(head(features)), grid)[0]
        maps.append(found.flip(-1) if flipped else found)
    return torch.stack(maps).mean(0).clamp(bins.min_depth, bins.max_depth)


class DepthTarget(NamedTuple):
    """The depth of an image, and the pixels that count."""

    depth: Float[Tensor, "height width"]
    mask: Bool[Tensor, "height width"]


class DepthTask(DenseTask):
    """Crops, loss and scores of depth; `errors` has a row of `image_errors` for each image."""

    flips = FLIPS
    protocol: DepthProtocol

    def __init__(self, data: LabeledDataset, protocol: DepthProtocol) -> None:
        self._range = data.depth or DepthRange()
        self.data, self.protocol = data, protocol
        self.outputs, self.kb_crop = protocol.bins, self._range.kb_crop
        self.bins = DepthBins(
            min_depth=self._range.min_depth,
            max_depth=self._range.max_depth,
            bins=protocol.bins,
            upsample=protocol.upsample,
        )
        self.head_facts = {"bins": asdict(self.bins)}
        self.no_scores = {"errors": torch.zeros(0, len(PER_IMAGE) + 2, dtype=torch.float64)}

    def transform(self, short_side: int, multiple: int) -> tuple[DrawCrop, dict[str, Any]]:
        """Parts of images at the scale of test images."""
        augment = self.protocol.augment
        draw = partial(
            depth_crop,
            short_side=short_side,
            multiple=multiple,
            augment=augment,
            facts=self._range,
        )
        facts = {
            "task": "depth",
            "short_side": short_side,
            "multiple": multiple,
            "kb_crop": self._range.kb_crop,
            "nyu_crop": self._range.nyu_crop,
            **asdict(augment),
        }
        return draw, facts

    def loss(self, batch: DenseBatch, step: int, seed: int, ranks: Ranks) -> Backward:
        """SigLoss of the pixels of known depth."""
        pixels = SampledPixels(batch, self.protocol.pixel_stride, seed, step)
        targets = pixels.targets
        valid = (targets > self.bins.min_depth) & (targets < self.bins.max_depth)
        goal = (targets[valid] + LOG_SHIFT).log()
        protocol = self.protocol
        warmup = step < protocol.warmup_iters

        def backward(predict: Predict) -> None:
            found = pixels.upsample(self.bins.meters(predict(slice(None))))[:, 0]
            errors = (found[valid] + LOG_SHIFT).log() - goal
            slopes = sig_loss_gradient(
                errors.detach().double(), protocol.variance_weight, warmup, ranks
            )
            (errors * slopes.to(errors)).sum().backward()

        return backward

    def target(self, split: Split, index: int, sides: Sides, device: torch.device) -> DepthTarget:
        """The depth of an image, cropped as the image is."""
        depth = load_target(split, index).astype(np.float32)
        with prefix_errors(split.targets[index]):
            height, width = depth.shape
            depth = crop_target(depth, kitti_benchmark_crop((height, width), self._range))
        check_size(split, index, depth, sides)
        found = torch.from_numpy(depth).to(device)
        with prefix_errors(split.targets[index]):
            return DepthTarget(found, eval_mask(found, self._range))

    def predict(
        self, head: Callable[..., Tensor], views: Sequence[View]
    ) -> Float[Tensor, "height width"]:
        """Meters of each pixel."""
        return predict_depth_map(head, self.bins, views)

    def score(
        self, head: Callable[..., Tensor], views: Sequence[View], target: DepthTarget
    ) -> Scores:
        """The errors of an image."""
        errors = image_errors(self.predict(head, views), target.depth, target.mask)
        return {"errors": errors[None]}

    def metrics(self, scores: Scores) -> dict[str, float]:
        """Means over images, and the RMSE over all pixels."""
        return depth_metrics(scores["errors"])

    def selection_metric(self, scores: Scores) -> float:
        """The negative RMSE."""
        return -self.metrics(scores)["rmse"]

    def per_image(self, scores: Scores) -> dict[str, Tensor]:
        """Errors of each image; NaN where no pixel counts."""
        columns = scores["errors"].unbind(1)
        return {name: column.contiguous() for name, column in zip(PER_IMAGE, columns, strict=False)}

    def counts(self, scores: Scores) -> dict[str, int]:
        """Images in which no pixel counts."""
        return {"without_depth": int((scores["errors"][:, -1] == 0).sum())}


def sig_loss_gradient(
    errors: Float[Tensor, " n"], mean_weight: float, warmup: bool, ranks: Ranks
) -> Float[Tensor, " n"]:
    """Gradient of SigLoss over all ranks with respect to the log errors of this rank.

    SigLoss is the root of the variance of the log errors plus their weighted squared mean; in the
    warmup the mean only, so that depths come into range before shapes are learned.
    """
    sums = torch.stack((torch.ones_like(errors).sum(), errors.sum(), errors.square().sum()))
    count, total, squares = ranks.all_reduce(sums).tolist()
    if not count:
        return errors
    mean = total / count
    if warmup:
        return torch.full_like(errors, math.sqrt(mean_weight) * math.copysign(1, mean) / count)
    degrees = max(1.0, count - 1)  # an unbiased variance
    variance = max(0.0, squares - count * mean**2) / degrees
    loss = max(math.sqrt(variance + mean_weight * mean**2), 1e-12)
    return ((errors - mean) / degrees + mean_weight * mean / count) / loss
