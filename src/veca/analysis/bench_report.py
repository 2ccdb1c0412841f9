"""A finished benchmark on paper: a table for the terminal, JSON, Markdown and a plot."""

import importlib.util
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from veca.analysis.bench import Report
from veca.analysis.bench_config import BenchConfig
from veca.analysis.bench_findings import Growth
from veca.analysis.bench_rows import Row
from veca.analysis.figures import bench_panels
from veca.runtime.files import make_folder, write_atomic
from veca.runtime.timing import Quartiles
from veca.runtime.version import VERSION

SCHEMA = 2
"""Version of the JSON file; rises when a field changes its meaning."""

NO_PLOT = "The plot was left out: it needs matplotlib, which `pip install 'veca[figures]'` brings."

COLUMNS = ("contender", "ms", "spread", "MB", "GFLOPs", "attention", "x twin", "x plain", "x whole",
           "x fp32")  # fmt: skip

LEGEND = (
    "ms: median of one image; spread: quartiles. MB: peak above the loaded model, of one call. "
    "attention: its share of the FLOPs, projections included. x twin, x plain, x whole: times as "
    "fast as full attention, as VECA unfolded, as VECA with the most cores and all hidden units, "
    "all in the same precision; x fp32: as the same in fp32 (medians over rounds)."
)
UNTRAINED = (
    "The weights are untrained: time, memory and FLOPs depend on the configuration, not on them."
)


def tables(report: Report) -> list[Table]:
    """A table for each resolution."""
    found = []
    for resolution in report.config.resolutions:
        rows = [row for row in report.rows if row.resolution == resolution]
        table = Table(title=_title(rows[0]), title_justify="left", box=None, pad_edge=False)
        for name in COLUMNS:
            table.add_column(name, justify="left" if name == "contender" else "right", no_wrap=True)
        for row in rows:
            table.add_row(*(Text(cell) for cell in _cells(row)))
        found.append(table)
    return found


def findings(report: Report) -> Iterator[tuple[str, list[str]]]:
    """What the numbers say, as titled lists of sentences."""
    if report.busy:
        yield (
            "Beware",
            [
                f"Others used the machine when the run began (load average {report.load[0]}): what "
                "follows is noisy. Repeat it on an idle machine before you rely on it."
            ],
        )
    yield "Where VECA does not win", report.weak_spots
    yield "Also", report.remarks
    spans = dict.fromkeys(item.resolutions for item in report.growths)
    if spans:
        yield "How time grows", [_growth(report.growths, span) for span in spans]
    notes = [f"{row.resolution} px, {row.name}: {row.note}." for row in report.rows if row.note]
    if notes:
        yield "Not measured as the others", notes


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
        "growth": [item._asdict() for item in report.growths],
        "where_veca_does_not_win": report.weak_spots,
        "remarks": report.remarks,
    }


def as_markdown(report: Report) -> str:
    """All of the report for people."""
    lines = [f"# Benchmark of {report.config.model}", "", *_circumstances(report), ""]
    for resolution in report.config.resolutions:
        rows = [row for row in report.rows if row.resolution == resolution]
        lines += [f"## {_title(rows[0])}", "", *_markdown_table(rows), ""]
    lines += [LEGEND, ""]
    for title, sentences in findings(report):
        lines += [f"## {title}", "", *(f"- {sentence}" for sentence in sentences), ""]
    return "\n".join(lines)


def write(report: Report, folder: Path) -> list[Path]:
    """Write bench.json, bench.md and, where matplotlib is installed, bench.png."""
    make_folder(folder)
    files = {
        "bench.json": (json.dumps(as_json(report), indent=1) + "\n").encode(),
        "bench.md": as_markdown(report).encode(),
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
    """The figure as a PNG."""
    from veca.analysis.figures import draw  # noqa: PLC0415 - matplotlib is an extra

    config, machine = report.config, report.machine
    title = f"veca {config.model}: batch {config.batch}, {_precisions(config)}, untrained weights"
    footnote = f"{machine}. {report.started[:10]}. Shaded: quartiles over interleaved rounds."
    return draw(bench_panels(report.rows), title, footnote)


def _growth(growths: Sequence[Growth], span: tuple[int, ...]) -> str:
    """The exponents that were fitted over the same resolutions."""
    told = [f"{item.exponent:.2f} ({item.name})" for item in growths if item.resolutions == span]
    return (
        f"From {span[0]} to {span[-1]} px, time follows the number of patches to the power of "
        f"{', '.join(told)}."
    )


def _circumstances(report: Report) -> Iterator[str]:
    """What the numbers must carry."""
    config, effort = report.config, report.config.effort
    source = f", configuration of {config.weights_sha256}" if config.weights_sha256 else ""
    yield f"- Model: {config.model}{source}. {UNTRAINED}"
    yield f"- Machine: {report.machine}."
    yield (
        f"- Protocol: {_precisions(config)}, batch {config.batch}, inference mode, seed "
        f"{config.seed}; all contenders in turns within one process, {effort.warmups} warm-up, at "
        f"least {effort.rounds} rounds and {effort.seconds:g} s each, no new round after "
        f"{effort.most_seconds:g} s."
    )
    yield f"- Load average before and after: {report.load[0]}, {report.load[1]}."
    yield f"- Date: {report.started} to {report.finished}. Command: `{report.command}`"


def _markdown_table(rows: Sequence[Row]) -> Iterator[str]:
    """The rows of one resolution, with pairs besides."""
    titles = [*COLUMNS, "pairs of a block"]
    yield f"| {' | '.join(titles)} |"
    yield f"|---|{'---:|' * (len(titles) - 1)}"
    for row in rows:
        yield f"| {' | '.join([*_cells(row), f'{row.work.pairs:,}'])} |"


def _title(row: Row) -> str:
    """What a table is about."""
    return f"{row.resolution} x {row.resolution} pixels, {row.patches:,} patches"


def _cells(row: Row) -> list[str]:
    """One line of a table."""
    time = row.milliseconds
    return [
        row.name,
        _number(time.median) if time else "-",
        f"{_number(time.low)} to {_number(time.high)}" if time else "-",
        f"{row.peak_mb:.0f}" if row.peak_mb is not None else "-",
        f"{row.work.gflops:.1f}",
        f"{100 * row.work.attention_share:.0f} %",
        *(_times(row.speedups.get(rival)) for rival in ("twin", "plain", "whole", "fp32")),
    ]


def _precisions(config: BenchConfig) -> str:
    """What was computed with, in words."""
    return " and ".join(config.resolved)


def _number(value: float) -> str:
    """Three digits, or all before the point."""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:,.{digits}f}"


def _times(speedup: Quartiles | None) -> str:
    """A ratio."""
    return f"{speedup.median:.2f}" if speedup else "-"
