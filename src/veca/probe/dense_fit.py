"""One loop that fits the heads of all settings and rates of a dense task on the same batches.

Features come from outside, a batch at a time: drawn and computed step by step, or kept
(`kept_views.py`). What is told of the pixels, and its loss, is the task's (`Loss`). Under
torchrun each worker has a part of each batch; sums over the workers make it the fit that one worker
would do, but for rounding.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from torch.optim import AdamW

from veca.probe.dense_config import DenseProtocol
from veca.probe.dense_heads import (
    DenseHead,
    FeatureNorm,
    LearningHead,
    Observed,
    Seen,
    drop_channels,
    maps_of,
)
from veca.probe.dense_schedules import first_beta, learning_rate
from veca.probe.setting import Setting
from veca.runtime.progress import progress
from veca.runtime.randomness import step_seed
from veca.runtime.workers import Workers


class DenseBatch(NamedTuple):
    """This worker's part of the pictures of a step."""

    features: Mapping[Setting, Observed]

    targets: Shaped[Tensor, "b height width"]

    part: slice
    """Which pictures of the whole batch they are."""


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
    fit: Fit, batches: Iterable[DenseBatch], loss: Loss, workers: Workers, shown: bool = True
) -> dict[Candidate, DenseHead]:
    """Fit a head for every setting and rate; each is kept at the protocol's steps."""
    protocol = fit.protocol
    learners = _Learners(fit, workers)
    found: dict[Candidate, DenseHead] = {}
    kept_at = frozenset(protocol.checked_steps())
    with progress(protocol.steps, "steps", shown=shown and workers.first) as tracker:
        for step, batch in zip(range(protocol.steps), batches, strict=False):
            learners.learn(batch, loss, step)
            if step + 1 in kept_at:
                found |= learners.finished(step + 1)
            tracker.advance()
    if protocol.steps not in {candidate.step for candidate in found}:
        raise ValueError(f"there were batches for fewer than the {protocol.steps} steps.")
    return found


class _Learners:
    """All heads in training, with their norms and their optimiser."""

    def __init__(self, fit: Fit, workers: Workers) -> None:
        self._fit = fit
        self._workers = workers
        protocol, width = fit.protocol, fit.widths[0]
        width += fit.widths[1] if protocol.append_image else 0
        self._width = width
        self._norms = {
            setting: FeatureNorm(width, protocol.norm, workers) for setting in fit.settings
        }
        first = step_seed(fit.seed, 0, "dense head")
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
            seed = step_seed(self._fit.seed, step, "dense dropout")
            kept = drop_channels(protocol.batch, self._width, protocol.dropout, seed)
            kept = kept[batch.part].to(self._workers.device)
        return {
            setting: self._norms[setting](observed, protocol.append_image, kept)
            for setting, observed in batch.features.items()
        }

    def _summed(self, gradients: list[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
        """Gradients over all workers, in one message."""
        shapes = [part.shape for pair in gradients for part in pair]
        whole = self._workers.sum(
            torch.cat([part.flatten() for pair in gradients for part in pair])
        )
        pieces = whole.split([shape.numel() for shape in shapes])
        parts = [piece.view(shape) for piece, shape in zip(pieces, shapes, strict=True)]
        return list(zip(parts[::2], parts[1::2], strict=True))


def _gradients(
    seen: Seen, head: tuple[Tensor, Tensor], backward: Backward
) -> tuple[Tensor, Tensor]:
    """Gradients of a head's weights and biases on normalised features, over this worker's part."""
    weight, bias = (part.detach().requires_grad_() for part in head)
    backward(lambda pictures: maps_of(seen, weight, bias, pictures))
    if weight.grad is None or bias.grad is None:  # no pixel of this part counts
        return torch.zeros_like(weight), torch.zeros_like(bias)
    return weight.grad, bias.grad
