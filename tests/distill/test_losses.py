"""Parts of the loss, beside slow computations of each."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from veca.distill.losses import (
    LossConfig,
    Losses,
    Prediction,
    compare,
    distillation_losses,
    objective,
    teacher_losses,
)
from veca.teacher.teacher import Targets


def slow_cosine(one: NDArray[np.float64], two: NDArray[np.float64]) -> float:
    """By hand, with lengths of at least 1e-6."""
    lengths = [max(math.sqrt(sum(v * v for v in vector)), 1e-6) for vector in (one, two)]
    return float(sum(a * b for a, b in zip(one, two, strict=True)) / (lengths[0] * lengths[1]))


def slow_losses(image: Tensor, patches: Tensor, targets: Targets) -> tuple[float, float, float]:
    """One vector after another, in double precision."""
    tensors = (image, patches, *targets)
    one, many, wanted_one, wanted_many = (tensor.double().numpy() for tensor in tensors)
    vectors, wanted = many.reshape(-1, many.shape[-1]), wanted_many.reshape(-1, many.shape[-1])
    return (
        float(np.mean([1 - slow_cosine(a, b) for a, b in zip(one, wanted_one, strict=True)])),
        float(np.mean([1 - slow_cosine(a, b) for a, b in zip(vectors, wanted, strict=True)])),
        float(np.mean([(a - b) ** 2 for a, b in zip(vectors, wanted, strict=True)])),
    )


def drawn(batch: int, count: int, widths: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """An image feature and patches of two widths."""
    return torch.randn(batch, widths[0]), 3 * torch.randn(batch, count, widths[1])


@given(
    seed=st.integers(0, 2**31), batch=st.integers(1, 3), count=st.integers(1, 5),
    widths=st.tuples(st.integers(1, 9), st.integers(1, 9)),
)  # fmt: skip
def test_losses_equal_those_computed_vector_by_vector(
    seed: int, batch: int, count: int, widths: tuple[int, int]
) -> None:
    torch.manual_seed(seed)
    said, targets = drawn(batch, count, widths), Targets(*drawn(batch, count, widths))
    found = distillation_losses(*said, targets)
    assert [float(part) for part in found] == pytest.approx(
        slow_losses(*said, targets), rel=1e-5, abs=1e-6
    )


def test_a_perfect_answer_has_no_loss_and_the_length_of_the_image_feature_is_free() -> None:
    image, patches = drawn(2, 3, (8, 8))
    losses = distillation_losses(5 * image, patches, Targets(image, patches))
    assert [float(part) for part in losses] == pytest.approx([0, 0, 0], abs=1e-6)
    shorter = distillation_losses(image, patches / 2, Targets(image, patches))
    assert float(shorter.patch_cosine) == pytest.approx(0, abs=1e-6)
    assert float(shorter.patch_error) == pytest.approx(float(patches.square().mean()) / 4)


def test_the_total_weighs_patches_and_their_error_as_the_paper_does() -> None:
    parts = Losses(torch.tensor(0.5), torch.tensor(0.25), torch.tensor(2.0))
    assert float(parts.total(LossConfig())) == 2.75
    assert float(parts.total(LossConfig(patches=2.0, error=0.5))) == 3.0
    assert float(parts.total(LossConfig(patches=0.0))) == 0.5


def test_half_precision_features_are_compared_in_single_precision() -> None:
    said, targets = drawn(2, 3, (8, 8)), Targets(*drawn(2, 3, (8, 8)))
    image, patches = (tensor.bfloat16() for tensor in said)
    with torch.autocast("cpu", torch.bfloat16):
        losses = distillation_losses(image, patches, targets)
    assert {part.dtype for part in losses} == {torch.float32}
    exact = distillation_losses(image.float(), patches.float(), targets)
    torch.testing.assert_close(torch.stack(losses), torch.stack(exact), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("zeros", ["said", "wanted", "both"])
def test_vectors_of_zeros_have_finite_losses_and_gradients(zeros: str) -> None:
    image, patches = torch.zeros(2, 4), torch.zeros(2, 3, 4)
    noise = drawn(2, 3, (4, 4))
    said = [
        tensor.clone().requires_grad_()
        for tensor in (noise if zeros == "wanted" else (image, patches))
    ]
    targets = Targets(*noise) if zeros == "said" else Targets(image, patches)
    losses = distillation_losses(said[0], said[1], targets)
    losses.total(LossConfig()).backward()
    assert float(losses.image.detach()) == pytest.approx(1)
    for tensor in said:
        assert tensor.grad is not None
        assert tensor.grad.isfinite().all()


@pytest.mark.parametrize("weight", [-1.0, math.nan, math.inf])
def test_a_weight_that_rewards_being_wrong_is_refused(weight: float) -> None:
    with pytest.raises(ValueError, match="finite and >= 0"):
        LossConfig(patches=weight)
    with pytest.raises(ValueError, match="finite and >= 0"):
        LossConfig(error=weight)


def test_the_objective_weighs_teachers() -> None:
    config = LossConfig(patches=0.5)
    parts = torch.rand(2, 3)
    losses = teacher_losses(parts, config)
    torch.testing.assert_close(
        objective(parts, (0.3, 2.0), config), 0.3 * losses[0] + 2 * losses[1]
    )


def test_a_student_is_compared_with_each_teacher() -> None:
    said = [Prediction(*drawn(3, 4, (12, 20))) for _ in range(2)]
    wanted = [Targets(*drawn(3, 4, (12, 20))) for _ in range(2)]
    slow = [
        list(distillation_losses(one.image, one.patches, aim))
        for one, aim in zip(said, wanted, strict=True)
    ]
    torch.testing.assert_close(compare(said, wanted), torch.tensor(slow))
