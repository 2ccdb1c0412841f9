"""Outputs become meters: zeros the middle, a large one its own depth."""

import pytest
import torch
import torch.nn.functional as F

from veca.data.sets.dataset import DepthRange
from veca.probe.depth_scale import DepthScale, depth_scale, scale_from
from veca.probe.protocols import DINOV3_DEPTH

SCALE = depth_scale(DINOV3_DEPTH, DepthRange())


def test_zeros_are_the_middle_of_the_range() -> None:
    found = SCALE.meters(torch.zeros(1, 256, 2, 3))
    assert found.shape == (1, 1, 8, 12)
    torch.testing.assert_close(found, torch.full_like(found, (0.001 + 10) / 2))


@pytest.mark.parametrize("number", [0, 100, 255])
def test_one_large_output_is_its_own_depth(number: int) -> None:
    outputs = torch.full((1, 256, 2, 2), -5.0)
    outputs[:, number] = 1e6
    depth = SCALE.depths()[number]
    torch.testing.assert_close(
        SCALE.meters(outputs), torch.full((1, 1, 8, 8), float(depth)), rtol=0.01, atol=0.001
    )


def test_depths_lie_at_equal_distances_or_ratios() -> None:
    linear = SCALE.depths()
    assert (float(linear[0]), float(linear[-1])) == pytest.approx((0.001, 10))
    torch.testing.assert_close(linear.diff(), torch.full((255,), 9.999 / 255))
    log = DepthScale(least=0.5, most=8.0, bins=5, spacing="log", upsample=1).depths()
    torch.testing.assert_close(log, torch.tensor([0.5, 1.0, 2.0, 4.0, 8.0]))


def test_meters_are_the_weighted_mean_of_upsampled_outputs() -> None:
    outputs = torch.randn(2, 256, 3, 4)
    larger = F.interpolate(outputs, scale_factor=4, mode="bilinear", align_corners=False)
    weights = larger.clamp(min=0) + 0.1
    depths = torch.linspace(0.001, 10, 256)[:, None, None]
    expected = (weights / weights.sum(1, keepdim=True) * depths).sum(1, keepdim=True)
    torch.testing.assert_close(SCALE.meters(outputs), expected, rtol=1e-4, atol=1e-4)


def test_a_scale_comes_back_from_its_facts() -> None:
    assert scale_from({**SCALE.facts(), "other": 1}) == SCALE
