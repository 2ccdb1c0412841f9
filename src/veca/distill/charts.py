"""Which curves the summary of a run shows, from its log."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Float64
from numpy import ndarray

from veca.distill.binning import binned, smoothed
from veca.distill.curves import Chart, Curve, Mark, value_range
from veca.distill.logged import Log, Score
from veca.distill.losses import PARTS

BINS = 340
"""Most points of a curve: one for each unit of the drawing."""

SMOOTHING = 0.04
"""Share of the run over which training curves are averaged."""

MOST_MARKS = 60
"""Resumes or skipped steps that are drawn; more would hide the curves."""

LOGARITHMIC_FROM = 3.0
"""Ratio of the largest to the smallest value from which a logarithmic axis shows more."""

OUTLIERS = 0.5
"""Per cent of the raw values at each end that need not be seen."""

START = 0.03
"""Share of the run at its start that need not be seen if the rest would be squashed."""

PART_NAMES = dict(zip(PARTS, ("image", "cosine", "error"), strict=True))
"""Parts of the training loss and their names in the drawing."""


def color(number: int) -> str:
    """A color of the page, which numbers them."""
    return f"var(--c{number})"


def run_charts(log: Log, colors: int) -> list[Chart]:
    """All charts of a run, those without a single point left out; so many colors are given."""
    drawn = [*validation_charts(log), *training_charts(log, colors)]
    return [chart for chart in drawn if any(len(curve.x) for curve in chart.curves)]


def validation_charts(log: Log) -> list[Chart]:
    """Validation loss, one chart for each image size and share, on equal axes; the same colors."""
    scores = log.scores()
    budgets = budgets_of(scores)
    values, logarithmic = _loss_axis(scores, _steps(log)[1])
    places = itertools.groupby(scores, key=lambda score: (score.resolution, score.ffn))
    panels = [list(group) for _, group in places]
    return [
        Chart(
            title=", ".join(["Validation loss", *place_words(group[0], scores)]),
            curves=[
                Curve(
                    name=score.name,
                    x=score.steps,
                    y=score.losses,
                    color=color(budgets.index(score.budget)),
                )
                for score in group
            ],
            steps=_steps(log),
            values=values,
            guide=None if group[0].constant is None else ("constant", group[0].constant),
            marks=_resumes(log),
            logarithmic=logarithmic,
        )
        for group in panels
    ]


def training_charts(log: Log, colors: int) -> list[Chart]:
    """What the optimizer saw, and how fast it went."""
    train, speed, steps = log.train, log.speed, _steps(log)
    marks = [*_resumes(log), *_skips(log)]
    loss = _smooth(train["step"], train["loss"])
    tints = (color(0), color((colors - 1) // 2), color(colors - 1))
    parts = [
        replace(_smooth(train["step"], train[field])[-1], name=name, band=None, color=tint)
        for (field, name), tint in zip(PART_NAMES.items(), tints, strict=True)
    ]
    norm = _smooth(train["step"], train["gradient_norm"])
    rate = [_plain(train["step"], train["learning_rate"])]
    pace = _smooth(speed["step"], speed["images_per_second"])
    return [
        _chart("Training loss", loss, steps, marks),
        _chart("Parts of the training loss", parts, steps, ()),
        _chart("Gradient norm", norm, steps, marks),
        _chart("Learning rate", rate, steps, (), zero=True),
        _chart("Images per second", pace, steps, _resumes(log), zero=True),
    ]


def budgets_of(scores: Sequence[Score]) -> list[int | None]:
    """Every budget once, rising; that of the whole model last."""
    found = {score.budget for score in scores}
    return sorted(found, key=lambda budget: float("inf") if budget is None else budget)


def place_words(score: Score, scores: Sequence[Score]) -> list[str]:
    """Image size and share of a score, each where scores differ in it."""
    words = []
    if len({other.resolution for other in scores}) > 1:
        words.append("any size" if score.resolution is None else f"{score.resolution} px")
    if len({other.ffn for other in scores}) > 1:
        words.append("whole ffn" if score.ffn is None else f"ffn {score.ffn:g}")
    return words


def _smooth(x: Float64[ndarray, " n"], y: Float64[ndarray, " n"]) -> list[Curve]:
    """A smoothed curve, and behind it the values as they are, or their extremes if many."""
    series = binned(x, y, BINS)
    smooth = smoothed(series, SMOOTHING)
    if (series.members > 1).any():
        extremes = (series.low, series.high)
        return [Curve(x=series.x, y=smooth, band=extremes)]
    raw = Curve(x=series.x, y=series.mean, raw=True)
    return [raw, Curve(x=series.x, y=smooth)]


def _plain(x: Float64[ndarray, " n"], y: Float64[ndarray, " n"]) -> Curve:
    """A curve that needs no smoothing."""
    series = binned(x, y, BINS)
    return Curve(x=series.x, y=series.mean)


def _chart(
    title: str,
    curves: Sequence[Curve],
    steps: tuple[float, float],
    marks: Sequence[Mark],
    zero: bool = False,
) -> Chart:
    """A chart whose axis shows all but a few outliers."""
    values = np.concatenate([_shown(curve, steps[1]) for curve in curves])
    ends, logarithmic = _axis(values, zero)
    return Chart(
        title=title, curves=curves, steps=steps, values=ends, marks=marks, logarithmic=logarithmic
    )


def _shown(curve: Curve, last: float) -> Float64[ndarray, " shown"]:
    """Values of a curve that its axis must show."""
    line = settled(curve.x, curve.y, last)
    edges = [settled(curve.x, edge, last) for edge in curve.band or ()]
    seldom = np.concatenate([line, *edges])
    usual = np.percentile(seldom, (OUTLIERS, 100 - OUTLIERS)) if len(seldom) else seldom
    return usual if curve.raw else np.concatenate((usual, line))


def settled(
    x: Float64[ndarray, " n"], y: Float64[ndarray, " n"], last: float
) -> Float64[ndarray, " shown"]:
    """Values after the start of the run, if those of the start would more than double the range."""
    later = y[x > START * last]
    if len(later) < 2 or np.ptp(later) == 0 or np.ptp(y) < 2 * np.ptp(later):
        return y
    return later


def _loss_axis(scores: Sequence[Score], last: float) -> tuple[tuple[float, float], bool]:
    """One axis for validation losses and the constant predictor, and whether it is logarithmic."""
    constants = [score.constant for score in scores if score.constant is not None]
    losses = [settled(score.steps, score.losses, last) for score in scores]
    return _axis(np.concatenate([np.array(constants), *losses]))


def _axis(values: Float64[ndarray, " n"], zero: bool = False) -> tuple[tuple[float, float], bool]:
    """Ends of an axis that shows these values with some air, and whether it is logarithmic."""
    positive = bool(len(values)) and values.min() > 0 and not zero
    if not positive or values.max() < LOGARITHMIC_FROM * values.min():
        return value_range(values, zero), False
    low, high = value_range(np.log(values))
    return (float(np.exp(low)), float(np.exp(high))), True


def _steps(log: Log) -> tuple[float, float]:
    """Ends of the horizontal axis, the same for all charts."""
    last = max(columns["step"].max(initial=1.0) for columns in (log.train, log.validation))
    return 0.0, float(last)


def _resumes(log: Log) -> list[Mark]:
    """Where the run was continued."""
    steps = log.resume["step"][-MOST_MARKS:].tolist()
    return [Mark(step=step, words=f"resumed at step {step:,.0f}", kind="resumed") for step in steps]


def _skips(log: Log) -> list[Mark]:
    """Steps that were skipped."""
    return [
        Mark(step=float(step), words=f"step {step:,} was skipped", kind="skipped", short=True)
        for step in log.skipped[-MOST_MARKS:]
    ]
