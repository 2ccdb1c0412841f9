"""The numbers of `veca analyze` as a table of headlines, and as a page of plots."""

import math
import re
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from veca.analysis.figures import BLACK, COLORS, GRAY, LITERAL, MARKERS, ShownFigure, shortened
from veca.analysis.perturb import CORRUPTIONS, SHIFTS, STRENGTHS
from veca.analysis.study import StudyRow

CORRUPTED = f"({'|'.join(CORRUPTIONS)})"
"""Settings of all corruptions, followed by a strength."""


class ModelStudy(NamedTuple):
    """One model and what was measured of it."""

    name: str
    rows: Sequence[StudyRow]

    def select(self, measure: str, setting: str = "", which: str = "") -> list[StudyRow]:
        """Rows of a measure whose setting matches a pattern.

        `which` narrows them down: 'fewest' or 'most' cores; the 'deep' layer, at two thirds of the
        depth; the 'best' mean.
        """
        found = [
            row
            for row in self.rows
            if row.measure == measure and re.fullmatch(setting, row.setting)
        ]
        budgets = {row.budget or 0 for row in found}
        layers = sorted({row.layer or 0 for row in found})
        for word in which.split() if found else ():
            if word in {"fewest", "most"}:
                budget = min(budgets) if word == "fewest" else max(budgets)
                found = [row for row in found if (row.budget or 0) == budget]
            elif word == "deep":
                deep = max(layer for layer in layers if layer <= round(2 / 3 * layers[-1]))
                found = [row for row in found if (row.layer or 0) == deep]
            else:
                found = [max(found, key=lambda row: row.mean)]
        return found


HEADLINES = (
    ("area read by a core, fewest cores", "area", "", "fewest deep", 3),
    ("area read by a core, most cores", "area", "", "most deep", 3),
    ("roundness of what a core reads", "roundness", "", "most deep", 3),
    ("object IoU of a core's patches, fewest cores", "object_iou", "", "fewest deep", 3),
    ("object IoU of a core's patches, most cores", "object_iou", "", "most deep", 3),
    ("segmentation by cores, mIoU %, best layer", "core_miou", "", "best", 1),
    ("segmentation by patches, mIoU %, best layer", "patch_miou", "", "best", 1),
    ("effective rank of core states", "effective_rank", "", "most deep", 3),
    ("cosine between two cores", "pair_cosine", "", "most deep", 3),
    ("overlap of what two cores read", "map_overlap", "", "most deep", 3),
    ("correlation of matched maps, flip", "correlation", "flip", "deep", 3),
    ("correlation of matched maps, crop", "correlation", "crop", "deep", 3),
    ("correlation of matched maps, jpeg", "correlation", "jpeg", "deep", 3),
    ("correlation of matched maps, next budget", "correlation", r"\d+ to \d+", "deep", 3),
    ("distance of matched points, flip", "displacement", "flip", "deep", 3),
    ("path of a core over the layers", "path", "", "most", 3),
    ("rank correlation of area and index", "order", "", "", 2),
    ("image feature, first cores beside all", "image_cosine", "first cores", "fewest", 3),
    ("image feature, random cores beside all", "image_cosine", "random cores", "fewest", 3),
    ("image feature, last cores beside all", "image_cosine", "last cores", "fewest", 3),
    ("20-NN %, all cores", "knn", "", "most", 1),
    ("20-NN %, first cores", "knn", "first cores", "fewest", 1),
    ("20-NN %, random cores", "knn", "random cores", "fewest", 1),
    ("20-NN %, last cores", "knn", "last cores", "fewest", 1),
    ("patches at 2x resolution beside 1x", "patch_cosine", "512 px", "", 3),
    ("patches at 4x resolution beside 1x", "patch_cosine", "1024 px", "", 3),
    ("20-NN %, images to be corrupted", "knn", "clean", "", 1),
    ("20-NN %, corruptions of strength 3", "knn", f"{CORRUPTED} 3", "", 1),
    ("20-NN %, corruptions of strength 5", "knn", f"{CORRUPTED} 5", "", 1),
    ("image feature, corruptions of strength 3", "image_cosine", f"{CORRUPTED} 3", "", 3),
    ("patches, corruptions of strength 3", "patch_cosine", f"{CORRUPTED} 3", "", 3),
    ("distance of points, corruptions of strength 3", "jump", f"{CORRUPTED} 3", "", 4),
    ("20-NN %, FGSM 1/255", "knn", "fgsm 1/255", "", 1),
    ("20-NN %, PGD 1/255", "knn", "pgd 1/255", "", 1),
    ("image feature, PGD 1/255", "image_cosine", "pgd 1/255", "", 3),
)
"""Text, measure, pattern of the setting, which rows, and digits of each line of the table."""


