"""The plot of quality against budget: what is drawn, and how it is told apart."""

import io
import math

import numpy as np
import pytest
from PIL import Image

from tests.probe.made_up_rows import depth_rows, knn_rows, row, teacher
from veca.analysis.figures import (
    BLACK,
    BLUE,
    MOST_LETTERS,
    VERMILION,
    plot_quality,
    quality_panels,
    shortened,
)
from veca.probe.rows import Row


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
