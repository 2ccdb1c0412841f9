"""Long series made short: what a screen can show of a hundred thousand rows."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64
from numpy import ndarray


class Binned(NamedTuple):
    """Means and extremes of neighbors."""

    x: Float64[ndarray, " bins"]
    mean: Float64[ndarray, " bins"]
    low: Float64[ndarray, " bins"]
    high: Float64[ndarray, " bins"]
    members: Int64[ndarray, " bins"]


def binned(x: Float64[ndarray, " n"], y: Float64[ndarray, " n"], most: int) -> Binned:
    """At most so many bins of equal width, those without a value left out; `x` rises."""
    known = np.isfinite(y)
    x, y = x[known], y[known]
    if not len(x):
        none = np.zeros(0)
        return Binned(none, none, none, none, np.zeros(0, dtype=np.int64))
    width = (x[-1] - x[0]) / most or 1.0
    numbers = np.minimum((x - x[0]) // width, most - 1)
    starts = np.flatnonzero(np.diff(numbers, prepend=-1.0))
    members = np.diff(starts, append=len(x))
    return Binned(
        x=np.add.reduceat(x, starts) / members,
        mean=np.add.reduceat(y, starts) / members,
        low=np.minimum.reduceat(y, starts),
        high=np.maximum.reduceat(y, starts),
        members=members.astype(np.int64),
    )


def smoothed(series: Binned, share: float) -> Float64[ndarray, " bins"]:
    """Means over a window of that share of the bins around each.

    At the start, where losses fall fast, it is shorter and stays centered. At the end it reaches
    back only, so that the last values do not decide alone.
    """
    half = int(share * len(series.x) / 2)
    if not half:
        return series.mean
    places = np.arange(len(series.x))
    sums = np.concatenate(([0.0], np.cumsum(series.mean * series.members)))
    counts = np.concatenate(([0], np.cumsum(series.members)))
    first = places - np.minimum(places, half)
    last = np.minimum(places + np.minimum(places, half) + 1, len(places))
    return (sums[last] - sums[first]) / (counts[last] - counts[first])