def table_rows(studies: Sequence[ModelStudy]) -> list[list[str]]:
    """A text for each headline and model, '-' where a measure does not apply."""
    found = []
    for text, measure, setting, which, digits in HEADLINES:
        means = [[row.mean for row in one.select(measure, setting, which)] for one in studies]
        if any(means):
            cells = [f"{statistics.fmean(part):.{digits}f}" if part else "-" for part in means]
            found.append([text, *cells])
    return found


@rc_context(LITERAL)
def analysis_figure(studies: Sequence[ModelStudy], title: str) -> Figure:
    """One page of plots; what does not apply to a model is left out of its panels."""
    figure = ShownFigure(figsize=(17, 14.5), dpi=100, layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=14, fontweight="bold", color=BLACK)
    grid = iter(figure.subplots(4, 4).flatten())
    for measure, text in (
        ("area", "area read by a core"),
        ("roundness", "roundness of what a core reads"),
        ("object_iou", "object IoU of a core's patches"),
        ("effective_rank", "effective rank of core states"),
        ("map_overlap", "overlap of what two cores read"),
    ):
        _by_layer(next(grid), studies, measure, text)
    _segmentation(next(grid), studies)
    for measure, text in (
        ("correlation", "correlation of matched maps"),
        ("displacement", "distance of matched points"),
        ("kept", "cores matched to themselves"),
    ):
        _by_shift(next(grid), studies, measure, text)
    _by_budget(next(grid), studies, "path", ("",), "path of a core, in image sides")
    kinds = ("first cores", "random cores", "last cores")
    _by_budget(next(grid), studies, "image_cosine", kinds, "image feature beside all cores")
    _by_budget(next(grid), studies, "knn", kinds, "20-NN % by cores used")
    _by_resolution(next(grid), studies)
    _by_strength(next(grid), studies, "knn", "20-NN %, mean over corruptions")
    _by_strength(next(grid), studies, "patch_cosine", "patches, mean over corruptions")
    _by_attack(next(grid), studies)
    handles = [
        Line2D(
            [], [], color=_color(at), marker=MARKERS[at % len(MARKERS)], label=shortened(one.name)
        )
        for at, one in enumerate(studies)
    ]
    figure.legend(handles=handles, loc="outside upper right", ncols=len(studies), frameon=False)
    return figure


def _by_layer(axes: Axes, studies: Sequence[ModelStudy], measure: str, text: str) -> None:
    """A line over layers at the most and, dashed, at the fewest cores."""
    for at, one in enumerate(studies):
        for which, style in (("most", "-"), ("fewest", "--")):
            rows = sorted(one.select(measure, "", which), key=lambda row: row.layer or 0)
            points = [(row.layer, row.mean) for row in rows]
            _draw(axes, points, at, style, dashed=style == "--")
    _finish(axes, text, "layer (dashed: fewest cores)")


def _segmentation(axes: Axes, studies: Sequence[ModelStudy]) -> None:
    """Label-free segmentation by layer: by patches and, dashed, by cores."""
    for at, one in enumerate(studies):
        for measure, style in (("patch_miou", "-"), ("core_miou", "--")):
            points = [(row.layer, row.mean) for row in one.select(measure)]
            _draw(axes, points, at, style, dashed=style == "--")
    _finish(axes, "segmentation without labels, mIoU %", "layer (dashed: by cores)")


def _by_shift(axes: Axes, studies: Sequence[ModelStudy], measure: str, text: str) -> None:
    """Bars for each change of the image, and for the next budget."""
    names = [*SHIFTS, "budget"]
    shown = [one for one in studies if one.select(measure, ".*")]
    for at, one in enumerate(shown):
        values = [
            _mean(one.select(measure, r"\d+ to \d+" if name == "budget" else name, "deep"))
            for name in names
        ]
        width = 0.8 / max(len(shown), 1)
        places = [number + (at - (len(shown) - 1) / 2) * width for number in range(len(names))]
        axes.bar(places, values, width * 0.9, color=_color(studies.index(one)))
    axes.set_xticks(range(len(names)), labels=names, fontsize=8)
    _finish(axes, text, "")


