"""Time functions in turns, with quartiles.

All cases run once per round, in random order, so that their ratios hold where the machine slows
down.
"""

import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float64

from veca.runtime.device import ran_out_of_memory

logger = logging.getLogger("veca")

Clock = Callable[[], float]
"""Monotonic seconds."""

LOG_SECONDS = 20.0
"""Least time between two messages about progress."""

OUT_OF_MEMORY = "out of memory"
"""The note of a case that could not be run."""


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How long to measure."""

    rounds: int = 7
    """Minimum number of rounds."""

    seconds: float = 2.0
    """Minimum time that each case is measured for."""

    most_seconds: float = 120.0
    """No round begins for a case once it has taken this long, its warm-up included."""

    def __post_init__(self) -> None:
        """Validate the flags of `veca bench`."""
        if self.rounds < 1:
            raise ValueError(f"rounds={self.rounds} is invalid; use at least 1 round.")
        if not self.seconds <= self.most_seconds or self.most_seconds <= 0:
            raise ValueError(
                f"at least {self.seconds} and at most {self.most_seconds} seconds per case "
                "contradict each other; raise the maximum."
            )


class Quartiles(NamedTuple):
    """The median of some numbers, and the range of their middle half."""

    low: float
    median: float
    high: float


class Speedup(NamedTuple):
    """Quartiles over rounds of how many times faster a case is than another one."""

    low: float
    median: float
    high: float
    clear: bool
    """Whether the rounds show that it is faster or slower at all."""


STUDENT_T = (
    (29, 2.76), (19, 2.86), (14, 2.98), (9, 3.25), (7, 3.50), (6, 3.71), (5, 4.03), (4, 4.60),
    (3, 5.84), (2, 9.92), (1, 63.66),
)  # fmt: skip
"""Degrees of freedom, and the 99.5 % quantile of Student's distribution from these on."""


class Timing(NamedTuple):
    """The measured times of one case."""

    samples: tuple[float, ...]
    """Milliseconds; the i-th sample of every case is of the i-th round. None if memory ran out."""

    note: str = ""
    """How it differs from the requested measurement."""

    @property
    def milliseconds(self) -> Quartiles:
        """The time of a call."""
        return quartiles(self.samples)


def measure(
    cases: Mapping[str, Callable[[], object]],
    effort: Effort,
    *,
    seed: int = 0,
    clock: Clock = time.perf_counter,
) -> dict[str, Timing]:
    """Time all cases in turns; a call must return only when its result is there."""
    found = {name: _Case(run) for name, run in cases.items()}
    logged_at = clock()

    def call(name: str) -> list[float]:
        nonlocal logged_at
        case = found[name]
        taken = case.call(clock)
        if clock() - logged_at >= LOG_SECONDS:
            logged_at = clock()
            logger.info("round %d, %s: %.0f s so far", len(case.samples), name, case.spent)
        return taken

    with torch.inference_mode():
        for name, case in found.items():
            taken = call(name)  # a warm-up
            if not case.note and case.spent >= effort.most_seconds:
                case.samples = taken
                case.note = f"one call without a warm-up, which took {case.spent:.0f} s"
        order = random.Random(seed)
        while names := _unfinished(found, effort):
            order.shuffle(names)
            for name in names:
                found[name].samples += call(name)
    return {name: case.timing(effort) for name, case in found.items()}


@dataclass
class _Case:
    """A function, and its measurements so far."""

    run: Callable[[], object]
    samples: list[float] = field(default_factory=list)
    spent: float = 0.0
    note: str = ""

    def call(self, clock: Clock) -> list[float]:
        """The milliseconds of one call; none if memory ran out."""
        start = clock()
        try:
            self.run()
        except (MemoryError, RuntimeError) as error:
            if not ran_out_of_memory(error):
                raise
            self.note = OUT_OF_MEMORY
        taken = clock() - start
        self.spent += taken
        return [] if self.note else [1000 * taken]

    def timing(self, effort: Effort) -> Timing:
        """The samples, with a note if some are missing."""
        note = self.note
        if not note and len(self.samples) < effort.rounds:
            note = f"{len(self.samples)} of {effort.rounds} rounds, {self.spent:.0f} s"
        return Timing(tuple(self.samples), note)


def _unfinished(cases: Mapping[str, _Case], effort: Effort) -> list[str]:
    """The cases of the next round: all that have time left, if one of them needs it."""
    going = {
        name: case.samples
        for name, case in cases.items()
        if not case.note and case.spent < effort.most_seconds
    }
    needed = any(
        len(samples) < effort.rounds or sum(samples) < 1000 * effort.seconds
        for samples in going.values()
    )
    return list(going) if needed else []


def quartiles(numbers: Sequence[float]) -> Quartiles:
    """Quartiles that are numbers of the list or lie between two of them."""
    low, median, high = np.percentile(numbers, (25, 50, 75)).tolist()
    return Quartiles(low, median, high)


def speedup(timing: Timing, rival: Timing) -> Speedup:
    """How many times faster a case is than its rival, over the rounds that both took part in."""
    pairs = zip(timing.samples, rival.samples, strict=False)
    ratios = np.array([other / own for own, other in pairs])
    return Speedup(*quartiles(ratios.tolist()), _differs_from_one(ratios))


def _differs_from_one(ratios: Float64[np.ndarray, " rounds"]) -> bool:
    """Whether a t-test of their logarithms says so at a level of 1 %; a single one never does."""
    if len(ratios) < 2:
        return False
    logs, freedom = np.log(ratios), len(ratios) - 1
    limit = next(value for least, value in STUDENT_T if freedom >= least)
    return bool(abs(logs.mean()) > limit * logs.std(ddof=1) / np.sqrt(len(ratios)))
