"""Long series become short ones that lose no extreme."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from veca.distill.binning import binned, smoothed

values = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60)


@given(values, st.integers(1, 20))
def test_bins_keep_the_extremes_and_the_mean(found: list[float], most: int) -> None:
    y = np.array(found)
    series = binned(np.arange(len(y), dtype=np.float64), y, most)
    assert len(series.x) <= most
    assert series.low.min() == y.min()
    assert series.high.max() == y.max()
    assert series.members.sum() == len(y)
    mean = (series.mean * series.members).sum() / len(y)
    assert mean == pytest.approx(y.mean(), abs=1e-6 * np.abs(y).max())
    assert (np.diff(series.x) > 0).all()


def test_few_points_stay_as_they_are() -> None:
    x, y = np.array([0.0, 1.0, 2.0]), np.array([3.0, 1.0, 2.0])
    series = binned(x, y, 10)
    assert series.x.tolist() == x.tolist()
    assert series.mean.tolist() == y.tolist()


def test_steps_without_a_value_are_left_out() -> None:
    series = binned(np.array([0.0, 1.0, 2.0]), np.array([1.0, np.nan, 3.0]), 10)
    assert series.x.tolist() == [0, 2]
    assert len(binned(np.zeros(2), np.array([np.nan, np.nan]), 10).x) == 0


def test_smoothing_is_the_mean_of_a_window_that_never_looks_ahead_at_the_end() -> None:
    x = np.arange(10, dtype=np.float64)
    y = np.array([9.0, 1, 2, 3, 4, 5, 6, 7, 8, 20])
    smooth = smoothed(binned(x, y, 10), share=0.4)  # two to each side
    assert smooth[0] == 9
    assert smooth[1] == y[:3].mean()
    assert smooth[4] == y[2:7].mean()
    assert smooth[9] == y[7:].mean()


def test_fuller_bins_count_more() -> None:
    x = np.array([0.0, 0.1, 0.2, 10.0, 20.0])
    y = np.array([1.0, 1.0, 1.0, 5.0, 0.0])
    series = binned(x, y, 3)
    assert series.members.tolist() == [3, 1, 1]
    assert smoothed(series, share=1.0)[1] == pytest.approx(y.mean())


def test_short_series_are_not_smoothed() -> None:
    series = binned(np.arange(5, dtype=np.float64), np.arange(5, dtype=np.float64) ** 2, 10)
    assert smoothed(series, share=0.04).tolist() == [0, 1, 4, 9, 16]
