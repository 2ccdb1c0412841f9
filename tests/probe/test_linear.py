"""Classifiers train as torch's layers do, reach scikit-learn's optimum, and are chosen as asked."""

import math
import warnings
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
from veca.probe.logistic import SoftmaxProblem, sweep_c
from veca.probe.metrics import has_label, mean_average_precision, soft_targets, top1
from veca.probe.protocols import C_VALUES, LINEAR, LinearProtocol, LogisticProtocol, train_val_split
from veca.probe.rows import ProbeError

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
    with pytest.raises(ProbeError, match=r"training diverged at the learning rate 1e\+38"):
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


def logistic(**changes: Any) -> LogisticProtocol:
    """A protocol that need not have a source."""
    return LogisticProtocol(name="mine", **changes)


ENDING = (1000, 1e-12)
"""Products at most, and the share of the gradient that may remain."""


def fit_logistic(x: Tensor, y: Tensor, classes: int, strength: float) -> LinearHead:
    """The optimum for one C, by way of smaller ones."""
    rows = has_label(y)
    problem = SoftmaxProblem(x[rows], y[rows], classes)
    *_, solution = problem.path([strength * 0.1**power for power in range(6, -1, -1)], *ENDING)
    return problem.head(solution)


def blobs(rows: int, width: int, classes: int, spread: float = 1.0) -> tuple[Tensor, Tensor]:
    """Clouds that overlap, off the origin and stretched a thousandfold along some axes."""
    labels = torch.arange(rows) % classes
    centers = torch.randn(classes, width, dtype=torch.float64)
    features = centers[labels] + spread * torch.randn(rows, width, dtype=torch.float64)
    return features * torch.logspace(-2, 1, width, dtype=torch.float64) + 5, labels


def objective(head: LinearHead, x: Tensor, y: Tensor, strength: float) -> tuple[float, float]:
    """Summed cross-entropy + squared weights / (2 C), and the length of its gradient."""
    seen = head.bias.isfinite()
    weight = head.weight[seen].clone().requires_grad_()
    bias = head.bias[seen].clone().requires_grad_()
    targets = soft_targets(y, len(head.bias), torch.float64)[:, seen]
    logits = x.double() @ weight.T + bias
    factor = 2 if len(weight) == 2 else 1  # two rows of half the weight stand for one
    value = -(targets * logits.log_softmax(dim=1)).sum()
    value = value + factor * weight.square().sum() / (2 * strength)
    found = torch.autograd.grad(value, (weight, bias))
    return float(value.detach()), float(torch.cat([each.flatten() for each in found]).norm())


FEW = logistic(c_values=(1e-4, 1e-2, 1.0, 100.0))

TOYS = [(200, 10, 5, 1.5), (60, 90, 3, 1.0), (300, 6, 2, 2.0)]
"""Pictures, numbers, classes, spread: plain; fewer pictures than numbers; two classes."""


def sklearn_head(x: Tensor, y: Tensor, strength: float, solver: str) -> tuple[Any, LinearHead]:
    """The same by scikit-learn; its one row for two classes split into two."""
    linear_model = pytest.importorskip("sklearn.linear_model", reason="the oracle")
    model = linear_model.LogisticRegression(C=strength, tol=1e-12, max_iter=5000, solver=solver)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it may say that it could not go on
        model.fit(x.numpy(), y.numpy())
    weight, bias = torch.from_numpy(model.coef_), torch.from_numpy(model.intercept_)
    if len(weight) == 1:
        weight, bias = torch.cat((-weight, weight)) / 2, torch.cat((-bias, bias)) / 2
    return model, LinearHead(weight=weight, bias=bias)


@pytest.mark.parametrize("strength", [1e-3, 100.0])
@pytest.mark.parametrize(("rows", "width", "classes", "spread"), TOYS)
def test_predictions_are_those_of_scikit_learn_and_the_objective_is_no_worse(
    rows: int, width: int, classes: int, spread: float, strength: float
) -> None:
    x, y = blobs(2 * rows, width, classes, spread)
    head = fit_logistic(x[:rows], y[:rows], classes, strength)
    told = head.scores(x).argmax(dim=1)
    value, slope = objective(head, x[:rows], y[:rows], strength)
    assert slope < 1e-6
    for solver in ("newton-cholesky", "lbfgs"):
        model, expected = sklearn_head(x[:rows], y[:rows], strength, solver)
        found, its_slope = objective(expected, x[:rows], y[:rows], strength)
        assert value <= found + 1e-9
        if its_slope < 1e-3:  # of the nine, L-BFGS gives one up long before its optimum
            assert torch.equal(told, torch.from_numpy(model.predict(x.numpy())))
        else:
            assert (solver, strength, classes) == ("lbfgs", 100.0, 5)


