"""Figures of benchmarks and evaluations, drawn with matplotlib.

matplotlib is an extra, so import this module where a figure is drawn. A line joins three points or
more: two would claim a trend that was not measured. Text is drawn as it is, since a `$` in a name
of a folder is no formula.
"""

import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from veca.probe.report import read_rows
from veca.probe.rows import ModelKey, ProbeError, Row, Section, SeedMean, sections
from veca.runtime.files import printable
from veca.runtime.timing import Quartiles

# Okabe and Ito's colors, which color-blind readers can tell apart.
BLACK, ORANGE, SKY, GREEN, BLUE, VERMILION, PURPLE = (
    "#222222", "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7",
)  # fmt: skip
GRAY, OLIVE = "#767676", "#8C8120"

COLORS = {
    "model": (BLUE, GREEN, SKY, ORANGE, PURPLE, OLIVE),
    "teacher": (BLACK, GRAY),
    "baseline": (VERMILION, ORANGE),
    "published": (PURPLE, OLIVE),
}
"""By the role of a model, reused from the start where there are more models."""

MARKERS = "oD^vsXP*"

MIN_LINE_POINTS = 3

BENCH_KINDS = ("veca", "baseline")
"""Cases of a benchmark that a trade-off shows."""

WIDE = 5.0
"""Costs that differ by a larger factor are on a logarithmic axis."""

LITERAL = {"text.parse_math": False}

BESIDE: dict[str, Any] = {
    "loc": "center left", "bbox_to_anchor": (1.0, 0.5), "frameon": False, "fontsize": 9.5,
}  # fmt: skip
"""A legend at the right of a panel."""

INK = "svg{color:#1b2430}@media(prefers-color-scheme:dark){svg{color:#e3e8ee}}"
"""What is `BLACK` in an SVG."""

MAX_NAME = 28
"""Characters of a model's name; paths are longer, and their ends tell them apart."""


class ShownFigure(Figure):
    """A figure that notebooks show, whether or not they have set up matplotlib."""

    def _repr_png_(self) -> bytes:
        return to_bytes(self, "png")


def to_bytes(figure: Figure, file_format: str) -> bytes:
    """A figure as a PNG, PDF or SVG file, without margins around it."""
    buffer = io.BytesIO()
    with rc_context(LITERAL):
        figure.savefig(buffer, format=file_format, bbox_inches="tight", pad_inches=0.15)
    return buffer.getvalue()


class Curve(NamedTuple):
    """One case of a benchmark."""

    label: str
    color: str
    style: str
    """Marker and line, as matplotlib writes them."""
    points: Sequence[tuple[int, Quartiles]]
    """Resolution and value; a bar shows the quartiles."""


@rc_context(LITERAL)
def plot_benchmark(
    times: Sequence[Curve], speedups: Sequence[Curve], title: str, footnote: str
) -> bytes:
    """Milliseconds and speedups against resolution, side by side, as a PNG."""
    figure = _figure((14.0, 5.4), title, footnote)
    left, right = figure.subplots(1, 2)
    _draw_curves(left, times, "Time per image in ms")
    _draw_curves(right, speedups, "Times as fast as full attention")
    right.axhline(1.0, color=BLACK, linewidth=1.0, zorder=1)
    return _png(figure)


@rc_context(LITERAL)
def plot_quality(rows: Sequence[Row]) -> bytes | None:
    """Quality against budget, a panel for each task and dataset, as a PNG.

    A model with budgets is a series with bars of a standard deviation over seeds, any other model a
    horizontal line. None if no model has budgets.
    """
    figure = quality_figure(rows)
    return None if figure is None else _png(figure)


@rc_context(LITERAL)
def quality_figure(rows: Sequence[Row]) -> Figure | None:
    """The figure of `plot_quality`."""
    shown = _with_budgets(rows)
    if not shown:
        return None
    columns = min(2, len(shown))
    lines = math.ceil(len(shown) / columns)
    figure = _figure(
        (8.0 * columns, 4.4 * lines + 0.8),
        "Quality against budget",
        "Frozen features. Bars and bands: a standard deviation over seeds. Axes do not begin at 0.",
    )
    grid = figure.subplots(lines, columns, squeeze=False).flatten()
    for axes, (section, leading) in zip(grid, shown, strict=False):
        _draw_quality(axes, section, leading)
    for axes in grid[len(shown) :]:
        axes.set_visible(False)
    return figure


