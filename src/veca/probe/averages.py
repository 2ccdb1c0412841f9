"""Rows of several seeds as one number with its spread, and how much of another model's it is."""

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from veca.probe.rows import Row


class Average(NamedTuple):
    """One number over seeds."""

    row: Row
    """That of the first seed; its value is not the mean."""

    mean: float

    deviation: float | None
    """Standard deviation of a sample, over n - 1; None for one seed."""

    seeds: tuple[int, ...]

    milliseconds: float | None
    """Median over the seeds that were timed."""


def averages(rows: Sequence[Row]) -> list[Average]:
    """Rows that differ in nothing but their seed become one; in the order of their first rows."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.identity("seed"), []).append(row)
    return [_average(group) for group in groups.values()]


def reference_of(average: Average, candidates: Sequence[Average]) -> Average | None:
    """The number of a reference model that a number is compared with.

    It is the one in the same precision, at the same resolution, budget and share where there is
    one, or else at the same one of these: a twin with shares but without budgets is taken at the
    same share. A reference without such a choice, or that was measured in one way only, serves for
    all; None where it is not clear.
    """
    row = average.row
    found = [other for other in candidates if other.row.metric == row.metric]
    for name in ("precision", "resolution", "setting", "budget", "ffn"):
        own = getattr(row, name)
        found = [other for other in found if getattr(other.row, name) == own] or found
    return found[0] if len(found) == 1 else None


def retention(average: Average, reference: Average | None) -> str:
    """Mean over mean: '97.6 %' of what is right, 'x1.03' of an error; '-' where there is none."""
    if reference is None or reference.mean == 0:
        return "-"
    ratio = average.mean / reference.mean
    return f"{100 * ratio:.1f} %" if average.row.more_is_better else f"x{ratio:.3f}"


def number(average: Average) -> str:
    """Mean and spread with the digits that papers print: two of percent, four of errors."""
    digits = 2 if average.row.more_is_better else 4
    told = f"{average.mean:.{digits}f}"
    return told if average.deviation is None else f"{told} ± {average.deviation:.{digits}f}"


def _average(rows: Sequence[Row]) -> Average:
    """The rows of one number; each seed counts once."""
    values = {row.seed: row.value for row in rows}
    times = [row.milliseconds for row in rows if row.milliseconds is not None]
    return Average(
        row=rows[0],
        mean=statistics.fmean(values.values()),
        deviation=statistics.stdev(values.values()) if len(values) > 1 else None,
        seeds=tuple(sorted(values)),
        milliseconds=statistics.median(times) if times else None,
    )
