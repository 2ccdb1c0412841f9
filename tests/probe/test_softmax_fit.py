"""Every fit ends at the optimum, whatever the shape of the features and wherever it began."""

from typing import Any

import pytest
import torch

from tests.probe.logistic_oracle import blobs, objective
from veca.probe import logistic as softmax_fit
from veca.probe.logistic import DINO_STRENGTHS, Ending, SoftmaxProblem

ENDING = Ending(1000, 1e-12)

SHAPES = [(60, 8, 3), (30, 50, 4), (40, 5, 2), (7, 7, 7)]
"""Pictures, numbers, classes: also fewer pictures than numbers, two classes, one of each."""


@pytest.mark.parametrize("strength", [1e-6, 1e-2, 1.0, 1e5])
@pytest.mark.parametrize(("rows", "width", "classes"), SHAPES)
def test_the_gradient_vanishes_at_the_solution(
    rows: int, width: int, classes: int, strength: float
) -> None:
    x, y = blobs(rows, width, classes)
    problem = SoftmaxProblem(x, y, classes)
    *_, solution = problem.path([strength * 0.1**power for power in range(6, -1, -1)], ENDING)
    head = problem.head(solution)
    assert objective(head, x, y, strength)[1] < 1e-6
    assert float(head.bias.mean()) == pytest.approx(0, abs=1e-9)


def test_a_solution_survives_the_way_through_a_head() -> None:
    x, y = blobs(40, 6, 3)
    problem = SoftmaxProblem(x, y, 3)
    solution = problem.solve(0.1, problem.solution(None), ENDING)
    again = problem.solution(problem.head(solution))
    torch.testing.assert_close(again[:-1], solution[:-1])
    torch.testing.assert_close(again[-1] - again[-1].mean(), solution[-1] - solution[-1].mean())


def test_where_a_fit_begins_does_not_matter() -> None:
    x, y = blobs(80, 6, 4)
    problem = SoftmaxProblem(x, y, 4)
    nothing = problem.solution(None)
    cold = problem.solve(3.0, nothing, ENDING)
    warm = problem.solve(3.0, problem.solve(0.01, nothing, ENDING), ENDING)
    wild = problem.solve(3.0, 100 * torch.randn_like(nothing), ENDING)
    for other in (warm, wild):
        torch.testing.assert_close(problem.head(other).weight, problem.head(cold).weight)
        torch.testing.assert_close(problem.head(other).bias, problem.head(cold).bias)


def test_a_class_without_pictures_gets_no_weights_and_is_never_told() -> None:
    x, y = blobs(30, 4, 3)
    problem = SoftmaxProblem(x, y * 2, 6)
    head = problem.head(problem.solve(1.0, problem.solution(None), ENDING))
    assert head.bias.isfinite().tolist() == [True, False, True, False, True, False]
    assert not head.weight[1::2].any()
    dense = SoftmaxProblem(x, y, 3)
    expected = dense.head(dense.solve(1.0, dense.solution(None), ENDING))
    torch.testing.assert_close(head.weight[::2], expected.weight)


def test_a_fit_may_begin_at_a_head_that_knows_fewer_classes() -> None:
    x, y = blobs(40, 4, 4)
    few = SoftmaxProblem(x[y < 3], y[y < 3], 4)
    start = few.head(few.solve(1.0, few.solution(None), ENDING))
    whole = SoftmaxProblem(x, y, 4)
    head = whole.head(whole.solve(1.0, whole.solution(start), ENDING))
    assert objective(head, x, y, 1.0)[1] < 1e-6


def test_one_class_alone_is_told_always() -> None:
    problem = SoftmaxProblem(torch.randn(5, 3), torch.full((5,), 1), 3)
    head = problem.head(problem.solve(1.0, problem.solution(None), ENDING))
    assert head.scores(torch.randn(9, 3)).argmax(dim=1).tolist() == [1] * 9


def test_features_that_say_nothing_leave_the_shares_of_the_classes() -> None:
    y = torch.tensor([0, 0, 0, 1])
    problem = SoftmaxProblem(torch.ones(4, 3), y, 2)
    head = problem.head(problem.solve(1.0, problem.solution(None), ENDING))
    assert head.probabilities(torch.ones(1, 3))[0].tolist() == pytest.approx([0.75, 0.25])


def test_a_fit_ends_after_the_allowed_steps() -> None:
    x, y = blobs(60, 8, 3)
    problem = SoftmaxProblem(x, y, 3)
    values = []
    for steps in (1, 3, 1000):
        head = problem.head(problem.solve(10.0, problem.solution(None), Ending(steps, 1e-12)))
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
    for _ in problem.path(DINO_STRENGTHS, Ending(1000, 1e-6)):
        pass
    assert sum(products) < 70 * len(DINO_STRENGTHS)


def test_a_rough_fit_tells_what_the_exact_one_does() -> None:
    x, y = blobs(200, 20, 5, 2.0)
    problem = SoftmaxProblem(x[:100], y[:100], 5)
    rough, exact = (problem.path(DINO_STRENGTHS, Ending(1000, share)) for share in (1e-6, 1e-12))
    for first, second in zip(rough, exact, strict=True):
        told = [problem.head(each).scores(x).argmax(dim=1) for each in (first, second)]
        assert int((told[0] != told[1]).sum()) <= 1
        assert (first[:-1] - second[:-1]).norm() <= 2e-3 * second[:-1].norm()


def test_a_search_for_a_length_that_is_cut_short_makes_nothing_worse(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, y = blobs(60, 8, 3)
    problem = SoftmaxProblem(x, y, 3)
    nothing, penalty = problem.solution(None), problem.penalty(1e5)
    for tries in (1, 2, 3):
        monkeypatch.setattr(softmax_fit, "TRIES", tries)
        found = problem.solve(1e5, nothing, ENDING)
        assert problem.objective(found, penalty) <= problem.objective(nothing, penalty)