@rc_context(LITERAL)
def plot_time(section: Section) -> bytes | None:
    """Quality against time (against GFLOPs where no time is known) as an SVG, light and dark.

    None if fewer than two points are known.
    """
    leading = [item for item in section.means if item.row.metric == section.metrics[0]]
    if len(_costs(leading)) < max(2, len(leading)):
        return None
    figure = Figure(figsize=(6.2, 3.4), layout="constrained")
    figure.patch.set_alpha(0)
    axes = figure.subplots()
    axes.patch.set_alpha(0)
    _draw_time(axes, section, leading)
    axes.legend(
        loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=2, frameon=False, fontsize=9,
        labelcolor=BLACK,
    )  # fmt: skip
    return _svg(figure)


@rc_context(LITERAL)
def trade_off(report: Path) -> Figure:
    """Quality against budget and time, from a `report.json` of probes or a `quality.json`.

    From a `bench.json` it is time against budget, beside full attention.
    """
    try:
        content = json.loads(report.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ProbeError(
            f"{report} cannot be read ({error}); give a report.json, quality.json or bench.json."
        ) from error
    if isinstance(content, dict) and "growth" in content:
        return _bench_figure(content, str(report))
    if isinstance(content, list):
        return _trade_off(read_rows(report), report)
    # Here, since the report of a probe does not need it.
    from veca.probe.quality import KEYS, read_quality  # noqa: PLC0415

    quality, rows = read_quality(report), list[Row]()
    for item in quality.rows:
        measured = {name: getattr(item, name) for name in KEYS}
        counts = {"test": item.count}
        rows.append(Row(model=quality.model, value=item.value, counts=counts, **measured))
    return _trade_off(rows, report)


def _trade_off(rows: Sequence[Row], report: Path) -> Figure:
    """A line of panels for each task and dataset: against cost, where it is known, and budget."""
    shown, plain = _with_budgets(rows), quality_figure(rows)
    if plain is None:
        raise ProbeError(f"{report} has no numbers of a model with budgets; probe one.")
    has_costs = [len(_costs(leading)) == len(leading) > 1 for _, leading in shown]
    if not any(has_costs):
        return plain
    figure = _figure(
        (13.5, 3.9 * len(shown) + 0.8),
        "Quality against cost and budget",
        f"{shortened(str(report))}. Numbers at points are cores. Axes do not begin at 0.",
    )
    grid = figure.subplots(len(shown), 2, squeeze=False)
    for line, (section, leading), known in zip(grid, shown, has_costs, strict=True):
        if known:
            _draw_time(line[0], section, leading)
        line[0].set_visible(known)
        _draw_quality(line[1], section, leading)
    return figure


def _with_budgets(rows: Sequence[Row]) -> list[tuple[Section, list[SeedMean]]]:
    """Tasks and datasets that a model with budgets was measured on, with their leading metric."""
    shown = []
    for section in sections(rows):
        leading = [item for item in section.means if item.row.metric == section.metrics[0]]
        if any(item.row.budget is not None for item in leading):
            shown.append((section, leading))
    return shown


def _bench_figure(content: Mapping[str, Any], report: str) -> Figure:
    """Time against budget, a panel for each resolution and a series for each FFN share."""
    rows = [row for row in content["rows"] if row["ms"] and row.get("kind") in BENCH_KINDS]
    if not any(row["budget"] for row in rows):
        raise ProbeError(f"{report} has no times at any budget, or is of an older version.")
    sides = sorted({row["resolution"] for row in rows})
    title = f"Time against budget, veca {content['model']}"
    footnote = f"{shortened(report)}. Time of one image; axes do not begin at 0."
    figure = _figure((3.6 * len(sides) + 2.4, 4.2), title, footnote)
    for axes, side in zip(figure.subplots(1, len(sides), squeeze=False)[0], sides, strict=True):
        own = [row for row in rows if row["resolution"] == side]
        for row in own:
            if row["kind"] == "baseline":
                axes.axhline(row["ms"]["median"], color=VERMILION, ls="--", label=row["name"])
        shares = sorted({row["ffn"] for row in own}, reverse=True)
        for number, share in enumerate(shares):
            points = sorted(
                (row["budget"], row["ms"]["median"])
                for row in own
                if row["kind"] == "veca" and row["ffn"] == share
            )
            line = {"marker": MARKERS[number], "color": COLORS["model"][number % 6], "lw": 2.0}
            line["ls"] = "-" if len(points) >= MIN_LINE_POINTS else "none"
            axes.plot(*zip(*points, strict=True), label=f"VECA, FFN share {share:g}", **line)
        axes.set_xscale("log", base=2)
        axes.set_title(f"{side} px", loc="left", fontsize=11, color=BLACK)
        axes.set(xlabel="budget: active cores", ylabel="ms" if side == sides[0] else "")
        _finish(axes, sorted({row["budget"] for row in own if row["budget"]}))
    axes.legend(**BESIDE)
    return figure


def _costs(leading: Sequence[SeedMean]) -> list[float]:
    """Milliseconds where all are known, else GFLOPs, without those that are unknown."""
    timed = all(item.milliseconds is not None for item in leading)
    return [cost for item in leading if (cost := item.milliseconds if timed else item.row.gflops)]


def _draw_time(axes: Axes, section: Section, leading: Sequence[SeedMean]) -> None:
    """Quality against milliseconds, or GFLOPs; budgets stand at the points."""
    timed, costs = all(item.milliseconds is not None for item in leading), _costs(leading)
    axes.set_ylabel(_quality_label(leading[0].row))
    axes.set_xlabel("ms of one image through the backbone" if timed else "GFLOPs of one image")
    if max(costs) > WIDE * min(costs):
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.margins(x=0.12, y=0.16)
    for look, points in _series(section, leading):
        xs = [float((point.milliseconds if timed else point.row.gflops) or 0) for point in points]
        _draw_series(axes, xs, points, look)
        for x, point in zip(xs, points, strict=True):
            if point.row.budget is not None:
                axes.annotate(
                    str(point.row.budget), (x, point.mean), (6, 4), textcoords="offset points",
                    fontsize=9, color=look["color"],
                )  # fmt: skip
    _finish(axes)


def _svg(figure: Figure) -> bytes:
    """A figure as the bytes of an SVG file whose ink suits a light and a dark page."""
    buffer = io.BytesIO()
    facts = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "veca"}):
        figure.savefig(buffer, format="svg", metadata=facts)
    text = buffer.getvalue().decode().replace(BLACK, "currentColor")
    return text.replace("<defs>", f"<style>{INK}</style>\n<defs>", 1).encode()


