"""How much of another model's number a number is, and how sure that share is.

The pictures of a set are drawn again, as many as there are, each as often as chance has it. Both
models, all tasks and all seeds on a set see the same draws, so that what is hard for both does not
widen the interval. It tells what other test pictures of the same kind could have given, not what
another training would.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from veca.runtime.randomness import step_seed

Numbers = NDArray[np.float64]

DRAWS = 2**18
"""Counts that are drawn at once: so few that they stay close to the processor."""


class Ratio(NamedTuple):
    """One number over another, and where that may lie."""

    value: float

    low: float | None
    high: float | None
    """None where some draw leaves nothing to divide by."""


class Statistic(ABC):
    """A number over the pictures of a set, the mean over seeds of a head, for any draw of them."""

    @property
    @abstractmethod
    def pictures(self) -> int:
        """How many there are to draw from."""

    @abstractmethod
    def over(self, counts: Numbers) -> Numbers:
        """The number for each draw; `counts` (rounds, pictures) has how often each one came."""

    @property
    def whole(self) -> float:
        """The number over every picture once, as it is reported."""
        return float(self.over(np.ones((1, self.pictures)))[0])


@dataclass(frozen=True)
class PictureMean(Statistic):
    """The mean of a value of each picture."""

    values: Numbers
    """(seeds, pictures); not a number where a picture does not count."""

    @property
    def pictures(self) -> int:
        """How many there are to draw from."""
        return self.values.shape[1]

    def over(self, counts: Numbers) -> Numbers:
        """The mean over the pictures that count, for each draw."""
        counted = ~np.isnan(self.values)
        sums = counts @ np.where(counted, self.values, 0.0).T
        with np.errstate(invalid="ignore"):
            return (sums / (counts @ counted.T.astype(np.float64))).mean(1)


@dataclass(frozen=True)
class MeanIou(Statistic):
    """The mean over classes of intersection / union in percent, both summed over pictures first."""

    intersections: Numbers
    """(seeds, pictures, classes), of the classes that the mean goes over."""

    unions: Numbers

    @property
    def pictures(self) -> int:
        """How many there are to draw from."""
        return self.unions.shape[1]

    def over(self, counts: Numbers) -> Numbers:
        """The mean over the classes that are there or told, for each draw."""
        inside, around = counts @ self.intersections, counts @ self.unions  # (seeds, rounds, ...)
        there = around > 0
        ratios = np.divide(inside, around, out=np.zeros_like(inside), where=there)
        with np.errstate(invalid="ignore"):
            return 100 * (ratios.sum(2) / there.sum(2)).mean(0)


def drawn_again(
    statistics: Sequence[Statistic], name: str, *, rounds: int = 10_000, seed: int = 0
) -> Numbers:
    """What each number would be on pictures drawn again (statistics, rounds), one draw for all.

    Sets of another `name` are drawn on their own.
    """
    sizes = {one.pictures for one in statistics}
    if len(sizes) != 1 or 0 in sizes:
        raise ValueError(
            f"numbers over {sorted(sizes)} pictures cannot be drawn together; give those of one "
            "set, which has at least one picture."
        )
    (pictures,) = sizes
    generator = np.random.default_rng(step_seed(seed, 0, f"probe/retained/{name}"))
    found = np.empty((len(statistics), rounds))
    size = max(1, DRAWS // pictures)
    for start in range(0, rounds, size):
        counts = _counts(generator, min(size, rounds - start), pictures)
        for place, one in enumerate(statistics):
            found[place, start : start + len(counts)] = one.over(counts)
    return found


def ratio_of(
    first: float, second: float, draws: tuple[Numbers, Numbers], level: float = 0.95
) -> Ratio | None:
    """First over second, with the middle `level` of that over the same draws of both.

    None where the second one is 0.
    """
    if second == 0:
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        drawn = draws[0] / draws[1]
    if not np.isfinite(drawn).all():
        return Ratio(first / second, None, None)
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return Ratio(first / second, float(low), float(high))


def _counts(generator: np.random.Generator, rounds: int, pictures: int) -> Numbers:
    """How often each picture comes in each of some draws."""
    drawn = generator.integers(pictures, size=(rounds, pictures))
    drawn += pictures * np.arange(rounds)[:, None]
    found = np.bincount(drawn.reshape(-1), minlength=rounds * pictures)
    return found.reshape(rounds, pictures).astype(np.float64)
