"""The costs that cards tell are those of the model."""

import pytest

from tests.weights.models import trained_model
from veca.backbone.cost import cost_rows


@pytest.mark.parametrize("patch_size", [4, 14, 600])
def test_costs_are_those_of_the_model(patch_size: int) -> None:
    model = trained_model(patch_size=patch_size)
    rows = cost_rows(model.config)
    assert [row.budget for row in rows] == [2, 2, 3, 3, 6, 6]
    for row in rows:
        cost = model.cost(row.side, row.side, budget=row.budget)
        assert (row.pairs, row.gflops) == (cost.pairs, cost.flops / 1e9)


def test_sides_are_the_nearest_that_patches_fill() -> None:
    sides = [row.side for row in cost_rows(trained_model(patch_size=14, budgets=(1,)).config)]
    assert sides == [252, 518]


def test_a_full_attention_model_has_no_budget() -> None:
    model = trained_model(attention="full")
    rows = cost_rows(model.config)
    assert [row.budget for row in rows] == [None, None]
    assert rows[0].pairs == model.cost(256, 256).pairs
