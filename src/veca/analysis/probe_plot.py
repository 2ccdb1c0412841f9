"""Quality against budget, a panel for each task and set: what fewer cores cost, at a glance.

A model with budgets is a line over them, with a band of a standard deviation over seeds; a teacher,
a baseline or any model without budgets is a level from side to side. Needs matplotlib, an extra:
import this where it is needed.
"""

import math
from collections.abc import Sequence

from veca.analysis.figure import draw_quality
from veca.analysis.panels import (
    BLACK,
    BLUE,
    GREEN,
    ORANGE,
    QUIET,
    SKY,
    VERMILION,
    Line,
    QualityPanel,
)
from veca.probe.averages import Average
from veca.probe.report_text import Section, Who, sections
from veca.probe.rows import Row

MOST_LETTERS = 28
"""Of the name of a model in the plot; paths are longer, and their ends tell them apart."""

MARKERS = "oD^vsXP*"
PURPLE, OLIVE = "#CC79A7", "#8C8120"
COLOURS = {
    "model": (BLUE, GREEN, SKY, ORANGE, PURPLE, OLIVE),
    "teacher": (BLACK, QUIET),
    "baseline": (VERMILION, ORANGE),
}
"""By the role of a model; used again from the start where there are more."""


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
    return draw_quality(panels) if panels else None


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
