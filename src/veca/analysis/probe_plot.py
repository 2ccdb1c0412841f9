"""Quality against budget, a panel for each task and set: what fewer cores cost, at a glance.

A model with budgets is a line over them, with a band of a standard deviation over seeds; a teacher,
a control or any model without budgets is a level from side to side. Needs matplotlib, an extra:
import this where it is needed.
"""

import io
import math
from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from veca.analysis.figure import LABEL_GAP, QUIET, spread_out
from veca.analysis.panels import BLACK, BLUE, GREEN, ORANGE, SKY, VERMILION, Line
from veca.probe.averages import Average
from veca.probe.report_text import Section, Who, sections
from veca.probe.rows import Row

COLUMNS = 2
"""Panels side by side at most."""

MOST_LETTERS = 28
"""Of the name of a model in the plot; paths are longer, and their ends tell them apart."""

MARKERS = "oD^vsXP*"
PURPLE, OLIVE = "#CC79A7", "#8C8120"
COLOURS = {
    "model": (BLUE, GREEN, SKY, ORANGE, PURPLE, OLIVE),
    "teacher": (BLACK, QUIET),
    "control": (VERMILION, ORANGE),
}
"""By the role of a model; used again from the start where there are more."""


class QualityPanel(NamedTuple):
    """One pair of axes: budgets on a doubling scale, the leading metric of a section upright."""

    title: str
    y_label: str
    unit: str
    lines: Sequence[Line]
    """Models with budgets."""

    levels: Sequence[Line]
    """Models without: a point each, of which the height counts."""


def quality_panels(rows: Sequence[Row]) -> list[QualityPanel]:
    """Sections in which a model has budgets; the rest has nothing to be drawn against."""
    found = []
    for section in sections(rows):
        metric = section.metrics[0]
        leading = [item for item in section.averages if item.row.metric == metric]
        if any(item.row.budget is not None for item in leading):
            found.append(_panel(section, leading))
    return found


