"""The bank: nested, chunked, and moving."""

from typing import get_args

import pytest
import torch

from veca.backbone.config import BackboneConfig, CoreMotion
from veca.backbone.cores import (
    CORE_STEPS,
    AttentionCoreStep,
    CoreBank,
    NormalizedCoreStep,
)


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


@pytest.mark.parametrize("motion", get_args(CoreMotion))
def test_cores_stay_inside_the_image_wherever_motion_takes_them(motion: CoreMotion) -> None:
    config = BackboneConfig(width=32, heads=2, core_motion=motion)
    step = CORE_STEPS[motion](config)
    step.reset_parameters()
    positions = torch.randn(2, 5, 2) * 3
    for _ in range(20):
        positions = step(positions, torch.randn(2, 5, 32) * 100, torch.rand(2, 5, 2) * 4 - 2)
    assert positions.isfinite().all()
    assert (positions.tanh().abs() <= 1).all()


def test_a_core_that_follows_its_attention_ends_where_it_reads() -> None:
    step = AttentionCoreStep(BackboneConfig(width=32, heads=2))
    torch.nn.init.zeros_(step.share)  # half of the way
    positions, reads = torch.zeros(1, 1, 2), torch.tensor([[[0.5, -0.25]]])
    moved = step(positions, torch.randn(1, 1, 32), reads)
    torch.testing.assert_close(moved.tanh(), reads / 2)
    for _ in range(30):
        moved = step(moved, torch.randn(1, 1, 32), reads)
    torch.testing.assert_close(moved.tanh(), reads)


def test_a_step_from_normalized_features_does_not_depend_on_their_scale() -> None:
    step = NormalizedCoreStep(BackboneConfig(width=32, heads=2))
    step.reset_parameters()
    cores = torch.randn(1, 3, 32)
    small, large = (step(torch.zeros(1, 3, 2), cores * factor, None) for factor in (1.0, 900.0))
    torch.testing.assert_close(small, large, atol=1e-5, rtol=1e-4)
    assert small.abs().max() > 0


def test_prefix_tokens_of_a_full_model_stand_at_the_center() -> None:
    whole = CoreBank(BackboneConfig(width=32, heads=2, attention="full", prefix_tokens=3))
    whole.reset_parameters()
    cores, positions = whole(2, 3)
    assert cores.shape == (2, 3, 32)
    assert torch.equal(positions, torch.zeros(2, 3, 2))
