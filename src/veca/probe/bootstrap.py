"""Intervals over test images, and a model beside its baseline.

How sure a mean over pictures is: intervals by drawing the same number of pictures again.

They tell what other test pictures of the same kind could have given, not what another seed would.

How much of another model's number a number is, and how sure that share is.

The pictures of a set are drawn again, as many as there are, each as often as chance has it. Both
models, all tasks and all seeds on a set see the same draws, so that what is hard for both does not
widen the interval. It tells what other test pictures of the same kind could have given, not what
another training would.

Cases on disk, found by the rows of a report that they belong to.

A file of cases carries one of the rows of its result, and which classes of its set are scored.
Files of older versions lack both: they stay readable for people, but belong to no row.

A model beside its baseline: shares of the baseline's numbers, with intervals, and their mean.

A line is a model at one resolution, budget and share. Its classification numbers, one for each task
and set, are joined to one mean; numbers of dense tasks stand for themselves. The reported numbers
give every ratio, the cases on disk its interval (`retained.py`).
"""

import json
import math
import statistics
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor

from veca.probe.report_text import Section, Who, line_place, sections
from veca.probe.rows import Average, Row, Task, averages, reference_of, row_from_json
from veca.runtime import VecaError
from veca.runtime.device import seed_for
from veca.runtime.files import dumps_strict
from veca.runtime.tensors import read_tensors

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
    generator = np.random.default_rng(seed_for(seed, 0, "probe/bootstrap"))
    total = int(counts.sum())
    size = max(1, DRAWS // len(numbers))
    blocks = [
        generator.multinomial(total, counts / total, size=min(size, rounds - start)) @ numbers
        for start in range(0, rounds, size)
    ]
    return np.concatenate(blocks) / total


Numbers = NDArray[np.float64]

RETAINED_DRAWS = 2**18
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
    generator = np.random.default_rng(seed_for(seed, 0, f"probe/retained/{name}"))
    found = np.empty((len(statistics), rounds))
    size = max(1, RETAINED_DRAWS // pictures)
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


CASES_FOLDER = "cases"

ROW, SCORED = "row", "scored"
"""What a file says of itself."""

CLOSE = 1e-9
"""Relative difference of a number and the same number made from its cases: that of rounding."""


class CasesError(VecaError, ValueError):
    """Why cases cannot stand for a number, in words that go on a sentence."""


class CaseFile(NamedTuple):
    """The cases of one result."""

    path: Path

    scored: Sequence[int] | None
    """Classes that means go over; None for all."""


def case_facts(row: Row, scored: Sequence[int] | None) -> dict[str, str]:
    """What a file of cases says of itself; `row` is any row of the result."""
    return {
        ROW: dumps_strict(row.as_json(), "row"),
        SCORED: dumps_strict(None if scored is None else list(scored), "scored"),
    }


class KeptCases:
    """The files of cases of some folders."""

    def __init__(self, *folders: Path) -> None:
        self._files = dict(_files(folders))

    def statistic(self, average: Average) -> Statistic:
        """The number of an average over any draw of its pictures, from the cases of all its seeds.

        A CasesError where there are none, or none that give the number that was reported.
        """
        metric = average.row.metric
        if metric not in {"miou", "rmse"} and not metric.startswith("top1"):
            raise CasesError(f"{metric} is no mean over pictures that could be drawn again")
        try:
            found = _statistic(metric, [self._read(average, seed) for seed in average.seeds])
        except CasesError:
            raise
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise CasesError("the cases on disk are not those of the number") from error
        if not math.isclose(found.whole, average.mean, rel_tol=CLOSE, abs_tol=CLOSE):
            raise CasesError("the cases on disk give another number than the report")
        return found

    def _read(self, average: Average, seed: int) -> tuple[CaseFile, Mapping[str, Tensor]]:
        """The cases of one seed."""
        file = self._files.get(_key(replace(average.row, seed=seed)))
        if file is None:
            raise CasesError(
                "no cases on disk belong to it: they are lost, of other pictures or weights, or of "
                "an older version"
            )
        try:
            return file, read_tensors(file.path)
        except (OSError, SafetensorError) as error:
            raise CasesError("its cases on disk cannot be read") from error


def _files(folders: Sequence[Path]) -> Iterator[tuple[str, CaseFile]]:
    """Keys and files, the newest one last: what is measured again may lie under another name."""
    paths = [path for folder in folders for path in folder.glob("*.safetensors")]
    for path in sorted(paths, key=_age):
        try:
            with safe_open(path, "pt") as file:
                facts = file.metadata() or {}
            row = row_from_json(json.loads(facts[ROW]))
            yield _key(row), CaseFile(path, json.loads(facts[SCORED]))
        except (OSError, SafetensorError, KeyError, ValueError, TypeError):
            continue  # damaged, or of another version


def _age(path: Path) -> int:
    """When a file was written; 0 for one that is gone meanwhile."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _key(row: Row) -> str:
    """What rows of one result share, in whatever role and under whatever name it was measured."""
    apart = ["metric", "unit", "role", "trained"]
    return row.identity(*apart, *([] if row.weights is None else ["model"]))


def _statistic(metric: str, seeds: Sequence[tuple[CaseFile, Mapping[str, Tensor]]]) -> Statistic:
    """The number that a metric is, by its definition, from the cases of each seed."""

    def stacked(name: str) -> Numbers:
        return np.stack([cases[name].double().numpy() for _, cases in seeds])

    if metric == "miou":
        scored = seeds[0][0].scored
        chosen = slice(None) if scored is None else list(scored)
        return MeanIou(stacked("intersections")[..., chosen], stacked("unions")[..., chosen])
    if metric == "rmse":
        return PictureMean(stacked("rmse"))
    return PictureMean(100 * stacked(metric.replace("top1", "correct", 1)))


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
        key = _comparison_key(average)
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
        return self._drawn[_comparison_key(average)]

    def pictures(self, average: Average) -> int:
        """How many pictures a number is over."""
        return self._statistics[_set_of(average.row)][_comparison_key(average)].pictures


def _set_of(row: Row) -> str:
    """What tells the pictures of a set from others."""
    return row.data_sha256 or ascii(row.data)


def _comparison_key(average: Average) -> str:
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
