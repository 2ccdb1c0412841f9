"""Means and spreads over seeds are those of the textbook; shares are taken of the right number."""

import numpy as np
import pytest

from tests.probe.made_up_rows import baseline, depth_rows, knn_rows, row, teacher
from veca.probe.rows import Row, averages, number, reference_of, retention


def test_rows_that_differ_in_their_seed_become_one_number() -> None:
    values = [60.0, 61.5, 64.0]
    rows = [row(seed=seed, value=value) for seed, value in enumerate(values)]
    (found,) = averages(rows)
    assert found.mean == pytest.approx(np.mean(values))
    assert found.deviation == pytest.approx(np.std(values, ddof=1))
    assert found.seeds == (0, 1, 2)


def test_one_seed_has_no_spread() -> None:
    (found,) = averages([row(seed=3)])
    assert (found.mean, found.deviation, found.seeds) == (60.0, None, (3,))
    assert number(found) == "60.00"


def test_other_budgets_models_and_metrics_stay_apart() -> None:
    found = averages(knn_rows())
    assert len(found) == 4 * 3 + 2
    assert all(item.seeds == (0, 1, 2) for item in found)


def test_times_are_the_median_of_the_seeds_that_were_timed() -> None:
    times = [3.0, None, 9.0, 4.0]
    (found,) = averages([row(seed=seed, milliseconds=time) for seed, time in enumerate(times)])
    assert found.milliseconds == 4.0


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([row(value=80.0), row(value=82.0, seed=1)], "81.00 ± 1.41"),
        ([row(value=0.3705, unit="m")], "0.3705"),
    ],
)
def test_numbers_have_the_digits_that_papers_print(rows: list[Row], told: str) -> None:
    assert number(averages(rows)[0]) == told


def test_a_reference_is_taken_at_the_same_resolution_and_budget() -> None:
    mine = averages([row(budget=8), row(budget=64, resolution=160)])
    candidates = averages(
        [baseline(budget=budget, resolution=side) for budget in (8, 64) for side in (128, 160)]
    )
    for item in mine:
        found = reference_of(item, candidates)
        assert found is not None
        assert found.row.setting == item.row.setting
        assert found.row.resolution == item.row.resolution


def test_a_reference_without_budgets_serves_for_all_at_its_resolution() -> None:
    rows = depth_rows()
    found = averages(rows)
    teachers = [item for item in found if item.row.role == "teacher"]
    for item in found[:4]:
        reference = reference_of(item, teachers)
        assert reference is not None
        assert reference.row.resolution == item.row.resolution


def test_a_reference_with_shares_but_without_budgets_is_taken_at_the_same_share() -> None:
    twins = averages([baseline(budget=None, ffn=share) for share in (0.25, 0.5, None)])
    for item in averages([row(budget=b, ffn=share) for b in (8, 64) for share in (0.25, None)]):
        found = reference_of(item, twins)
        assert found is not None
        assert found.row.ffn == item.row.ffn
    (other,) = averages([row(ffn=0.75)])
    assert reference_of(other, twins) is None


def test_a_reference_with_budgets_but_without_shares_is_taken_at_the_same_budget() -> None:
    (mine,) = averages([row(budget=8, ffn=0.5)])
    found = reference_of(mine, averages([baseline(budget=8), baseline(budget=64)]))
    assert found is not None
    assert found.row.setting == (8, None)


def test_a_reference_at_one_other_resolution_serves_too() -> None:
    (mine,), (reference,) = averages([row()]), averages([teacher(resolution=256)])
    assert reference_of(mine, [reference]) is reference


def test_where_it_is_not_clear_which_number_is_meant_there_is_no_reference() -> None:
    (mine,) = averages([row(budget=16)])
    assert reference_of(mine, averages([baseline(budget=8), baseline(budget=64)])) is None
    assert reference_of(mine, averages([teacher(metric="top1_k10")])) is None


@pytest.mark.parametrize(
    ("mine", "reference", "told"),
    [
        (row(value=79.99), teacher(value=81.93), "97.6 %"),
        (row(value=0.433, unit="m"), teacher(value=0.3705, unit="m"), "x1.169"),
        (row(value=1.0), teacher(value=0.0), "-"),
        (row(), None, "-"),
    ],
)
def test_shares_are_percent_and_errors_are_ratios(
    mine: Row, reference: Row | None, told: str
) -> None:
    other = None if reference is None else averages([reference])[0]
    assert retention(averages([mine])[0], other) == told
