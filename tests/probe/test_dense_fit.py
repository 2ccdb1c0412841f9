"""The loop fits what separate plain loops fit, and keeps heads when it should."""

import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.probe.dense_scenes import ALL, ALONE, FEW, SMALL
from veca.data.sets.dataset import IGNORE_INDEX
from veca.probe.dense import (
    Candidate,
    DenseHead,
    Fit,
    fit_heads,
    learning_rate,
)
from veca.probe.dense_losses import CrossEntropy
from veca.probe.features import DenseBatch
from veca.probe.models import FrozenFeatures
from veca.probe.protocols import SegmentationProtocol
from veca.probe.rows import Setting

CLASSES, PATCH, IMAGE = 3, 5, 2
GRID = replace(SMALL, steps=12, rates=(0.01, 0.1), selection="held-out", checks=3)


def stream(seed: int = 0) -> Iterator[DenseBatch]:
    """Batches whose classes are written into their features, with other noise at each setting."""
    for step in itertools.count():
        draw = torch.Generator().manual_seed(1000 * seed + step)
        targets = torch.randint(0, CLASSES, (4, 4, 4), generator=draw)
        features = {}
        for setting in (FEW, ALL):
            patches = torch.randn(4, PATCH, 4, 4, generator=draw)
            patches[:, :CLASSES] += 3 * F.one_hot(targets, CLASSES).permute(0, 3, 1, 2)
            image = torch.randn(4, IMAGE, generator=draw)
            features[setting] = FrozenFeatures(image, patches.half())
        large = targets.repeat_interleave(8, 1).repeat_interleave(8, 2).to(torch.uint8)
        large[0, 0] = IGNORE_INDEX
        yield DenseBatch(features, large, slice(0, 4))


def fitted(protocol: SegmentationProtocol, seed: int = 0) -> dict[Candidate, DenseHead]:
    fit = Fit(protocol, (FEW, ALL), CLASSES, (PATCH, IMAGE), seed)
    loss = CrossEntropy(protocol, CLASSES, seed, ALONE)
    return fit_heads(fit, stream(), loss, ALONE, shown=False)


def plain_loop(
    protocol: SegmentationProtocol, setting: Setting, rate: float, start: Tensor
) -> DenseHead:
    """One head alone, by torch's layers."""
    width = len(start[0])
    norm, linear = nn.BatchNorm2d(width), nn.Conv2d(width, CLASSES, 1)
    linear.weight.data, linear.bias.data = start[..., None, None].clone(), torch.zeros(CLASSES)  # type: ignore[union-attr]
    parameters = [*norm.parameters(), *linear.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=rate, weight_decay=protocol.decay)
    for step, batch in zip(range(protocol.steps), stream(), strict=False):
        image, patches = batch.features[setting]
        values = patches.float()
        if protocol.append_image_feature:
            values = torch.cat((values, image[..., None, None].expand(-1, -1, 4, 4)), 1)
        logits = F.interpolate(linear(norm(values)), (32, 32), mode="bilinear")
        loss = F.cross_entropy(logits, batch.targets.long(), ignore_index=IGNORE_INDEX)
        optimizer.zero_grad()
        loss.backward()
        if protocol.clip is not None:
            nn.utils.clip_grad_norm_(parameters, protocol.clip)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(protocol, rate, step)
        optimizer.step()
    assert norm.running_var is not None
    assert norm.running_mean is not None
    assert linear.bias is not None
    weight = linear.weight[..., 0, 0] * norm.weight / (norm.running_var + norm.eps).sqrt()
    bias = linear.bias + linear.weight[..., 0, 0] @ norm.bias - weight @ norm.running_mean
    return DenseHead(weight=weight.detach(), bias=bias.detach(), patch_width=PATCH)


def start_of(protocol: SegmentationProtocol, seed: int = 0) -> Tensor:
    """The first weights, seen through a fit that does not move."""
    still = replace(
        protocol, steps=1, checks=1, rates=(0.0,), floor=0.0, norm="none", selection="none"
    )
    return fitted(still, seed)[Candidate(ALL, 0.0, 1)].weight


@pytest.mark.parametrize("change", [{}, {"append_image_feature": True}, {"clip": 0.05}])
def test_heads_fitted_together_are_those_fitted_alone(change: dict[str, object]) -> None:
    protocol = replace(GRID, **change)  # type: ignore[arg-type]
    found = fitted(protocol)
    start = start_of(protocol)
    for setting in (FEW, ALL):
        for rate in protocol.rates:
            head = found[Candidate(setting, rate, 12)]
            alone = plain_loop(protocol, setting, rate, start)
            torch.testing.assert_close(head.weight, alone.weight, rtol=1e-3, atol=1e-4)
            torch.testing.assert_close(head.bias, alone.bias, rtol=1e-3, atol=1e-4)


def test_heads_are_kept_at_every_check() -> None:
    found = fitted(GRID)
    assert {candidate.step for candidate in found} == {4, 8, 12}
    assert len(found) == 3 * 2 * 2
    first, last = (found[Candidate(ALL, 0.1, step)] for step in (4, 12))
    assert not torch.equal(first.weight, last.weight)
    shorter = fitted(replace(GRID, steps=4, checks=1, schedule="poly", power=1e-9))
    longer = fitted(replace(GRID, schedule="poly", power=1e-9))  # a rate that does not fall
    assert torch.equal(
        shorter[Candidate(ALL, 0.1, 4)].weight, longer[Candidate(ALL, 0.1, 4)].weight
    )


def test_a_seed_gives_the_same_heads_again_and_another_one_others() -> None:
    protocol = replace(GRID, dropout=0.2, loss_stride=4)
    first, again, other = fitted(protocol), fitted(protocol), fitted(protocol, seed=1)
    for candidate, head in first.items():
        assert torch.equal(head.weight, again[candidate].weight)
        assert not torch.equal(head.weight, other[candidate].weight)


def test_heads_learn() -> None:
    protocol = replace(SMALL, steps=80, dropout=0.1, loss_stride=4)
    head = fitted(protocol)[Candidate(ALL, 0.05, 80)]
    batch = next(stream(seed=5))
    image, patches = batch.features[ALL]
    found = head.maps(FrozenFeatures(image, patches.float())).argmax(1)
    told = batch.targets[:, 4::8, 4::8]
    assert (found == told)[told != IGNORE_INDEX].float().mean() > 0.9


def test_a_batch_of_which_nothing_counts_teaches_nothing() -> None:
    protocol = replace(SMALL, steps=1, decay=0.0, norm="none")
    fit = Fit(protocol, (FEW, ALL), CLASSES, (PATCH, IMAGE), 0)
    found = fit_heads(fit, stream(), lambda _, __: lambda _: None, ALONE, shown=False)
    assert torch.equal(found[Candidate(ALL, 0.05, 1)].weight, start_of(SMALL))


def test_too_few_batches_are_an_error() -> None:
    fit = Fit(SMALL, (FEW, ALL), CLASSES, (PATCH, IMAGE), 0)
    loss = CrossEntropy(SMALL, CLASSES, 0, ALONE)
    with pytest.raises(ValueError, match="fewer than the 60 steps"):
        fit_heads(fit, itertools.islice(stream(), 3), loss, ALONE, shown=False)
