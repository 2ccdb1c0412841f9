"""Axes of curves: from values to places on the page, and ticks at round numbers."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64
from numpy import ndarray

Number = int | float

ROUND_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
"""Distances of ticks that people count in, up to a power of ten."""

ROUND_FACTORS = ((1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0), (1.0, 2.0, 5.0), (1.0,))
"""Ticks within a power of ten on a logarithmic axis, the densest first."""


FARTHEST = 20.0
"""Lengths of an axis up to which places are kept; none is seen there, and numbers stay short."""


class Scale(NamedTuple):
    """One axis: the values at its two ends and their places on the page."""

    low: Number
    high: Number
    start: Number
    end: Number
    logarithmic: bool = False

    def places(self, values: Float64[ndarray, " n"]) -> Float64[ndarray, " n"]:
        """Where values stand; those far beyond an end stand some lengths of the axis beyond it."""
        low, high = self.low, self.high
        if self.logarithmic:
            values = np.log(np.maximum(values, np.finfo(np.float64).tiny))
            low, high = math.log(low), math.log(high)
        shares = ((values - low) / (high - low)).clip(-FARTHEST, FARTHEST)
        return self.start + shares * (self.end - self.start)

    def place(self, value: Number) -> float:
        """Where one value stands."""
        return float(self.places(np.array([value], dtype=np.float64))[0])


def round_ticks(low: Number, high: Number, most: int, least_step: Number = 0) -> list[float]:
    """Round numbers within [low, high], evenly spaced, at most so many."""
    raw = max((high - low) / max(most - 1, 1), least_step)
    if raw <= 0:
        return [float(low)]
    power = 10.0 ** math.floor(math.log10(raw))
    for factor in ROUND_STEPS:
        step = factor * power
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if step >= least_step and last - first < most:
            break
    return [round(number * step, 12) for number in range(first, last + 1)]


def logarithmic_ticks(low: Number, high: Number, most: int) -> list[float]:
    """Round numbers for a logarithmic axis; like those of another axis if it is short."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ROUND_FACTORS:
        ticks = [factor * 10.0**power for power in powers for factor in factors]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) <= most:
            break
    if len(ticks) < 3:
        return round_ticks(low, high, most)
    return ticks[:: math.ceil(len(ticks) / most)]


def words(ticks: Sequence[Number]) -> list[str]:
    """Ticks as they are written: all with as many decimals as one of them needs."""
    largest = max(map(abs, ticks), default=0.0)
    if 0 < largest < 0.002:
        return [_scientific(tick) for tick in ticks]
    if largest >= 1e6:
        return [f"{tick / 1e6:g}M" if tick else "0" for tick in ticks]
    decimals = next(
        (count for count in range(6) if all(_fits(tick, count) for tick in ticks)),
        6,
    )
    return [f"{tick:,.{decimals}f}" for tick in ticks]


def _fits(value: Number, decimals: int) -> bool:
    """Whether so many decimals say it all."""
    return math.isclose(round(value, decimals), value, rel_tol=1e-9, abs_tol=1e-12)


def _scientific(value: Number) -> str:
    """A small number, as in 2.5e-4."""
    if value == 0:
        return "0"
    power = math.floor(math.log10(abs(value)) + 1e-9)
    return f"{value / 10.0**power:.3g}e{power}"
