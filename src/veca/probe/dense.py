"""Linear heads on patch features: fit and evaluate.

Learning rates over the steps of a fit, as factors of the peak; pure functions.

Linear heads on patch features: in training, with a norm before them, and finished, without.

A norm over the batch is linear once its mean and variance are known, and these do not depend on the
head, since features are frozen. So features are normalized once for all heads of a setting, and the
gain and shift that each head learns are a part of its weights:

    W (g * x + s) + b  =  (W g) x + (W s + b)

which is also how a finished head gets rid of its norm. The image feature, where it is appended, is
the same at every patch: its part is computed once for a picture instead of once for a patch.

Shapes: b pictures, K outputs, DP and DI channels of patch and image features, D both together.

One loop that fits the heads of all settings and rates of a dense task on the same batches.

Features come from outside, a batch at a time: drawn and computed step by step, or kept
(`features.py`). What is told of the pixels, and its loss, is the task's (`Loss`). Under
torchrun each worker has a part of each batch; sums over the workers make it the fit that one worker
would do, but for rounding.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import AdamW

from veca.probe.features import DenseBatch
from veca.probe.models import FrozenFeatures
from veca.probe.protocols import DenseProtocol
from veca.probe.rows import Setting
from veca.runtime.device import seed_for
from veca.runtime.distributed import Ranks
from veca.runtime.logging import progress

WARMUP_START = 1e-6
"""Factor of the first step of 'warmup-poly'."""

CYCLE_START, CYCLE_END = 1 / 1000, 1 / 25_000
"""Factors that 'one-cycle' begins and ends with."""

CYCLE_BETAS = (0.85, 0.95)
"""First beta of 'one-cycle' after its warm-up: where it begins and ends."""


def learning_rate(protocol: DenseProtocol, peak: float, step: int) -> float:
    """The rate of a step, counted from 0.

    'poly': (1 - t / T) ** power, from the peak to the floor.
    'warmup-poly': the same, times a factor that rises linearly from 1e-6 to 1 (DINOv2).
    'warmup-cosine': a factor that rises linearly from 0 times what is linearly left, then half a
        cosine over the whole length, so that it goes on slightly below the peak (DINOv3).
    'one-cycle': half a cosine over the whole length, times a linear rise; at least a thousandth of
        the peak in the warm-up and 1 / 25,000 after it (DINOv3's depth).
    """
    done = step / protocol.steps
    rise = min(1.0, step / protocol.warmup) if protocol.warmup else 1.0
    if protocol.schedule == "poly":
        return _poly(protocol, peak, done)
    if protocol.schedule == "warmup-poly":
        return _poly(protocol, peak, done) * (WARMUP_START + (1 - WARMUP_START) * rise)
    if protocol.schedule == "warmup-cosine":
        if step < protocol.warmup:
            return peak * rise * (1 - done)
        return peak * _half_cosine((step + 1) / protocol.steps)
    if step < protocol.warmup:
        return peak * (CYCLE_START + _half_cosine(done) * rise)
    return peak * (CYCLE_END + (1 - CYCLE_END) * _half_cosine(done))


def first_beta(protocol: DenseProtocol, step: int) -> float:
    """AdamW's first beta: fixed, but for 'one-cycle', which has 0 in its warm-up and then rises."""
    if protocol.schedule != "one-cycle":
        return protocol.betas[0]
    if step < protocol.warmup:
        return 0.0
    done = (step - protocol.warmup) / max(1, protocol.steps - protocol.warmup)
    low, high = CYCLE_BETAS
    return high + (low - high) * _half_cosine(done)


def _poly(protocol: DenseProtocol, peak: float, done: float) -> float:
    """From the peak to the floor, or level where the peak lies below it."""
    floor = min(protocol.floor, peak)
    return floor + (peak - floor) * (1 - done) ** protocol.power


def _half_cosine(done: float) -> float:
    """From 1 to 0."""
    return 0.5 * (1 + math.cos(math.pi * done))


EPSILON = 1e-5
"""Added to variances."""

MOMENTUM = 0.1
"""Share of the newest batch in the running mean and variance."""

WEIGHT_SCALE = 0.01
"""Standard deviation of the first weights; biases begin at 0."""


@dataclass(frozen=True, kw_only=True)
class DenseHead:
    """K numbers for each patch, from its feature and perhaps that of the image."""

    weight: Float[Tensor, "K D"]

    bias: Float[Tensor, " K"]

    patch_width: int
    """Channels of a patch feature; the rest of D are those of the image feature."""

    def maps(self, observed: FrozenFeatures) -> Float[Tensor, "b K rows columns"]:
        """The numbers of every patch."""
        patches = torch.einsum(
            "kd,bdrc->bkrc", self.weight[:, : self.patch_width], observed.patches
        )
        weight = self.weight[:, self.patch_width :]
        around = self.bias + (observed.image @ weight.T if weight.shape[1] else 0)
        return patches + around.expand(len(patches), -1)[..., None, None]

    def to(self, device: torch.device) -> "DenseHead":
        """The same head on another device."""
        return DenseHead(
            weight=self.weight.to(device), bias=self.bias.to(device), patch_width=self.patch_width
        )

    def tensors(self) -> dict[str, Tensor]:
        """What a file needs to hold of it, with `facts`."""
        return {"weight": self.weight.cpu(), "bias": self.bias.cpu()}

    def facts(self) -> dict[str, Any]:
        """Plain values that go with the tensors."""
        return {"patch_width": self.patch_width}


def head_from(tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> DenseHead:
    """A head from what `tensors` and `facts` gave."""
    return DenseHead(
        weight=tensors["weight"], bias=tensors["bias"], patch_width=int(facts["patch_width"])
    )


class Seen(NamedTuple):
    """Features as the heads of a setting see them, channels first."""

    patches: Float[Tensor, "DP b cells"]

    image: Float[Tensor, "DI b"]
    """DI is 0 where the image feature is not appended."""

    grid: tuple[int, int]
    """Rows and columns of the cells."""


class FeatureNorm:
    """Normalizes the channels of a setting's features over the batch, on all workers alike."""

    def __init__(self, width: int, norm: str, workers: Ranks) -> None:
        self.mean = torch.zeros(width, device=workers.device)
        self.variance = torch.ones(width, device=workers.device)
        self._normalizes = norm == "batch"
        self._workers = workers

    def __call__(
        self,
        observed: FrozenFeatures,
        append_image_feature: bool,
        kept: Float[Tensor, "b D"] | None,
    ) -> Seen:
        """The features of this worker's part of a batch.

        Args:
            observed: the features as the model gave them.
            append_image_feature: whether heads see the image feature too.
            kept: factors of each channel of each picture, 0 where it is dropped.
        """
        rows, columns = observed.patches.shape[2:]
        patches = observed.patches.flatten(2).transpose(0, 1).float()
        image = observed.image.T.float() if append_image_feature else observed.image.new_zeros(0, 1)
        image = image.expand(-1, patches.shape[1])
        if kept is not None:
            patches = patches * kept.T[: len(patches), :, None]
            image = image * kept.T[len(patches) :]
        if self._normalizes:
            patches, image = self._normalized(patches, image)
        return Seen(patches.contiguous(), image.contiguous(), (rows, columns))

    def _normalized(
        self, patches: Float[Tensor, "DP b cells"], image: Float[Tensor, "DI b"]
    ) -> tuple[Float[Tensor, "DP b cells"], Float[Tensor, "DI b"]]:
        """Mean 0 and variance 1 over the batch; the image feature counts once for each patch."""
        _, pictures, cells = patches.shape
        means = torch.cat((patches.sum((1, 2)), image.sum(1) * cells)).double()
        count = torch.tensor([float(pictures * cells)], device=means.device, dtype=means.dtype)
        means, count = self._workers.all_reduce(torch.cat((means, count))).split((len(means), 1))
        mean = (means / count).float()
        patches = patches - mean[: len(patches), None, None]
        image = image - mean[len(patches) :, None]
        squares = torch.cat((patches.square().sum((1, 2)), image.square().sum(1) * cells))
        variance = self._workers.all_reduce(squares) / count.float()
        scale = (variance + EPSILON).rsqrt()
        patches = patches * scale[: len(patches), None, None]
        image = image * scale[len(patches) :, None]
        unbiased = variance * (count / (count - 1).clamp(min=1)).float()
        self.mean.lerp_(mean, MOMENTUM)
        self.variance.lerp_(unbiased, MOMENTUM)
        return patches, image

    def finished(
        self, weight: Float[Tensor, "K D"], bias: Float[Tensor, " K"], patch_width: int
    ) -> DenseHead:
        """A head that needs no norm any more."""
        if self._normalizes:
            weight = weight * (self.variance + EPSILON).rsqrt()
            bias = bias - weight @ self.mean
        return DenseHead(
            weight=weight.detach().clone(), bias=bias.detach().clone(), patch_width=patch_width
        )


class LearningHead(nn.Module):
    """The parameters of a head in training."""

    def __init__(self, outputs: int, width: int, normalized: bool, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.weight = nn.Parameter(
            torch.randn(outputs, width, generator=generator).mul_(WEIGHT_SCALE)
        )
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.gain = nn.Parameter(torch.ones(width)) if normalized else None
        self.shift = nn.Parameter(torch.zeros(width)) if normalized else None

    def effective(self) -> tuple[Float[Tensor, "K D"], Float[Tensor, " K"]]:
        """Weights and biases on normalized features, gain and shift included."""
        if self.gain is None or self.shift is None:
            return self.weight * 1, self.bias * 1
        return self.weight * self.gain, self.bias + self.weight @ self.shift


def maps_of(
    seen: Seen, weight: Float[Tensor, "K D"], bias: Float[Tensor, " K"], pictures: slice
) -> Float[Tensor, "b K rows columns"]:
    """What a head in training tells of some of the pictures."""
    width = len(seen.patches)
    patches = seen.patches[:, pictures]
    found = (weight[:, :width] @ patches.flatten(1)).unflatten(1, patches.shape[1:])
    around = bias[:, None] + weight[:, width:] @ seen.image[:, pictures]
    return (found + around[..., None]).transpose(0, 1).unflatten(2, seen.grid)


def drop_channels(
    pictures: int, width: int, share: float, seed: int
) -> Float[Tensor, "{pictures} {width}"]:
    """Factors that drop a share of the channels of each picture and make up for it in the rest."""
    generator = torch.Generator().manual_seed(seed)
    stays: Bool[Tensor, "b D"] = torch.rand(pictures, width, generator=generator) >= share
    return stays.float() / (1 - share)


Maps = Callable[[slice], Float[Tensor, "b K rows columns"]]
"""What a head tells of some of this worker's pictures."""

Backward = Callable[[Maps], None]
"""Computes a head's loss and its gradient."""


Loss = Callable[[DenseBatch, int], Backward]
"""Given the pictures of a step and its number, what to do with each head."""


class Candidate(NamedTuple):
    """One of the heads that may be reported."""

    setting: Setting

    rate: float

    step: int
    """Steps that it learned for."""


class Fit(NamedTuple):
    """What there is to be fitted."""

    protocol: DenseProtocol

    settings: Sequence[Setting]

    outputs: int
    """Numbers K that a head tells of a patch."""

    widths: tuple[int, int]
    """Channels of patch and image features."""

    seed: int


def fit_heads(
    fit: Fit, batches: Iterable[DenseBatch], loss: Loss, workers: Ranks, shown: bool = True
) -> dict[Candidate, DenseHead]:
    """Fit a head for every setting and rate; each is kept at the protocol's steps."""
    protocol = fit.protocol
    learners = _Learners(fit, workers)
    found: dict[Candidate, DenseHead] = {}
    kept_at = frozenset(protocol.checked_steps())
    with progress(protocol.steps, "steps", shown=shown and workers.is_main) as tracker:
        for step, batch in zip(range(protocol.steps), batches, strict=False):
            learners.learn(batch, loss, step)
            if step + 1 in kept_at:
                found |= learners.finished(step + 1)
            tracker.advance()
    if protocol.steps not in {candidate.step for candidate in found}:
        raise ValueError(f"there were batches for fewer than the {protocol.steps} steps.")
    return found


class _Learners:
    """All heads in training, with their norms and their optimizer."""

    def __init__(self, fit: Fit, workers: Ranks) -> None:
        self._fit = fit
        self._workers = workers
        protocol, width = fit.protocol, fit.widths[0]
        width += fit.widths[1] if protocol.append_image_feature else 0
        self._width = width
        self._norms = {
            setting: FeatureNorm(width, protocol.norm, workers) for setting in fit.settings
        }
        first = seed_for(fit.seed, 0, "dense head")
        self._heads = {
            (setting, rate): LearningHead(fit.outputs, width, protocol.norm == "batch", first).to(
                workers.device
            )
            for setting in fit.settings
            for rate in protocol.rates
        }
        self._optimizer = AdamW(
            [
                {"params": list(head.parameters()), "peak": rate}
                for (_, rate), head in self._heads.items()
            ],
            weight_decay=protocol.decay,
        )

    def learn(self, batch: DenseBatch, loss: Loss, step: int) -> None:
        """Take one step."""
        protocol = self._fit.protocol
        seen = self._seen(batch, step)
        backward = loss(batch, step)
        heads = [head.effective() for head in self._heads.values()]
        gradients = [
            _gradients(seen[setting], head, backward)
            for (setting, _), head in zip(self._heads, heads, strict=True)
        ]
        for head, gradient in zip(heads, self._summed(gradients), strict=True):
            torch.autograd.backward(head, gradient)
        if protocol.clip is not None:
            for learner in self._heads.values():
                clip_grad_norm_(learner.parameters(), protocol.clip)
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate(protocol, group["peak"], step)
            group["betas"] = (first_beta(protocol, step), protocol.betas[1])
        self._optimizer.step()
        self._optimizer.zero_grad()

    def finished(self, step: int) -> dict[Candidate, DenseHead]:
        """The heads as they are now."""
        return {
            Candidate(setting, rate, step): self._norms[setting].finished(
                *head.effective(), self._fit.widths[0]
            )
            for (setting, rate), head in self._heads.items()
        }

    @torch.no_grad()
    def _seen(self, batch: DenseBatch, step: int) -> dict[Setting, Seen]:
        """The features as heads see them; the same channels are dropped for all settings."""
        protocol, kept = self._fit.protocol, None
        if protocol.dropout:
            seed = seed_for(self._fit.seed, step, "dense dropout")
            kept = drop_channels(protocol.batch, self._width, protocol.dropout, seed)
            kept = kept[batch.part].to(self._workers.device)
        return {
            setting: self._norms[setting](observed, protocol.append_image_feature, kept)
            for setting, observed in batch.features.items()
        }

    def _summed(self, gradients: list[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
        """Gradients over all workers, in one message."""
        shapes = [part.shape for pair in gradients for part in pair]
        whole = self._workers.all_reduce(
            torch.cat([part.flatten() for pair in gradients for part in pair])
        )
        pieces = whole.split([shape.numel() for shape in shapes])
        parts = [piece.view(shape) for piece, shape in zip(pieces, shapes, strict=True)]
        return list(zip(parts[::2], parts[1::2], strict=True))


def _gradients(
    seen: Seen, head: tuple[Tensor, Tensor], backward: Backward
) -> tuple[Tensor, Tensor]:
    """Gradients of a head's weights and biases on normalized features, over this worker's part."""
    weight, bias = (part.detach().requires_grad_() for part in head)
    backward(lambda pictures: maps_of(seen, weight, bias, pictures))
    if weight.grad is None or bias.grad is None:  # no pixel of this part counts
        return torch.zeros_like(weight), torch.zeros_like(bias)
    return weight.grad, bias.grad
