"""Figures drawn with matplotlib."""

import io
import itertools
import math

import numpy as np
import pytest
from PIL import Image

from tests.probe.made_up_rows import depth_rows, knn_rows, row, teacher
from veca.analysis import figures as panels
from veca.analysis.figures import (
    MOST_LETTERS,
    draw,
    plot_quality,
    quality_panels,
    shortened,
    spread_out,
)
from veca.analysis.visualize import BLACK, BLUE, VERMILION, Line, Panel
from veca.probe.rows import Row


def luminance(color: str) -> float:
    """How bright a color is, from 0 to 1, as a gray copy shows it."""
    red, green, blue = (int(color[start : start + 2], 16) / 255 for start in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_no_two_colors_are_alike() -> None:
    names = ("BLACK", "ORANGE", "SKY", "GREEN", "BLUE", "VERMILION")
    colors = [getattr(panels, name) for name in names]
    assert len(set(colors)) == len(colors)
    for one, other in itertools.combinations(colors, 2):
        parts = zip(one[1:], other[1:], strict=True)
        assert sum(left != right for left, right in parts) >= 3
    assert max(map(luminance, colors)) < 0.75  # visible on white


LINE = Line("one", BLUE, "o", [256, 512], [1.0, 4.0], [0.9, 3.5], [1.1, 4.5])
PANEL = Panel("Time", "pixels", [LINE, LINE._replace(label="two", dashed=True)], unit=" ms")


def test_labels_that_would_touch_move_apart_around_their_mean() -> None:
    assert spread_out([0.5, 0.5], 0.1) == pytest.approx([0.45, 0.55])
    assert spread_out([0.52, 0.5, 0.9], 0.1) == pytest.approx([0.56, 0.46, 0.9])
    assert spread_out([0.1, 0.9], 0.1) == [0.1, 0.9]


def test_a_chain_of_labels_keeps_its_order_and_its_gaps() -> None:
    heights = [0.30, 0.10, 0.14, 0.19, 0.2]
    placed = spread_out(heights, 0.1)
    order = sorted(range(5), key=heights.__getitem__)
    assert sorted(range(5), key=placed.__getitem__) == order
    ordered = sorted(placed)
    gaps = [above - below for below, above in itertools.pairwise(ordered)]
    assert min(gaps) >= 0.1 - 1e-9
    assert sum(placed) == pytest.approx(sum(heights))


@pytest.mark.parametrize("count", [1, 2])
def test_panels_become_a_png(count: int) -> None:
    picture = draw([PANEL._replace(level=1.0)] * count, "title", "footnote")
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 10_000


def test_one_point_is_enough_for_a_panel() -> None:
    point = LINE._replace(x=[256], y=[1.0], low=[0.9], high=[1.1])
    assert draw([PANEL._replace(lines=[point])], "", "").startswith(b"\x89PNG")


def test_models_with_budgets_are_lines_and_others_levels() -> None:
    (panel,) = quality_panels(knn_rows())
    model, baseline = panel.lines
    (reference,) = panel.levels
    assert (model.label, model.x, model.y) == (
        "runs/tiny", [8, 16, 32, 64], [60.0, 64.0, 66.0, 67.0]
    )  # fmt: skip
    assert model.low == [59.0, 63.0, 65.0, 66.0]
    assert model.high == [61.0, 65.0, 67.0, 68.0]
    assert (baseline.label, baseline.dashed) == ("runs/baseline (baseline)", True)
    assert (reference.label, reference.y) == ("efficientnet-lite2 (teacher)", [80.0])
    assert math.isnan(reference.x[0])
    assert [line.color for line in (model, baseline, reference)] == [BLUE, VERMILION, BLACK]


def test_a_panel_shows_the_leading_metric_and_says_which_way_is_better() -> None:
    knn, depth = quality_panels([*knn_rows(), *depth_rows()])
    assert knn.y_label == "top1_k20 (more is better)"
    assert depth.y_label == "rmse (less is better)"
    assert knn.title == "knn on pets\ndinov2, feature image"
    assert (knn.unit, depth.unit) == ("%", "m")


def test_resolutions_and_shares_of_a_model_are_lines_of_one_color() -> None:
    (panel,) = quality_panels(
        [
            row(budget=budget, resolution=side, ffn=share)
            for budget in (8, 64)
            for side in (128, 160)
            for share in (0.5, 1.0)
        ]
    )
    assert [line.label for line in panel.lines] == [
        "runs/tiny, 128 px, ffn 0.5",
        "runs/tiny, 128 px, ffn 1",
        "runs/tiny, 160 px, ffn 0.5",
        "runs/tiny, 160 px, ffn 1",
    ]
    assert len({line.color for line in panel.lines}) == 1
    assert len({line.marker for line in panel.lines}) == 4


def test_budgets_stand_in_their_order_whichever_was_measured_first() -> None:
    (panel,) = quality_panels([row(budget=budget) for budget in (64, 8, 16)])
    assert panel.lines[0].x == [8, 16, 64]


def test_a_partial_set_is_marked() -> None:
    (panel,) = quality_panels([row(partial=("some are missing.",))])
    assert "(PARTIAL)" in panel.title


def test_without_budgets_there_is_nothing_to_draw() -> None:
    assert quality_panels([teacher()]) == []
    assert plot_quality([teacher()]) is None


@pytest.mark.parametrize(
    ("rows", "width"),
    [
        ([row()], 880),  # one point
        ([*knn_rows(), *depth_rows(), row(data="third", metric="x", unit="")], 1760),
    ],
)
def test_the_plot_is_a_picture_with_up_to_two_panels_in_a_row(rows: list[Row], width: int) -> None:
    content = plot_quality(rows)
    assert content is not None
    with Image.open(io.BytesIO(content)) as image:
        assert image.format == "PNG"
        assert image.width == width
        assert len(np.unique(np.asarray(image.convert("L")))) > 10


def test_long_names_keep_their_ends() -> None:
    assert shortened("tiny") == "tiny"
    name = "runs/" + "long/" * 20 + "model"
    assert len(shortened(name)) == MOST_LETTERS
    assert shortened(name).endswith("long/model")
