"""The summary shows the curves that tell how a run went."""

from pathlib import Path

import numpy as np
import pytest

from tests.distill.made_up_log import CONSTANT, speed, train, validation, write_log, write_run
from veca.distill.charts import (
    BINS,
    MOST_MARKS,
    run_charts,
    settled,
    training_charts,
    validation_charts,
)
from veca.distill.logged import read_log


def test_all_that_matters_is_drawn(tmp_path: Path) -> None:
    log = read_log(write_run(tmp_path, 100))
    assert [chart.title for chart in run_charts(log, 3)] == [
        "Validation loss", "Training loss", "Parts of the training loss", "Gradient norm",
        "Learning rate", "Images per second",
    ]  # fmt: skip


def test_what_was_not_logged_is_not_drawn(tmp_path: Path) -> None:
    assert run_charts(read_log(tmp_path), 3) == []
    log = read_log(write_log(tmp_path, [validation(0, 2.5)]))
    assert [chart.title for chart in run_charts(log, 3)] == ["Validation loss"]
    log = read_log(write_log(tmp_path, [train(0, None)]))
    assert [chart.title for chart in run_charts(log, 3)] == ["Learning rate"]


def test_each_budget_has_a_line_and_its_color_in_every_chart(tmp_path: Path) -> None:
    log = read_log(write_run(tmp_path, 100, budgets=(8, 16, 64), shares=(0.5, 1.0)))
    whole, half = validation_charts(log)
    assert (whole.title, half.title) == ("Validation loss, ffn 1", "Validation loss, ffn 0.5")
    for chart in (whole, half):
        assert [curve.name for curve in chart.curves] == ["8 cores", "16 cores", "64 cores"]
        assert [curve.color for curve in chart.curves] == [f"var(--c{n})" for n in range(3)]
        assert chart.guide == ("constant", 2.0)
    assert whole.values == half.values


def test_charts_of_several_sizes_are_told_apart(tmp_path: Path) -> None:
    rows = [validation(0, 2.0, resolution=size) for size in (128, 256)]
    rows += [{"kind": "validation", "step": 0, "loss": 2.0}]
    titles = [chart.title for chart in validation_charts(read_log(write_log(tmp_path, rows)))]
    assert titles == [
        "Validation loss, any size, whole ffn",
        "Validation loss, 128 px, ffn 1",
        "Validation loss, 256 px, ffn 1",
    ]


def test_the_loss_of_the_untrained_student_does_not_squash_the_rest(tmp_path: Path) -> None:
    losses = [30.0, 1.9, 1.8, 1.7, 1.6]
    rows = [CONSTANT, *(validation(100 * n, loss) for n, loss in enumerate(losses))]
    (chart,) = validation_charts(read_log(write_log(tmp_path, rows)))
    assert 2.0 < chart.values[1] < 2.1
    assert chart.curves[0].y.tolist() == losses
    assert not chart.logarithmic


def test_a_fall_that_goes_on_is_seen_whole_on_a_logarithmic_axis(tmp_path: Path) -> None:
    losses = [16.0, 8.0, 4.0, 2.0, 1.0]
    rows = [validation(100 * n, loss) for n, loss in enumerate(losses)]
    (chart,) = validation_charts(read_log(write_log(tmp_path, rows)))
    assert chart.logarithmic
    assert chart.values[0] < 1
    assert chart.values[1] > 8


def test_a_start_is_left_out_only_if_it_doubles_the_range() -> None:
    x = np.array([0.0, 50.0, 100.0])
    for first, kept in ((1.9, 3), (4.0, 2)):
        assert len(settled(x, np.array([first, 1.5, 1.0]), 100.0)) == kept
    assert len(settled(x[:2], np.array([9.0, 1.0]), 100.0)) == 2
    assert len(settled(x, np.array([9.0, 1.0, 1.0]), 100.0)) == 3


def test_many_rows_become_a_band_and_few_stay_as_they_are(tmp_path: Path) -> None:
    (many, *_) = training_charts(read_log(write_run(tmp_path, 3000)), 3)
    (curve,) = many.curves
    assert curve.band is not None
    assert len(curve.x) <= BINS
    (few, *_) = training_charts(read_log(write_run(tmp_path, 50)), 3)
    raw, smooth = few.curves
    assert raw.raw
    assert not smooth.raw
    assert len(raw.x) == 49  # one was skipped


def test_an_outlier_does_not_squash_the_gradient_norm(tmp_path: Path) -> None:
    rows = [train(step, gradient_norm=1.0 + 0.01 * (step % 7)) for step in range(2000)]
    rows[1500]["gradient_norm"] = 1e6
    chart = training_charts(read_log(write_log(tmp_path, rows)), 3)[2]
    smooth = max(curve.y.max() for curve in chart.curves)
    assert chart.values[1] < 2 * smooth < 1e6


def test_rates_and_speeds_are_drawn_from_zero(tmp_path: Path) -> None:
    log = read_log(write_run(tmp_path, 100))
    rate, pace = training_charts(log, 3)[3:]
    assert rate.values[0] == pace.values[0] == 0
    assert rate.values[1] == pytest.approx(4e-4, rel=0.1)
    assert pace.values[1] == pytest.approx(200, rel=0.1)


def test_parts_have_colors_that_the_page_has(tmp_path: Path) -> None:
    parts = training_charts(read_log(write_run(tmp_path, 100)), 8)[1]
    assert [(curve.name, curve.color) for curve in parts.curves] == [
        ("image", "var(--c0)"), ("cosine", "var(--c3)"), ("error", "var(--c7)"),
    ]  # fmt: skip


def test_resumes_and_skipped_steps_are_marked(tmp_path: Path) -> None:
    log = read_log(write_run(tmp_path, 90))
    (chart, *_) = training_charts(log, 3)
    assert [(mark.kind, mark.step, mark.words) for mark in chart.marks] == [
        ("resumed", 45.0, "resumed at step 45"),
        ("skipped", 30.0, "step 30 was skipped"),
    ]
    assert [mark.kind for mark in validation_charts(log)[0].marks] == ["resumed"]


def test_marks_that_would_hide_everything_are_limited(tmp_path: Path) -> None:
    rows = [train(step, None if step % 2 else 1.0) for step in range(500)]
    (chart, *_) = training_charts(read_log(write_log(tmp_path, rows)), 3)
    assert len(chart.marks) == MOST_MARKS


def test_all_charts_share_their_steps(tmp_path: Path) -> None:
    write_log(tmp_path, [train(0), train(7), validation(20, 1.0)], [speed(5)])
    assert {chart.steps for chart in run_charts(read_log(tmp_path), 3)} == {(0.0, 20.0)}
