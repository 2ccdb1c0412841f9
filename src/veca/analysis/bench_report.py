"""Report of a benchmark: a table for the terminal, JSON, Markdown, and where VECA does not win."""

import importlib.util
import json
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table
from rich.text import Text

from veca.analysis.benchmark import BenchConfig, Contender, Kind, Report, Rival, Row
from veca.analysis.visualize import BLACK, BLUE, GREEN, ORANGE, SKY, Line, Panel
from veca.runtime import VERSION
from veca.runtime.files import make_folder, write_atomic
from veca.runtime.timing import Quartiles

ASYMPTOTIC = 512
"""Pixels from which on growth is fitted where it can be: below, fixed costs flatten the curve."""

NOTICEABLE = 0.05
"""Share by which memory must differ to be worth a sentence."""

CONTESTED: dict[Rival, str] = {"twin": "full attention", "plain": "the plain form"}
"""Rivals that VECA should beat."""


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
    return found or [
        "VECA was faster than full attention and than its plain form in every case of this run."
    ]


def remarks(rows: Sequence[Row]) -> list[str]:
    """What a budget and bf16 save, and where nothing is folded."""
    found: list[str] = []
    for resolution, here in _by_resolution(rows):
        found += _half_saves(here, resolution)
    for resolution, here in _by_run(rows):
        found += _budget_saves(here, resolution)
        found += _same_as_plain(here, resolution)
    return found


def _growth(name: str, rows: Sequence[Row]) -> Growth | None:
    """The growth of one contender, if it can be fitted."""
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
        f"{verdict}: {', '.join(_ratio_text(row, rival) for row in cases)}"
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
                f"{resolution} px: more memory than full attention "
                f"({twin.peak_mb:.0f} MB): {', '.join(more)}."
            )


def _half_saves(here: Sequence[Row], resolution: int) -> Iterator[str]:
    """How much faster bf16 is than fp32."""
    texts = [_ratio_text(row, "fp32") for row in here if "fp32" in row.speedups]
    if texts:
        yield f"{resolution} px, against the same in fp32: {', '.join(texts)}."


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
            f"ratio is noise: {', '.join(_ratio_text(row, 'plain') for row in same)}."
        )


def _ratio_text(row: Row, rival: Rival) -> str:
    """A case with its ratio and the quartiles of that."""
    ratio = row.speedups[rival]
    return f"{row.name} ({ratio.median:.2f}x, {ratio.low:.2f} to {ratio.high:.2f})"


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
    yield "Where VECA does not win", weak_spots(report.rows)
    yield "Also", remarks(report.rows)
    spans = dict.fromkeys(item.resolutions for item in growths(report.rows))
    if spans:
        yield "How time grows", [_bench_report_growth(growths(report.rows), span) for span in spans]
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
        "growth": [item._asdict() for item in growths(report.rows)],
        "where_veca_does_not_win": weak_spots(report.rows),
        "remarks": remarks(report.rows),
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


def _bench_report_growth(growths: Sequence[Growth], span: tuple[int, ...]) -> str:
    """The exponents that were fitted over the same resolutions."""
    texts = [f"{item.exponent:.2f} ({item.name})" for item in growths if item.resolutions == span]
    return (
        f"From {span[0]} to {span[-1]} px, time follows the number of patches to the power of "
        f"{', '.join(texts)}."
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


class _Look(NamedTuple):
    color: str
    marker: str
    dashed: bool = False


def bench_panels(rows: Sequence[Row]) -> list[Panel]:
    """Two panels with the extremes of the budgets and shares; all in between is in the table."""
    shown = _shown(list(dict.fromkeys(row.contender for row in rows)))
    times = [_line(rows, name, look, _time) for name, look in shown.items()]
    ratios = [_line(rows, name, look, _ratio) for name, look in shown.items()]
    return [
        Panel(
            "Time of one image",
            "side of the image in pixels",
            [line for line in times if line.x and not line.label.startswith("plain")],
            unit=" ms",
        ),
        Panel(
            "Times as fast as full attention",
            "side of the image in pixels",
            [line for line in ratios if line.x],
            unit="x",
            level=1.0,
        ),
    ]


def _shown(contenders: Sequence[Contender]) -> dict[str, _Look]:
    """Who is drawn, and how."""
    precision = contenders[0].precision  # one figure has one; the others are in the table
    veca = [item for item in contenders if item.kind == "veca"]
    shares = sorted({item.ffn for item in veca})
    budgets = sorted({item.budget or 0 for item in veca})
    looks = {
        Contender(kind="twin"): _Look(BLACK, "s"),
        Contender(kind="veca", budget=budgets[-1], ffn=shares[-1]): _Look(BLUE, "o"),
        Contender(kind="plain", budget=budgets[0]): _Look(ORANGE, "v", dashed=True),
        Contender(kind="veca", budget=budgets[0], ffn=shares[-1]): _Look(SKY, "D"),
        Contender(kind="veca", budget=budgets[0], ffn=shares[0]): _Look(GREEN, "^"),
    }
    return {replace(item, precision=precision).name: look for item, look in looks.items()}


def _time(row: Row) -> Quartiles | None:
    """Height of a point in the first panel."""
    return row.milliseconds


def _ratio(row: Row) -> Quartiles | None:
    """Height of a point in the second panel."""
    return row.speedups.get("twin")


def _line(
    rows: Sequence[Row], name: str, look: _Look, height: Callable[[Row], Quartiles | None]
) -> Line:
    """The points of one contender."""
    found = [(row.resolution, height(row)) for row in rows if row.name == name]
    points = sorted((side, value) for side, value in found if value is not None)
    return Line(
        name,
        look.color,
        look.marker,
        [side for side, _ in points],
        [value.median for _, value in points],
        [value.low for _, value in points],
        [value.high for _, value in points],
        look.dashed,
    )
