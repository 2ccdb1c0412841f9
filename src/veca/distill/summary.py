"""The summary of a run: one HTML file that needs nothing beside it.

It is drawn from the logs alone, at any time: a run that has hardly begun gets a page too.
"""

import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template

import numpy as np

from veca.distill.charts import PART_NAMES, budgets_of, color, place_words, run_charts
from veca.distill.curves import DARK, LIGHT, PLOT, draw, palette
from veca.distill.logged import Log, Score, read_log
from veca.runtime.files import write_atomic

TEMPLATE = Path(__file__).with_suffix(".html")

NOTHING = '<p class="quiet">Nothing was logged yet.</p>'

CAPTION = """<p class="quiet">Dashed: the best constant predictor, which gives every image the same
answer and which a student must beat. Losses of the untrained student may lie above the plots.
{marks}</p>"""

TOLD_FIRST = ("teacher", "images")
"""Facts that stand below the title."""


def write_summary(folder: Path, facts: Mapping[str, str]) -> Path:
    """Write summary.html into the folder of a run; `facts` are names and values to list."""
    path = folder / "summary.html"
    write_atomic(path, [page(read_log(folder), facts).encode()])
    return path


def page(log: Log, facts: Mapping[str, str]) -> str:
    """The whole summary."""
    scores = log.scores()
    colors = max(len(budgets_of(scores)), len(PART_NAMES))
    return Template(TEMPLATE.read_text("utf-8")).substitute(
        title=html.escape(facts.get("recipe", "a run")),
        subtitle=html.escape(" \u00b7 ".join(facts[name] for name in TOLD_FIRST if name in facts)),
        plot=PLOT,
        light=_variables(palette(colors, LIGHT)),
        dark=_variables(palette(colors, DARK)),
        tiles=_tiles(log, scores),
        charts=_charts(log, colors),
        table=_table(scores),
        facts=_facts({**facts, **{n: v for n, v in counted(log).items() if n not in facts}}),
    )


def counted(log: Log) -> dict[str, str]:
    """Facts that the log itself tells."""
    speed = log.speed
    told = {
        "steps done": f"{log.steps:,}",
        "skipped steps": f"{len(log.skipped):,}",
        "resumes": f"{len(log.resume['step']):,}",
    }
    if len(speed["step"]):
        pace = np.nanmedian(speed["images_per_second"])
        told["images per second"] = f"{pace:,.1f} (median)"
        told["waiting for data"] = f"{np.nanmean(speed['data_wait']):.1%} of the time"
        told["most memory"] = f"{np.nanmax(speed['memory_mb']):,.0f} MB"
    return told


def _tiles(log: Log, scores: Sequence[Score]) -> str:
    """The numbers that matter most, in large letters."""
    tiles = [(f"{log.steps:,}", "steps")]
    if scores:
        largest = max(scores, key=lambda s: (s.resolution or 0, s.ffn or 0, s.budget or 0))
        tiles.append((f"{largest.losses[-1]:.4f}", f"validation loss, {_words(largest, scores)}"))
    beaten = [(score.gain, score) for score in scores if score.gain is not None]
    if beaten:
        gain, weakest = min(beaten, key=lambda pair: pair[0])
        tiles.append((_gain(gain), f"the best constant, at the weakest: {_words(weakest, scores)}"))
    if len(log.speed["step"]):
        tiles.append((f"{np.nanmedian(log.speed['images_per_second']):,.1f}", "images per second"))
    boxes = "".join(
        f'<div class="tile"><b>{value}</b><span>{name}</span></div>' for value, name in tiles
    )
    return f'<div class="tiles">{boxes}</div>'


def _charts(log: Log, colors: int) -> str:
    """All curves, and how to read them."""
    charts = run_charts(log, colors)
    if not charts:
        return NOTHING
    figures = "".join(
        f"<figure><h3>{html.escape(chart.title)}</h3>{draw(chart)}</figure>" for chart in charts
    )
    marks = " Dotted: the run was resumed." if len(log.resume["step"]) else ""
    marks += " Red: a step was skipped." if log.skipped else ""
    return f'<div class="charts">{figures}</div>{CAPTION.format(marks=marks)}'


def _table(scores: Sequence[Score]) -> str:
    """First, best and last validation loss of every budget, against the best constant."""
    if not scores:
        return ""
    budgets = budgets_of(scores)
    rows = "\n".join(_row(score, budgets.index(score.budget)) for score in scores)
    return f"""<h2>Validation loss</h2>
<div class="scroll"><table>
<tr><th>budget</th><th>ffn</th><th>pixels</th><th>first</th><th>best</th><th>at step</th>
<th>last</th><th>constant</th><th>last against it</th></tr>
{rows}
</table></div>"""


def _row(score: Score, number: int) -> str:
    """One row of the table."""
    best = int(score.losses.argmin())
    cells = [
        f'<span class="dot" style="background:{color(number)}"></span>{score.name}',
        "" if score.ffn is None else f"{score.ffn:g}",
        "" if score.resolution is None else f"{score.resolution}",
        f"{score.losses[0]:.4f}",
        f"{score.losses[best]:.4f}",
        f"{score.steps[best]:,.0f}",
        f"{score.losses[-1]:.4f}",
        "" if score.constant is None else f"{score.constant:.4f}",
        "" if score.gain is None else _gain(score.gain),
    ]
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _facts(facts: Mapping[str, str]) -> str:
    """Rows of names and values."""
    return "\n".join(
        f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>"
        for name, value in facts.items()
    )


def _gain(gain: float) -> str:
    """How far below the constant, or above, which is bad."""
    if gain >= 0:
        return f"{gain:.1%} below"
    return f'<span class="bad">{-gain:.1%} above</span>'


def _words(score: Score, scores: Sequence[Score]) -> str:
    """What tells a score from the others."""
    return ", ".join([score.name, *place_words(score, scores)])


def _variables(colors: Sequence[str]) -> str:
    """Colors as variables of the style sheet."""
    return " ".join(f"--c{number}: {code};" for number, code in enumerate(colors))
