"""Draws of budget and share."""

import subprocess
import sys
from collections import Counter

import pytest

from veca.backbone.config import BackboneConfig
from veca.train.schedules import budget_weights, draw_budget, draw_share

CONFIG = BackboneConfig(ffn_shares=(0.25, 0.5, 1.0))


def test_the_papers_budgets_have_the_papers_weights() -> None:
    assert budget_weights(CONFIG.budgets) == (1, 1, 2, 2, 3, 3, 4, 4)


def test_budgets_are_drawn_as_often_as_their_weights_say() -> None:
    steps = 10_000
    counts = Counter(draw_budget(CONFIG, seed=7, step=step) for step in range(steps))
    shares = (0.05, 0.05, 0.10, 0.10, 0.15, 0.15, 0.20, 0.20)
    for budget, share in zip(CONFIG.budgets, shares, strict=True):
        deviation = (steps * share * (1 - share)) ** 0.5
        assert abs(counts[budget] - steps * share) < 3.5 * deviation


def test_shares_are_drawn_evenly_and_apart_from_budgets() -> None:
    steps = 9_000
    pairs = Counter(
        (draw_budget(CONFIG, 0, step), draw_share(CONFIG, 0, step)) for step in range(steps)
    )
    for share in CONFIG.ffn_shares:
        total = sum(count for (_, drawn), count in pairs.items() if drawn == share)
        assert abs(total - steps / 3) < 3.5 * (steps * 2 / 9) ** 0.5
        assert abs(pairs[64, share] - steps / 15) < 3.5 * (steps / 15) ** 0.5


def test_a_draw_is_the_same_in_another_process_at_another_time() -> None:
    code = (
        "from veca.backbone.config import BackboneConfig\n"
        "from veca.train.schedules import draw_budget\n"
        "print([draw_budget(BackboneConfig(), 3, step) for step in (9, 5, 7)])"
    )
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert output.strip() == str([draw_budget(CONFIG, 3, step) for step in (9, 5, 7)])


def test_other_seeds_draw_otherwise() -> None:
    draws = [tuple(draw_budget(CONFIG, seed, step) for step in range(50)) for seed in range(5)]
    assert len(set(draws)) == 5


def test_own_weights_replace_the_papers() -> None:
    only_second = [0, 1, 0, 0, 0, 0, 0, 0]
    assert {draw_budget(CONFIG, 0, step, only_second) for step in range(50)} == {16}
    assert {draw_share(CONFIG, 0, step, [1, 0, 0]) for step in range(50)} == {0.25}


@pytest.mark.parametrize("weights", [[1, 1], [0] * 8, [-1, *[1] * 7]])
def test_weights_that_cannot_be_drawn_from_are_refused(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="give 8 numbers of 0 or more"):
        draw_budget(CONFIG, 0, 0, weights)


def test_a_full_attention_model_has_no_budget_to_draw() -> None:
    assert draw_budget(BackboneConfig(attention="full"), 0, 0) is None
