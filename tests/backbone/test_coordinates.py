"""Where tokens are."""

import math

import pytest
import torch

from veca.backbone.rope import jittered, patch_centers, spread_points

CPU = torch.device("cpu")


def test_patch_centers_run_row_by_row_with_x_first_and_each_axis_from_minus_one_to_one() -> None:
    centers = patch_centers((2, 4), CPU)
    expected = [[x, y] for y in (-0.5, 0.5) for x in (-0.75, -0.25, 0.25, 0.75)]
    torch.testing.assert_close(centers, torch.tensor(expected))


def test_a_single_patch_stands_at_the_center() -> None:
    assert patch_centers((1, 1), CPU).tolist() == [[0.0, 0.0]]


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
        moved = jittered(centers, 0.08, 2.0)
        scale = (moved[1, 0] - moved[0, 0]) / (centers[1, 0] - centers[0, 0])
        shift = moved[0] / scale - centers[0]
        assert 0.5 <= scale <= 2.0
        assert shift.abs().max() <= 0.08 + 1e-5
        torch.testing.assert_close(moved, (centers + shift) * scale)
        outermost.append(float(moved.max()))
    assert min(outermost) < 0.6  # both ends of the range are reached
    assert max(outermost) > 1.8


def test_jitter_can_be_switched_off() -> None:
    centers = patch_centers((2, 2), CPU)
    assert torch.equal(jittered(centers, 0.0, 1.0), centers)
