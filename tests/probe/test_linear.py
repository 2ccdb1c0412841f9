"""Classifiers train as torch's layers do, and are chosen as their protocol says."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from veca.probe import linear as linear_module
from veca.probe.linear import (
    Fit,
    LinearHead,
    _batches,
    accuracy,
    cosine_lr,
    initial_layers,
    train_linear_classifiers,
)
from veca.probe.metrics import top1
from veca.probe.protocols import LINEAR, LinearProtocol, ProtocolError, train_val_split

COUNT, CLASSES = 60, 3
LABELS = torch.arange(COUNT) % CLASSES


def protocol(**changes: Any) -> LinearProtocol:
    """A short one."""
    usual: dict[str, Any] = {"learning_rates": (0.1,), "batch": 16, "steps": 40}
    return LinearProtocol(name="short", **usual | changes)


def features(rows: int = COUNT, width: int = 8, seed: int = 0) -> Tensor:
    """Features that depend on the labels."""
    generator = torch.Generator().manual_seed(seed)
    centers = torch.randn(CLASSES, width, generator=torch.Generator().manual_seed(9))
    noise = torch.randn(rows, width, generator=generator)
    return noise + 0.7 * centers[torch.arange(rows) % COUNT % CLASSES]


def fit(given: Tensor, plan: LinearProtocol, seed: int = 0, **more: Any) -> Fit:
    """The chosen classifier."""
    labels = more.pop("labels", LABELS)
    return train_linear_classifiers(given, labels, CLASSES, plan, seed, **more)


@pytest.mark.parametrize("several", [False, True])
def test_training_is_that_of_torch_with_a_cosine_schedule(several: bool) -> None:
    given, plan = features(), protocol()
    labels = torch.nn.functional.one_hot(LABELS, CLASSES).bool()
    labels[::3, 1] = True
    truth = labels if several else LABELS
    found = fit(given, plan, labels=truth)
    layer = initial_layers(8, CLASSES, plan, seed=0)[0]
    assert isinstance(layer, torch.nn.Linear)
    assert float(layer.weight.detach().std()) == pytest.approx(0.01, rel=0.5)
    assert not layer.bias.any()
    optimizer = torch.optim.SGD(layer.parameters(), 0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, plan.steps)
    for images, rows in _batches(torch.arange(COUNT), COUNT, plan, 0):
        optimizer.zero_grad()
        targets = (
            labels[images] / labels[images].sum(1, keepdim=True) if several else LABELS[images]
        )
        torch.nn.functional.cross_entropy(layer(given[rows]), targets).backward()
        optimizer.step()
        schedule.step()
    torch.testing.assert_close(found.head.weight, layer.weight.detach())
    torch.testing.assert_close(found.head.bias, layer.bias.detach())
    assert found.chosen == {"rate": 0.1, "step": 40}


def test_learning_rates_fall_along_half_a_cosine_and_scale_with_the_batch() -> None:
    paper, dinov3 = LINEAR["paper"], LINEAR["dinov3"]
    assert cosine_lr(paper, 0.05, 0) == 0.05
    assert cosine_lr(paper, 0.05, 6250) == pytest.approx(0.025)
    assert cosine_lr(paper, 0.05, 12_499) == pytest.approx(0.05 * (math.pi / 12_500) ** 2 / 4)
    assert cosine_lr(dinov3, 0.1, 0) == pytest.approx(0.1 * 128 / 256)


def test_every_image_comes_once_per_epoch() -> None:
    images = torch.arange(0, COUNT, 2)  # 30 of them
    batches = list(_batches(images, COUNT, protocol(batch=12, steps=10, num_crops=3), 5))
    assert [len(rows) for _, rows in batches] == [12] * 10
    order = torch.cat([batch for batch, _ in batches])
    for epoch in order.split(30):
        assert epoch.sort().values.tolist() == images.tolist()
    assert not torch.equal(order[:30], order[30:60])
    rows = torch.cat([rows for _, rows in batches])
    assert torch.equal(rows % COUNT, order)
    assert (rows // COUNT).unique().tolist() == [0, 1, 2]
    larger, _ = next(iter(_batches(torch.arange(5), 5, protocol(batch=12), 0)))
    assert sorted(larger.bincount().tolist()) == [2, 2, 2, 3, 3]


def test_one_seed_gives_the_same_bits_and_another_seed_others() -> None:
    first, again, other = (fit(features(), protocol(), seed) for seed in (0, 0, 1))
    assert torch.equal(first.head.weight, again.head.weight)
    assert not torch.equal(first.head.weight, other.head.weight)


def test_the_best_learning_rate_at_the_last_step_is_chosen_on_validation_images() -> None:
    given, val = features(), (features(seed=2), LABELS)
    plan = protocol(learning_rates=(1e-4, 0.1, 1e-3), selection="test")
    found = fit(given, plan, val=val)
    alone = {rate: fit(given, protocol(learning_rates=(rate,))) for rate in plan.learning_rates}
    accuracies = {rate: top1(one.head.scores(val[0]), LABELS) for rate, one in alone.items()}
    best = max(accuracies, key=lambda rate: accuracies[rate])
    assert found.chosen == {"rate": best, "step": 40}
    torch.testing.assert_close(found.head.weight, alone[best].head.weight)


def test_the_best_step_is_returned_as_it_was() -> None:
    given, val = features(), (features(seed=2), LABELS)
    plan = protocol(learning_rates=(0.3,), selection="test-best-step", validate_every=7)
    found = fit(given, plan, val=val)
    assert found.chosen["step"] in {7, 14, 21, 28, 35, 40}
    last = fit(given, protocol(learning_rates=(0.3,)))
    assert top1(found.head.scores(val[0]), LABELS) >= top1(last.head.scores(val[0]), LABELS)


def test_held_out_images_are_validated_on_with_all_crops_and_never_trained_on() -> None:
    given = features(2 * COUNT)
    plan = protocol(
        num_crops=2, selection="held-out", held_out_share=0.25, learning_rates=(1e-4, 0.1)
    )
    train, val = train_val_split(COUNT, 0.25, 0)
    found = fit(given, plan)
    assert found.fitted_on == len(train) == 45
    crops = torch.cat((val, COUNT + val))
    assert top1(found.head.scores(given[crops]), LABELS[crops % COUNT]) > 60
    spoilt = given.clone()
    spoilt[crops] = torch.nan  # all scores are wrong, so that the first rate is kept
    first = fit(spoilt, plan)
    assert first.chosen["rate"] == 1e-4
    assert bool(first.head.weight.isfinite().all())


@pytest.mark.parametrize("selection", ["none", "held-out"])
def test_images_without_a_class_are_left_out(selection: Any) -> None:
    labels = torch.nn.functional.one_hot(LABELS, CLASSES).bool()
    labels[::5] = False
    given = features()
    given[::5] = torch.nan
    found = fit(given, protocol(selection=selection), labels=labels)
    assert bool(found.head.weight.isfinite().all())
    assert found.fitted_on == (48 if selection == "none" else 43)


def test_features_may_be_in_half_precision() -> None:
    half = features().half()
    found = fit(half, protocol(), device=torch.device("cpu")).head
    assert found.weight.dtype == torch.float32
    torch.testing.assert_close(found.weight, fit(half.float(), protocol()).head.weight)


def test_a_diverged_fit_is_an_error_and_does_not_touch_the_others() -> None:
    with pytest.raises(ProtocolError, match=r"training diverged at the learning rate 1e\+38"):
        fit(features(), protocol(learning_rates=(1e38,)))
    plan = protocol(learning_rates=(0.1, 1e38), selection="test")
    both = fit(features(), plan, val=(features(seed=2), LABELS))
    assert both.chosen["rate"] == 0.1
    torch.testing.assert_close(both.head.weight, fit(features(), protocol()).head.weight)


@pytest.mark.parametrize("scores", [1, 10_000])
def test_accuracies_do_not_depend_on_chunks(scores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_module, "MAX_SCORES", scores)
    head = LinearHead(weight=torch.randn(CLASSES, 6), bias=torch.zeros(CLASSES))
    rows, several = torch.randn(50, 6), torch.rand(50, CLASSES) < 0.3
    for truth in (torch.randint(CLASSES, (50,)), several):
        assert accuracy(head, rows, truth) == pytest.approx(top1(head.scores(rows), truth))


def test_a_class_of_bias_minus_infinity_is_never_predicted() -> None:
    head = LinearHead(weight=torch.eye(3), bias=torch.tensor([0.0, -torch.inf, 1.0]))
    features = torch.tensor([[0.0, 9.0, 0.0], [3.0, 9.0, 0.0]])
    assert head.scores(features).argmax(1).tolist() == [2, 0]
    shares = head.probabilities(features)
    torch.testing.assert_close(shares.sum(1), torch.ones(2))
    assert not shares[:, 1].any()
