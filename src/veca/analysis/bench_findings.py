"""What the numbers of a benchmark say: how time grows, and where VECA does not win."""

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from veca.analysis.bench_rows import Rival, Row
from veca.analysis.contenders import Kind

ASYMPTOTIC = 512
"""Pixels from which on growth is fitted where it can be: below, fixed costs flatten the curve."""

NOTICEABLE = 0.05
"""Share by which memory must differ to be worth a sentence."""

CONTESTED: dict[Rival, str] = {"twin": "the full-attention twin", "plain": "the plain form"}
"""Rivals that VECA should beat; token merging is set to VECA's time, so its rate tells more."""


class Growth(NamedTuple):
    """How the time of a contender grows: patches to the power of `exponent`."""

    name: str
    exponent: float
    resolutions: tuple[int, ...]
    """Pixels that the fit is over."""


def growths(rows: Sequence[Row]) -> list[Growth]:
    """The growth of every contender that was run at two resolutions or more."""
    names = list(dict.fromkeys(row.name for row in rows))
    found = [_growth(name, [row for row in rows if row.name == name]) for name in names]
    return [growth for growth in found if growth is not None]


def exponent(sizes: Sequence[float], times: Sequence[float]) -> float:
    """The power of sizes that times follow: slope of a least-squares line through logarithms."""
    line = statistics.linear_regression(
        [math.log(size) for size in sizes], [math.log(time) for time in times]
    )
    return line.slope


def weak_spots(rows: Sequence[Row]) -> list[str]:
    """A sentence on every case in which VECA is not clearly faster, or needs more memory."""
    found: list[str] = []
    for resolution, here in _by_run(rows):
        for rival, name in CONTESTED.items():
            found += _not_faster(here, rival, f"{resolution} px, against {name}")
        found += _more_memory(here, resolution)
    return found or ["VECA was faster than its twin and its plain form in every case of this run."]


def remarks(rows: Sequence[Row]) -> list[str]:
    """What token merging gives up, what a budget and bf16 are worth, where nothing is folded."""
    found: list[str] = []
    for resolution, here in _by_resolution(rows):
        found += _half_saves(here, resolution)
    for resolution, here in _by_run(rows):
        found += _merging_takes(here, resolution)
        found += _budget_saves(here, resolution)
        found += _same_as_plain(here, resolution)
    return found


def _growth(name: str, rows: Sequence[Row]) -> Growth | None:
    """The growth of one contender, if it can be told."""
    points = [
        (row.resolution, float(row.patches), row.milliseconds.median)
        for row in rows
        if row.milliseconds
    ]
    large = [point for point in points if point[0] >= ASYMPTOTIC]
    points = large if len(large) > 1 else points
    if len(points) < 2:
        return None
    sides, sizes, times = zip(*points, strict=True)
    return Growth(name, exponent(sizes, times), tuple(sides))


def _by_resolution(rows: Sequence[Row]) -> Iterator[tuple[int, list[Row]]]:
    """The rows of each interleaved run."""
    for resolution in sorted({row.resolution for row in rows}):
        yield resolution, [row for row in rows if row.resolution == resolution]


def _by_run(rows: Sequence[Row]) -> Iterator[tuple[int, list[Row]]]:
    """The rows of each resolution and precision, which can be compared with each other."""
    for resolution, here in _by_resolution(rows):
        for precision in dict.fromkeys(row.contender.precision for row in here):
            yield resolution, [row for row in here if row.contender.precision == precision]


def _of_kind(here: Sequence[Row], kind: Kind) -> list[Row]:
    """Rows of one kind of contender."""
    return [row for row in here if row.contender.kind == kind]


def _not_faster(here: Sequence[Row], rival: Rival, where: str) -> Iterator[str]:
    """Cases that lose, and cases in which the middle half of the rounds goes both ways."""
    rows = [row for row in _of_kind(here, "veca") if rival in row.speedups]
    if rival == "plain":  # unfolded, both are the same program
        rows = [row for row in rows if row.work.folded]
    slower = [row for row in rows if row.speedups[rival].high < 1]
    unclear = [row for row in rows if row.speedups[rival].low <= 1 <= row.speedups[rival].high]
    verdicts = [
        f"{verdict}: {', '.join(_told(row, rival) for row in cases)}"
        for verdict, cases in (("slower", slower), ("no clear difference", unclear))
        if cases
    ]
    if verdicts:
        yield f"{where}, {'; '.join(verdicts)}."


def _more_memory(here: Sequence[Row], resolution: int) -> Iterator[str]:
    """Cases that need more memory than full attention."""
    for twin in _of_kind(here, "twin"):
        most = (1 + NOTICEABLE) * (twin.peak_mb or math.inf)
        more = [
            f"{row.name} ({row.peak_mb:.0f} MB)"
            for row in _of_kind(here, "veca")
            if row.peak_mb is not None and row.peak_mb > most
        ]
        if more:
            yield (
                f"{resolution} px: more memory than the full-attention twin "
                f"({twin.peak_mb:.0f} MB): {', '.join(more)}."
            )


def _half_saves(here: Sequence[Row], resolution: int) -> Iterator[str]:
    """How much faster bf16 is than fp32."""
    told = [_told(row, "fp32") for row in here if "fp32" in row.speedups]
    if told:
        yield f"{resolution} px, against the same in fp32: {', '.join(told)}."


def _merging_takes(here: Sequence[Row], resolution: int) -> Iterator[str]:
    """What token merging gives up to be as fast as VECA with the fewest cores."""
    veca = [row for row in _of_kind(here, "veca") if "merging" in row.speedups]
    for row in _of_kind(here, "merging"):
        if veca:
            ratio = veca[0].speedups["merging"]
            yield (
                f"{resolution} px: token merging takes {ratio.median:.2f} times as long as "
                f"{veca[0].name}, with {row.detail}."
            )


def _budget_saves(here: Sequence[Row], resolution: int) -> Iterator[str]:
    """What the budget alone is worth, which is less than the pairs it saves suggest."""
    rows = [row for row in _of_kind(here, "veca") if row.contender.ffn == 1]
    rows.sort(key=lambda row: row.contender.budget or 0)
    if rows and "whole" in rows[0].speedups:
        least, most = rows[0], rows[-1]
        time = 1 / least.speedups["whole"].median - 1
        pairs = least.work.pairs / most.work.pairs - 1
        yield (
            f"{resolution} px: {least.contender.budget} cores instead of {most.contender.budget} "
            f"change the pairs by {100 * pairs:+.0f} % and the time by {100 * time:+.0f} %."
        )


def _same_as_plain(here: Sequence[Row], resolution: int) -> Iterator[str]:
    """Budgets at which the model itself takes the plain form: a measure of noise."""
    rows = [row for row in _of_kind(here, "veca") if "plain" in row.speedups]
    same = [row for row in rows if not row.work.folded]
    if same:
        yield (
            f"{resolution} px: no folding, so that both forms are the same program and their "
            f"ratio is noise: {', '.join(_told(row, 'plain') for row in same)}."
        )


def _told(row: Row, rival: Rival) -> str:
    """A case with its ratio and the quartiles of that."""
    ratio = row.speedups[rival]
    return f"{row.name} ({ratio.median:.2f}x, {ratio.low:.2f} to {ratio.high:.2f})"
