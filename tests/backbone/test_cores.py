"""The bank of cores, nested, chunked and moving; positions and rotary embeddings."""

import cmath
import math
from typing import get_args

import pytest
import torch

from veca.backbone import rope as rotary
from veca.backbone.config import BackboneConfig, CoreMotion
from veca.backbone.cores import (
    CORE_STEPS,
    AttentionCoreStep,
    CoreBank,
    NormalizedCoreStep,
)
from veca.backbone.rope import jitter, patch_centers, spread_points


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
def test_cores_stay_inside_the_image_under_any_motion(motion: CoreMotion) -> None:
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


CPU = torch.device("cpu")
DOUBLE = torch.float64
SMALL = rotary.Periods(16, 100.0, 0.125)


def turns(head_width: int = 64) -> torch.Tensor:
    return rotary.frequencies(rotary.Periods(head_width, 100.0, 0.125), CPU, DOUBLE)


def test_periods_are_those_of_the_authors_with_the_two_longest_switched_off() -> None:
    periods = [100 ** (k / 16) for k in range(14)]
    expected = torch.tensor([1 / period for period in periods] + [0.0, 0.0], dtype=DOUBLE)
    torch.testing.assert_close(turns(), expected)


def test_each_pair_of_channels_turns_like_a_complex_number() -> None:
    torch.manual_seed(0)
    vector = torch.randn(1, 1, 1, 64, dtype=DOUBLE)
    point = torch.tensor([[0.3, -0.7]], dtype=DOUBLE)
    turned = rotary.apply_rope(vector, rotary.rope_at(point, turns()))[0, 0, 0]
    for axis in (0, 1):
        for k, turn in enumerate(turns().tolist()):
            i = axis * 16 + k
            before = complex(vector[0, 0, 0, i], vector[0, 0, 0, i + 32])
            after = before * cmath.exp(2j * math.pi * point[0, axis].item() * turn)
            assert complex(turned[i], turned[i + 32]) == pytest.approx(after, abs=1e-12)


def test_scores_depend_on_differences_of_points_only() -> None:
    torch.manual_seed(0)
    query, key = torch.randn(2, 1, 5, 3, 64, dtype=DOUBLE)
    here, there, shift = (torch.rand(5, 2, dtype=DOUBLE) for _ in range(3))

    def score(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        left = rotary.apply_rope(query, rotary.rope_at(a, turns()))
        right = rotary.apply_rope(key, rotary.rope_at(b, turns()))
        return (left * right).sum(-1)

    torch.testing.assert_close(score(here, there), score(here + shift, there + shift))
    assert not torch.allclose(score(here, there), score(here + shift, there))


def test_the_center_turns_nothing() -> None:
    vector = torch.randn(1, 4, 2, 16)
    turn = rotary.rope_at(torch.zeros(4, 2), rotary.frequencies(SMALL, CPU, torch.float32))
    assert torch.equal(rotary.apply_rope(vector, turn), vector)


def test_the_table_of_a_grid_is_built_once_and_only_a_few_are_kept() -> None:
    rotary.cached_patch_rope.cache_clear()
    settings = (SMALL, CPU, torch.float32)
    first = rotary.cached_patch_rope((2, 3), *settings)
    assert rotary.cached_patch_rope((2, 3), *settings) is first
    for rows in range(50):
        rotary.cached_patch_rope((rows + 1, 1), *settings)
    assert rotary.cached_patch_rope.cache_info().currsize == rotary.CACHED_GRIDS


def test_tables_of_huge_grids_are_not_kept() -> None:
    assert rotary.can_cache((128, 128))
    assert not rotary.can_cache((512, 512))


def test_patch_centers_run_row_by_row_with_x_first_and_each_axis_from_minus_one_to_one() -> None:
    centers = patch_centers((2, 4), CPU)
    expected = [[x, y] for y in (-0.5, 0.5) for x in (-0.75, -0.25, 0.25, 0.75)]
    torch.testing.assert_close(centers, torch.tensor(expected))


def test_the_first_core_starts_at_the_center_and_every_prefix_covers_the_square() -> None:
    points = spread_points(64)
    assert math.hypot(*points[0]) < 0.05
    for count, expected in ((8, 0.88), (16, 0.44), (32, 0.31), (64, 0.20)):
        prefix = points[:count]
        nearest = min(math.dist(a, b) for a in prefix for b in prefix if a != b)
        assert nearest == pytest.approx(expected, rel=0.15)
    assert max(abs(value) for point in points for value in point) <= 0.95


def test_a_short_bank_starts_where_a_long_one_starts() -> None:
    assert spread_points(8) == spread_points(64)[:8]


def test_farthest_point_sampling_takes_the_point_farthest_from_all_before() -> None:
    points = spread_points(12)
    gaps = [min(math.dist(points[i], before) for before in points[:i]) for i in range(1, 12)]
    assert gaps == sorted(gaps, reverse=True)


def test_jitter_moves_and_scales_the_patches_as_a_whole_within_its_limits() -> None:
    torch.manual_seed(0)
    centers = patch_centers((16, 16), CPU)
    outermost = []
    for _ in range(500):
        moved = jitter(centers, 0.08, 2.0)
        scale = (moved[1, 0] - moved[0, 0]) / (centers[1, 0] - centers[0, 0])
        shift = moved[0] / scale - centers[0]
        assert 0.5 <= scale <= 2.0
        assert shift.abs().max() <= 0.08 + 1e-5
        torch.testing.assert_close(moved, (centers + shift) * scale)
        outermost.append(float(moved.max()))
    assert min(outermost) < 0.6  # both ends of the range are reached
    assert max(outermost) > 1.8
