"""Monocular depth by a linear head, evaluated at the original size of the images."""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor

from veca.data.sets.dataset import DepthRange, LabeledDataset, Split
from veca.probe.dense import (
    Backward,
    DenseScores,
    DenseTask,
    Predict,
    SampledPixels,
    View,
    check_size,
    fit_and_evaluate,
)
from veca.probe.feature_cache import RunContext, load_target
from veca.probe.features import CropTransform, DenseBatch, Pair, prefix_errors
from veca.probe.metrics import PER_IMAGE, depth_metrics, eval_mask, image_errors
from veca.probe.models import FrozenModel
from veca.probe.protocols import DepthAugment, DepthProtocol
from veca.probe.rows import ProbeResult, Setting
from veca.probe.sliding_window import Sides, bilinear, merge_windows
from veca.probe.transforms import DenseCrop, crop_target, depth_crop, kitti_benchmark_crop
from veca.runtime.distributed import Ranks

MIN_WEIGHT = 0.1
"""Added to every output, so that zeros mean the middle of the range."""

LOG_SHIFT = 1e-3
"""Meters that are added before a logarithm is taken."""

FLIPS = (False, True)
"""Predictions are averaged with those for the mirror image."""


def evaluate_depth(  # noqa: PLR0913, PLR0917
    model: FrozenModel,
    settings: Sequence[Setting],
    data: LabeledDataset,
    protocol: DepthProtocol,
    seeds: Sequence[int],
    ctx: RunContext,
) -> Iterator[ProbeResult]:
    """Fit and evaluate a head for every setting and seed."""
    return fit_and_evaluate(DepthTask(data, protocol), model, settings, seeds, ctx)


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


class DepthScores(DenseScores):
    """Errors of each image."""

    def __init__(self, num_images: int, bins: DepthBins) -> None:
        self._bins = bins
        self.errors: NDArray[np.float64] = np.zeros((num_images, len(PER_IMAGE) + 2))
        """One row of `image_errors` for each image."""

    def update(
        self, index: int, head: Callable[..., Tensor], views: Sequence[View], target: DepthTarget
    ) -> None:
        """Add the errors of an image."""
        predicted = predict_depth_map(head, self._bins, views)
        self.errors[index] = image_errors(predicted, target.depth, target.mask)

    def reduce(self, ranks: Ranks) -> None:
        """Each rank has the errors of other images."""
        self.errors = ranks.all_reduce(torch.from_numpy(self.errors)).numpy()

    def metrics(self) -> dict[str, float]:
        """By the names of `metrics.UNITS`."""
        return depth_metrics(self.errors)

    def selection_metric(self) -> float:
        """The negative RMSE."""
        return -self.metrics()["rmse"]

    def per_image(self) -> dict[str, Tensor]:
        """Errors of each image; NaN where no pixel counts."""
        columns = torch.from_numpy(self.errors).unbind(1)
        return {name: column.contiguous() for name, column in zip(PER_IMAGE, columns, strict=False)}

    def counts(self) -> dict[str, int]:
        """Images in which no pixel counts."""
        return {"without_depth": int((self.errors[:, -1] == 0).sum())}


class DepthTask(DenseTask):
    """Crops, loss and scores of depth."""

    flips = FLIPS

    def __init__(self, data: LabeledDataset, protocol: DepthProtocol) -> None:
        self._facts = data.depth or DepthRange()
        self.data, self.protocol, self._depth_protocol = data, protocol, protocol
        self.outputs = protocol.bins
        self.kb_crop = self._facts.kb_crop
        self.bins = DepthBins(
            min_depth=self._facts.min_depth,
            max_depth=self._facts.max_depth,
            bins=protocol.bins,
            upsample=protocol.upsample,
        )

    def transform(self, short_side: int, multiple: int) -> CropTransform:
        """Parts of images at the scale of test images."""
        augment = self._depth_protocol.augment
        facts = {
            "task": "depth",
            "short_side": short_side,
            "multiple": multiple,
            "kb_crop": self._facts.kb_crop,
            "nyu_crop": self._facts.nyu_crop,
            **asdict(augment),
        }
        return CropTransform(facts, partial(_crop, short_side, multiple, augment, self._facts))

    def loss(self, batch: DenseBatch, step: int, seed: int, ranks: Ranks) -> Backward:
        """SigLoss of the pixels of known depth."""
        pixels = SampledPixels(batch, self.protocol.pixel_stride, seed, step)
        targets = pixels.targets
        valid = (targets > self.bins.min_depth) & (targets < self.bins.max_depth)
        goal = (targets[valid] + LOG_SHIFT).log()
        protocol = self._depth_protocol
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
        depth = load_target(split, index).astype(np.float32, copy=False)
        with prefix_errors(split.targets[index]):
            depth = crop_target(depth, kitti_benchmark_crop(depth.shape, self._facts))
        check_size(split, index, depth.shape, sides)
        found = torch.from_numpy(np.array(depth)).to(device)
        with prefix_errors(split.targets[index]):
            return DepthTarget(found, eval_mask(found, self._facts))

    def scores(self, num_images: int) -> DepthScores:
        """Without images."""
        return DepthScores(num_images, self.bins)

    def head_facts(self) -> dict[str, Any]:
        """The bins."""
        return {"bins": asdict(self.bins)}


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


def _crop(  # noqa: PLR0913, PLR0917
    short_side: int,
    multiple: int,
    augment: DepthAugment,
    facts: DepthRange,
    pair: Pair,
    draw: random.Random,
) -> DenseCrop:
    return depth_crop(
        pair.picture,
        pair.target.astype(np.float32, copy=False),
        draw,
        short_side=short_side,
        multiple=multiple,
        augment=augment,
        facts=facts,
    )
