"""Learning rates, and draws of resolution, budget and FFN share."""

import math
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veca.backbone.config import BackboneConfig
from veca.train.schedules import (
    ResolutionPhase,
    ScheduleConfig,
    ScheduleKind,
    budget_weights,
    draw_budget,
    draw_resolution,
    draw_share,
    learning_rate,
)

STAGE_1 = ScheduleConfig()
STAGE_2 = ScheduleConfig(peak=8e-5, minimum=3e-5, warmup_steps=7000)
PHASES = (
    ResolutionPhase(sizes=(256, 384, 512), weights=(0.35, 0.35, 0.30)),
    ResolutionPhase(sizes=(256, 384, 512, 768), weights=(0.15, 0.25, 0.30, 0.30), from_share=0.14),
)
CONFIG = BackboneConfig(ffn_shares=(0.25, 0.5, 1.0))
KINDS: st.SearchStrategy[ScheduleKind] = st.sampled_from(["cosine", "constant-decay"])


@pytest.mark.parametrize(
    ("config", "steps", "rates"),
    [
        (STAGE_1, 135_000, {0: 5e-5, 25_000: 4e-4, 80_000: 2.25e-4, 135_000: 5e-5}),
        (STAGE_2, 50_000, {0: 3e-5, 7000: 8e-5, 28_500: 5.5e-5, 50_000: 3e-5}),
    ],
)
def test_both_stages_have_the_papers_rates(
    config: ScheduleConfig, steps: int, rates: dict[int, float]
) -> None:
    for step, rate in rates.items():
        assert learning_rate(config, step, steps) == pytest.approx(rate, rel=1e-12)


def test_the_rate_follows_the_authors_formula_at_every_step() -> None:
    steps, warm, low, high = 1350, 250, 5e-5, 4e-4
    for step in range(steps):
        height = step / warm
        if step >= warm:
            height = (1 + math.cos(math.pi * (step - warm) / (steps - warm))) / 2
        wanted = low + (high - low) * height
        assert learning_rate(STAGE_1, step, steps) == pytest.approx(wanted, rel=1e-12)


def test_constant_decay_is_piecewise_linear() -> None:
    config = ScheduleConfig(
        kind="constant-decay", peak=3.0, minimum=1.0, warmup_steps=2, decay_steps=4
    )
    rates = [learning_rate(config, step, 10) for step in range(12)]
    assert rates == [1.0, 2.0, 3.0, 3.0, 3.0, 3.0, 3.0, 2.5, 2.0, 1.5, 1.0, 1.0]


def test_a_decay_never_starts_before_the_peak() -> None:
    config = ScheduleConfig(
        kind="constant-decay", peak=3.0, minimum=1.0, warmup_steps=2, decay_steps=100
    )
    assert [learning_rate(config, step, 6) for step in range(6)] == [1.0, 2.0, 3.0, 2.5, 2.0, 1.5]


@given(
    steps=st.integers(1, 100),
    more=st.integers(0, 100),
    warmup=st.integers(0, 40),
    decay=st.integers(0, 60),
)
def test_extending_a_run_changes_no_rate_before_its_decay(
    steps: int, more: int, warmup: int, decay: int
) -> None:
    config = ScheduleConfig(kind="constant-decay", warmup_steps=warmup, decay_steps=decay)
    for step in range(max(0, steps - decay)):
        assert learning_rate(config, step, steps) == learning_rate(config, step, steps + more)


