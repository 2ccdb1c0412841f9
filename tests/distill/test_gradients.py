"""Norm and clipping of gradients."""

import math

import pytest
import torch
from torch import nn

from veca.train.optimizers import clip_gradients, gradient_norm


def parameters(*gradients: list[float] | None) -> list[nn.Parameter]:
    """Parameters with these gradients."""
    made = [nn.Parameter(torch.zeros(len(values or [0.0]))) for values in gradients]
    for parameter, values in zip(made, gradients, strict=True):
        parameter.grad = None if values is None else torch.tensor(values)
    return made


def gradients_of(found: list[nn.Parameter]) -> list[list[float] | None]:
    """Gradients as numbers."""
    return [None if p.grad is None else p.grad.tolist() for p in found]


def test_the_norm_is_that_of_all_gradients_as_one_vector() -> None:
    assert float(gradient_norm(parameters([3.0, 4.0], None, [12.0]))) == 13.0
    assert float(gradient_norm(parameters(None))) == 0.0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_one_number_that_is_not_finite_makes_the_norm_so(bad: float) -> None:
    assert not gradient_norm(parameters([3.0, 4.0], [bad, 1.0])).isfinite()


def test_gradients_beyond_the_limit_are_scaled_to_it() -> None:
    found = parameters([3.0, 4.0], None, [12.0])
    clip_gradients(found, gradient_norm(found), 6.5)
    assert gradients_of(found) == [[1.5, 2.0], None, [6.0]]


def test_gradients_within_the_limit_stay_bit_for_bit() -> None:
    values = torch.randn(100).tolist()
    found = parameters(values)
    before = [parameter.grad for parameter in found]
    clip_gradients(found, float(gradient_norm(found)), float(gradient_norm(found)))
    assert [torch.tensor(values).tolist()] == gradients_of(found)
    assert found[0].grad is before[0]
