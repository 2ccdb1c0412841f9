"""The bank: nested, chunked, and moving."""

import pytest
import torch

from veca.backbone.config import BackboneConfig
from veca.backbone.cores import CoreBank, CoreStep


def bank(*budgets: int) -> CoreBank:
    made = CoreBank(BackboneConfig(width=32, heads=2, budgets=budgets))
    made.reset_parameters()
    return made


def test_the_first_cores_are_the_same_at_every_budget() -> None:
    whole = bank(2, 5, 9)
    cores, positions = whole(3, 9)
    for budget in range(1, 10):
        some, places = whole(3, budget)
        assert torch.equal(some, cores[:, :budget])
        assert torch.equal(places, positions[:, :budget])


@pytest.mark.parametrize(("budget", "touched"), [(1, 1), (2, 1), (3, 2), (5, 2), (6, 3), (9, 3)])
def test_chunks_beyond_the_budget_have_no_gradient_at_all(budget: int, touched: int) -> None:
    whole = bank(2, 5, 9)
    cores, positions = whole(1, budget)
    (cores.sum() + positions.sum()).backward()
    for chunks in (whole.tokens, whole.points):
        assert [chunk.grad is not None for chunk in chunks] == [i < touched for i in range(3)]


def test_cores_start_with_norm_one_spread_within_the_square() -> None:
    torch.manual_seed(0)
    config = BackboneConfig(width=384, heads=6)
    whole = CoreBank(config)
    whole.reset_parameters()
    cores, positions = whole(1, 64)
    assert cores.norm(dim=-1).mean().item() == pytest.approx(1.0, abs=0.05)
    assert positions.tanh().abs().max() < 0.951


@pytest.mark.parametrize("budgets", [(9,), (1, 9), (3, 6, 9), tuple(range(1, 10))])
def test_a_bank_loads_into_other_chunks(budgets: tuple[int, ...]) -> None:
    source, target = bank(2, 5, 9), bank(*budgets)
    with torch.no_grad():
        for chunk in source.parameters():
            chunk.normal_()
    target.load_state_dict(source.state_dict())
    for mine, other in zip(target(1, 9), source(1, 9), strict=True):
        assert torch.equal(mine, other)


def test_a_bank_of_another_size_is_not_loaded() -> None:
    with pytest.raises(RuntimeError, match=r"size mismatch|Unexpected"):
        bank(2, 5, 8).load_state_dict(bank(2, 5, 9).state_dict())


def test_cores_hardly_step_before_training() -> None:
    step = CoreStep(BackboneConfig(width=32, heads=2))
    step.reset_parameters()
    assert step.scale.item() == pytest.approx(0.01)


def test_prefix_tokens_of_a_full_model_stand_at_the_centre() -> None:
    whole = CoreBank(BackboneConfig(width=32, heads=2, attention="full", prefix_tokens=3))
    whole.reset_parameters()
    cores, positions = whole(2, 3)
    assert cores.shape == (2, 3, 32)
    assert torch.equal(positions, torch.zeros(2, 3, 2))
