"""Report of a benchmark: tables for the terminal, Markdown and JSON, and a plot."""

import importlib.util
import json
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table
from rich.text import Text

from veca.analysis.benchmark import REFERENCES, Report, Row
from veca.runtime import NO_PLOT, VERSION
from veca.runtime.files import in_markdown, make_folder, write_atomic
from veca.runtime.timing import Quartiles, Speedup

SCHEMA = 3
"""Version of bench.json; rises when a field changes its meaning."""

MIN_GROWTH_SIDE = 512
"""Growth is fitted from this side on, if possible: fixed costs flatten the curve below it."""

MIN_GROWTH_POINTS = 3
"""Resolutions of a fit: two would fit any exponent."""

WIDE_GROWTH = 0.2
"""Width of an interval from which on an exponent is not stated."""

BUSY = 0.25
"""Load per core before the run above which times are not to be trusted."""

COLUMNS = ("case", "ms", "quartiles", "MB", "GFLOPs", "attention", *(f"x {n}" for n in REFERENCES))

LEGEND = (
    "ms: median per image. MB: peak of one call above the loaded model. attention: its share of "
    "the FLOPs, projections included. x baseline, x plain, x whole: times as fast as full "
    "attention, as VECA unfolded, as VECA with the most cores and all hidden units, each in the "
    "same precision; x fp32: as the same case in fp32 (medians over rounds). <1: slower; ~1: these "
    "rounds show no difference (t-test of logarithms, 1 %)."
)
UNTRAINED = "The weights are untrained: time, memory and FLOPs do not depend on them."


class Growth(NamedTuple):
    """How the time of a case grows: patches to the power of `exponent`."""

    name: str
    exponent: float
    low: float
    high: float
    """Bounds if every time lies anywhere between its quartiles."""
    resolutions: tuple[int, ...]
    """Resolutions of the fit."""


def growths(rows: Sequence[Row]) -> list[Growth]:
    """Growth of every case that ran at enough resolutions, by least squares of logarithms."""
    found = []
    for name in dict.fromkeys(row.case.name for row in rows):
        own = [row for row in rows if row.case.name == name and row.ms]
        large = [row for row in own if row.resolution >= MIN_GROWTH_SIDE]
        fitted = large if len(large) >= MIN_GROWTH_POINTS else own
        if len(fitted) >= MIN_GROWTH_POINTS:
            sizes = [math.log(row.patches) for row in fitted]
            times = [[math.log(value) for value in row.ms] for row in fitted if row.ms]
            mean = statistics.fmean(sizes)
            total = sum((size - mean) ** 2 for size in sizes)
            # The slope is a sum of the logarithms with these weights.
            weights = [(size - mean) / total for size in sizes]
            terms = [
                sorted(weight * value for value in values)
                for weight, values in zip(weights, times, strict=True)
            ]
            low, exponent, high = (sum(term[at] for term in terms) for at in range(3))
            resolutions = tuple(row.resolution for row in fitted)
            found.append(Growth(name, exponent, low, high, resolutions))
    return found


def notes(report: Report) -> list[str]:
    """Warnings, exponents of growth, and cases that were not measured as requested."""
    found, load, growth = [], report.load[0], growths(report.rows)
    if load is not None and load > BUSY * report.machine.cores:
        found.append(
            f"The machine was busy when the run began (load average {load}), so the times are "
            "noisy, and those of different resolutions cannot be compared; repeat the run on an "
            "idle machine."
        )
        growth = []  # other resolutions were measured at other times, under other load
    for span in dict.fromkeys(item.resolutions for item in growth):
        same = [item for item in growth if item.resolutions == span]
        texts = [
            f"{item.exponent:.2f} [{item.low:.2f}, {item.high:.2f}] ({item.name})"
            for item in same
            if item.high - item.low <= WIDE_GROWTH
        ]
        where = f"From {span[0]} to {span[-1]} px, "
        if texts:
            found.append(
                f"{where}time grows with the number of patches to the power of {', '.join(texts)}; "
                "in brackets what the quartiles of the times allow."
            )
        noisy = [item.name for item in same if item.high - item.low > WIDE_GROWTH]
        if noisy:
            found.append(f"{where}the times are too noisy for the growth of {', '.join(noisy)}.")
    found += [
        f"{row.resolution} px, {row.case.name}: {row.note}." for row in report.rows if row.note
    ]
    return found


def tables(report: Report) -> list[Table]:
    """A table for each resolution, for the terminal."""
    found = []
    for title, rows in _by_resolution(report):
        table = Table(title=title, title_justify="left", box=None, pad_edge=False)
        for name in COLUMNS:
            table.add_column(name, justify="left" if name == "case" else "right", no_wrap=True)
        for row in rows:
            table.add_row(*(Text(cell) for cell in _cells(row)))
        found.append(table)
    return found


def as_json(report: Report) -> dict[str, Any]:
    """All of the report as plain values."""
    config = report.config
    return {
        "schema": SCHEMA,
        "veca_version": VERSION,
        "model": config.model,
        "weights": {"trained": False, "configuration_of_sha256": config.weights_sha256},
        "backbone": asdict(config.backbone),
        "command": report.command,
        "started": report.started,
        "finished": report.finished,
        "machine": asdict(report.machine),
        "load_average": {"before": report.load[0], "after": report.load[1]},
        "settings": {
            "resolutions": list(config.resolutions),
            "budgets": list(config.budgets),
            "ffn": list(config.shares),
            "batch": config.batch,
            "device": config.device,
            "precisions": list(config.resolved),
            "seed": config.seed,
            "memory": config.memory,
            **asdict(config.effort),
        },
        "rows": [row.as_json() for row in report.rows],
        "growth": [item._asdict() for item in growths(report.rows)],
    }


