"""A model beside its baseline: shares of the baseline's numbers, with intervals, and their mean.

A line is a model at one resolution, budget and share. Its classification numbers, one for each task
and set, are joined to one mean; numbers of dense tasks stand for themselves. The reported numbers
give every ratio, the cases on disk its interval (`retained.py`).
"""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from veca.probe.averages import Average, averages, reference_of
from veca.probe.case_files import CasesError, KeptCases
from veca.probe.report_text import Section, Who, line_place, sections
from veca.probe.retained import Numbers, Ratio, Statistic, drawn_again, ratio_of
from veca.probe.rows import Row, Task

CLASS_TASKS: tuple[Task, ...] = ("knn", "logistic", "linear")

ROUNDS, SEED, LEVEL = 10_000, 0, 0.95


class Pair(NamedTuple):
    """A number of a model, and the baseline's that it is compared with."""

    model: Average
    baseline: Average

    @property
    def row(self) -> Row:
        """A row of the model."""
        return self.model.row


class Number(NamedTuple):
    """A pair with its ratio."""

    pair: Pair

    pictures: int
    """Test pictures that were drawn from."""

    ratio: Ratio | None
    """None where the baseline's number is 0."""


class ClassMean(NamedTuple):
    """The mean of the classification numbers, in percent."""

    model: float
    baseline: float

    ratio: Ratio | None
    """None where the baseline's mean is 0."""


class Line(NamedTuple):
    """A model at one resolution, budget and share."""

    name: str

    numbers: list[Number]

    classes: ClassMean | None
    """None where no task of classes was measured for both."""

    @property
    def row(self) -> Row:
        """A row, to ask for what the numbers share."""
        return self.numbers[0].pair.row


class LeftOut(NamedTuple):
    """A number that is in the report, but not in the comparison."""

    row: Row

    reason: str
    """Words that go on a sentence."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """All lines against one baseline."""

    name: str
    """Of the baseline, with what a reader must know of it."""

    baseline: Who

    lines: list[Line] = field(default_factory=list)

    left_out: list[LeftOut] = field(default_factory=list)

    rounds: int = ROUNDS


def compare(rows: Sequence[Row], cases: Path, rounds: int = ROUNDS) -> list[Comparison]:
    """Every model of a report against every baseline of it; `cases` is the folder of the cases."""
    baselines = dict.fromkeys(Who.of(row) for row in rows if row.role == "baseline")
    if not baselines:
        return []
    everyone, tables = Section(averages(rows)), sections(rows)
    draws, found = Draws(KeptCases(cases), rounds), []
    for who in baselines:
        comparison = Comparison(name=everyone.name(who), baseline=who, rounds=rounds)
        pairs = [pair for table in tables for pair in _pairs(table, tables, comparison)]
        kept = [pair for pair in pairs if _kept(pair, draws, comparison)]
        found.append((comparison, kept))
    draws.draw()
    for comparison, pairs in found:
        comparison.lines.extend(_lines(pairs, draws, everyone))
    return [comparison for comparison, _ in found if comparison.lines or comparison.left_out]


class Draws:
    """Numbers on pictures drawn again; those of one set all see the same draws."""

    def __init__(self, cases: KeptCases, rounds: int) -> None:
        self._cases, self._rounds = cases, rounds
        self._statistics: dict[str, dict[str, Statistic]] = {}
        """By set, then by number."""
        self._drawn: dict[str, Numbers] = {}

    def add(self, average: Average) -> Statistic:
        """Take a number in, once; a CasesError says why that cannot be."""
        of_set = self._statistics.setdefault(_set_of(average.row), {})
        key = _key(average)
        if key not in of_set:
            of_set[key] = self._cases.statistic(average)
        return of_set[key]

    def draw(self) -> None:
        """Draw for all numbers that were taken in."""
        for name, of_set in self._statistics.items():
            for size in {one.pictures for one in of_set.values()}:
                some = {key: one for key, one in of_set.items() if one.pictures == size}
                drawn = drawn_again(list(some.values()), name, rounds=self._rounds, seed=SEED)
                self._drawn.update(zip(some, drawn, strict=True))

    def __getitem__(self, average: Average) -> Numbers:
        """What a number is in every draw."""
        return self._drawn[_key(average)]

    def pictures(self, average: Average) -> int:
        """How many pictures a number is over."""
        return self._statistics[_set_of(average.row)][_key(average)].pictures


def _set_of(row: Row) -> str:
    """What tells the pictures of a set from others."""
    return row.data_sha256 or ascii(row.data)


def _key(average: Average) -> str:
    """What tells a number from others."""
    return average.row.identity("seed")


def _pairs(table: Section, tables: Sequence[Section], comparison: Comparison) -> Iterator[Pair]:
    """The leading numbers of a table with the baseline's; those that have none are told."""
    metric = table.metrics[0]
    candidates = [item for item in table.averages if Who.of(item.row) == comparison.baseline]
    for item in table.averages:
        who = Who.of(item.row)
        itself = (who.model, who.weights) == (
            comparison.baseline.model,
            comparison.baseline.weights,
        )
        if who.role != "model" or itself or item.row.metric != metric:
            continue
        reference = reference_of(item, candidates)
        if reference is not None:
            yield Pair(item, reference)
        elif candidates:
            reason = "no one number of the baseline has its resolution, budget and share"
            comparison.left_out.append(LeftOut(item.row, reason))
        elif reason := _elsewhere(item.row, tables, comparison.baseline):
            comparison.left_out.append(LeftOut(item.row, reason))


