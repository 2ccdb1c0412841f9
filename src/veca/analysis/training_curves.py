"""Training curves, drawn with matplotlib: import this where they are drawn, since it is an extra.

Apart from `figures.py`, so that `veca distill` does not load probes and benchmarks.
"""

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from veca.runtime.files import printable

SMOOTHED_POINTS = 200
"""Training losses are averaged into about this many points."""

Row = Mapping[str, Any]


@rc_context({"text.parse_math": False})  # a `$` in a name of a folder is no formula
def plot_training(rows: Sequence[Row], title: str) -> bytes:
    """Training loss, and validation loss at every budget, as the bytes of a PNG file.

    `rows` are those of metrics.jsonl (`veca.train.metrics.read_metrics`).
    """
    room = ConstrainedLayoutEngine(w_pad=0.15, h_pad=0.1)
    figure = Figure(figsize=(14.0, 5.4), dpi=110, layout=room)
    figure.suptitle(printable(title), x=0.012, ha="left", fontsize=14, fontweight="bold")
    training, validation = figure.subplots(1, 2)
    _plot_training_loss(training, [row for row in rows if row["kind"] == "train"])
    _plot_validation_loss(validation, [row for row in rows if row["kind"] == "validation"])
    for row in rows:
        if row["kind"] == "baseline":
            validation.axhline(row["loss"], color="#767676", ls="--", label="constant predictor")
    for axes in (training, validation):
        axes.set_xlabel("step")
        axes.spines[["top", "right"]].set_visible(False)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False, fontsize=9)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def _plot_training_loss(axes: Axes, rows: Sequence[Row]) -> None:
    """The loss and its parts, averaged over neighboring steps."""
    axes.set_title("training loss (mean over neighboring steps)", loc="left")
    found = [row for row in sorted(rows, key=lambda row: row["step"]) if row["loss"] is not None]
    if not found:
        return
    parts = np.array_split(np.arange(len(found)), min(SMOOTHED_POINTS, len(found)))
    steps = [np.mean([found[at]["step"] for at in part]) for part in parts]
    for name in (name for name in found[0] if name == "loss" or name.startswith("loss_")):
        if isinstance(found[0][name], int | float):
            means = [np.mean([found[at][name] for at in part]) for part in parts]
            label = name.removeprefix("loss_").replace("_", " ")
            axes.plot(steps, means, label=label, lw=2 if name == "loss" else 1)


def _plot_validation_loss(axes: Axes, rows: Sequence[Row]) -> None:
    """A line for each resolution, FFN share and budget."""
    axes.set_title("validation loss", loc="left")
    keys = sorted(
        {(row["resolution"], -row["ffn"], row["budget"] or 0) for row in rows},
    )
    colors = colormaps["viridis"](np.linspace(0.85, 0.0, max(len(keys), 1)))
    several = len({resolution for resolution, _, _ in keys}) > 1
    for color, (resolution, ffn, budget) in zip(colors, keys, strict=False):
        own = sorted(
            (row["step"], row["loss"])
            for row in rows
            if (row["resolution"], -row["ffn"], row["budget"] or 0) == (resolution, ffn, budget)
            and row["loss"] is not None
        )
        label = f"{budget} cores" if budget else "full attention"
        label += "" if ffn == -1 else f", FFN {-ffn:g}"
        label += f", {resolution} px" if several else ""
        axes.plot(*zip(*own, strict=True), color=color, marker="o", ms=3, label=label)
