"""Which budget and which share of the hidden units a training step uses.

Pure functions of (seed, step): every process of a run draws the same without talking, and a
resumed run draws what the uninterrupted one would have drawn.
"""

import random
from collections.abc import Sequence

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
    # Seeding with text goes through SHA-512, so neighbouring steps are unrelated.
    point = random.Random(key).random() * total
    for index, weight in enumerate(weights):
        point -= weight
        if point < 0:
            return index
    return max(index for index, weight in enumerate(weights) if weight > 0)