@given(kind=KINDS, steps=st.integers(1, 60), warmup=st.integers(0, 80), decay=st.integers(0, 80))
def test_rates_rise_once_within_their_bounds(
    kind: ScheduleKind, steps: int, warmup: int, decay: int
) -> None:
    config = replace(STAGE_1, kind=kind, warmup_steps=warmup, decay_steps=decay)
    rates = [learning_rate(config, step, steps) for step in range(steps)]
    assert all(config.minimum <= rate <= config.peak * (1 + 1e-12) for rate in rates)
    top = rates.index(max(rates))
    assert rates[:top] == sorted(rates[:top])
    assert rates[top:] == sorted(rates[top:], reverse=True)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("minimum", 1e-3, "minimum <= peak"),
        ("peak", math.inf, "must be finite"),
        ("warmup_share", 1.5, r"in \[0, 1\]"),
        ("decay_share", -0.1, r"in \[0, 1\]"),
        ("warmup_steps", -1, ">= 0"),
        ("decay_steps", -1, ">= 0"),
    ],
)
def test_an_invalid_schedule_is_refused(field: str, value: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        replace(STAGE_1, **{field: value})  # type: ignore[arg-type]


@pytest.mark.compiled  # the shape hook would refuse it first
def test_an_unknown_kind_of_schedule_is_refused() -> None:
    with pytest.raises(ValueError, match="use 'cosine' or 'constant-decay'"):
        ScheduleConfig(kind="linear")  # type: ignore[arg-type]


def test_resolutions_are_drawn_by_their_weights_in_each_phase() -> None:
    steps = 50_000
    early = Counter(draw_resolution(PHASES, 1, step, steps) for step in range(7000))
    late = Counter(draw_resolution(PHASES, 1, step, steps) for step in range(7000, 17_000))
    for counts, phase, total in ((early, PHASES[0], 7000), (late, PHASES[1], 10_000)):
        assert set(counts) == set(phase.sizes)
        for size, share in zip(phase.sizes, phase.weights or (), strict=True):
            assert abs(counts[size] - total * share) < 3.5 * (total * share * (1 - share)) ** 0.5


def test_a_phase_begins_at_its_share_of_the_steps() -> None:
    phases = (ResolutionPhase(sizes=(64,)), ResolutionPhase(sizes=(96,), from_share=0.14))
    drawn = [draw_resolution(phases, 0, step, 50_000) for step in (0, 6999, 7000, 49_999)]
    assert drawn == [64, 64, 96, 96]
    inexact = (phases[0], replace(phases[1], from_share=0.29))  # times 100 a little below 29
    assert [draw_resolution(inexact, 0, step, 100) for step in (28, 29)] == [64, 96]


def test_sizes_without_weights_are_drawn_uniformly() -> None:
    phases = (ResolutionPhase(sizes=(64, 96)),)
    counts = Counter(draw_resolution(phases, 0, step, 4000) for step in range(4000))
    assert abs(counts[64] - 2000) < 3.5 * 1000**0.5


def test_draws_never_change_between_processes_and_versions() -> None:
    phases = (ResolutionPhase(sizes=(64, 96, 128)),)
    drawn = [draw_resolution(phases, 5, step, 100) for step in range(12)]
    assert drawn == [64, 64, 64, 64, 64, 128, 96, 96, 96, 96, 64, 64]
    assert [draw_budget(CONFIG, 3, step) for step in range(8)] == [40, 56, 40, 64, 56, 40, 64, 24]
    assert [draw_share(CONFIG, 3, step) for step in range(8)] == [
        0.25,
        0.25,
        1.0,
        0.25,
        0.5,
        0.25,
        1.0,
        1.0,
    ]


@pytest.mark.parametrize("shares", [(), (0.1,), (0.0, 0.5, 0.5), (0.0, 0.6, 0.5)])
def test_phases_must_begin_at_zero_and_follow_each_other(shares: tuple[float, ...]) -> None:
    phases = [ResolutionPhase(sizes=(64,), from_share=share) for share in shares]
    with pytest.raises(ValueError, match="the first must begin at 0"):
        draw_resolution(phases, 0, 0, 10)


def test_an_invalid_phase_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one size"):
        ResolutionPhase(sizes=())
    with pytest.raises(ValueError, match="one number above 0 for each of sizes"):
        ResolutionPhase(sizes=(64, 96), weights=(1.0,))
    with pytest.raises(ValueError, match="one number above 0 for each of sizes"):
        ResolutionPhase(sizes=(64, 96), weights=(1.0, 0.0))
    with pytest.raises(ValueError, match=r"in \[0, 1\]"):
        ResolutionPhase(sizes=(64,), from_share=1.5)


def test_the_papers_budgets_have_the_papers_weights() -> None:
    assert budget_weights(CONFIG.budgets) == (1, 1, 2, 2, 3, 3, 4, 4)


def test_budgets_are_drawn_by_their_weights() -> None:
    steps = 10_000
    counts = Counter(draw_budget(CONFIG, seed=7, step=step) for step in range(steps))
    shares = (0.05, 0.05, 0.10, 0.10, 0.15, 0.15, 0.20, 0.20)
    for budget, share in zip(CONFIG.budgets, shares, strict=True):
        deviation = (steps * share * (1 - share)) ** 0.5
        assert abs(counts[budget] - steps * share) < 3.5 * deviation


def test_shares_are_drawn_uniformly_and_independently_of_budgets() -> None:
    steps = 9_000
    pairs = Counter(
        (draw_budget(CONFIG, 0, step), draw_share(CONFIG, 0, step)) for step in range(steps)
    )
    for share in CONFIG.ffn_shares:
        total = sum(count for (_, drawn), count in pairs.items() if drawn == share)
        assert abs(total - steps / 3) < 3.5 * (steps * 2 / 9) ** 0.5
        assert abs(pairs[64, share] - steps / 15) < 3.5 * (steps / 15) ** 0.5


def test_draws_depend_on_the_seed() -> None:
    draws = [tuple(draw_budget(CONFIG, seed, step) for step in range(50)) for seed in range(5)]
    assert len(set(draws)) == 5


def test_given_weights_replace_the_papers() -> None:
    only_second = [0, 1, 0, 0, 0, 0, 0, 0]
    assert {draw_budget(CONFIG, 0, step, only_second) for step in range(50)} == {16}
    assert {draw_share(CONFIG, 0, step, [1, 0, 0]) for step in range(50)} == {0.25}


@pytest.mark.parametrize("weights", [[1, 1], [0] * 8, [-1, *[1] * 7]])
def test_invalid_weights_are_refused(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="give 8 numbers >= 0"):
        draw_budget(CONFIG, 0, 0, weights)


def test_a_full_attention_model_has_no_budget_to_draw() -> None:
    assert draw_budget(BackboneConfig(attention="full"), 0, 0) is None
