"""`quality.json`: all numbers of one model, in stable bytes that are checked when read."""

import json
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.probe.fixtures import (
    DIGEST,
    DOGS,
    FULL,
    LOGISTIC,
    class_row,
    correct_of,
    depth_rows,
    every_task,
    row,
)
from veca.probe.quality import Quality, quality_of, read_quality, report_files, write_quality
from veca.probe.report import write_report
from veca.probe.rows import ProbeError, Row


def quality(rows: list[Row], *folders: Path, **changes: Any) -> Quality:
    """The measurements of the model of made-up rows."""
    known: dict[str, Any] = {"model": "tiny", "weights": DIGEST, "date": "2026-05-12"}
    return quality_of(rows, folders, **known | {"rounds": 400} | changes)


def test_a_value_is_the_mean_over_seeds_with_what_identifies_it(tmp_path: Path) -> None:
    rows = every_task(tmp_path)
    found = quality(rows, tmp_path)
    assert len(found.rows) == 2 * 6  # budgets; tasks on sets
    for one in found.rows:
        own = [
            item for item in rows
            if (item.task, item.data, item.metric) == (one.task, one.data, one.metric)
            and (item.weights, item.budget) == (DIGEST, one.budget)
        ]  # fmt: skip
        assert one.value == pytest.approx(sum(item.value for item in own) / len(own), abs=1e-6)
        assert one.seeds == [item.seed for item in own]
        assert one.count == own[0].counts["test"]
        assert one.higher_is_better == (one.metric != "rmse")
        assert one.interval is not None
        assert one.interval[0] < one.value < one.interval[1]
    assert found.commands == [row().command]


def test_an_interval_is_that_of_a_share_of_images(tmp_path: Path) -> None:
    right = torch.arange(400) < 300
    (found,) = quality([class_row(tmp_path, right)], tmp_path, rounds=4000).rows
    assert found.interval is not None
    wide = 1.96 * 100 * math.sqrt(0.75 * 0.25 / 400)  # the normal approximation
    assert found.interval == pytest.approx((75 - wide, 75 + wide), abs=0.4)
    (sure,) = quality([class_row(tmp_path / "sure", right | True)], tmp_path / "sure").rows
    assert sure.interval == [100, 100]


def test_a_value_may_have_no_interval_and_be_partial_and_single_classes_are_left_out() -> None:
    rows = [row(metric="miou", value=61.25, partial=("some are missing.",))]
    (found,) = quality([*rows, row(metric="iou/cat", partial=("some are missing.",))]).rows
    assert (found.metric, found.value, found.interval, found.partial) == ("miou", 61.25, None, True)


def test_full_attention_has_no_budget_and_is_found_in_whatever_role_it_was_measured(
    tmp_path: Path,
) -> None:
    rows = every_task(tmp_path)
    found = quality(rows, tmp_path, weights=FULL["weights"])
    assert len(found.rows) == 6
    assert {one.budget for one in found.rows} == {None}
    same = [replace(one, role="model", model="other") for one in rows]
    assert quality(same, tmp_path, weights=FULL["weights"]) == found


def test_the_order_of_rows_does_not_change_a_byte_and_budgets_rise(tmp_path: Path) -> None:
    rows = every_task(tmp_path) + [row(budget=budget, data="birds") for budget in (16, 2, None)]
    texts = []
    for _ in range(2):
        write_quality(quality(rows, tmp_path), tmp_path / "quality.json")
        texts.append((tmp_path / "quality.json").read_text("utf-8"))
        random.Random(0).shuffle(rows)
    assert texts[0] == texts[1]
    content = json.loads(texts[0])
    assert list(content) == ["format", "model", "weights_sha256", "date", "commands", "rows"]
    assert len(texts[0].splitlines()) == 9 + len(content["rows"])  # a row a line
    birds = [one["budget"] for one in content["rows"] if one["data"] == "birds"]
    assert birds == [2, 16, None]


def test_seeds_may_be_spread_over_reports_and_a_later_report_replaces_a_number(
    tmp_path: Path,
) -> None:
    paths = []
    for seed in (0, 1):
        folder = tmp_path / str(seed)
        write_report(
            [class_row(folder / "per_image", correct_of(seed), **LOGISTIC, seed=seed)], folder
        )
        paths.append(folder / "report.json")
    (found,) = quality(*_with_folders(paths)).rows
    assert found.seeds == [0, 1]
    assert found.interval is not None
    (first,), _ = report_files(paths[:1])
    write_report([replace(first, value=12.5)], tmp_path / "2")
    (found,) = quality(*_with_folders([paths[0], tmp_path / "2"])).rows
    assert (found.value, found.seeds) == (12.5, [0])
    assert found.interval is None  # the per-image results are those of the number before


def _with_folders(paths: list[Path]) -> list[Any]:
    """Rows and folders as `quality` takes them."""
    rows, folders = report_files(paths)
    return [rows, *folders]


def test_reports_without_one_number_for_each_measurement_are_refused() -> None:
    with pytest.raises(ProbeError, match=r"no number of tiny.*runs/tiny \(0123456789abcdef\)"):
        quality([row()], weights="a" * 64)
    with pytest.raises(ProbeError, match="two numbers for top1_k20 of knn on pets at 128 px"):
        quality([row(data_sha256="1" * 64), row(data_sha256="2" * 64)])
    with pytest.raises(ProbeError, match="no report was given"):
        report_files([])


def test_a_file_is_read_back_for_its_own_weights_only(tmp_path: Path) -> None:
    path = tmp_path / "quality.json"
    rows = [class_row(tmp_path, correct_of(0), **DOGS), *depth_rows(), row(ffn=0.5)]
    written = quality(rows, tmp_path)
    write_quality(written, path)
    assert read_quality(path) == read_quality(path, DIGEST) == written
    with pytest.raises(ProbeError, match="of the weights 0123456789abcdef, but the model has f"):
        read_quality(path, "f" * 64)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "Expecting"),
        ("[]", r"quality\.json cannot be read"),
        ('{"format": 2}', "it has the format 2, this version of veca reads 1"),
        ('{"format": 1, "rows": []}', "'model'"),
    ],
)
def test_a_file_of_another_form_is_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "quality.json").write_text(text)
    with pytest.raises(ProbeError, match=f"{words}.*; write it again with veca probe quality"):
        read_quality(tmp_path / "quality.json")
