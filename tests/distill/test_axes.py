"""Axes put values in their places and ticks at round numbers."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from veca.distill.axes import FARTHEST, Scale, logarithmic_ticks, round_ticks, words


def test_the_ends_of_an_axis_stand_at_its_ends() -> None:
    scale = Scale(1.0, 3.0, 50.0, 250.0)
    assert scale.places(np.array([1.0, 2.0, 3.0])).tolist() == [50, 150, 250]


def test_a_logarithmic_axis_gives_equal_ratios_equal_room() -> None:
    scale = Scale(0.1, 10.0, 200.0, 0.0, logarithmic=True)
    assert scale.places(np.array([0.1, 1.0, 10.0])) == pytest.approx([200, 100, 0])


@pytest.mark.parametrize("logarithmic", [False, True])
def test_places_far_outside_stay_finite(logarithmic: bool) -> None:
    scale = Scale(1.0, 2.0, 0.0, 100.0, logarithmic)
    places = scale.places(np.array([-1e300, 0.0, 1e300]))
    assert np.abs(places).max() <= 100 * FARTHEST
    assert places[0] < 0 < places[2]


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6), st.integers(2, 12))
def test_ticks_are_few_round_evenly_spaced_and_inside(low: float, length: float, most: int) -> None:
    high = low + length
    assume(length > 1e-9 * abs(low))
    ticks = round_ticks(low, high, most)
    assert len(ticks) <= most
    slack = 1e-6 * length
    assert all(low - slack <= tick <= high + slack for tick in ticks)
    steps = np.diff(ticks)
    if len(steps):
        mantissa = steps[0] / 10.0 ** math.floor(math.log10(steps[0]) + 1e-6)
        assert any(mantissa == pytest.approx(nice, rel=1e-3) for nice in (1, 2, 2.5, 5))
        assert steps == pytest.approx(steps[0], rel=1e-3)


def test_ticks_of_steps_are_whole() -> None:
    assert round_ticks(0, 3, most=6, least_step=1.0) == [0, 1, 2, 3]
    assert round_ticks(0, 5000, most=6, least_step=1.0) == [0, 1000, 2000, 3000, 4000, 5000]


def test_an_axis_without_length_has_one_tick() -> None:
    assert round_ticks(2.0, 2.0, most=6) == [2.0]


@given(st.floats(1e-8, 1e6), st.floats(1.05, 1e9), st.integers(3, 8))
def test_logarithmic_ticks_are_few_rising_and_inside(low: float, ratio: float, most: int) -> None:
    high = low * ratio
    ticks = logarithmic_ticks(low, high, most)
    assert len(ticks) <= most
    assert ticks == sorted(set(ticks))
    assert all(0.999 * low <= tick <= 1.001 * high for tick in ticks)


def test_logarithmic_ticks_are_as_dense_as_there_is_room() -> None:
    assert logarithmic_ticks(0.9, 3.2, 6) == [1, 1.5, 2, 3]
    assert logarithmic_ticks(0.2, 12, 6) == pytest.approx([0.2, 0.5, 1, 2, 5, 10])
    assert logarithmic_ticks(1e-4, 1e3, 8) == pytest.approx([10.0**p for p in range(-4, 4)])
    assert logarithmic_ticks(1.0, 1.3, 6) == pytest.approx([1.0, 1.1, 1.2, 1.3])


@pytest.mark.parametrize(
    ("ticks", "written"),
    [
        ([0, 1000, 2000], ["0", "1,000", "2,000"]),
        ([1.5, 2.0], ["1.5", "2.0"]),
        ([0.25, 0.5], ["0.25", "0.50"]),
        ([0, 2.5e-4, 5e-4], ["0", "2.5e-4", "5e-4"]),
        ([0, 500_000, 1_000_000], ["0", "0.5M", "1M"]),
        ([1 / 3], ["0.333333"]),
        ([], []),
    ],
)
def test_ticks_are_written_alike_and_short(ticks: list[float], written: list[str]) -> None:
    assert words(ticks) == written
