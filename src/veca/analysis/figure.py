"""Draws panels; the only home of matplotlib, an extra: import this only where it is needed."""

import io
import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from veca.analysis.panels import BLACK, QUIET, Line, Panel, QualityPanel

COLUMNS = 2
"""Panels of quality side by side at most."""

LABEL_GAP = 0.06
"""Least distance between two labels, as a share of the height of a panel."""


def draw(panels: Sequence[Panel], title: str, footnote: str) -> bytes:
    """Panels side by side, as the bytes of a PNG file."""
    room = ConstrainedLayoutEngine(w_pad=0.15, h_pad=0.1)
    figure = Figure(figsize=(7.0 * len(panels), 5.4), dpi=120, layout=room)
    figure.suptitle(title, x=0.012, ha="left", fontsize=14, fontweight="bold", color=BLACK)
    figure.supxlabel(footnote, x=0.012, ha="left", fontsize=9, color=QUIET)
    places = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, panel in zip(places, panels, strict=True):
        _draw_panel(axes, panel)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def draw_quality(panels: Sequence[QualityPanel]) -> bytes:
    """Panels of quality against budget in rows, as the bytes of a PNG file."""
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
        _draw_quality(axes, panel)
    for axes in places[len(panels) :]:
        axes.set_visible(False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def spread_out(heights: Sequence[float], gap: float) -> list[float]:
    """Heights moved apart until neighbours differ by `gap`; those that touch keep their mean."""
    order = sorted(range(len(heights)), key=heights.__getitem__)
    groups: list[tuple[float, int]] = []  # middle and number of labels that touch each other
    for index in order:
        middle, count = heights[index], 1
        while groups and middle - groups[-1][0] < gap * (count + groups[-1][1]) / 2:
            below, number = groups.pop()
            middle = (middle * count + below * number) / (count + number)
            count += number
        groups.append((middle, count))
    placed = [
        middle + gap * (step - (count - 1) / 2) for middle, count in groups for step in range(count)
    ]
    moved = dict(zip(order, placed, strict=True))
    return [moved[index] for index in range(len(heights))]


def _draw_panel(axes: Axes, panel: Panel) -> None:
    """One panel, with the names of lines at their right ends."""
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_title(panel.title, loc="left", fontsize=12, color=BLACK)
    axes.set_xlabel(panel.x_label, color=BLACK)
    if panel.level is not None:
        axes.axhline(panel.level, color=BLACK, linewidth=1.0, zorder=1)
    for line in panel.lines:
        style = "--" if line.dashed else "-"
        axes.fill_between(line.x, line.low, line.high, color=line.colour, alpha=0.18, linewidth=0)
        axes.plot(line.x, line.y, style, marker=line.marker, color=line.colour, linewidth=2.0,
                  markersize=6.5, markeredgecolor="white", markeredgewidth=0.8)  # fmt: skip
    _scale(axes, panel)
    _label(axes, panel.lines)


def _scale(axes: Axes, panel: Panel) -> None:
    """Ticks at the resolutions that were run, and at round numbers with their unit."""
    sides = sorted({side for line in panel.lines for side in line.x})
    axes.xaxis.set_major_locator(FixedLocator(sides))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlim(sides[0] / 1.12, sides[-1] * 1.12)
    low, high = axes.get_ylim()
    steps = (1.0, 2.0, 5.0) if high / low > 30 else (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0)
    axes.yaxis.set_major_locator(LogLocator(base=10, subs=steps, numticks=30))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}{panel.unit}"))
    _quieten(axes)


def _label(axes: Axes, lines: Sequence[Line]) -> None:
    """Names beside the last points, kept apart, each tied to its line."""
    to_share = (axes.transData + axes.transAxes.inverted()).transform
    ends = [(line.x[-1], line.y[-1]) for line in lines]
    heights = spread_out([to_share(end)[1] for end in ends], LABEL_GAP)
    for line, end, height in zip(lines, ends, heights, strict=True):
        link = {"arrowstyle": "-", "color": line.colour, "shrinkA": 0, "relpos": (0, 0.5)}
        axes.annotate(
            f"   {line.label}",
            end,
            xytext=(1.05, height),
            textcoords="axes fraction",
            va="center",
            color=BLACK,
            arrowprops=link,
            annotation_clip=False,
        )
        axes.plot(1.05, height, line.marker, color=line.colour, transform=axes.transAxes,
                  clip_on=False, markersize=6.5)  # fmt: skip


def _draw_quality(axes: Axes, panel: QualityPanel) -> None:
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
    _scale_quality(axes, panel)
    _label_quality(axes, panel)


def _scale_quality(axes: Axes, panel: QualityPanel) -> None:
    """Ticks at the budgets that were run, and values with their unit."""
    budgets = sorted({budget for line in panel.lines for budget in line.x})
    axes.xaxis.set_major_locator(FixedLocator(budgets))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlim(budgets[0] / 1.15, budgets[-1] * 1.15)
    axes.margins(y=0.12)
    unit = f" {panel.unit}" if panel.unit else ""
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}{unit}"))
    _quieten(axes)


def _label_quality(axes: Axes, panel: QualityPanel) -> None:
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


def _quieten(axes: Axes) -> None:
    """A pale grid behind the lines, and no frame."""
    axes.grid(color="#e4e4e4", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=BLACK, labelsize=9.5)
