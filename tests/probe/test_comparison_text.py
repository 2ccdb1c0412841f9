"""A comparison is a table that people can read, and a file with the same numbers."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.probe.made_up_cases import (
    DOGS,
    LOGISTIC,
    MISSING,
    TWIN,
    against,
    class_row,
    confusions_of,
    depth_row,
    errors_of,
    every_task,
    mask_row,
    right_of,
)
from veca.probe.bootstrap import Comparison
from veca.probe.report import comparison_lines, comparisons_as_json
from veca.probe.rows import Row


def cells(line: str) -> list[str]:
    """The cells of a line of a table."""
    return [cell.strip() for cell in line.strip("|").split("|")]


def table(comparison: Comparison) -> list[dict[str, str]]:
    """The lines of the table by their titles."""
    title, _, *lines = [line for line in comparison_lines(comparison) if line.startswith("|")]
    return [dict(zip(cells(title), cells(line), strict=True)) for line in lines]


def test_a_line_has_the_mean_of_classes_and_the_shares_of_dense_tasks(tmp_path: Path) -> None:
    found = against(every_task(tmp_path), tmp_path)
    text = list(comparison_lines(found))
    assert text[0] == "## Against runs/twin (baseline)"
    assert "95 % interval over 400 draws of the test pictures" in text[2]
    assert "not what another training would" in text[2]
    assert text[3] == (
        "Classes: the mean of knn on pets, top1_k20; knn on dogs, top1_k20; logistic on pets, top1."
    )
    first, second = table(found)
    assert list(first) == [
        "model", "budget", "px", "classes, %", "baseline's, %", "share",
        "segmentation on farm, miou", "dense-knn on farm, miou", "depth on rooms, rmse",
    ]  # fmt: skip
    assert (first["model"], first["budget"], first["px"]) == ("runs/tiny", "8", "128")
    assert second["budget"] == "64"
    classes = found.lines[0].classes
    assert classes is not None
    assert classes.ratio is not None
    value, low, high = (100 * (number or 0) for number in classes.ratio)
    assert first["classes, %"] == f"{classes.model:.2f}"
    assert first["baseline's, %"] == f"{classes.baseline:.2f}"
    assert first["share"] == f"{value:.1f} % [{low:.1f}, {high:.1f}]"
    depth = next(number for number in found.lines[0].numbers if number.pair.row.task == "depth")
    assert depth.ratio is not None
    value, low, high = (number or 0 for number in depth.ratio)
    assert first["depth on rooms, rmse"] == f"x{value:.3f} [{low:.3f}, {high:.3f}]"


def test_a_line_whose_mean_goes_over_fewer_numbers_says_so(tmp_path: Path) -> None:
    rows = [
        class_row(tmp_path, right_of(number), **kind, **who)
        for number, (kind, who) in enumerate(
            [({}, {}), ({}, {"budget": 64}), (DOGS, {}), ({}, TWIN), (DOGS, TWIN)]
        )
    ]
    found = against(rows, tmp_path)
    assert [line["numbers"] for line in table(found)] == ["2", "1"]
    assert any("how many of these a line has" in line for line in comparison_lines(found))
    even = against([row for row in rows if row.data == "pets"], tmp_path)
    assert "numbers" not in table(even)[0]


def test_one_task_by_two_features_is_two_numbers_that_are_told_apart(tmp_path: Path) -> None:
    rows = [
        class_row(tmp_path, right_of(seed), feature=feature, **who)
        for seed, who in enumerate(({}, TWIN))
        for feature in ("image", "patch-mean")
    ]
    text = list(comparison_lines(against(rows, tmp_path)))
    assert text[3] == (
        "Classes: the mean of knn on pets, top1_k20, dinov2, image; "
        "knn on pets, top1_k20, dinov2, patch-mean."
    )


def test_shares_and_untrained_and_partial_ones_are_marked(tmp_path: Path) -> None:
    facts: dict[str, Any] = {"partial": ("9 of 10",)}
    rows = [
        mask_row(tmp_path, confusions_of(0), ffn=0.5, trained=False, **facts),
        mask_row(tmp_path, confusions_of(1), **TWIN, **facts),
    ]
    (line,) = table(against(rows, tmp_path))
    assert line["model"] == "runs/tiny, untrained"
    assert line["ffn"] == "0.5"
    assert "classes, %" not in line
    assert line["segmentation on farm, miou (PARTIAL)"].endswith("]")


def test_a_twin_with_shares_is_compared_at_the_same_ones_and_that_is_shown(tmp_path: Path) -> None:
    rows = [
        class_row(tmp_path, right_of(seed), **who | {"ffn": share})
        for seed, (who, share) in enumerate(
            (who, share) for who in ({"budget": 8}, {"budget": 64}, TWIN) for share in (0.5, None)
        )
    ]
    found = against(rows, tmp_path)
    shown = [(line["budget"], line["ffn"], line["baseline's ffn"]) for line in table(found)]
    assert shown == [("8", "0.5", "0.5"), ("8", "1", "1"), ("64", "0.5", "0.5"), ("64", "1", "1")]


def test_patches_for_each_core_stand_beside_a_line_where_they_are_known(tmp_path: Path) -> None:
    rows = [
        class_row(tmp_path, right_of(seed), **who)
        for seed, who in enumerate(({"patches_per_core": 32.0}, TWIN))
    ]
    found = against(rows, tmp_path)
    assert [line["patches/core"] for line in table(found)] == ["32"]
    (told,) = json.loads(comparisons_as_json([found]))
    assert [line["patches_per_core"] for line in told["lines"]] == [32.0]


def test_a_baseline_that_was_measured_at_another_resolution_only_is_marked(tmp_path: Path) -> None:
    rows = [
        class_row(tmp_path, right_of(number), **who)
        for number, who in enumerate([{"resolution": 384}, TWIN | {"resolution": 128}])
    ]
    (line,) = table(against(rows, tmp_path))
    assert (line["px"], line["baseline's px"]) == ("384", "128")
    rows[0] = class_row(tmp_path, right_of(2), resolution=128)
    assert "baseline's px" not in table(against(rows, tmp_path))[0]


def test_two_sets_of_one_name_are_told_apart_by_the_start_of_their_hashes(tmp_path: Path) -> None:
    rows = [
        mask_row(tmp_path, confusions_of(number), data_sha256=sha, **who)
        for number, (sha, who) in enumerate(
            (sha, who) for sha in ("a" * 64, "b" * 64) for who in ({}, TWIN)
        )
    ]
    (line,) = table(against(rows, tmp_path))
    assert list(line)[-2:] == [
        "segmentation on farm aaaaaaaa, miou",
        "segmentation on farm bbbbbbbb, miou",
    ]


def test_what_was_left_out_is_told_once_for_all_its_lines(tmp_path: Path) -> None:
    rows = every_task(tmp_path)
    for path in tmp_path.iterdir():
        path.unlink()
    rows += [class_row(tmp_path, right_of(0), data="cats", **who) for who in ({}, TWIN)]
    text = "\n".join(comparison_lines(against(rows, tmp_path)))
    assert f"- logistic on pets, top1, 2 lines: {MISSING}.\n" in text
    assert text.count(MISSING) == 6
    (line,) = table(against(rows, tmp_path))
    assert line["classes, %"] != "-"


def test_where_all_is_left_out_there_is_no_table(tmp_path: Path) -> None:
    rows = every_task(tmp_path)
    text = list(comparison_lines(against(rows, tmp_path / "nowhere")))
    assert text[:3] == ["## Against runs/twin (baseline)", "", "Left out of the comparison:"]
    assert not any(line.startswith("|") for line in text)


def test_a_ratio_without_an_interval_or_without_a_baseline_is_told_as_it_is(tmp_path: Path) -> None:
    right = right_of(0)
    few = right & (right.cumsum(0) == 1)

    def told(baseline: Any) -> dict[str, str]:
        twin = class_row(tmp_path, baseline, **TWIN)
        return table(against([class_row(tmp_path, right), twin], tmp_path))[0]

    assert told(few)["share"] == f"{100 * int(right.sum()):.1f} %"
    assert told(right & False)["baseline's, %"] == "0.00"
    assert "share" not in told(right & False)


def test_two_measurements_of_one_kind_stand_in_one_cell(tmp_path: Path) -> None:
    rows: list[Row] = []
    for seed, who in enumerate(({}, TWIN)):
        for train in (8, 9):
            counts = {"train": train, "test": 30}
            rows.append(depth_row(tmp_path, errors_of(seed + train), counts=counts, **who))
    (line,) = table(against(rows, tmp_path))
    assert line["depth on rooms, rmse"].count("; x") == 1


def test_the_file_has_every_number_with_what_it_is_of(tmp_path: Path) -> None:
    found = against(every_task(tmp_path), tmp_path)
    (read,) = json.loads(comparisons_as_json([found]))
    assert (read["baseline"], read["weights"]) == ("runs/twin", "e" * 64)
    assert (read["level"], read["rounds"], read["seed"]) == (0.95, 400, 0)
    assert read["left_out"] == []
    for line, own in zip(read["lines"], found.lines, strict=True):
        assert (line["resolution"], line["budget"], line["ffn"]) == (128, own.row.budget, None)
        assert line["classes"]["numbers"] == 3
        assert line["classes"]["ratio"] == line["classes"]["model"] / line["classes"]["baseline"]
        assert [(one["task"], one["data"]) for one in line["numbers"]] == [
            (number.pair.row.task, number.pair.row.data) for number in own.numbers
        ]
        for one in line["numbers"]:
            assert one["ratio"] == pytest.approx(one["model"] / one["baseline"])
            assert one["low"] < one["ratio"] < one["high"]
            assert one["baseline_budget"] is None
            assert one["seeds"] == ([0] if one["task"] == "knn" else [0, 1])


def test_the_file_says_null_where_there_is_no_ratio(tmp_path: Path) -> None:
    none = right_of(0) & False
    rows = [
        class_row(tmp_path, right_of(0), **LOGISTIC),
        class_row(tmp_path, none, **LOGISTIC, **TWIN),
    ]
    (read,) = json.loads(comparisons_as_json([against(rows, tmp_path)]))
    assert read["lines"][0]["classes"]["ratio"] is None
    assert read["lines"][0]["numbers"][0]["low"] is None
