"""The best answer that does not look."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from veca.distill.losses import LossConfig, distillation_losses
from veca.distill.target_scaling import (
    Constants,
    Moments,
    TargetScaling,
    best_constants,
    loss_of_constants,
    losses_of_constants,
)
from veca.teacher.teacher import Targets

KINDS = ("positive", "centered", "scattered", "opposed", "few")


def drawn_targets(kind: str, seed: int) -> Targets:
    """Targets of a kind of teacher, in double precision so that a search can be compared."""
    torch.manual_seed(seed)
    image, patches = torch.randn(20, 5).double(), torch.randn(20, 6, 5).double()
    if kind == "positive":
        return Targets((image - 0.5).relu(), (patches - 0.5).relu() * 4)
    if kind == "centered":
        targets = Targets(image.exp(), patches.exp())
        return TargetScaling.from_moments(*moments_of(targets)).double()(targets)
    if kind == "opposed":  # few long vectors against many short ones: U and m disagree
        patches[:, 0] = torch.tensor([-30.0, 1, 0, 0, 0])
        patches[:, 1:, 0] = patches[:, 1:, 0].abs() + 0.5
    if kind == "few":
        return Targets(image[:2], patches[:2, :1])
    return Targets(image + 0.3, patches + torch.randn(5))


def moments_of(targets: Targets) -> tuple[Moments, Moments]:
    """Moments of image and patch targets."""
    found = Moments(targets.image.shape[-1]), Moments(targets.patches.shape[-1])
    found[0].add(targets.image)
    found[1].add(targets.patches)
    return found


def patch_loss(answer: Tensor, targets: Targets, config: LossConfig) -> Tensor:
    """The patch part of the loss of a constant, target by target, in double precision."""
    rows = targets.patches.flatten(0, 1)
    cosines = torch.cosine_similarity(answer.expand_as(rows), rows, dim=1, eps=1e-6)
    return 1 - cosines.mean() + config.error * (answer - rows).square().mean()


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_by_moments_is_that_of_the_training_loss_with_the_constant_as_answer(
    kind: str,
) -> None:
    targets = drawn_targets(kind, seed=0)
    answer = Constants(torch.randn(5).double(), torch.randn(5).double())
    single = Targets(targets.image.float(), targets.patches.float())
    wanted = distillation_losses(
        answer.image.expand_as(targets.image), answer.patches.expand_as(targets.patches), single
    )
    found = losses_of_constants(answer, *moments_of(targets))
    assert [float(part) for part in found] == pytest.approx(
        [float(part) for part in wanted], rel=1e-5, abs=1e-5
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("error", [0.0, 0.1, 1.0, 20.0])
def test_no_search_by_gradients_finds_a_better_constant(kind: str, error: float) -> None:
    targets, config = drawn_targets(kind, seed=3), LossConfig(error=error)
    best = best_constants(*moments_of(targets), config)
    reached = float(patch_loss(best.patches, targets, config))
    rows = targets.patches.flatten(0, 1)
    for start in (rows.mean(0), rows.median(0).values, -rows.mean(0), *torch.randn(3, 5).double()):
        answer = start.clone().requires_grad_()
        search = torch.optim.LBFGS([answer], max_iter=200, line_search_fn="strong_wolfe")

        def closure(answer: Tensor = answer, search: torch.optim.LBFGS = search) -> float:
            search.zero_grad()
            loss = patch_loss(answer, targets, config)
            loss.backward()
            return float(loss.detach())

        search.step(closure)
        assert reached <= float(patch_loss(answer.detach(), targets, config)) + 1e-7


@settings(max_examples=30)
@given(
    kind=st.sampled_from(KINDS), seed=st.integers(0, 10_000), error=st.sampled_from([0.0, 0.3, 1.0])
)
def test_no_constant_drawn_at_random_beats_the_best(kind: str, seed: int, error: float) -> None:
    targets, config = drawn_targets(kind, seed), LossConfig(error=error)
    moments = moments_of(targets)
    best = best_constants(*moments, config)
    reached = loss_of_constants(best, *moments, config)
    rows, images = targets.patches.flatten(0, 1), targets.image
    for width in (1e-3, 0.1, 1.0):
        near = Constants(
            best.image + width * torch.randn(5).double(),
            best.patches + width * torch.randn(5).double(),
        )
        assert reached <= loss_of_constants(near, *moments, config) + 1e-9
    one = Constants(images[seed % len(images)], rows[seed % len(rows)])
    mean = Constants(images.mean(0), rows.mean(0))
    for other in (one, mean):
        assert reached <= loss_of_constants(other, *moments, config) + 1e-9


def test_the_best_image_answer_has_the_closed_forms_loss() -> None:
    moments = moments_of(drawn_targets("positive", seed=1))
    best = best_constants(*moments, LossConfig())
    found = losses_of_constants(best, *moments)
    assert float(found.image) == pytest.approx(1 - float(moments[0].unit_mean.norm()), rel=1e-12)


def test_centered_targets_leave_little_to_a_constant() -> None:
    moments = moments_of(drawn_targets("centered", seed=1))
    found = losses_of_constants(best_constants(*moments, LossConfig()), *moments)
    assert float(found.patch_error) == pytest.approx(1, rel=1e-4)
    assert float(found.patch_cosine) == pytest.approx(
        1 - float(moments[1].unit_mean.norm()), rel=1e-4
    )


def test_raw_positive_targets_give_a_constant_more_than_centered_ones() -> None:
    raw = drawn_targets("positive", seed=4)
    scaled = TargetScaling.from_moments(*moments_of(raw)).double()(raw)
    losses = [
        losses_of_constants(
            best_constants(*moments_of(targets), LossConfig()), *moments_of(targets)
        )
        for targets in (raw, scaled)
    ]
    assert float(losses[0].image) < 0.8 * float(losses[1].image)


def test_targets_without_any_direction_have_an_answer_too() -> None:
    moments = Moments(2), Moments(2)
    for found in moments:
        found.add(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]))
    best = best_constants(*moments, LossConfig())
    assert loss_of_constants(best, *moments, LossConfig()) == pytest.approx(1 + 1 + 0.5)
