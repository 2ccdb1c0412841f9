"""Losses and their gradients against torch's own on fully scaled maps."""

from dataclasses import replace
from typing import Literal

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.probe.dense_scenes import ALONE, SMALL, SMALL_DEPTH
from veca.data.sets.dataset import IGNORE_INDEX, DepthRange
from veca.probe import dense_losses
from veca.probe.dense import Maps
from veca.probe.dense_losses import CrossEntropy, SigLoss
from veca.probe.depth_scale import depth_scale
from veca.probe.features import DenseBatch
from veca.probe.protocols import DepthProtocol, SegmentationProtocol

CLASSES = 4
FACTS = DepthRange()


def maps_and_slice(pictures: int, outputs: int) -> tuple[Tensor, Maps]:
    maps = torch.randn(pictures, outputs, 3, 5, requires_grad=True)
    return maps, lambda some: maps[some]


def batch_of(targets: Tensor) -> DenseBatch:
    return DenseBatch({}, targets, slice(0, len(targets)))


def masks() -> Tensor:
    targets = torch.randint(0, CLASSES, (6, 24, 40), dtype=torch.uint8)
    targets[:, :5] = IGNORE_INDEX
    return targets


def gradient_of_entropy(protocol: SegmentationProtocol, targets: Tensor, maps: Tensor) -> Tensor:
    """By scaling the maps, and torch's loss."""
    copy = maps.detach().clone().requires_grad_()
    logits = F.interpolate(copy, targets.shape[1:], mode="bilinear", align_corners=False)
    each = F.cross_entropy(logits, targets.long(), ignore_index=IGNORE_INDEX, reduction="none")
    counts = (targets != IGNORE_INDEX).sum() if protocol.denominator == "valid" else targets.numel()
    (each.sum() / counts).backward()
    assert copy.grad is not None
    return copy.grad


@pytest.mark.parametrize("denominator", ["valid", "all"])
@pytest.mark.parametrize("at_once", [1 << 26, 1])
def test_cross_entropy_is_that_of_scaled_logits(
    denominator: Literal["valid", "all"], at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dense_losses, "MOST_NUMBERS", at_once)
    protocol = replace(SMALL, denominator=denominator)
    maps, some = maps_and_slice(6, CLASSES)
    targets = masks()
    CrossEntropy(protocol, CLASSES, 0, ALONE)(batch_of(targets), 0)(some)
    torch.testing.assert_close(maps.grad, gradient_of_entropy(protocol, targets, maps))


@pytest.mark.parametrize("denominator", ["valid", "all"])
def test_a_part_of_the_pixels_stands_for_all_without_bias(
    denominator: Literal["valid", "all"],
) -> None:
    protocol = replace(SMALL, denominator=denominator, loss_stride=4)
    maps, some = maps_and_slice(6, CLASSES)
    targets = masks()
    targets[:, :8] = IGNORE_INDEX  # whole strides, so that each part has as many that count
    loss = CrossEntropy(protocol, CLASSES, 7, ALONE)
    parts: dict[tuple[float, ...], Tensor] = {}
    for step in range(400):
        loss(batch_of(targets), step)(some)
        assert maps.grad is not None
        parts[tuple(maps.grad.flatten()[:3].tolist())] = maps.grad.clone()
        maps.grad.zero_()
    assert len(parts) == 16  # every part came
    expected = gradient_of_entropy(protocol, targets, maps)
    total = torch.stack(list(parts.values())).sum(0)
    torch.testing.assert_close(total / 16, expected, rtol=1e-4, atol=1e-7)


def depths() -> Tensor:
    targets = torch.rand(6, 24, 40) * 8 + 0.5
    targets[:, :4] = 0  # unknown
    targets[:, 4] = 11  # beyond the range
    return targets


def scaled_log_error(protocol: DepthProtocol, targets: Tensor, maps: Tensor, step: int) -> Tensor:
    """By torch's own variance; the value, with its graph."""
    meters = depth_scale(protocol, FACTS).meters(maps)
    found = F.interpolate(meters, targets.shape[1:], mode="bilinear", align_corners=False)[:, 0]
    known = (targets > 0.001) & (targets < 10)
    errors = ((found[known] + 1e-3).log() - (targets[known] + 1e-3).log()).double()
    mean = 0.15 * errors.mean().square()
    return mean.sqrt() if step < protocol.settling else (errors.var() + mean).sqrt()


@pytest.mark.parametrize("step", [0, 4, 5, 50])
def test_the_error_of_the_logarithm_has_the_gradient_of_its_formula(step: int) -> None:
    maps, some = maps_and_slice(6, SMALL_DEPTH.bins)
    targets = depths()
    scale = depth_scale(SMALL_DEPTH, FACTS)
    SigLoss(SMALL_DEPTH, scale, FACTS, 0, ALONE)(batch_of(targets), step)(some)
    copy = maps.detach().clone().requires_grad_()
    scaled_log_error(SMALL_DEPTH, targets, copy, step).backward()
    assert maps.grad is not None
    assert copy.grad is not None
    torch.testing.assert_close(maps.grad, copy.grad, rtol=1e-4, atol=1e-7)
    assert maps.grad.abs().max() > 0


def test_pictures_of_unknown_depth_teach_nothing() -> None:
    maps, some = maps_and_slice(2, SMALL_DEPTH.bins)
    scale = depth_scale(SMALL_DEPTH, FACTS)
    loss = SigLoss(SMALL_DEPTH, scale, FACTS, 0, ALONE)
    loss(batch_of(torch.zeros(2, 24, 40)), 9)(some)
    assert maps.grad is not None
    assert not maps.grad.any()


def test_the_right_depth_has_no_slope_that_is_not_a_number() -> None:
    scale = depth_scale(replace(SMALL_DEPTH, upsample=1), FACTS)
    maps = torch.zeros(1, SMALL_DEPTH.bins, 3, 5, requires_grad=True)
    targets = torch.full((1, 24, 40), (FACTS.min_depth + FACTS.max_depth) / 2)
    SigLoss(SMALL_DEPTH, scale, FACTS, 0, ALONE)(batch_of(targets), 9)(lambda some: maps[some])
    assert maps.grad is not None
    assert maps.grad.isfinite().all()
