"""Heads in a stack take the steps that torch.optim.SGD takes with each of them alone."""

from typing import Any

import pytest
import torch
from torch import Tensor

from veca.probe import linear as linear_heads
from veca.probe.linear import HeadStack
from veca.probe.metrics import target_shares, top1

CLASSES, WIDTH, BATCH = 4, 6, 9
RATES = (0.01, 0.3)


def sgd(start: Tensor, batches: Tensor, targets: Tensor, rate: float, decay: float) -> Tensor:
    """The weights and the bias, side by side, after some steps of torch's own."""
    weight = start.clone().requires_grad_()
    bias = torch.zeros(len(start), requires_grad=True)
    decayed: dict[str, Any] = {"params": [weight], "weight_decay": decay}
    parameters: list[dict[str, Any]] = [decayed, {"params": [bias]}]
    optimizer = torch.optim.SGD(parameters, rate, momentum=0.9)
    for batch in batches:
        optimizer.zero_grad()
        logits = torch.nn.functional.linear(batch, weight, bias)
        torch.nn.functional.cross_entropy(logits, targets).backward()
        optimizer.step()
    return torch.cat((weight.detach(), bias.detach()[:, None]), dim=1)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_every_head_goes_the_way_of_torch_sgd(decay: float) -> None:
    start, features = torch.randn(CLASSES, WIDTH), torch.randn(3, 5, BATCH, WIDTH)
    targets = target_shares(torch.randint(CLASSES, (BATCH,)), CLASSES)
    stack = HeadStack(start, 3, len(RATES))
    for step in range(5):
        batch = features[:, step]
        stack.step(batch, targets, torch.tensor(RATES), momentum=0.9, weight_decay=decay)
    for feature in range(3):
        for number, rate in enumerate(RATES):
            head = stack.head(feature, number)
            expected = sgd(start, features[feature], targets, rate, decay)
            found = torch.cat((head.weight, head.bias[:, None]), dim=1)
            torch.testing.assert_close(found, expected)


def test_a_head_that_leaves_all_bounds_does_not_touch_the_others() -> None:
    start, features = torch.randn(CLASSES, WIDTH), torch.randn(1, BATCH, WIDTH)
    targets = target_shares(torch.arange(BATCH) % CLASSES, CLASSES)
    both, alone = HeadStack(start, 1, 2), HeadStack(start, 1, 1)
    for _ in range(9):
        both.step(features, targets, torch.tensor([0.1, 1e38]), momentum=0.9, weight_decay=0.0)
        alone.step(features, targets, torch.tensor([0.1]), momentum=0.9, weight_decay=0.0)
    torch.testing.assert_close(both.head(0, 0).weight, alone.head(0, 0).weight)
    assert not both.head(0, 1).weight.isfinite().all()
    assert both.accuracies(0, features[0], torch.arange(BATCH) % CLASSES)[1] == 0


@pytest.mark.parametrize("scores", [1, 100, 10_000])
def test_accuracies_are_those_of_each_head_alone(
    scores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear_heads, "SCORES", scores)
    stack = HeadStack(torch.zeros(CLASSES, WIDTH), 2, 3)
    stack.weight.normal_()
    stack.bias.normal_()
    rows, labels = torch.randn(50, WIDTH), torch.randint(CLASSES, (50,))
    several = torch.rand(50, CLASSES) < 0.3
    for feature in range(2):
        heads = [stack.head(feature, rate) for rate in range(3)]
        for truth in (labels, several):
            expected = [top1(head.scores(rows), truth) for head in heads]
            assert stack.accuracies(feature, rows, truth) == pytest.approx(expected)


def test_a_head_is_a_copy() -> None:
    stack = HeadStack(torch.zeros(CLASSES, WIDTH), 1, 1)
    head = stack.head(0, 0)
    stack.weight += 1
    assert not head.weight.any()
