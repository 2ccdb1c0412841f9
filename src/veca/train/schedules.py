"""Learning rate, resolution, budget and FFN share of a training step.

Pure functions of the step (and the seed): every rank computes the same without communication, and
a resumed run continues the schedule of the run it resumes.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from veca.backbone.config import BackboneConfig


def budget_weights(budgets: Sequence[int]) -> tuple[int, ...]:
    """The paper's weights: the j-th budget, counted from 1, has weight ceil(j / 2)."""
    return tuple((j + 1) // 2 for j in range(1, len(budgets) + 1))


def draw_budget(
    config: BackboneConfig, seed: int, step: int, weights: Sequence[int | float] | None = None
) -> int | None:
    """The budget of a step: one of `config.budgets`; None for a full-attention model."""
    if config.attention == "full":
        return None
    if weights is None:
        weights = budget_weights(config.budgets)
    return config.budgets[_weighted_index(weights, len(config.budgets), f"budget/{seed}/{step}")]


def draw_share(
    config: BackboneConfig, seed: int, step: int, weights: Sequence[int | float] | None = None
) -> float:
    """The share of FFN hidden units of a step, uniform over `config.ffn_shares` by default."""
    if weights is None:
        weights = (1,) * len(config.ffn_shares)
    return config.ffn_shares[_weighted_index(weights, len(config.ffn_shares), f"ffn/{seed}/{step}")]


def _weighted_index(weights: Sequence[int | float], count: int, key: str) -> int:
    """Draw an index in proportion to its weight, from `key` alone."""
    total = float(sum(weights))
    if len(weights) != count or min(weights) < 0 or total <= 0:
        raise ValueError(
            f"weights={tuple(weights)} is invalid: give {count} numbers >= 0, at least "
            "one of them above 0."
        )
    # Seeding with text goes through SHA-512, so neighboring steps are unrelated.
    point = random.Random(key).random() * total
    for index, weight in enumerate(weights):
        point -= weight
        if point < 0:
            return index
    return max(index for index, weight in enumerate(weights) if weight > 0)


ScheduleKind = Literal["cosine", "constant-decay"]
"""A cosine decay, or a constant rate with a linear decay at the end."""


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """Learning rate over a run; the defaults are the paper's first stage."""

    kind: ScheduleKind = "cosine"
    """A 'constant-decay' run can be extended: until the decay, its rate ignores the length."""

    peak: float = 4e-4
    """Learning rate at the end of the warm-up."""

    minimum: float = 5e-5
    """Learning rate at both ends of the run; the warm-up starts here, not at zero."""

    warmup_share: float = 25 / 135
    """Share of the steps that warm up."""

    warmup_steps: int | None = None
    """Steps of warm-up, whatever the length; overrides the share."""

    decay_share: float = 0.2
    """Share of the steps in which 'constant-decay' decays."""

    decay_steps: int | None = None
    """Steps in which 'constant-decay' decays; overrides the share."""

    def __post_init__(self) -> None:
        """Check ranges."""
        if self.kind not in ("cosine", "constant-decay"):
            raise ValueError(f"kind={self.kind!r} is invalid: use 'cosine' or 'constant-decay'.")
        if not 0 <= self.minimum <= self.peak < math.inf:
            raise ValueError(
                f"minimum={self.minimum} and peak={self.peak} are invalid: "
                "both must be finite, with 0 <= minimum <= peak."
            )
        for name in ("warmup_share", "decay_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}={getattr(self, name)} is invalid: it must be in [0, 1].")
        for name in ("warmup_steps", "decay_steps"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ValueError(f"{name}={value} is invalid: it must be >= 0.")


def learning_rate(config: ScheduleConfig, step: int, steps: int) -> float:
    """The rate of a step, counted from 0, in a run of `steps`; at `steps` it is the minimum."""
    warmup, decay = config.warmup_steps, config.decay_steps
    warmup = round(config.warmup_share * steps) if warmup is None else warmup
    decay = round(config.decay_share * steps) if decay is None else decay
    if step < warmup:
        return _between(config, step / warmup)
    if config.kind == "cosine":
        passed = _share_of_decay(step, warmup, steps)
        return _between(config, (1 + math.cos(math.pi * passed)) / 2)
    return _between(config, 1 - _share_of_decay(step, max(warmup, steps - decay), steps))


@dataclass(frozen=True, kw_only=True)
class ResolutionPhase:
    """Image sizes to draw from, beginning at some point of the run."""

    sizes: tuple[int, ...]
    """Sides of the square training images in pixels."""

    weights: tuple[float, ...] | None = None
    """Relative frequency of each size; None is uniform."""

    from_share: float = 0.0
    """Where this phase begins, as a share of the run."""

    def __post_init__(self) -> None:
        """Check sizes and weights."""
        if not self.sizes or min(self.sizes) < 1:
            raise ValueError(f"sizes={self.sizes} is invalid: give at least one size in pixels.")
        if self.weights is not None and (
            len(self.weights) != len(self.sizes) or min(self.weights) <= 0
        ):
            raise ValueError(
                f"weights={self.weights} is invalid: give one number above 0 for "
                f"each of sizes={self.sizes}, or leave them out."
            )
        if not 0 <= self.from_share <= 1:
            raise ValueError(f"from_share={self.from_share} is invalid: it must be in [0, 1].")


def draw_resolution(phases: Sequence[ResolutionPhase], seed: int, step: int, steps: int) -> int:
    """The image size of a step."""
    starts = [phase.from_share for phase in phases]
    if not phases or starts[0] != 0 or starts != sorted(set(starts)):
        raise ValueError(
            f"phases that begin at {starts} are invalid: the first must begin at 0, and "
            "each later one after the one before it."
        )
    phase = [phase for phase in phases if step >= round(phase.from_share * steps)][-1]
    weights = phase.weights or (1.0,) * len(phase.sizes)
    key = f"resolution/{seed}/{step}"
    return phase.sizes[_weighted_index(weights, len(phase.sizes), key)]


def _share_of_decay(step: int, start: int, end: int) -> float:
    """Completed share of the decay, from 0 to 1; 0 where the decay has no steps."""
    return min(1.0, (step - start) / (end - start)) if start < min(step, end) else 0.0


def _between(config: ScheduleConfig, height: float) -> float:
    """The rate between minimum (0) and peak (1)."""
    return config.minimum + (config.peak - config.minimum) * height
