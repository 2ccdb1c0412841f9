"""Time functions in turns, with quartiles."""

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

Clock = Callable[[], float]
"""Seconds that only ever rise."""

Tell = Callable[[str], None]
"""Takes a line on how far a long run is."""

SILENCE = 20.0
"""Seconds between two such lines."""

OUT_OF_MEMORY = "out of memory"
"""The note of a case that could not be run."""


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How long to measure."""

    warmups: int = 1
    """Calls of each case before the first round."""

    rounds: int = 7
    """Rounds at least."""

    seconds: float = 2.0
    """Time that each case is measured for at least."""

    most_seconds: float = 120.0
    """No round begins for a case once it has taken this long, warm-ups included."""

    def __post_init__(self) -> None:
        """Refuse what measures nothing."""
        if self.rounds < 1 or self.warmups < 0:
            raise ValueError(
                f"rounds={self.rounds} and warmups={self.warmups} measure nothing; use at least 1 "
                "round and no fewer than 0 warm-ups."
            )
        if not self.seconds <= self.most_seconds or self.most_seconds <= 0:
            raise ValueError(
                f"at least {self.seconds} and at most {self.most_seconds} seconds for a case do "
                "not go together; give a larger most."
            )


class Quartiles(NamedTuple):
    """The middle of some numbers, and the range of their middle half."""

    low: float
    median: float
    high: float


class Timing(NamedTuple):
    """What the rounds of one case took."""

    samples: tuple[float, ...]
    """Milliseconds; the i-th sample of every case is of the i-th round. None if memory ran out."""

    note: str = ""
    """What was not measured as asked for."""

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
    tell: Tell = lambda _: None,
) -> dict[str, Timing]:
    """Time all cases in turns; a call must end only when its result is there."""
    stopwatch = _Stopwatch(cases, effort, clock, tell)
    with torch.inference_mode():
        for name in cases:
            stopwatch.warm_up(name)
        order = random.Random(seed)
        while names := stopwatch.unfinished():
            order.shuffle(names)
            for name in names:
                stopwatch.run(name)
    return {name: stopwatch.timing(name) for name in cases}


def quartiles(numbers: Sequence[float]) -> Quartiles:
    """Quartiles that are numbers of the list or lie between two of them."""
    if len(numbers) == 1:
        return Quartiles(numbers[0], numbers[0], numbers[0])
    return Quartiles(*statistics.quantiles(numbers, n=4, method="inclusive"))


def speedup(timing: Timing, rival: Timing) -> Quartiles:
    """How many times faster a case is than its rival, over the rounds that both took part in."""
    pairs = zip(timing.samples, rival.samples, strict=False)
    return quartiles([other / own for own, other in pairs])


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that there was not enough memory."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


class _Stopwatch:
    """Runs cases and keeps what they took."""

    def __init__(
        self,
        cases: Mapping[str, Callable[[], object]],
        effort: Effort,
        clock: Clock,
        tell: Tell,
    ) -> None:
        self.cases, self.effort, self.clock, self.tell = cases, effort, clock, tell
        self.told = clock()
        self.spent = dict.fromkeys(cases, 0.0)
        self.samples: dict[str, list[float]] = {name: [] for name in cases}
        self.cold: set[str] = set()
        self.failed: set[str] = set()

    def run(self, name: str) -> None:
        """Take one sample."""
        taken = self._call(name)
        if name not in self.failed:
            self.samples[name].append(1000 * taken)

    def warm_up(self, name: str) -> None:
        """Call a case as often as asked for; a first call that uses up the time is its sample."""
        for _ in range(self.effort.warmups):
            taken = self._call(name)
            if name in self.failed:
                return
            if self.spent[name] >= self.effort.most_seconds:
                self.samples[name].append(1000 * taken)
                self.cold.add(name)
                return

    def unfinished(self) -> list[str]:
        """Who takes part in the next round: all that have time left, if one of them needs it."""
        most, failed = self.effort.most_seconds, self.failed
        names = [name for name in self.cases if self.spent[name] < most and name not in failed]
        return names if any(self._needs_more(name) for name in names) else []

    def _needs_more(self, name: str) -> bool:
        """Whether a case was not yet measured as long as asked for."""
        samples = self.samples[name]
        return len(samples) < self.effort.rounds or sum(samples) < 1000 * self.effort.seconds

    def timing(self, name: str) -> Timing:
        """The samples of a case, with a word on what is missing."""
        samples = tuple(self.samples[name])
        if name in self.failed:
            note = OUT_OF_MEMORY
        elif name in self.cold:
            note = f"one call without a warm-up, which took {self.spent[name]:.0f} s"
        elif len(samples) < self.effort.rounds:
            note = f"{len(samples)} of {self.effort.rounds} rounds, {self.spent[name]:.0f} s"
        else:
            note = ""
        return Timing(samples, note)

    def _call(self, name: str) -> float:
        """Seconds of one call."""
        start = self.clock()
        try:
            self.cases[name]()
        except (MemoryError, RuntimeError) as error:
            if not ran_out_of_memory(error):
                raise
            self.failed.add(name)
        taken = self.clock() - start
        self.spent[name] += taken
        self._tell(name, start + taken)
        return taken

    def _tell(self, name: str, now: float) -> None:
        """Say how far the run is, if nothing was said for long."""
        if now - self.told >= SILENCE:
            self.told = now
            done = len(self.samples[name])
            step = f"round {done + 1}" if done else "warm-up or first round"
            self.tell(f"{step}, {name} took {self.spent[name]:.0f} s so far")
