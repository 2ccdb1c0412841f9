"""How sure a mean over pictures is: intervals by drawing the same number of pictures again.

They tell what other test pictures of the same kind could have given, not what another seed would.
"""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor

from veca.runtime.randomness import step_seed

Values = Bool[Tensor, " N"] | Float[Tensor, " N"]
"""One value a picture: whether it is right, which counts as 0 or 100 percent, or any number."""

DRAWS = 2**22
"""Counts that are drawn at once."""


class Interval(NamedTuple):
    """A mean and where it may lie; percent for booleans, else in the unit of the values."""

    mean: float
    low: float
    high: float


def interval(
    values: Values, *, rounds: int = 10_000, seed: int = 0, level: float = 0.95
) -> Interval:
    """The mean of the values, and the middle `level` of its means over pictures drawn again."""
    if not len(values):
        raise ValueError("there are no values, so they have no mean; give at least one.")
    if rounds < 1 or not 0 < level < 1:
        raise ValueError(
            f"rounds={rounds} and level={level} make no interval; use 1 round or more, and "
            "0 < level < 1."
        )
    numbers, counts = np.unique(_numbers(values), return_counts=True)
    drawn = _means(numbers, counts, rounds, seed)
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(numbers @ counts) / len(values), float(low), float(high))


def paired_bootstrap(
    first: Values, second: Values, *, rounds: int = 10_000, seed: int = 0, level: float = 0.95
) -> Interval:
    """The difference first - second of two models on the same pictures, drawn in pairs.

    Much narrower than the intervals of both suggest, since pictures are hard for both; the models
    differ beyond chance, at this level, where 0 lies outside.
    """
    difference = torch.from_numpy(_numbers(first) - _numbers(second))
    return interval(difference, rounds=rounds, seed=seed, level=level)


def _numbers(values: Tensor) -> NDArray[np.float64]:
    """Values in double precision, booleans in percent."""
    scale = 100.0 if values.dtype == torch.bool else 1.0
    return values.cpu().double().numpy() * scale


def _means(
    numbers: NDArray[np.float64],
    counts: NDArray[np.int64],
    rounds: int,
    seed: int,
) -> NDArray[np.float64]:
    """Means of pictures drawn again, each as often as chance has it.

    How often each distinct value comes is drawn, instead of every picture: the same chances, and
    for right and wrong two draws a round instead of N.
    """
    generator = np.random.default_rng(step_seed(seed, 0, "probe/bootstrap"))
    total = int(counts.sum())
    size = max(1, DRAWS // len(numbers))
    blocks = [
        generator.multinomial(total, counts / total, size=min(size, rounds - start)) @ numbers
        for start in range(0, rounds, size)
    ]
    return np.concatenate(blocks) / total
