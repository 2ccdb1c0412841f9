"""Logistic regression is that of scikit-learn, and C is chosen on pictures it was not fitted to."""

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.probe.logistic_oracle import blobs, objective
from veca.probe.heads import LinearHead
from veca.probe.held_out import hold_out
from veca.probe.logistic import (
    DINO,
    LogisticConfig,
    LogisticError,
    choose_logistic,
    fit_logistic,
    logistic_path,
)
from veca.probe.metrics import top1

FEW = LogisticConfig(strengths=(1e-4, 1e-2, 1.0, 100.0))

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


@pytest.mark.parametrize("strength", [1e-3, 1.0, 100.0])
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


def test_the_path_passes_through_the_optimum_of_every_strength() -> None:
    x, y = blobs(150, 12, 4, 1.5)
    exact = LogisticConfig(path_tolerance=1e-12)
    for strength, head in logistic_path(x, y, 4, exact):
        assert objective(head, x, y, strength)[1] < 1e-6
    assert strength == pytest.approx(1e5)


def test_the_strengths_are_those_of_dinov2() -> None:
    expected = 10 ** torch.linspace(-6, 5, 45, dtype=torch.float64)
    assert DINO.strengths == pytest.approx(expected.tolist(), rel=1e-12)


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


def test_the_best_strength_on_pictures_put_aside_is_fitted_again_on_all() -> None:
    x, y = blobs(120, 8, 3, 2.5)
    heard: list[int] = []
    chosen = choose_logistic(x, y, 3, FEW, advance=heard.append)
    kept, aside = hold_out(120, 0.1, 0)
    expected = {
        strength: top1(fit_logistic(x[kept], y[kept], 3, strength).scores(x[aside]), y[aside])
        for strength in FEW.strengths
    }
    assert chosen.accuracies == pytest.approx(expected)
    assert chosen.strength == max(expected, key=lambda each: expected[each])
    assert objective(chosen.head, x, y, chosen.strength)[1] < 1e-6
    assert heard == [1, 1, 1, 1]
    assert chosen.fitted_on == 120


def test_a_part_of_its_own_decides_and_is_then_learned_too() -> None:
    x, y = blobs(160, 8, 3, 2.5)
    own = (x[100:], y[100:])
    chosen = choose_logistic(x[:100], y[:100], 3, FEW, own)
    strengths = chosen.accuracies
    for strength in FEW.strengths:
        head = fit_logistic(x[:100], y[:100], 3, strength)
        assert strengths[strength] == pytest.approx(top1(head.scores(own[0]), own[1]))
    assert objective(chosen.head, x, y, chosen.strength)[1] < 1e-6
    assert chosen.fitted_on == 160


def test_of_equally_good_strengths_the_smallest_is_chosen() -> None:
    x, y = blobs(60, 4, 2, 0.01)
    chosen = choose_logistic(x, y, 2, FEW)
    assert chosen.accuracies[1.0] == chosen.accuracies[100.0] == 100
    first = next(each for each, found in chosen.accuracies.items() if found == 100)
    assert chosen.strength == first


def test_the_choice_may_be_by_another_metric() -> None:
    x, y = blobs(100, 5, 3, 2.0)
    several = torch.nn.functional.one_hot(y, 3).bool()
    by_class = choose_logistic(
        x, y, 3, LogisticConfig(strengths=(0.1, 1.0), metric="mean_per_class")
    )
    by_map = choose_logistic(x, several, 3, LogisticConfig(strengths=(0.1, 1.0), metric="map"))
    assert by_class.accuracies != by_map.accuracies


def test_one_seed_gives_the_same_bits_twice() -> None:
    x, y = blobs(100, 5, 3, 2.0)
    first, again = (choose_logistic(x.float(), y, 3, FEW) for _ in range(2))
    assert torch.equal(first.head.weight, again.head.weight)
    assert first.accuracies == again.accuracies


def test_what_cannot_be_fitted_is_refused() -> None:
    x, y = blobs(20, 3, 2)
    with pytest.raises(LogisticError, match="no picture has a class"):
        fit_logistic(x, torch.zeros(20, 2, dtype=torch.bool), 2, 1.0)
    with pytest.raises(LogisticError, match="not finite"):
        fit_logistic(x * torch.inf, y, 2, 1.0)
    for strengths in ((), (0.0, 1.0)):
        with pytest.raises(LogisticError, match="no values of C"):
            LogisticConfig(strengths=strengths)
    with pytest.raises(LogisticError, match="do not rise"):
        LogisticConfig(strengths=(1.0, 0.1))
    with pytest.raises(LogisticError, match="end no fit"):
        LogisticConfig(max_iterations=0)
