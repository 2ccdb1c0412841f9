"""Cases are found by the rows they belong to, and stand for a number only where they give it."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.probe.made_up_cases import (
    SCORED,
    class_row,
    confusions_of,
    depth_row,
    errors_of,
    mask_row,
    right_of,
    write_cases,
)
from tests.probe.made_up_rows import row
from veca.probe.bootstrap import CasesError, KeptCases, MeanIou, Statistic
from veca.probe.rows import Row, averages
from veca.runtime.files import write_atomic
from veca.runtime.tensors import tensor_pieces


def statistic(folder: Path, *rows: Row) -> Statistic:
    """The number that rows of some seeds make."""
    (average,) = averages(rows)
    return KeptCases(folder).statistic(average)


def test_the_cases_of_a_row_give_its_number(tmp_path: Path) -> None:
    rows = [
        class_row(tmp_path, right_of(0)),
        class_row(tmp_path, right_of(1), task="logistic", metric="top1"),
        mask_row(tmp_path, confusions_of(2)),
        depth_row(tmp_path, errors_of(3)),
    ]
    for one in rows:
        assert statistic(tmp_path, one).whole == pytest.approx(one.value, rel=1e-12)
    assert [statistic(tmp_path, one).pictures for one in rows] == [60, 60, 20, 30]


def test_several_seeds_make_the_mean_of_their_numbers(tmp_path: Path) -> None:
    rows = [mask_row(tmp_path, confusions_of(seed), seed=seed) for seed in (0, 4)]
    found = statistic(tmp_path, *rows)
    assert found.whole == pytest.approx((rows[0].value + rows[1].value) / 2, rel=1e-12)
    assert isinstance(found, MeanIou)
    assert found.unions.shape == (2, 20, len(SCORED))


def test_role_and_name_of_a_model_do_not_matter_but_its_weights_do(tmp_path: Path) -> None:
    one = class_row(tmp_path, right_of(0), model="runs/best")
    assert statistic(tmp_path, replace(one, role="baseline", model="./runs/best"))
    with pytest.raises(CasesError, match="on disk"):
        statistic(tmp_path, replace(one, weights="b" * 64))
    nameless = class_row(tmp_path, right_of(1), model="a", weights=None)
    assert statistic(tmp_path, nameless)
    with pytest.raises(CasesError, match="on disk"):
        statistic(tmp_path, replace(nameless, model="b"))


@pytest.mark.parametrize(
    "change",
    [
        {"data_sha256": "8" * 64}, {"budget": 16}, {"ffn": 0.5}, {"resolution": 64}, {"seed": 1},
        {"task": "logistic"}, {"protocol_sha256": "1" * 64}, {"feature": "patch-mean"},
        {"counts": {"train": 8, "test": 60}},
    ],
)  # fmt: skip
def test_cases_of_anything_else_are_not_taken_for_those_of_a_row(
    tmp_path: Path, change: dict[str, object]
) -> None:
    one = class_row(tmp_path, right_of(0))
    with pytest.raises(CasesError, match="no cases on disk belong to it: they are lost, of other"):
        statistic(tmp_path, replace(one, **change))  # type: ignore[arg-type]


def test_one_missing_seed_is_a_missing_number(tmp_path: Path) -> None:
    rows = [class_row(tmp_path, right_of(seed), seed=seed) for seed in (0, 1)]
    (tmp_path / "1.safetensors").unlink()
    assert statistic(tmp_path, rows[0])
    with pytest.raises(CasesError, match="on disk"):
        statistic(tmp_path, *rows)


def test_cases_that_give_another_number_than_the_report_are_refused(tmp_path: Path) -> None:
    one = class_row(tmp_path, right_of(0))
    with pytest.raises(CasesError, match="give another number than the report"):
        statistic(tmp_path, replace(one, value=one.value + 0.01))
    masks = mask_row(tmp_path, confusions_of(0))
    cases = {name: torch.ones(20, 5).long() for name in ("intersections", "unions")}
    write_cases(tmp_path, masks, cases, SCORED, name="1")
    with pytest.raises(CasesError, match="give another number"):
        statistic(tmp_path, masks)


def test_classes_that_are_not_scored_count_in_unions_only(tmp_path: Path) -> None:
    one = mask_row(tmp_path, confusions_of(0))
    cases = KeptCases(tmp_path)._read(averages([one])[0], 0)[1]
    assert cases["unions"].shape == (20, 5)
    write_cases(tmp_path, one, dict(cases), None, name="0")  # as if all were scored
    with pytest.raises(CasesError, match="give another number"):
        statistic(tmp_path, one)


def test_a_number_that_is_no_mean_over_pictures_has_no_cases(tmp_path: Path) -> None:
    one = class_row(tmp_path, right_of(0))
    with pytest.raises(CasesError, match="map_k20 is no mean over pictures"):
        statistic(tmp_path, replace(one, metric="map_k20"))


def test_files_that_are_damaged_older_or_strange_are_passed_over(tmp_path: Path) -> None:
    one = class_row(tmp_path, right_of(0))
    right = {"correct_k20": right_of(0)}
    write_atomic(tmp_path / "old.safetensors", tensor_pieces(right, {"data": "pets"}))
    odd = {"row": '{"task": "knn"}', "scored": "null"}
    write_atomic(tmp_path / "odd.safetensors", tensor_pieces(right, odd))
    write_atomic(tmp_path / "bare.safetensors", tensor_pieces(right))
    (tmp_path / "damaged.safetensors").write_bytes(b"x")
    assert statistic(tmp_path, one)
    (tmp_path / "0.safetensors").unlink()
    with pytest.raises(CasesError, match="on disk"):
        statistic(tmp_path, one)
    with pytest.raises(CasesError, match="on disk"):
        statistic(tmp_path / "nowhere", one)


def test_cases_that_lack_what_the_number_needs_are_refused(tmp_path: Path) -> None:
    one = row()
    write_cases(tmp_path, one, {"correct_k10": right_of(0)})
    with pytest.raises(CasesError, match="are not those of the number"):
        statistic(tmp_path, one)
    other = row(seed=1, value=one.value)
    write_cases(tmp_path, one, {"correct_k20": right_of(0)}, name="0")
    write_cases(tmp_path, other, {"correct_k20": right_of(0)[:50]})
    with pytest.raises(CasesError, match="are not those of the number"):
        statistic(tmp_path, one, other)


def test_cases_that_vanish_or_break_while_they_are_used_are_told(tmp_path: Path) -> None:
    one = class_row(tmp_path, right_of(0))
    cases = KeptCases(tmp_path)
    (tmp_path / "0.safetensors").write_bytes(b"x")
    with pytest.raises(CasesError, match="cannot be read"):
        cases.statistic(averages([one])[0])


def test_of_two_files_for_one_row_the_newer_one_counts(tmp_path: Path) -> None:
    one = class_row(tmp_path, right_of(0))
    other = write_cases(tmp_path, one, {"correct_k20": right_of(5)}, name="00")
    os.utime(other, (1, 1))
    assert statistic(tmp_path, one)
    os.utime(tmp_path / "0.safetensors", (0, 0))
    with pytest.raises(CasesError, match="another number"):
        statistic(tmp_path, one)
