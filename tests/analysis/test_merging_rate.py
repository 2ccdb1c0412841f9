"""The search for a rate, on times that are known."""

import pytest

from veca.analysis.merging_rate import CLOSE_ENOUGH, HALVINGS, choose_rate


@pytest.mark.parametrize("best", [3, 40, 200, 300, 500])
def test_the_rate_with_the_rivals_time_is_found(best: int) -> None:
    choice = choose_rate(lambda rate: 2 ** ((best - rate) / 100), most=512)
    assert abs(choice.rate - best) <= 8
    assert abs(choice.ratio - 1) <= CLOSE_ENOUGH
    assert choice.tried <= 1 + HALVINGS


def test_no_more_is_timed_than_needed() -> None:
    tried: list[int] = []

    def ratio_of(rate: int) -> float:
        tried.append(rate)
        return 1.5 - rate / 100

    assert choose_rate(ratio_of, most=100) == (50, 1.0, 2)
    assert tried == [100, 50]


def test_if_the_most_merging_is_still_slower_it_is_the_answer() -> None:
    assert choose_rate(lambda rate: 9.0 - rate / 100, most=100) == (100, 8.0, 1)


def test_if_all_are_faster_the_least_that_was_tried_is_the_answer() -> None:
    choice = choose_rate(lambda rate: 0.5 - rate / 1000, most=64)
    assert choice.rate == 1
    assert choice.ratio < 1


def test_a_candidate_that_cannot_be_run_counts_as_slower() -> None:
    choice = choose_rate(lambda rate: float("inf") if rate < 40 else 0.8, most=64)
    assert choice.rate >= 40
    assert choice.ratio == 0.8