def _elsewhere(row: Row, tables: Sequence[Section], baseline: Who) -> str:
    """Why the baseline's number for the same task and set is no match; empty if it has none."""
    others = [
        item.row
        for table in tables
        for item in table.averages
        if Who.of(item.row) == baseline and (item.row.task, item.row.data) == (row.task, row.data)
    ]
    if not others:
        return ""
    if all(other.data_sha256 != row.data_sha256 for other in others):
        return "the baseline was measured on other pictures of the set: their hashes differ"
    return "the baseline was measured by another protocol, feature or count"


def _kept(pair: Pair, draws: Draws, comparison: Comparison) -> bool:
    """Whether the cases of both are there, over the same pictures; else why not is told."""
    sizes = []
    for average, whose in ((pair.model, "the model"), (pair.baseline, "the baseline")):
        try:
            sizes.append(draws.add(average).pictures)
        except CasesError as error:
            comparison.left_out.append(LeftOut(pair.row, f"{whose}: {error}"))
            return False
    if sizes[0] != sizes[1]:
        reason = f"the cases are of {sizes[0]} pictures, those of the baseline of {sizes[1]}"
        comparison.left_out.append(LeftOut(pair.row, reason))
    return sizes[0] == sizes[1]


def _lines(pairs: Sequence[Pair], draws: Draws, everyone: Section) -> list[Line]:
    """Pairs by what was used of which model, in the order of a table."""
    groups: dict[tuple[object, ...], list[Pair]] = {}
    for pair in pairs:
        groups.setdefault((Who.of(pair.row), pair.row.resolution, pair.row.setting), []).append(
            pair
        )
    ordered = sorted(groups.values(), key=lambda group: line_place(everyone.models, group[0].row))
    return [
        Line(
            name=everyone.name(Who.of(group[0].row)),
            numbers=[_number(pair, draws) for pair in group],
            classes=_class_mean([pair for pair in group if pair.row.task in CLASS_TASKS], draws),
        )
        for group in ordered
    ]


def _number(pair: Pair, draws: Draws) -> Number:
    """One number beside the baseline's."""
    drawn = draws[pair.model], draws[pair.baseline]
    ratio = ratio_of(pair.model.mean, pair.baseline.mean, drawn, LEVEL)
    return Number(pair, draws.pictures(pair.model), ratio)


def _class_mean(pairs: Sequence[Pair], draws: Draws) -> ClassMean | None:
    """The mean of numbers beside that of the baseline's; each task on each set counts the same."""
    if not pairs:
        return None
    model = statistics.fmean(pair.model.mean for pair in pairs)
    baseline = statistics.fmean(pair.baseline.mean for pair in pairs)
    drawn = (
        np.mean([draws[pair.model] for pair in pairs], axis=0),
        np.mean([draws[pair.baseline] for pair in pairs], axis=0),
    )
    return ClassMean(model, baseline, ratio_of(model, baseline, drawn, LEVEL))
