"""Losses of dense tasks, on pixels of the targets; sums over workers make them those of one.

What a head tells of cells is scaled bilinearly to the pixels, by a matrix along each side
(`windows.py`), of which only the rows of pixels in the loss are used. Gradients are those of the
whole loss, but only their part that goes through this worker's pictures.
"""

import math
from functools import lru_cache

import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped
from torch import Tensor

from veca.data.sets.dataset import IGNORE_INDEX, DepthRange
from veca.probe.dense import Backward, Maps
from veca.probe.depth_scale import DepthScale
from veca.probe.features import DenseBatch
from veca.probe.protocols import DepthProtocol, SegmentationProtocol
from veca.probe.sliding_window import bilinear
from veca.runtime.device import seed_for
from veca.runtime.distributed import Ranks

MOST_NUMBERS = 1 << 26
"""Of logits of pixels that are in memory at once; pictures beyond come one after the other."""

LOG_SHIFT = 1e-3
"""Meters that are added before a logarithm is taken."""

_bilinear = lru_cache(maxsize=64)(bilinear)


class _Pixels:
    """The pixels of a step's loss: every so many-th row and column, from a random one on."""

    def __init__(self, batch: DenseBatch, stride: int, seed: int, step: int) -> None:
        number = seed_for(seed, step, "dense loss") if stride > 1 else 0
        self._top, self._left, self._stride = number % stride, number // stride % stride, stride
        self._sides = batch.targets.shape[1:]
        self.targets: Shaped[Tensor, "b h w"] = batch.targets[
            :, self._top :: stride, self._left :: stride
        ]
        """What is to be told of them."""

    def of(self, maps: Float[Tensor, "b K rows columns"]) -> Float[Tensor, "b K h w"]:
        """What cells tell of them."""
        height, width = self._sides
        rows, columns = maps.shape[2:]
        down = _bilinear(rows, height)[self._top :: self._stride].to(maps)
        across = _bilinear(columns, width)[self._left :: self._stride].to(maps)
        return down @ maps @ across.T


class CrossEntropy:
    """Cross-entropy of the pixels' classes."""

    def __init__(
        self, protocol: SegmentationProtocol, num_classes: int, seed: int, workers: Ranks
    ) -> None:
        self._protocol, self._num_classes = protocol, num_classes
        self._seed, self._workers = seed, workers

    def __call__(self, batch: DenseBatch, step: int) -> Backward:
        """What to do with each head."""
        pixels = _Pixels(batch, self._protocol.loss_stride, self._seed, step)
        targets = pixels.targets.long()
        counts = targets != IGNORE_INDEX if self._protocol.denominator == "valid" else targets >= 0
        total = self._workers.all_reduce(counts.sum()).clamp(min=1)

        at_once = max(1, MOST_NUMBERS // (targets[:1].numel() * self._num_classes))

        def backward(maps: Maps) -> None:
            for first in range(0, len(targets), at_once):
                some = slice(first, first + at_once)
                logits = pixels.of(maps(some))
                loss = F.cross_entropy(
                    logits, targets[some], ignore_index=IGNORE_INDEX, reduction="sum"
                )
                (loss / total).backward()

        return backward


class SigLoss:
    """The root of variance plus weighted squared mean of the errors of the logarithm ('SigLoss').

    In its first steps the mean alone counts, so that depths come into range before shapes do.
    """

    def __init__(
        self,
        protocol: DepthProtocol,
        scale: DepthScale,
        facts: DepthRange,
        seed: int,
        workers: Ranks,
    ) -> None:
        self._protocol, self._scale, self._facts = protocol, scale, facts
        self._seed, self._workers = seed, workers

    def __call__(self, batch: DenseBatch, step: int) -> Backward:
        """What to do with each head."""
        pixels = _Pixels(batch, self._protocol.loss_stride, self._seed, step)
        targets = pixels.targets
        known = (targets > self._facts.min_depth) & (targets < self._facts.max_depth)
        goal = (targets[known] + LOG_SHIFT).log()
        settling = step < self._protocol.settling

        def backward(maps: Maps) -> None:
            found = pixels.of(self._scale.meters(maps(slice(None))))[:, 0]
            errors = (found[known] + LOG_SHIFT).log() - goal
            slopes = self._slopes(errors.detach().double(), settling).to(errors)
            (errors * slopes).sum().backward()

        return backward

    def _slopes(self, errors: Float[Tensor, " n"], settling: bool) -> Float[Tensor, " n"]:
        """How the loss over all workers changes with each error of this one."""
        sums = torch.stack((torch.ones_like(errors).sum(), errors.sum(), errors.square().sum()))
        count, total, squares = self._workers.all_reduce(sums).tolist()
        if not count:
            return errors
        weight, mean = self._protocol.variance_weight, total / count
        if settling:
            return torch.full_like(errors, math.sqrt(weight) * math.copysign(1, mean) / count)
        others = max(1.0, count - 1)  # an unbiased variance
        variance = max(0.0, squares - count * mean**2) / others
        loss = max(math.sqrt(variance + weight * mean**2), 1e-12)
        return ((errors - mean) / others + weight * mean / count) / loss