def _by_budget(
    axes: Axes, studies: Sequence[ModelStudy], measure: str, settings: Sequence[str], text: str
) -> None:
    """A line over budgets for each setting."""
    styles = dict(zip(settings, ("-", "--", ":"), strict=False))
    for at, one in enumerate(studies):
        for setting, style in styles.items():
            rows = [row for row in one.select(measure, setting) if row.budget is not None]
            _draw(axes, [(row.budget, row.mean) for row in rows], at, style, dashed=style != "-")
    axes.set_xscale("log", base=2)
    ticks = sorted({row.budget for one in studies for row in one.select(measure, settings[0])
                    if row.budget is not None})  # fmt: skip
    axes.set_xticks(ticks, labels=[str(tick) for tick in ticks])
    more = "first cores (dashed: random, dotted: last)" if len(settings) > 1 else "cores"
    _finish(axes, text, more)


def _by_resolution(axes: Axes, studies: Sequence[ModelStudy]) -> None:
    """Drift of patches and, dashed, of the image feature."""
    for at, one in enumerate(studies):
        for measure, style in (("patch_cosine", "-"), ("image_cosine", "--")):
            rows = one.select(measure, r"\d+ px")
            points = [(int(row.setting.split()[0]), row.mean) for row in rows]
            _draw(axes, points, at, style, dashed=style == "--")
    axes.set_xticks(sorted({int(row.setting.split()[0]) for one in studies
                            for row in one.select("patch_cosine", r"\d+ px")}))  # fmt: skip
    _finish(axes, "patches beside the first resolution", "px (dashed: image feature)")


def _by_strength(axes: Axes, studies: Sequence[ModelStudy], measure: str, text: str) -> None:
    """The mean over corruptions at each strength."""
    for at, one in enumerate(studies):
        settings = ["clean", *(f"{CORRUPTED} {strength + 1}" for strength in range(STRENGTHS))]
        values = [_mean(one.select(measure, setting)) for setting in settings]
        _draw(axes, list(enumerate(values)), at, "-")
    _finish(axes, text, "strength")


def _by_attack(axes: Axes, studies: Sequence[ModelStudy]) -> None:
    """Bars of the image feature under each attack."""
    names = sorted({row.setting for one in studies
                    for row in one.select("image_cosine", "(fgsm|pgd) .*")})  # fmt: skip
    width = 0.8 / max(len(studies), 1)
    for at, one in enumerate(studies):
        values = [_mean(one.select("image_cosine", re.escape(name))) for name in names]
        places = [number + (at - (len(studies) - 1) / 2) * width for number in range(len(names))]
        axes.bar(places, values, width * 0.9, color=_color(at))
    axes.set_xticks(range(len(names)), labels=names, fontsize=8)
    _finish(axes, "image feature under attack", "")


def _mean(rows: Sequence[StudyRow]) -> float:
    """The mean over rows; NaN, which is not drawn, without any."""
    return statistics.fmean(row.mean for row in rows) if rows else float("nan")


def _color(at: int) -> str:
    """The color of a model by its place in the table."""
    colors = COLORS["model"]
    return colors[at % len(colors)]


def _draw(
    axes: Axes, points: Sequence[tuple[Any, float]], at: int, style: str, dashed: bool = False
) -> None:
    """A line of one model."""
    points = [point for point in points if not math.isnan(point[1])]
    if points:
        marker = "" if dashed else MARKERS[at % len(MARKERS)]
        axes.plot(*zip(*sorted(points), strict=True), style, color=_color(at), marker=marker, ms=4)


def _finish(axes: Axes, title: str, label: str) -> None:
    """Titles, a pale grid, no frame; a panel without data says so."""
    axes.set_title(title, loc="left", fontsize=10, color=BLACK)
    if not axes.lines and not axes.patches:
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
        axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", color=GRAY)
        return
    axes.set_xlabel(label, fontsize=9, color=BLACK)
    axes.tick_params(labelsize=8, color=GRAY)
    axes.grid(color="#88888833", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
