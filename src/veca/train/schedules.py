"""Learning rate, resolution, budget and FFN share of a step.

Which budget and which share of the hidden units a training step uses.

Pure functions of (seed, step): every process of a run draws the same without talking, and a
resumed run draws what the uninterrupted one would have drawn.

Learning rate and resolution of a training step.

Pure functions of the step: nothing is stored, so a resumed run and every process of a run follow
the same schedule without talking.
"""

import itertools
import math
import random
from bisect import bisect_right
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
    """The share of hidden units of a step: one of `config.ffn_shares`, all alike by default."""
    if weights is None:
        weights = (1,) * len(config.ffn_shares)
    return config.ffn_shares[_weighted_index(weights, len(config.ffn_shares), f"ffn/{seed}/{step}")]


def _weighted_index(weights: Sequence[int | float], count: int, key: str) -> int:
    """An index drawn in proportion to its weight, by `key` alone."""
    total = float(sum(weights))
    if len(weights) != count or min(weights) < 0 or total <= 0:
        raise ValueError(
            f"weights={tuple(weights)} cannot be drawn from; give {count} numbers of 0 or more, "
            "at least one of them above 0."
        )
    # Seeding with text goes through SHA-512, so neighboring steps are unrelated.
    point = random.Random(key).random() * total
    for index, weight in enumerate(weights):
        point -= weight
        if point < 0:
            return index
    return max(index for index, weight in enumerate(weights) if weight > 0)


ScheduleKind = Literal["cosine", "constant-decay"]
"""How the rate falls: along half a cosine, or not at all until a straight decay at the end."""


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """Learning rate over a run; the defaults are the paper's first stage."""

    kind: ScheduleKind = "cosine"
    """'constant-decay' can be prolonged: its rate does not depend on the length until the decay."""

    peak: float = 4e-4
    """Rate at the end of the warm-up."""

    minimum: float = 5e-5
    """Rate at both ends of the run: the warm-up starts here too, not at zero."""

    warmup_share: float = 25 / 135
    """Share of the steps in which the rate rises."""

    warmup_steps: int | None = None
    """Steps in which the rate rises; overrides the share, and does not change with the length."""

    decay_share: float = 0.2
    """Share of the steps in which 'constant-decay' falls."""

    decay_steps: int | None = None
    """Steps in which 'constant-decay' falls; overrides the share."""

    def __post_init__(self) -> None:
        """Refuse a schedule that cannot be followed."""
        if self.kind not in ("cosine", "constant-decay"):
            raise ValueError(f"kind={self.kind!r} is not known; use 'cosine' or 'constant-decay'.")
        if not 0 <= self.minimum <= self.peak < math.inf:
            raise ValueError(
                f"minimum={self.minimum} and peak={self.peak} are not usable; "
                "both must be finite, and 0 <= minimum <= peak."
            )
        for name in ("warmup_share", "decay_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}={getattr(self, name)} is no share; use one within 0..1.")
        for name in ("warmup_steps", "decay_steps"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ValueError(f"{name}={value} is not usable; use 0 or more, or leave it out.")


def learning_rate(config: ScheduleConfig, step: int, steps: int) -> float:
    """The rate of a step, counted from 0, in a run of `steps`; at `steps` it is the minimum."""
    warmup = _count(config.warmup_steps, config.warmup_share, steps)
    if step < warmup:
        return _between(config, step / warmup)
    if config.kind == "cosine":
        passed = _share_of_decay(step, warmup, steps)
        return _between(config, (1 + math.cos(math.pi * passed)) / 2)
    decay = _count(config.decay_steps, config.decay_share, steps)
    return _between(config, 1 - _share_of_decay(step, max(warmup, steps - decay), steps))


@dataclass(frozen=True, kw_only=True)
class ResolutionPhase:
    """Image sizes drawn from a point of the run on."""

    sizes: tuple[int, ...]
    """Sides of the square training images in pixels."""

    weights: tuple[float, ...] | None = None
    """How often each size is drawn, in any unit; None means all alike."""

    from_share: float = 0.0
    """Share of the run's steps at which this phase begins."""

    def __post_init__(self) -> None:
        """Refuse what cannot be drawn from."""
        if not self.sizes or min(self.sizes) < 1:
            raise ValueError(
                f"sizes={self.sizes} are not usable; give at least one size in pixels."
            )
        if self.weights is not None and (
            len(self.weights) != len(self.sizes) or min(self.weights) <= 0
        ):
            raise ValueError(
                f"weights={self.weights} do not fit sizes={self.sizes}; "
                "give one number above 0 for each size, or leave them out."
            )
        if not 0 <= self.from_share <= 1:
            raise ValueError(f"from_share={self.from_share} is no share; use one within 0..1.")


def draw_resolution(phases: Sequence[ResolutionPhase], seed: int, step: int, steps: int) -> int:
    """The image size of a step, the same in every process and after every resume."""
    starts = [phase.from_share for phase in phases]
    if not phases or starts[0] != 0 or starts != sorted(set(starts)):
        raise ValueError(
            f"phases that begin at {starts} leave steps without a resolution; "
            "the first must begin at 0 and each later one after the one before it."
        )
    phase = [phase for phase in phases if step >= round(phase.from_share * steps)][-1]
    weights = phase.weights or (1.0,) * len(phase.sizes)
    sums = list(itertools.accumulate(weights))
    # Seeding with text goes through SHA-512, so neighboring steps are unrelated.
    point = random.Random(f"resolution/{seed}/{step}").random() * sums[-1]
    return phase.sizes[bisect_right(sums, point, hi=len(sums) - 1)]


def _count(steps: int | None, share: float, total: int) -> int:
    """A number of steps that is given, or else taken as a share."""
    return round(share * total) if steps is None else steps


def _share_of_decay(step: int, start: int, end: int) -> float:
    """How much of the decay has passed, from 0 to 1; one that has no steps never begins."""
    return min(1.0, (step - start) / (end - start)) if start < min(step, end) else 0.0


def _between(config: ScheduleConfig, height: float) -> float:
    """The rate at a height of 0 (minimum) to 1 (peak)."""
    return config.minimum + (config.peak - config.minimum) * height
