"""Orthogonal directions by Polar Express."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from veca.train.muon import POLAR_EXPRESS, PolarConfig, polar_express

Coefficients = NDArray[np.float64]


def best_quintic(low: float, high: float) -> Coefficients:
    """The odd quintic nearest to one on an interval: Remez' exchange of its extreme points."""
    points = np.array([low, (2 * low + high) / 3, (low + 2 * high) / 3, high])
    for _ in range(100):
        signs = np.array([1.0, -1.0, 1.0, -1.0])
        powers = np.stack((points, points**3, points**5, signs), axis=1)
        a, b, c, _error = np.linalg.solve(powers, np.ones(4))
        turns = np.sqrt(np.roots([5 * c, 3 * b, a]))
        points[1:3] = np.sort(turns)
    return np.array([a, b, c])


def value_at(quintic: Coefficients, point: float) -> float:
    """An odd quintic at a point."""
    return float(quintic @ point ** np.array([1, 3, 5]))


def derived_steps(count: int, low: float, cushion: float, safety: float) -> list[Tensor]:
    """Polar Express as its paper derives it: each quintic is best for what the last one left."""
    high, found = 1.0, []
    for number in range(count):
        quintic = best_quintic(max(low, cushion * high), high)
        if cushion * high > low:  # values below the cushion count too: center all around one
            quintic *= 2 / sum(value_at(quintic, end) for end in (low, high))
        if number + 1 < count:
            quintic /= safety ** np.array([1, 3, 5])
        found.append(torch.from_numpy(quintic))
        low = value_at(quintic, low)
        high = 2 - low
    return found


def slow_polar(matrix: Tensor) -> Tensor:
    """The same steps as functions of singular values, in double precision."""
    left, values, right = torch.linalg.svd(matrix.double(), full_matrices=False)
    values = values / (1.01 * values.square().sum().sqrt() + 1e-7)
    for a, b, c in POLAR_EXPRESS:
        values = a * values + b * values**3 + c * values**5
    return (left * values) @ right


def with_values(values: Tensor, rows: int, columns: int) -> Tensor:
    """A matrix with given singular values."""
    left, _ = torch.linalg.qr(torch.randn(rows, len(values), dtype=torch.float64))
    right, _ = torch.linalg.qr(torch.randn(columns, len(values), dtype=torch.float64))
    return ((left * values.double()) @ right.T).float()


def test_the_five_steps_are_those_that_the_derivation_gives() -> None:
    steps = derived_steps(5, low=1e-3, cushion=0.02, safety=1.01)
    torch.testing.assert_close(
        torch.stack(steps), torch.tensor(POLAR_EXPRESS).double(), rtol=0, atol=2e-6
    )


@pytest.mark.parametrize("shape", [(1024, 192), (192, 1024), (300, 200)])
def test_well_conditioned_matrices_come_near_their_orthogonal_factor(
    shape: tuple[int, int],
) -> None:
    matrix = torch.randn(shape)
    if shape == (300, 200):
        matrix = with_values(torch.linspace(0.3, 1, 200), *shape)
    found = polar_express(matrix).double()
    left, _, right = torch.linalg.svd(matrix.double(), full_matrices=False)
    values = torch.linalg.svdvals(found)
    assert float(values.min()) >= 0.858
    assert float(values.max()) <= 1.133
    error = torch.linalg.matrix_norm(found - left @ right, ord=2)
    assert (
        float(error) <= 0.142
    )  # as far as the singular values are from one, no singular vector turned


@pytest.mark.parametrize("shape", [(24, 24), (40, 24), (24, 60), (60, 24), (1, 7), (7, 1), (1, 1)])
def test_steps_act_on_singular_values_alone(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape)
    torch.testing.assert_close(
        polar_express(matrix).double(), slow_polar(matrix), rtol=0, atol=1e-4
    )


@pytest.mark.parametrize("columns", [48, 96, 300])  # steps one by one, and in two legs
@pytest.mark.parametrize(
    "values",
    [
        torch.logspace(0, -3, 48),
        torch.logspace(0, -6, 48),
        torch.cat((torch.ones(4), torch.zeros(44))),
        torch.cat((torch.ones(1), torch.full((47,), 1e-4))),
    ],
)
def test_ill_conditioned_matrices_lose_no_precision_in_either_form(
    columns: int, values: Tensor
) -> None:
    matrix = with_values(values, 48, columns)
    found, wanted = polar_express(matrix).double(), slow_polar(matrix)
    assert float((found - wanted).norm() / wanted.norm()) < 2e-4


def test_singular_values_too_small_for_five_steps_stay_small() -> None:
    values = torch.linalg.svdvals(polar_express(with_values(torch.logspace(0, -8, 32), 32, 32)))
    assert float(values.min()) < 1e-3
    assert float(values.max()) < 1.14


@settings(max_examples=20)
@given(
    count=st.integers(1, 4), rows=st.integers(1, 20), columns=st.integers(1, 20),
    scale=st.sampled_from([1e-3, 1.0, 1e4]),
)  # fmt: skip
def test_a_stack_is_made_orthogonal_matrix_by_matrix_whatever_their_size(
    count: int, rows: int, columns: int, scale: float
) -> None:
    stack = scale * torch.randn(count, rows, columns)
    singly = torch.stack([polar_express(matrix) for matrix in stack])
    torch.testing.assert_close(polar_express(stack), singly, rtol=1e-5, atol=1e-5)


def test_the_transpose_gives_the_transpose() -> None:
    matrix = torch.randn(12, 50)
    torch.testing.assert_close(polar_express(matrix.T), polar_express(matrix).T, rtol=0, atol=1e-6)


def test_a_matrix_of_zeros_stays_zero_and_input_is_not_changed() -> None:
    assert torch.equal(polar_express(torch.zeros(2, 4, 3)), torch.zeros(2, 4, 3))
    matrix = torch.randn(5, 4)
    before = matrix.clone()
    polar_express(matrix)
    assert torch.equal(matrix, before)


def test_half_precision_is_near_and_comes_back_in_the_precision_given() -> None:
    matrix = torch.randn(64, 256)
    half = polar_express(matrix, PolarConfig(dtype=torch.bfloat16))
    assert half.dtype == torch.float32
    assert not torch.equal(half, polar_express(matrix))
    assert float((half - polar_express(matrix)).norm() / half.norm()) < 0.03


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(192, 192), (1024, 192), (192, 512)])
def test_singular_values_of_layers_come_near_one_in_either_precision(
    shape: tuple[int, int], dtype: torch.dtype
) -> None:
    decades = torch.logspace(0, -2.3, min(shape))  # down to 0.001 of the Frobenius norm
    for matrix in (
        with_values(decades, *shape),
        with_values(torch.rand(min(shape)) + 0.01, *shape),
    ):
        values = torch.linalg.svdvals(polar_express(matrix, PolarConfig(dtype=dtype)))
        assert float(values.min()) > 0.86
        assert float(values.max()) < 1.14


@pytest.mark.parametrize("columns", [9, 30])
def test_other_steps_replace_the_papers(columns: int) -> None:
    matrix = torch.randn(6, columns)
    none = polar_express(matrix, PolarConfig(steps=(), margin=1.0))
    torch.testing.assert_close(none, matrix / matrix.norm())
    cubic = polar_express(matrix, PolarConfig(steps=((1.5, -0.5, 0.0),) * 60, margin=1.0))
    torch.testing.assert_close(cubic @ cubic.T, torch.eye(6), rtol=0, atol=1e-5)
