"""How much to merge so that token merging takes as long as its rival."""

import math
from collections.abc import Callable
from typing import NamedTuple

CLOSE_ENOUGH = 0.05
"""Times that differ by less than this share count as equal."""

HALVINGS = 6
"""Steps of the search at most; each one times a candidate, so an exact answer is not worth it."""


class Choice(NamedTuple):
    """The rate that was chosen, and the time it took against that of the rival."""

    rate: int
    ratio: float
    tried: int
    """Rates that were timed."""


def choose_rate(ratio_of: Callable[[int], float], most: int) -> Choice:
    """The rate whose time is nearest to the rival's, by halving 0..most.

    More merging takes less time. If the most takes longer than the rival, it is the answer.
    """
    ratios = {most: ratio_of(most)}
    low, high = 0, most
    for _ in range(HALVINGS):
        middle = (low + high) // 2
        if _difference(ratios[high]) <= CLOSE_ENOUGH or ratios[most] > 1 or middle == low:
            break
        ratios[middle] = ratio_of(middle)
        if ratios[middle] > 1 + CLOSE_ENOUGH:
            low = middle
        else:
            high = middle
    best = min(ratios, key=lambda rate: _difference(ratios[rate]))
    return Choice(best, ratios[best], len(ratios))


def _difference(ratio: float) -> float:
    """How far a ratio is from 1, the same for twice as long and half as long."""
    return abs(math.log(ratio))
