"""What a figure shows, as numbers and words; `figure.py` draws it."""

from collections.abc import Sequence
from typing import NamedTuple

# Okabe and Ito's colours, which people who see fewer colours can tell apart.
BLACK, ORANGE, SKY, GREEN, BLUE, VERMILION = (
    "#222222", "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00",
)  # fmt: skip
QUIET = "#767676"


class Line(NamedTuple):
    """One line of a panel, labelled at its end."""

    label: str
    colour: str
    marker: str
    """As matplotlib names it."""

    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    """A band from low to high is shaded."""

    dashed: bool = False


class Panel(NamedTuple):
    """A pair of logarithmic axes."""

    title: str
    x_label: str
    lines: Sequence[Line]
    unit: str
    """Follows the numbers of the upright axis."""

    level: float | None = None
    """Where a line is drawn from side to side."""


class QualityPanel(NamedTuple):
    """One pair of axes: budgets on a doubling scale, the leading metric of a section upright."""

    title: str
    y_label: str
    unit: str
    lines: Sequence[Line]
    """Models with budgets."""

    levels: Sequence[Line]
    """Models without: a point each, of which the height counts."""
