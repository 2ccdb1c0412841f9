"""Intervals hold what drawing pictures again gives, and see a difference that pairs show."""

import numpy as np
import pytest
import torch

from veca.probe import bootstrap
from veca.probe.bootstrap import interval, paired_bootstrap


def drawn_again(values: np.ndarray, rounds: int) -> np.ndarray:
    """Means over pictures drawn one by one."""
    generator = np.random.default_rng(7)
    return np.array([generator.choice(values, len(values)).mean() for _ in range(rounds)])


def test_an_interval_is_that_of_drawing_pictures_one_by_one() -> None:
    right = torch.rand(300) < 0.8
    found = interval(right)
    low, high = np.quantile(drawn_again(right.numpy() * 100.0, 5000), [0.025, 0.975])
    assert found.mean == pytest.approx(100 * right.double().mean().item())
    assert [found.low, found.high] == pytest.approx([low, high], abs=0.4)


def test_numbers_keep_their_unit() -> None:
    errors = torch.rand(200, dtype=torch.float64) * 3
    found = interval(errors, rounds=4000, level=0.8)
    low, high = np.quantile(drawn_again(errors.numpy(), 4000), [0.1, 0.9])
    assert found.mean == pytest.approx(errors.mean().item())
    assert [found.low, found.high] == pytest.approx([low, high], abs=0.02)


def test_blocks_of_rounds_are_all_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers, counts = np.array([0.0, 1.0]), np.array([5, 5])
    monkeypatch.setattr(bootstrap, "DRAWS", 14)
    assert len(bootstrap._means(numbers, counts, 100, 0)) == 100


def test_one_seed_gives_one_interval() -> None:
    errors = torch.rand(100)
    assert interval(errors, seed=3) == interval(errors, seed=3)
    assert interval(errors, seed=3) != interval(errors, seed=4)


def test_pairs_show_a_difference_that_lies_within_both_intervals() -> None:
    first = torch.arange(1000) < 800
    second = first & (torch.arange(1000) >= 15)
    alone, other = interval(first), interval(second)
    assert alone.low < other.high
    found = paired_bootstrap(first, second)
    assert found.mean == pytest.approx(1.5)
    assert 0 < found.low < 1.5 < found.high < 3
    turned = paired_bootstrap(second, first)
    assert turned.mean == pytest.approx(-1.5)


def test_equal_models_do_not_differ_at_all() -> None:
    values = torch.rand(50)
    assert paired_bootstrap(values, values) == (0.0, 0.0, 0.0)


def test_an_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    held = 0
    for trial in range(300):
        right = torch.rand(200, generator=torch.Generator().manual_seed(trial)) < 0.7
        found = interval(right, rounds=400, level=0.9)
        held += found.low <= 70 <= found.high
    assert 0.84 <= held / 300 <= 0.96


def test_what_makes_no_interval_is_refused() -> None:
    with pytest.raises(ValueError, match="no values"):
        interval(torch.zeros(0))
    with pytest.raises(ValueError, match="make no interval"):
        interval(torch.ones(3), level=1.0)
