"""Curves over the steps of a run, drawn as SVG.

Colors are variables of the page that holds the drawing, so that it can be dark or light. Names
stand at the ends of their curves, moved apart where they would overlap.
"""

import html
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64
from numpy import ndarray

from veca.distill.axes import Number, Scale, logarithmic_ticks, round_ticks, words

WIDTH, HEIGHT = 480, 300
LEFT, RIGHT, TOP, BOTTOM = 56, 396, 12, 262
"""Edges of the plot within the drawing; names stand to the right of it."""

PLOT = (
    f'<clipPath id="plot"><rect x="{LEFT - 3}" y="{TOP - 3}" width="{RIGHT - LEFT + 6}" '
    f'height="{BOTTOM - TOP + 3}"/></clipPath>'
)
"""What is seen of curves; the page that holds the drawings must hold it, once."""

NAME_GAP = 16
"""Least distance of two names, in the units of the drawing."""

MOST_DOTS = 40
"""Points up to which each one gets a dot of its own."""

LIGHT = (
    (15, 118, 110), (3, 105, 161), (79, 70, 229), (147, 51, 234), (192, 38, 211), (225, 29, 72),
    (234, 88, 12), (161, 98, 7),
)  # fmt: skip
DARK = (
    (45, 212, 191), (56, 189, 248), (129, 140, 248), (192, 132, 252), (232, 121, 249),
    (251, 113, 133), (251, 146, 60), (250, 204, 21),
)  # fmt: skip
"""Stops between which colors are picked, so that neighbors look related."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One line."""

    name: str = ""
    """Written at its end."""

    x: Float64[ndarray, " n"]
    y: Float64[ndarray, " n"]

    band: tuple[Float64[ndarray, " n"], Float64[ndarray, " n"]] | None = None
    """The least and largest values around it."""

    color: str = "var(--accent)"

    raw: bool = False
    """Thin and pale: what another curve smooths."""