def _figure(size: tuple[float, float], title: str, footnote: str) -> Figure:
    """An empty figure; constrained layout makes room for legends beside the panels."""
    figure = ShownFigure(figsize=size, dpi=110, layout="constrained")
    figure.suptitle(title, x=0.012, ha="left", fontsize=14, fontweight="bold", color=BLACK)
    figure.supxlabel(footnote, x=0.012, ha="left", fontsize=9, color=GRAY)
    return figure


def _png(figure: Figure) -> bytes:
    """A figure as the bytes of a PNG file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def _draw_curves(axes: Axes, curves: Sequence[Curve], title: str) -> None:
    """One panel of a benchmark, both axes logarithmic."""
    axes.set(xscale="log", yscale="log", xlabel="side of the image in pixels")
    axes.set_title(title, loc="left", fontsize=12, color=BLACK)
    for label, color, style, points in curves:
        sides = [side for side, _ in points]
        low, high = [value.low for _, value in points], [value.high for _, value in points]
        medians = [value.median for _, value in points]
        axes.vlines(sides, low, high, color=color, linewidth=1.2)
        look = style if len(points) >= MIN_LINE_POINTS else style[0]
        axes.plot(sides, medians, look, color=color, linewidth=2.0, label=label)
    axes.yaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 1.5, 2.0, 3.0, 5.0, 7.0)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    _finish(axes, sorted({side for curve in curves for side, _ in curve.points}))
    axes.legend(**BESIDE)


def _draw_quality(axes: Axes, section: Section, leading: Sequence[SeedMean]) -> None:
    """A series for each model, resolution and share."""
    row = leading[0].row
    axes.set(xlabel="budget: active cores", ylabel=_quality_label(row))
    axes.set_xscale("log", base=2)
    partial = " (PARTIAL)" if row.partial else ""
    title = f"{row.task} on {printable(row.data)}{partial}\n{row.protocol}, feature {row.feature}"
    axes.set_title(title, loc="left", fontsize=11, color=BLACK)
    axes.margins(y=0.12)
    for look, points in _series(section, leading):
        if points[0].row.budget is not None:
            _draw_series(axes, [float(point.row.budget or 0) for point in points], points, look)
            continue
        mean, spread = points[0].mean, points[0].std or 0.0
        axes.axhspan(mean - spread, mean + spread, color=look["color"], alpha=0.15, linewidth=0)
        axes.axhline(mean, zorder=1, linewidth=1.6, **look | {"marker": None})
    _finish(axes, sorted({item.row.budget for item in leading if item.row.budget is not None}))
    axes.legend(**BESIDE)


def _quality_label(row: Row) -> str:
    """Name and unit of a metric, and which way is better."""
    better = "more is better" if row.more_is_better else "less is better"
    return f"{row.metric}{f' in {row.unit}' if row.unit else ''} ({better})"


def _series(
    section: Section, leading: Sequence[SeedMean]
) -> Iterator[tuple[dict[str, Any], list[SeedMean]]]:
    """The numbers of each model, resolution and share by rising budget, and how they look."""
    groups: dict[tuple[ModelKey, int, float | None, bool], list[SeedMean]] = {}
    for item in leading:
        own = item.row
        key = (ModelKey.of(own), own.resolution, own.ffn, own.budget is None)
        groups.setdefault(key, []).append(item)
    for marker, (key, items) in enumerate(groups.items()):
        who, same_model = key[0], [other for other in groups if other[0] == key[0]]
        label = shortened(section.name(who))
        label += f", {key[1]} px" if len({other[1] for other in same_model}) > 1 else ""
        label += f", ffn {key[2] or 1:g}" if len({other[2] for other in same_model}) > 1 else ""
        same_role = [other for other in section.models if other.role == who.role]
        colors = COLORS[who.role]
        look = {
            "color": colors[same_role.index(who) % len(colors)],
            "linestyle": "-" if who.role == "model" else "--",
            "marker": MARKERS[marker % len(MARKERS)],
            "label": label,
        }
        yield look, sorted(items, key=lambda item: item.row.budget or 0)


def _draw_series(
    axes: Axes, xs: Sequence[float], points: Sequence[SeedMean], look: dict[str, Any]
) -> None:
    """Points with bars of a standard deviation where there are several seeds."""
    means = np.array([point.mean for point in points])
    spread = np.array([point.std or 0.0 for point in points])
    if spread.any():
        axes.vlines(xs, means - spread, means + spread, color=look["color"], linewidth=1.2)
    line = {} if len(points) >= MIN_LINE_POINTS else {"linestyle": "none"}
    axes.plot(xs, means, linewidth=2.0, **look | line)


def _finish(axes: Axes, ticks: Sequence[int] = ()) -> None:
    """Ticks at the measured values if given, a pale grid, no frame."""
    if ticks:
        axes.set_xticks(ticks, labels=[str(tick) for tick in ticks])
        axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(color="#88888844", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GRAY)
    axes.tick_params(color=GRAY, labelcolor=BLACK)
    axes.xaxis.label.set_color(BLACK)
    axes.yaxis.label.set_color(BLACK)


def shortened(name: str) -> str:
    """A name without its beginning where it is long."""
    return name if len(name) <= MAX_NAME else f"\u2026{name[1 - MAX_NAME :]}"
