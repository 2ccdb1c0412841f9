"""The figure of a benchmark: time over resolution, and how much faster than full attention."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from veca.analysis.bench_rows import Row
from veca.analysis.contenders import Contender
from veca.analysis.panels import BLACK, BLUE, GREEN, ORANGE, SKY, VERMILION, Line, Panel
from veca.analysis.timing import Quartiles


class _Look(NamedTuple):
    colour: str
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
    """Who is drawn, and how; names tell contenders apart, also where rates of merging differ."""
    precision = contenders[0].precision  # one figure has one; the others are in the table
    veca = [item for item in contenders if item.kind == "veca"]
    shares = sorted({item.ffn for item in veca})
    budgets = sorted({item.budget or 0 for item in veca})
    looks = {
        Contender(kind="twin"): _Look(BLACK, "s"),
        Contender(kind="merging"): _Look(VERMILION, "X", dashed=True),
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
        look.colour,
        look.marker,
        [side for side, _ in points],
        [value.median for _, value in points],
        [value.low for _, value in points],
        [value.high for _, value in points],
        look.dashed,
    )