@dataclass(frozen=True, kw_only=True)
class Mark:
    """Something that happened at a step."""

    step: Number
    words: str
    kind: str
    """Class of the style sheet."""
    short: bool = False


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Curves that share their axes."""

    title: str
    curves: Sequence[Curve]

    steps: tuple[Number, Number]
    """Ends of the horizontal axis."""

    values: tuple[Number, Number]
    """Ends of the vertical axis; what lies beyond is not seen."""

    guide: tuple[str, Number] | None = None
    """Name and value of a dashed line across."""

    marks: Sequence[Mark] = ()

    logarithmic: bool = False


def palette(count: int, stops: Sequence[tuple[int, int, int]]) -> list[str]:
    """So many colors along the stops, the first and the last included."""
    places = np.linspace(0, len(stops) - 1, count) if count > 1 else np.zeros(1)
    table = np.array(stops, dtype=np.float64)
    channels = [np.interp(places, np.arange(len(stops)), table[:, channel]) for channel in range(3)]
    return [
        "#{:02x}{:02x}{:02x}".format(*map(round, shade)) for shade in zip(*channels, strict=True)
    ]


def value_range(values: Float64[ndarray, " n"], zero: bool = False) -> tuple[float, float]:
    """Ends of an axis that show all values with some air, from 0 where asked for."""
    known = values[np.isfinite(values)]
    low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)
    if zero:
        low = min(low, 0.0)
    air = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    return (low if zero else low - air), high + air


def draw(chart: Chart) -> str:
    """The chart as an SVG element."""
    x = Scale(*chart.steps, LEFT, RIGHT)
    y = Scale(*chart.values, BOTTOM, TOP, chart.logarithmic)
    parts = [_grid(x, y), *(_mark(mark, x) for mark in chart.marks)]
    parts.append('<g clip-path="url(#plot)">')
    parts += [_band(curve, x, y) for curve in chart.curves]
    if chart.guide is not None:
        height = y.place(chart.guide[1])
        parts.append(f'<path class="guide" d="M{LEFT} {height:.1f}H{RIGHT}"/>')
    parts += [*(_line(curve, x, y) for curve in chart.curves), "</g>", *_names(chart, x, y)]
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{html.escape(chart.title)}">'
        + "".join(parts)
        + "</svg>"
    )


def spread(
    places: Float64[ndarray, " n"], gap: Number, low: Number, high: Number
) -> Float64[ndarray, " n"]:
    """Rising places moved as little as possible to be `gap` apart, and into [low, high].

    Neighbors that are too close are moved as one group around their mean. What cannot fit goes
    beyond `high`.
    """
    offsets = gap * np.arange(len(places))
    groups: list[tuple[float, int]] = []  # mean of the places without their gaps, members
    for wanted in (places - offsets).tolist():
        mean, members = wanted, 1
        while groups and groups[-1][0] > mean:
            earlier, count = groups.pop()
            mean = (mean * members + earlier * count) / (members + count)
            members += count
        groups.append((mean, members))
    means = np.repeat([mean for mean, _ in groups], [count for _, count in groups])
    last = offsets[-1] if len(offsets) else 0.0
    return means.clip(low, max(low, high - last)) + offsets


def _grid(x: Scale, y: Scale) -> str:
    """Axes, grid lines and ticks."""
    shown = []
    ticks = round_ticks(x.low, x.high, most=6, least_step=1.0)
    for tick, word in zip(ticks, words(ticks), strict=True):
        place = x.place(tick)
        shown.append(f'<path class="tick" d="M{place:.1f} {BOTTOM}v5"/>')
        shown.append(f'<text x="{place:.1f}" y="{BOTTOM + 19}" class="middle">{word}</text>')
    ticks = logarithmic_ticks(y.low, y.high, 6) if y.logarithmic else round_ticks(y.low, y.high, 6)
    for tick, word in zip(ticks, words(ticks), strict=True):
        place = y.place(tick)
        shown.append(f'<path class="grid" d="M{LEFT} {place:.1f}H{RIGHT}"/>')
        shown.append(f'<text x="{LEFT - 7}" y="{place + 4.5:.1f}" class="end">{word}</text>')
    shown.append(f'<path class="axis" d="M{LEFT} {BOTTOM}H{RIGHT}"/>')
    shown.append(f'<text x="{RIGHT}" y="{HEIGHT - 3}" class="end">step</text>')
    return "".join(shown)


def _line(curve: Curve, x: Scale, y: Scale) -> str:
    """A curve, with dots where they are few."""
    if not len(curve.x):
        return ""
    across, up = x.places(curve.x), y.places(curve.y)
    kind = "raw" if curve.raw else "line"
    line = (
        f'<path class="{kind}" style="stroke:{curve.color}" d="{_path(across, up)}">'
        f"<title>{html.escape(curve.name)}</title></path>"
    )
    if curve.raw or len(curve.x) > MOST_DOTS:
        return line
    dots = "".join(
        f'<circle cx="{at:.1f}" cy="{height:.1f}" r="2.4"><title>{html.escape(curve.name)}, '
        f"step {step:,.0f}: {value:.4g}</title></circle>"
        for at, height, step, value in zip(across, up, curve.x, curve.y, strict=True)
    )
    return f'{line}<g style="fill:{curve.color}">{dots}</g>'


def _band(curve: Curve, x: Scale, y: Scale) -> str:
    """What lies between the least and the largest values."""
    if curve.band is None or not len(curve.x):
        return ""
    across = x.places(curve.x)
    low, high = (y.places(edge) for edge in curve.band)
    path = _path(np.concatenate((across, across[::-1])), np.concatenate((low, high[::-1])))
    return f'<path class="band" style="fill:{curve.color}" d="{path}Z"/>'


def _path(across: Float64[ndarray, " n"], up: Float64[ndarray, " n"]) -> str:
    """Points of a path in the units of the drawing."""
    return "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in zip(across, up, strict=True))


def _mark(mark: Mark, x: Scale) -> str:
    """A line up from a step: through the whole plot, or short for what concerns one step alone."""
    place, top = x.place(mark.step), BOTTOM - 12 if mark.short else TOP
    title = html.escape(mark.words)
    return (
        f'<path class="{mark.kind}" d="M{place:.1f} {BOTTOM}V{top}"><title>{title}</title></path>'
    )


def _names(chart: Chart, x: Scale, y: Scale) -> list[str]:
    """Names beside the ends of their curves, each with a line that leads to it."""
    ends = [
        (
            _inside(y.place(float(curve.y[-1]))),
            x.place(float(curve.x[-1])),
            curve.name,
            curve.color,
        )
        for curve in chart.curves
        if curve.name and len(curve.x)
    ]
    if chart.guide is not None:
        ends.append(
            (_inside(y.place(chart.guide[1])), float(RIGHT), chart.guide[0], "var(--quiet)")
        )
    ends.sort(key=lambda end: end[0])
    ends = _thinned(ends, most=(BOTTOM - TOP) // NAME_GAP + 1)
    heights = spread(np.array([end[0] for end in ends], dtype=np.float64), NAME_GAP, TOP, BOTTOM)
    return [
        f'<path class="leader" style="stroke:{color}" '
        f'd="M{at:.1f} {end:.1f}L{RIGHT + 3} {end:.1f}L{RIGHT + 11} {height:.1f}"/>'
        f'<text x="{RIGHT + 14}" y="{height + 4.5:.1f}" style="fill:{color}">'
        f"{html.escape(name)}</text>"
        for (end, at, name, color), height in zip(ends, heights.tolist(), strict=True)
    ]


def _inside(height: float) -> Number:
    """A height within the plot."""
    return min(max(height, TOP), BOTTOM)


def _thinned(
    ends: list[tuple[Number, Number, str, str]], most: int
) -> list[tuple[Number, Number, str, str]]:
    """At most so many names, evenly picked, the first and the last among them."""
    if len(ends) <= most:
        return ends
    return [ends[round(place)] for place in np.linspace(0, len(ends) - 1, most)]
