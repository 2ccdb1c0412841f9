"""A row says all of its number, comes back as it was written, and replaces only its own like."""

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from tests.probe.made_up_rows import baseline, row, teacher
from veca.probe.rows import Row, RowError, Setting, headline, merge_rows, row_from_json
from veca.runtime import VERSION

WANTED = {
    "task", "model", "data", "budget", "resolution", "metric", "value", "seed", "weights", "split",
    "counts", "protocol", "feature", "version", "command", "milliseconds", "gflops", "partial",
    "role", "ffn", "unit", "chosen", "patches_per_core", "trained", "data_sha256",
    "data_facts", "protocol_sha256", "precision",
}  # fmt: skip


def test_a_row_carries_what_a_published_number_must_carry() -> None:
    found = row().as_json()
    assert set(found) == WANTED
    assert found["version"] == VERSION
    assert teacher().as_json()["budget"] is None


@pytest.mark.parametrize(
    "written",
    [row(ffn=0.5, partial=("10 pictures are missing.",), chosen={"rate": 0.1}), teacher()],
)
def test_a_row_comes_back_from_json_as_it_was(written: Row) -> None:
    read = row_from_json(json.loads(json.dumps(written.as_json())))
    assert read == written


def test_whole_numbers_of_a_hand_written_file_are_read_as_numbers() -> None:
    read = row_from_json(row().as_json() | {"value": 61, "ffn": 1})
    assert (read.value, read.ffn) == (61.0, 1.0)
    assert isinstance(read.value, float)
    assert isinstance(read.ffn, float)


def test_times_hyperparameters_and_commands_do_not_make_another_number() -> None:
    again = replace(
        row(), value=1.0, milliseconds=3.0, gflops=2.0, chosen={"rate": 1.0}, command="again",
        version="9", patches_per_core=1.0,
    )  # fmt: skip
    assert again.identity() == row().identity()


def test_a_row_that_tells_what_it_was_fitted_on_replaces_one_that_does_not() -> None:
    counts = {"train": 888, "test": 444, "fitted": 799}
    new = row(counts=counts)
    assert new.identity() == row().identity()
    assert merge_rows([row()], [new]) == [new]
    assert new.as_json()["counts"] == counts


@pytest.mark.parametrize(
    "change",
    [
        {"task": "linear"}, {"model": "other"}, {"role": "baseline"}, {"weights": None},
        {"data": "other"}, {"split": "test"}, {"counts": {"train": 1, "test": 444}},
        {"budget": 16}, {"ffn": 0.5}, {"resolution": 160}, {"metric": "top1_k10"}, {"seed": 1},
        {"protocol": "other"}, {"feature": "patch-mean"}, {"partial": ("some are missing.",)},
        {"trained": False}, {"data_sha256": "1"}, {"unit": ""},
    ],
)  # fmt: skip
def test_all_else_makes_another_number(change: dict[str, Any]) -> None:
    assert replace(row(), **change).identity() != row().identity()


def test_new_rows_replace_old_ones_of_the_same_number_in_their_place() -> None:
    old = [row(budget=8), row(budget=64), teacher()]
    new = [row(budget=64, value=99.0), baseline()]
    assert merge_rows(old, new) == [old[0], new[0], old[2], new[1]]


def test_seeds_are_other_numbers_unless_they_are_set_apart() -> None:
    assert row(seed=1).identity() != row().identity()
    assert row(seed=1).identity("seed") == row().identity("seed")


def test_a_control_of_an_older_report_is_read_as_a_baseline() -> None:
    old = {**baseline().as_json(), "role": "control"}
    assert row_from_json(old) == baseline()
    assert old["role"] == "control"


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_value_that_is_no_number_is_refused(value: float) -> None:
    with pytest.raises(RowError, match=r"top1_k20 of runs/tiny on pets is (nan|inf)"):
        row(value=value)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ([], "must be an object"),
        ({"task": "knn"}, "lacks .*'data'"),
        (row().as_json() | {"color": 1}, "unknown fields .*'color'"),
        (row().as_json() | {"task": "dance"}, "task of a row is 'dance'; it must be one of"),
        (row().as_json() | {"unit": "km"}, "unit of a row is 'km'; it must be one of '%', 'm', ''"),
    ],
)
def test_what_is_no_row_is_refused_with_the_fields_that_are_wrong(wrong: Any, words: str) -> None:
    with pytest.raises(RowError, match=words):
        row_from_json(wrong)


def test_more_is_better_only_for_what_is_right() -> None:
    assert row().more_is_better
    assert not row(unit="m").more_is_better
    assert not row(unit="").more_is_better


def test_the_setting_of_a_row_is_that_of_its_model() -> None:
    assert row(ffn=0.5).setting == Setting(8, 0.5)
    assert teacher().setting == Setting()


@pytest.mark.parametrize(
    ("metrics", "first"),
    [
        (["top1_k10", "top1_k20", "top1_k100"], "top1_k20"),
        (["top1_k10"], "top1_k10"),
        (["top1", "top5", "map"], "map"),
        (["aacc", "iou/cat", "miou"], "miou"),
        (["abs_rel", "rmse_pooled", "rmse"], "rmse"),
    ],
)
def test_a_table_is_led_by_the_metric_that_its_set_is_known_by(
    metrics: list[str], first: str
) -> None:
    assert headline(metrics) == first