def as_markdown(report: Report) -> str:
    """All of the report for people."""
    config, effort = report.config, report.config.effort
    source = f", configuration of {config.weights_sha256}" if config.weights_sha256 else ""
    name = in_markdown(config.model)
    lines = [
        f"# Benchmark of {name}",
        "",
        f"- Model: {name}{source}. {UNTRAINED}",
        f"- Machine: {report.machine}.",
        f"- Protocol: {' and '.join(config.resolved)}, batch {config.batch}, inference mode, seed "
        f"{config.seed}; all cases in turns within one process, 1 warm-up, at least "
        f"{effort.rounds} rounds and {effort.seconds:g} s each, no new round after "
        f"{effort.most_seconds:g} s.",
        f"- Load average before and after: {report.load[0]}, {report.load[1]}.",
        f"- Date: {report.started} to {report.finished}. Command: `{report.command}`",
        "",
    ]
    titles = [*COLUMNS, "pairs of a block"]
    for title, rows in _by_resolution(report):
        lines += [f"## {title}", "", f"| {' | '.join(titles)} |"]
        lines.append(f"|---|{'---:|' * (len(titles) - 1)}")
        lines += [f"| {' | '.join([*_cells(row), f'{row.pairs:,}'])} |" for row in rows]
        lines.append("")
    lines += [LEGEND, "", *(f"- {note}" for note in notes(report)), ""]
    return "\n".join(lines)


def write(report: Report, folder: Path) -> list[Path]:
    """Write bench.json, bench.md and, where matplotlib is installed, bench.png."""
    make_folder(folder)
    files = {
        "bench.json": (json.dumps(as_json(report), indent=1) + "\n").encode(),
        "bench.md": (as_markdown(report) + ("" if can_draw() else f"\n{NO_PLOT}\n")).encode(),
    }
    if can_draw():
        files["bench.png"] = plot(report)
    for name, content in files.items():
        write_atomic(folder / name, [content])
    return [folder / name for name in files]


def can_draw() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def plot(report: Report) -> bytes:
    """Time and speedup against resolution, as a PNG: the extremes of budgets and shares."""
    from veca.analysis import figures  # noqa: PLC0415 - matplotlib is an extra

    config, first = report.config, report.config.resolved[0]
    budgets, shares = sorted(config.budgets), sorted(config.shares)
    looks = {
        ("baseline", None, 1.0): (figures.BLACK, "s-"),
        ("veca", budgets[-1], shares[-1]): (figures.BLUE, "o-"),
        ("plain", budgets[0], 1.0): (figures.ORANGE, "v--"),
        ("veca", budgets[0], shares[-1]): (figures.SKY, "D-"),
        ("veca", budgets[0], shares[0]): (figures.GREEN, "^-"),
    }
    times, speedups = [], []
    for key, look in looks.items():
        rows = [
            row
            for row in report.rows
            if (row.case.kind, row.case.budget, row.case.ffn) == key and row.case.precision == first
        ]
        if key[0] != "plain":
            points = [(row.resolution, row.ms) for row in rows if row.ms]
            times.append(figures.Curve(rows[0].case.name, *look, points))
        if key[0] != "baseline":
            ratios = [(row.resolution, row.speedup["baseline"]) for row in rows]
            points = [(side, Quartiles(*found[:3])) for side, found in ratios if found]
            speedups.append(figures.Curve(rows[0].case.name, *look, points))
    title = f"veca {config.model}: batch {config.batch}, {first}, untrained weights"
    footnote = f"{report.machine}. {report.started[:10]}. Bars: quartiles over rounds."
    return figures.plot_benchmark(times, speedups, title, footnote)


def _by_resolution(report: Report) -> Iterator[tuple[str, list[Row]]]:
    """Title and rows of each table."""
    for side in report.config.resolutions:
        rows = [row for row in report.rows if row.resolution == side]
        yield f"{side} x {side} pixels, {rows[0].patches:,} patches", rows


def _cells(row: Row) -> list[str]:
    """One line of a table."""
    return [
        row.case.name,
        _number(row.ms.median) if row.ms else "-",
        f"{_number(row.ms.low)} to {_number(row.ms.high)}" if row.ms else "-",
        f"{row.peak_mb:.0f}" if row.peak_mb is not None else "-",
        f"{row.gflops:.1f}",
        f"{100 * row.attention_share:.0f} %",
        *(_ratio(row.speedup[name]) for name in REFERENCES),
    ]


def _number(value: float) -> str:
    """Three digits, or all before the point."""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:,.{digits}f}"


def _ratio(speedup: Speedup | None) -> str:
    """A ratio, marked unless the case is clearly faster."""
    if speedup is None:
        return "-"
    mark = " ~1" if not speedup.clear else " <1" if speedup.median < 1 else ""
    return f"{speedup.median:.2f}{mark}"