def plot_quality(rows: Sequence[Row]) -> bytes | None:
    """The plot as the bytes of a PNG file; None where no model has budgets."""
    panels = quality_panels(rows)
    if not panels:
        return None
    columns = min(COLUMNS, len(panels))
    lines = math.ceil(len(panels) / columns)
    room = ConstrainedLayoutEngine(w_pad=0.2, h_pad=0.15)
    figure = Figure(figsize=(8.0 * columns, 4.4 * lines + 0.8), dpi=110, layout=room)
    figure.suptitle("Quality against budget", x=0.012, ha="left", fontsize=14,
                    fontweight="bold", color=BLACK)  # fmt: skip
    footnote = "Frozen features. Shaded: a standard deviation over seeds. Axes do not begin at 0."
    figure.supxlabel(footnote, x=0.012, ha="left", fontsize=9, color=QUIET)
    places = figure.subplots(lines, columns, squeeze=False).flatten()
    for axes, panel in zip(places, panels, strict=False):
        _draw(axes, panel)
    for axes in places[len(panels) :]:
        axes.set_visible(False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def _panel(section: Section, leading: Sequence[Average]) -> QualityPanel:
    """The leading metric of a section as lines and levels."""
    row = leading[0].row
    better = "more is better" if row.more_is_better else "less is better"
    partial = " (PARTIAL)" if row.partial else ""
    drawn = _lines(section, leading)
    return QualityPanel(
        title=f"{row.task} on {row.data}{partial}\n{row.protocol}, feature {row.feature}",
        y_label=f"{row.metric} ({better})",
        unit=row.unit,
        lines=[line for line in drawn if not math.isnan(line.x[0])],
        levels=[line for line in drawn if math.isnan(line.x[0])],
    )


def _lines(section: Section, leading: Sequence[Average]) -> list[Line]:
    """A line for each model, resolution and share; the place of a level is not a number."""
    groups: dict[tuple[Who, int, float | None, bool], list[Average]] = {}
    for item in leading:
        row = item.row
        key = (Who.of(row), row.resolution, row.ffn, row.budget is None)
        groups.setdefault(key, []).append(item)
    several = {
        who: [len({key[part] for key in groups if key[0] == who}) > 1 for part in (1, 2)]
        for who in section.models
    }
    places = {who: place for place, who in enumerate(section.models)}
    found = []
    for place, ((who, side, share, level), items) in enumerate(groups.items()):
        same_role = [other for other in section.models if other.role == who.role]
        colours = COLOURS[who.role]
        sides_differ, shares_differ = several[who]
        ends = f", {side} px" if sides_differ else ""
        ends += f", ffn {share:g}" if shares_differ and share is not None else ""
        points = sorted(items, key=lambda item: item.row.budget or 0)
        spreads = [item.deviation or 0.0 for item in points]
        found.append(
            Line(
                label=f"{shortened(section.name(who))}{ends}",
                colour=colours[same_role.index(who) % len(colours)],
                marker=MARKERS[(place if any(several[who]) else places[who]) % len(MARKERS)],
                x=[math.nan if level else float(item.row.budget or 0) for item in points],
                y=[item.mean for item in points],
                low=[item.mean - spread for item, spread in zip(points, spreads, strict=True)],
                high=[item.mean + spread for item, spread in zip(points, spreads, strict=True)],
                dashed=who.role != "model",
            )
        )
    return found


def shortened(name: str) -> str:
    """A name without its beginning where it is long."""
    return name if len(name) <= MOST_LETTERS else f"\u2026{name[1 - MOST_LETTERS :]}"


def _draw(axes: Axes, panel: QualityPanel) -> None:
    """One panel, with the names at its right."""
    axes.set_xscale("log", base=2)
    axes.set_title(panel.title, loc="left", fontsize=11, color=BLACK)
    axes.set_xlabel("budget: active cores", color=BLACK)
    axes.set_ylabel(panel.y_label, color=BLACK)
    for line in panel.lines:
        axes.fill_between(line.x, line.low, line.high, color=line.colour, alpha=0.18, linewidth=0)
        axes.plot(line.x, line.y, "--" if line.dashed else "-", marker=line.marker,
                  color=line.colour, linewidth=2.0, markersize=6.5, markeredgecolor="white",
                  markeredgewidth=0.8)  # fmt: skip
    for level in panel.levels:
        axes.axhspan(level.low[0], level.high[0], color=level.colour, alpha=0.12, linewidth=0)
        axes.axhline(level.y[0], color=level.colour, linewidth=1.6, zorder=1,
                     linestyle="--" if level.dashed else ":")  # fmt: skip
    _scale(axes, panel)
    _label(axes, panel)


def _scale(axes: Axes, panel: QualityPanel) -> None:
    """Ticks at the budgets that were run, and values with their unit."""
    budgets = sorted({budget for line in panel.lines for budget in line.x})
    axes.xaxis.set_major_locator(FixedLocator(budgets))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlim(budgets[0] / 1.15, budgets[-1] * 1.15)
    axes.margins(y=0.12)
    unit = f" {panel.unit}" if panel.unit else ""
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}{unit}"))
    axes.grid(color="#e4e4e4", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=BLACK, labelsize=9.5)


def _label(axes: Axes, panel: QualityPanel) -> None:
    """Names beside the ends of lines and levels, kept apart, each tied to its own."""
    ends = [(line, (line.x[-1], line.y[-1])) for line in panel.lines]
    right = axes.get_xlim()[1]
    ends += [(level, (right, level.y[0])) for level in panel.levels]
    to_share = (axes.transData + axes.transAxes.inverted()).transform
    heights = spread_out([to_share(end)[1] for _, end in ends], LABEL_GAP)
    for (line, end), height in zip(ends, heights, strict=True):
        link = {"arrowstyle": "-", "color": line.colour, "shrinkA": 0, "relpos": (0, 0.5)}
        axes.annotate(
            f"  {line.label}",
            end,
            xytext=(1.03, height),
            textcoords="axes fraction",
            va="center",
            fontsize=9.5,
            color=BLACK,
            arrowprops=link,
            annotation_clip=False,
        )
