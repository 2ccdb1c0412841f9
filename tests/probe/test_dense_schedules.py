"""Rates at steps that the sources give or that follow from their formulas."""

import math
from dataclasses import replace

import pytest

from veca.probe.dense import first_beta, learning_rate
from veca.probe.protocols import DENSE_PROTOCOLS_DINOV3 as DINOV3
from veca.probe.protocols import DENSE_PROTOCOLS_PAPER as PAPER
from veca.probe.protocols import DINOV3_DEPTH

WARM = replace(DINOV3, schedule="warmup-poly")


def test_the_polynomial_schedule_falls_from_the_peak_to_the_floor() -> None:
    assert learning_rate(PAPER, 0.01, 0) == pytest.approx(0.01)
    middle = 1e-4 + (0.01 - 1e-4) * 0.5**0.9
    assert learning_rate(PAPER, 0.01, PAPER.steps // 2) == pytest.approx(middle)
    assert learning_rate(PAPER, 0.01, PAPER.steps) == pytest.approx(1e-4)
    assert learning_rate(PAPER, 1e-5, 0) == pytest.approx(1e-5)  # below the floor


def test_the_warm_up_of_dinov2_rises_from_a_millionth() -> None:
    assert learning_rate(WARM, 1e-3, 0) == pytest.approx(1e-9)
    assert learning_rate(WARM, 1e-3, 750) == pytest.approx(
        1e-3 * 0.5 * (1 - 750 / 40_000), rel=1e-5
    )
    assert learning_rate(WARM, 1e-3, 20_000) == pytest.approx(5e-4)


def test_the_cosine_of_dinov3_goes_on_slightly_below_the_peak() -> None:
    assert learning_rate(DINOV3, 1e-3, 0) == 0
    assert learning_rate(DINOV3, 1e-3, 1_499) == pytest.approx(
        1e-3 * 1_499 / 1_500 * (1 - 1_499 / 40_000)
    )
    after = 0.5e-3 * (1 + math.cos(math.pi * 1_501 / 40_000))
    assert learning_rate(DINOV3, 1e-3, 1_500) == pytest.approx(after)
    assert after < 1e-3
    assert learning_rate(DINOV3, 1e-3, 39_999) == pytest.approx(0, abs=1e-12)


def test_one_cycle_begins_at_a_thousandth_and_ends_at_a_25000th() -> None:
    assert learning_rate(DINOV3_DEPTH, 3e-4, 0) == pytest.approx(3e-7)
    warm = 3e-7 + 0.5 * 3e-4 * (1 + math.cos(math.pi / 6)) * 0.5
    assert learning_rate(DINOV3_DEPTH, 3e-4, 6_400) == pytest.approx(warm)
    assert learning_rate(DINOV3_DEPTH, 3e-4, 38_400) == pytest.approx(3e-4 / 25_000)


def test_only_one_cycle_moves_the_first_beta() -> None:
    assert first_beta(DINOV3, 10) == 0.9
    assert first_beta(DINOV3_DEPTH, 12_799) == 0
    assert first_beta(DINOV3_DEPTH, 12_800) == pytest.approx(0.85)
    assert first_beta(DINOV3_DEPTH, 25_600) == pytest.approx(0.90)
    assert first_beta(DINOV3_DEPTH, 38_400) == pytest.approx(0.95)


def test_a_schedule_without_a_warm_up_begins_at_its_peak() -> None:
    assert learning_rate(replace(WARM, warmup=0), 1e-3, 0) == pytest.approx(1e-3)
    assert first_beta(replace(DINOV3_DEPTH, warmup=0), 0) == pytest.approx(0.85)
