"""The benchmark: VECA beside its rivals, at several resolutions, budgets and FFN shares.

At each resolution all contenders run in turns within one process (`timing.py`); peak memory is
measured before, in a process for each (`memory.py`). Token merging takes part at the rate at which
it takes about as long as VECA with the fewest cores (`merging_rate.py`).
"""

import datetime
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from veca.analysis.bench_config import BenchConfig
from veca.analysis.bench_findings import Growth, growths, remarks, weak_spots
from veca.analysis.bench_rows import Measured, Row, rows_of
from veca.analysis.contenders import Contender, Lineup
from veca.analysis.machine import Machine, load_average, this_machine
from veca.analysis.memory import peak_bytes
from veca.analysis.merging_rate import Choice, choose_rate
from veca.runtime.device import ResolvedPrecision
from veca.runtime.timing import OUT_OF_MEMORY, Effort, Tell, Timing, measure, speedup

SEARCH_EFFORT = Effort(rounds=5, seconds=0.5, most_seconds=4.0)
"""At most, for each candidate of the search for a rate of merging."""

BUSY = 0.25
"""Load of each core before the run from which on times are not to be trusted."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """A finished benchmark, with all that its numbers must carry."""

    config: BenchConfig
    machine: Machine
    command: str
    started: str
    """When, in UTC."""

    finished: str
    load: tuple[float | None, float | None]
    """Processes that wanted to run before and after; before there should be none."""

    rows: list[Row]

    @property
    def busy(self) -> bool:
        """Whether others used the machine when the run began."""
        return self.load[0] is not None and self.load[0] > BUSY * self.machine.cores

    @property
    def growths(self) -> list[Growth]:
        """How time grows with patches."""
        return growths(self.rows)

    @property
    def weak_spots(self) -> list[str]:
        """Where VECA does not win."""
        return weak_spots(self.rows)

    @property
    def remarks(self) -> list[str]:
        """What else the numbers say."""
        return remarks(self.rows)


def run_bench(config: BenchConfig, command: str, tell: Tell) -> Report:
    """Measure everything; takes minutes, or an hour with large images."""
    started, load = _now(), load_average()
    with _threads(config.threads):
        machine = this_machine(config.setup(config.resolutions[0]).device)
        rows = [
            row for resolution in config.resolutions for row in _run_at(config, resolution, tell)
        ]
    return Report(
        config=config,
        machine=machine,
        command=command,
        started=started,
        finished=_now(),
        load=(load, load_average()),
        rows=rows,
    )


def _run_at(config: BenchConfig, resolution: int, tell: Tell) -> list[Row]:
    """One interleaved run of all contenders."""
    lineup = Lineup(config.setup(resolution))
    where = f"{config.model}, {resolution} px"
    contenders, details = config.contenders(), {}
    for precision in config.resolved:
        told = f"{where}: looking for the rate of merging that takes as long as VECA in {precision}"
        tell(told)
        merging, choice = _merging(lineup, config, precision)
        contenders.append(merging)
        details[merging] = _merging_detail(lineup, merging, choice)
    peaks: dict[Contender, int | None] = {}
    if config.memory:
        tell(f"{where}: memory of {len(contenders)} contenders, a process for each")
        peaks = {item: peak_bytes(lineup.setup, item) for item in contenders}
    runnable = [item for item in contenders if item not in peaks or peaks[item] is not None]
    tell(f"{where}: time of {len(runnable)} contenders in turns")
    cases = {item.name: lineup.call(item) for item in runnable}
    timings = measure(
        cases, config.effort, seed=config.seed, tell=lambda line: tell(f"{where}: {line}")
    )
    unrun = Timing((), OUT_OF_MEMORY)
    return rows_of(
        resolution,
        lineup.setup.patches,
        config.batch,
        [
            Measured(
                item,
                lineup.work(item),
                timings.get(item.name, unrun),
                peaks.get(item),
                details.get(item, ""),
            )
            for item in contenders
        ],
    )


def _merging(
    lineup: Lineup, config: BenchConfig, precision: ResolvedPrecision
) -> tuple[Contender, Choice]:
    """Token merging at the rate at which it takes as long as VECA with the fewest cores."""
    reference = replace(config.contenders()[0], precision=precision)
    effort = Effort(
        warmups=config.effort.warmups,
        rounds=min(config.effort.rounds, SEARCH_EFFORT.rounds),
        seconds=min(config.effort.seconds, SEARCH_EFFORT.seconds),
        most_seconds=min(config.effort.most_seconds, SEARCH_EFFORT.most_seconds),
    )

    def ratio_of(rate: int) -> float:
        rival = Contender(kind="merging", rate=rate, precision=precision)
        cases = {item.name: lineup.call(item) for item in (reference, rival)}
        timings = measure(cases, effort, seed=rate)
        ours, theirs = timings[reference.name], timings[rival.name]
        if not ours.samples or not theirs.samples:
            return float("inf")
        return speedup(ours, theirs).median

    choice = choose_rate(ratio_of, most=lineup.setup.patches // 2)
    return Contender(kind="merging", rate=choice.rate, precision=precision), choice


def _merging_detail(lineup: Lineup, merging: Contender, choice: Choice) -> str:
    """What the search found."""
    patches, left = lineup.setup.patches, lineup.patches_left(merging)
    words = f"r = {merging.rate}: {patches} patches become {left}"
    if merging.rate == patches // 2 and choice.tried == 1:
        words += ", the most there is"
    return f"{words} ({choice.tried} rate{'' if choice.tried == 1 else 's'} tried)"


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    """Run torch with this many threads for a while."""
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _now() -> str:
    """The time in UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
