"""A log is read back as it counts: the last word of every row."""

from pathlib import Path

import numpy as np
import pytest

from tests.distill.made_up_log import CONSTANT, speed, train, validation, write_log
from veca.distill.logged import read_log


def test_steps_that_were_taken_again_count_once_and_as_they_were_last(tmp_path: Path) -> None:
    rows = [train(step, 1.0) for step in range(4)]
    rows += [{"kind": "resume", "step": 2}, *(train(step, 2.0) for step in range(2, 6))]
    log = read_log(write_log(tmp_path, rows, [speed(0), speed(0, images_per_second=7.0)]))
    assert log.train["step"].tolist() == [0, 1, 2, 3, 4, 5]
    assert log.train["loss"].tolist() == [1, 1, 2, 2, 2, 2]
    assert log.resume["step"].tolist() == [2]
    assert log.speed["images_per_second"].tolist() == [7]
    assert log.steps == 6


def test_every_resume_counts(tmp_path: Path) -> None:
    log = read_log(write_log(tmp_path, [{"kind": "resume", "step": 5}] * 3))
    assert log.resume["step"].tolist() == [5, 5, 5]


def test_a_step_without_a_loss_was_skipped(tmp_path: Path) -> None:
    log = read_log(write_log(tmp_path, [train(0), train(1, None), train(2)]))
    assert log.skipped == [1]
    assert np.isnan(log.train["gradient_norm"][1])


def test_scores_are_sorted_with_the_whole_share_first(tmp_path: Path) -> None:
    rows = [
        validation(step, 1.0, budget, ffn=share, resolution=size)
        for step in (100, 0)
        for budget in (16, 8)
        for share in (0.5, 1.0)
        for size in (256, 128)
    ]
    scores = read_log(write_log(tmp_path, rows)).scores()
    assert [(score.resolution, score.ffn, score.budget) for score in scores] == [
        (128, 1.0, 8), (128, 1.0, 16), (128, 0.5, 8), (128, 0.5, 16),
        (256, 1.0, 8), (256, 1.0, 16), (256, 0.5, 8), (256, 0.5, 16),
    ]  # fmt: skip
    assert all(score.steps.tolist() == [0, 100] for score in scores)


def test_a_validation_that_was_repeated_counts_as_it_was_last(tmp_path: Path) -> None:
    rows = [validation(0, 3.0), validation(5, 2.0), validation(5, 1.5), validation(5, 9.0, 16)]
    first, second = read_log(write_log(tmp_path, rows)).scores()
    assert first.losses.tolist() == [3.0, 1.5]
    assert second.losses.tolist() == [9.0]


def test_a_model_without_budgets_has_a_score_too(tmp_path: Path) -> None:
    rows = [validation(0, 3.0, None), {"kind": "validation", "step": 1, "loss": 2.0}]
    whole, bare = sorted(
        read_log(write_log(tmp_path, rows)).scores(), key=lambda score: score.steps[0]
    )
    assert (whole.name, whole.resolution, whole.ffn) == ("whole model", 128, 1.0)
    assert (bare.budget, bare.resolution, bare.ffn) == (None, None, None)


def test_the_gain_is_the_share_below_the_constant(tmp_path: Path) -> None:
    rows = [CONSTANT, validation(0, 3.0), validation(5, 1.5)]
    (score,) = read_log(write_log(tmp_path, rows)).scores()
    assert score.name == "8 cores"
    assert score.gain == pytest.approx(0.25)


def test_each_image_size_has_its_own_constant(tmp_path: Path) -> None:
    rows = [CONSTANT, {**CONSTANT, "resolution": 256, "loss": 4.0}]
    log = read_log(write_log(tmp_path, rows))
    assert [log.constant_at(size) for size in (128, 256, 512)] == [2.0, 4.0, None]


def test_the_only_constant_serves_all_sizes(tmp_path: Path) -> None:
    log = read_log(write_log(tmp_path, [CONSTANT]))
    assert log.constant_at(256) == 2.0
    assert log.constant_at(None) == 2.0
    assert read_log(write_log(tmp_path, [])).constant_at(128) is None


def test_torn_lines_foreign_rows_and_missing_files_are_no_obstacle(tmp_path: Path) -> None:
    assert read_log(tmp_path).steps == 0
    write_log(tmp_path, [train(0), {"kind": "news", "step": 9}])
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b'[1, 2]\n{"kind": "train", "step": 1, "lo\xff')
    log = read_log(tmp_path)
    assert log.steps == 1
    assert log.scores() == []
