"""Sums over target vectors."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from veca.distill.target_scaling import Moments


def test_moments_are_those_of_all_vectors_together() -> None:
    patches = torch.randn(3, 5, 7) + 2
    moments = Moments(7)
    for part in patches.split(2):
        moments.add(part)
    rows = patches.double().numpy().reshape(-1, 7)
    units = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    assert int(moments.count) == 15
    np.testing.assert_allclose(moments.mean, rows.mean(0), rtol=1e-12)
    np.testing.assert_allclose(moments.unit_mean, units.mean(0), rtol=1e-12)
    assert float(moments.mean_square) == pytest.approx((rows**2).mean(), rel=1e-12)


def test_a_vector_of_zeros_has_no_direction() -> None:
    moments = Moments(2)
    moments.add(torch.tensor([[0.0, 0.0], [3.0, 4.0]]))
    assert moments.unit_mean.tolist() == pytest.approx([0.3, 0.4])


def test_short_vectors_count_with_their_whole_direction() -> None:
    moments = Moments(2)
    moments.add(torch.tensor([[3e-3, 4e-3], [0.0, -2e-5]]))
    assert moments.unit_mean.tolist() == pytest.approx([0.3, -0.1])


def test_sums_of_large_features_keep_what_single_precision_would_lose() -> None:
    moments = Moments(1)
    for _ in range(100):
        moments.add(torch.full((1000, 1), 4096.0) + torch.tensor([[0.5]]))
    assert float(moments.mean) == 4096.5
    assert float(moments.mean_square) == 4096.5**2


@given(cut=st.integers(0, 12))
def test_merged_moments_are_those_of_one_process(cut: int) -> None:
    torch.manual_seed(2)
    vectors = torch.randn(12, 4)
    together, first, second = Moments(4), Moments(4), Moments(4)
    together.add(vectors)
    first.add(vectors[:cut])
    second.add(vectors[cut:])
    first.merge(second)
    for name, tensor in together.tensors().items():
        torch.testing.assert_close(first.tensors()[name], tensor, rtol=1e-13, atol=1e-13)


def test_stored_moments_go_on_exactly() -> None:
    vectors = torch.randn(2, 8, 3)
    whole, stored = Moments(3), Moments(3)
    whole.add(vectors[0])
    stored.load({name: tensor.clone() for name, tensor in whole.tensors().items()})
    for moments in (whole, stored):
        moments.add(vectors[1])
    for name, tensor in whole.tensors().items():
        assert torch.equal(stored.tensors()[name], tensor)


def test_moments_of_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="add some first"):
        _ = Moments(3).mean