def test_pictures_with_several_classes_teach_each_of_them() -> None:
    x, y = blobs(90, 6, 3, 2.0)
    several = torch.nn.functional.one_hot(y, 3).bool()
    several[::4, 0] = True
    several[::7] = False
    head = fit_logistic(x, several, 3, 1.0)
    taught = several.any(dim=1)
    assert objective(head, x[taught], several[taught], 1.0)[1] < 1e-6
    # A picture of two classes is worth half a picture of each.
    twice = torch.cat([x[several[:, 0]], x[several[:, 1]], x[several[:, 2]]])
    labels = torch.cat([torch.full((int(several[:, k].sum()),), k) for k in range(3)])
    weights = torch.cat([1 / several[several[:, k]].sum(dim=1) for k in range(3)])
    linear_model = pytest.importorskip("sklearn.linear_model", reason="the oracle")
    model = linear_model.LogisticRegression(tol=1e-12, max_iter=20_000)
    model.fit(twice.numpy(), labels.numpy(), weights.numpy())
    torch.testing.assert_close(head.weight, torch.from_numpy(model.coef_), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("own", [False, True])
def test_the_best_strength_on_held_out_or_validation_images_is_fitted_again_on_all(
    own: bool,
) -> None:
    x, y = blobs(160, 8, 3, 2.5)
    heard: list[int] = []
    kept, held_out = (
        (torch.arange(100), torch.arange(100, 160)) if own else train_val_split(160, 0.1, 0)
    )
    val = (x[held_out], y[held_out])
    given = (x[kept], y[kept]) if own else (x, y)
    found = sweep_c(*given, 3, FEW, val=val if own else None, advance=heard.append)
    accuracies = {
        strength: top1(fit_logistic(x[kept], y[kept], 3, strength).scores(val[0]), val[1])
        for strength in FEW.c_values
    }
    strength = found.chosen["C"]
    assert strength == max(accuracies, key=lambda each: accuracies[each])
    assert objective(found.head, x, y, strength)[1] < 1e-6
    assert heard == [1, 1, 1, 1]
    assert found.fitted_on == 160


def test_of_equally_good_strengths_the_smallest_is_chosen() -> None:
    x, y = blobs(60, 4, 2, 0.01)
    equal = logistic(c_values=(1.0, 100.0))
    assert sweep_c(x, y, 2, equal).chosen == {"C": 1.0}


def test_the_choice_may_be_by_another_metric() -> None:
    x, y = blobs(100, 5, 3, 2.0)
    several = torch.nn.functional.one_hot(y, 3).bool()
    held_out = train_val_split(100, 0.1, 0)[1]
    found = sweep_c(x, several, 3, logistic(c_values=(1e-4, 1.0), metric="map"))
    kept = train_val_split(100, 0.1, 0)[0]
    values = {
        c: mean_average_precision(
            fit_logistic(x[kept], several[kept], 3, c).scores(x[held_out]), several[held_out]
        )
        for c in (1e-4, 1.0)
    }
    assert found.chosen["C"] == max(values, key=lambda c: values[c])


def test_one_seed_gives_the_same_bits_twice() -> None:
    x, y = blobs(100, 5, 3, 2.0)
    first, again = (sweep_c(x.float(), y, 3, FEW) for _ in range(2))
    assert torch.equal(first.head.weight, again.head.weight)
    assert first.chosen == again.chosen


def test_labels_are_needed() -> None:
    x, _ = blobs(20, 3, 2)
    with pytest.raises(ProbeError, match="no training image has a class"):
        sweep_c(x, torch.zeros(20, 2, dtype=torch.bool), 2, FEW)


SHAPES = [(60, 8, 3), (30, 50, 4), (40, 5, 2), (7, 7, 7)]
"""Pictures, numbers, classes: also fewer pictures than numbers, two classes, one of each."""


@pytest.mark.parametrize("strength", [1e-6, 1.0, 1e5])
@pytest.mark.parametrize(("rows", "width", "classes"), SHAPES)
def test_the_gradient_vanishes_at_the_solution(
    rows: int, width: int, classes: int, strength: float
) -> None:
    x, y = blobs(rows, width, classes)
    problem = SoftmaxProblem(x, y, classes)
    *_, solution = problem.path([strength * 0.1**power for power in range(6, -1, -1)], *ENDING)
    head = problem.head(solution)
    assert objective(head, x, y, strength)[1] < 1e-6
    assert float(head.bias.mean()) == pytest.approx(0, abs=1e-9)


def test_where_a_fit_begins_does_not_matter() -> None:
    x, y = blobs(80, 6, 4)
    problem = SoftmaxProblem(x, y, 4)
    nothing = problem.solution(None)
    cold = problem.solve(3.0, nothing, *ENDING)
    warm = problem.solve(3.0, problem.solve(0.01, nothing, *ENDING), *ENDING)
    wild = problem.solve(3.0, 100 * torch.randn_like(nothing), *ENDING)
    for other in (warm, wild):
        torch.testing.assert_close(problem.head(other).weight, problem.head(cold).weight)
        torch.testing.assert_close(problem.head(other).bias, problem.head(cold).bias)


def test_a_class_without_images_gets_no_weights_and_is_never_predicted() -> None:
    x, y = blobs(30, 4, 3)
    problem = SoftmaxProblem(x, y * 2, 6)
    head = problem.head(problem.solve(1.0, problem.solution(None), *ENDING))
    assert head.bias.isfinite().tolist() == [True, False, True, False, True, False]
    assert not head.weight[1::2].any()
    dense = SoftmaxProblem(x, y, 3)
    expected = dense.head(dense.solve(1.0, dense.solution(None), *ENDING))
    torch.testing.assert_close(head.weight[::2], expected.weight)


def test_a_fit_may_begin_at_a_head_that_knows_fewer_classes() -> None:
    x, y = blobs(40, 4, 4)
    few = SoftmaxProblem(x[y < 3], y[y < 3], 4)
    start = few.head(few.solve(1.0, few.solution(None), *ENDING))
    whole = SoftmaxProblem(x, y, 4)
    head = whole.head(whole.solve(1.0, whole.solution(start), *ENDING))
    assert objective(head, x, y, 1.0)[1] < 1e-6


def test_a_fit_ends_after_the_allowed_steps() -> None:
    x, y = blobs(60, 8, 3)
    problem = SoftmaxProblem(x, y, 3)
    values = []
    for steps in (1, 3, 1000):
        head = problem.head(problem.solve(10.0, problem.solution(None), steps, 1e-12))
        values.append(objective(head, x, y, 10.0)[0])
    assert values == sorted(values, reverse=True)
    assert values[0] > values[1] > values[2]


def test_a_strength_on_the_path_costs_fewer_than_70_products(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, y = blobs(300, 64, 11, 2.0)
    problem, newton, products = SoftmaxProblem(x, y, 11), SoftmaxProblem._newton, []

    def counted(*given: Any) -> Any:
        found = newton(*given)
        products.append(found[2])
        return found

    monkeypatch.setattr(SoftmaxProblem, "_newton", counted)
    for _ in problem.path(C_VALUES, 1000, 1e-6):
        pass
    assert sum(products) < 70 * len(C_VALUES)


def test_a_rough_fit_predicts_what_the_exact_one_predicts() -> None:
    x, y = blobs(200, 20, 5, 2.0)
    problem = SoftmaxProblem(x[:100], y[:100], 5)
    rough, exact = (problem.path(C_VALUES, 1000, share) for share in (1e-6, 1e-12))
    for first, second in zip(rough, exact, strict=True):
        told = [problem.head(each).scores(x).argmax(dim=1) for each in (first, second)]
        assert int((told[0] != told[1]).sum()) <= 1
        assert (first[:-1] - second[:-1]).norm() <= 2e-3 * second[:-1].norm()
