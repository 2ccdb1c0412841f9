"""Steps of NorMuon."""

import math

import pytest
import torch
from torch import Tensor, nn

from veca.train import muon
from veca.train.muon import POLAR_EXPRESS, NorMuon, NorMuonConfig, PolarConfig, polar_express

NEWTON_SCHULZ = (3.4445, -4.775, 2.0315)
LIKE_TORCH = PolarConfig(steps=(NEWTON_SCHULZ,) * 5, margin=1.0, dtype=torch.bfloat16)
"""What torch.optim.Muon does to its momentum."""

SHAPES = ((12, 8), (8, 12), (12, 8), (10, 10), (12, 8), (4, 30))


def matrices(*shapes: tuple[int, int]) -> list[nn.Parameter]:
    """Weights, the same at every call."""
    draw = torch.Generator().manual_seed(5)
    return [nn.Parameter(torch.randn(shape, generator=draw)) for shape in shapes]


def give_gradients(weights: list[nn.Parameter], step: int) -> None:
    """Gradients by the step alone; rows differ in size, so that evening them matters."""
    draw = torch.Generator().manual_seed(100 + step)
    for weight in weights:
        rows = torch.logspace(0, -1, len(weight)).unsqueeze(1)
        weight.grad = rows * torch.randn(weight.shape, generator=draw)


def trained(optimizer: torch.optim.Optimizer, steps: int = 4) -> list[Tensor]:
    """The weights after some steps."""
    weights = optimizer.param_groups[0]["params"]
    for step in range(steps):
        give_gradients(weights, step)
        optimizer.step()
    return [weight.detach().clone() for weight in weights]


def slow_normuon(weight: Tensor, gradients: list[Tensor], lr: float, decay: float) -> Tensor:
    """The paper's update, number by number where it can be, in double precision."""
    weight = weight.double().clone()
    rows, columns = weight.shape
    momentum, moments = torch.zeros_like(weight), [0.0] * rows
    for gradient in (gradient.double() for gradient in gradients):
        momentum = 0.95 * momentum + gradient
        left, values, right = torch.linalg.svd(gradient + 0.95 * momentum, full_matrices=False)
        values = values / (1.01 * values.square().sum().sqrt() + 1e-7)
        for a, b, c in POLAR_EXPRESS:
            values = a * values + b * values**3 + c * values**5
        step = (left * values) @ right
        norm = step.norm()
        for row in range(rows):
            moments[row] = 0.95 * moments[row] + 0.05 * float(step[row].square().sum()) / columns
            step[row] /= math.sqrt(moments[row]) + 1e-8
        step *= norm / step.norm()
        for row in range(rows):
            for column in range(columns):
                if weight[row, column] * step[row, column] >= 0:
                    weight[row, column] -= lr * decay * weight[row, column]
        weight -= lr * 0.2 * math.sqrt(max(rows, columns)) * step
    return weight


@pytest.mark.parametrize("decay", [0.0, 2.0])
def test_steps_are_the_papers(decay: float) -> None:
    weights = matrices(*SHAPES)
    starts = [weight.detach().clone() for weight in weights]
    gradients: list[list[Tensor]] = []
    for step in range(4):
        give_gradients(weights, step)
        gradients.append([weight.grad.clone() for weight in weights if weight.grad is not None])
    found = trained(NorMuon(weights, lr=0.05, config=NorMuonConfig(weight_decay=decay)))
    for index, (start, end) in enumerate(zip(starts, found, strict=True)):
        wanted = slow_normuon(start, [given[index] for given in gradients], 0.05, decay)
        torch.testing.assert_close(end.double(), wanted, rtol=0, atol=2e-5)


@pytest.mark.parametrize("decay", [0.0, 0.5])
@pytest.mark.parametrize(("momentum", "tolerance"), [(0.5, 1e-6), (0.95, 2e-3)])
def test_without_even_rows_and_caution_it_is_torchs_muon(
    decay: float, momentum: float, tolerance: float
) -> None:
    # Torch's momentum is ours times (1 - momentum): a power of two does not change the rounding to
    # bfloat16, 0.95 does, by one part in 256 of an entry of a step.
    config = NorMuonConfig(
        weight_decay=decay, momentum=momentum, beta2=None, cautious=False, polar=LIKE_TORCH
    )
    ours = trained(NorMuon(matrices(*SHAPES), lr=0.02, config=config))
    theirs = trained(
        torch.optim.Muon(
            matrices(*SHAPES), lr=0.02, weight_decay=decay, momentum=momentum,
            ns_coefficients=NEWTON_SCHULZ, adjust_lr_fn="match_rms_adamw",
        )
    )  # fmt: skip
    for one, other, start in zip(ours, theirs, matrices(*SHAPES), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=tolerance)
        assert float((other - start).detach().abs().max()) > 0.02  # they did move


def test_matrices_without_a_gradient_are_neither_moved_nor_decayed_nor_remembered() -> None:
    weights = matrices((12, 8), (12, 8), (12, 8))
    optimizer = NorMuon(weights, lr=0.1)
    give_gradients(weights, 0)
    weights[1].grad = None
    before = [weight.detach().clone() for weight in weights]
    optimizer.step()
    moved = [not torch.equal(weight, old) for weight, old in zip(weights, before, strict=True)]
    assert moved == [True, False, True]
    assert weights[1] not in optimizer.state


def test_one_that_was_left_out_for_a_step_goes_on_with_the_momentum_it_had() -> None:
    together, apart = matrices((6, 4), (6, 4)), matrices((6, 4), (6, 4))[:1]
    both, alone = NorMuon(together, lr=0.1), NorMuon(apart, lr=0.1)
    for step in (0, 1, 2):
        give_gradients(together, step)
        if step == 1:
            together[0].grad = None
        both.step()
        if step != 1:
            give_gradients(apart, step)
            alone.step()
    torch.testing.assert_close(together[0], apart[0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("most", [1, 250, 10**9])
def test_steps_do_not_depend_on_how_many_matrices_go_together(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = trained(NorMuon(matrices(*SHAPES), lr=0.05))
    monkeypatch.setattr(muon, "MOST_ELEMENTS_ON_CPU", most)
    found = trained(NorMuon(matrices(*SHAPES), lr=0.05))
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)


def test_row_moments_are_means_over_the_columns_of_a_step() -> None:
    weights = matrices((3, 40))
    weights[0].grad = torch.eye(3, 40)
    optimizer = NorMuon(weights, lr=0.1)
    optimizer.step()
    step = polar_express(torch.eye(3, 40))  # equal rows are even already
    wanted = 0.05 * step.square().sum(1) / 40
    torch.testing.assert_close(optimizer.state[weights[0]]["row_moment"], wanted)


def test_a_gradient_of_zeros_moves_nothing_and_stays_finite() -> None:
    weights = matrices((5, 3))
    before = weights[0].detach().clone()
    weights[0].grad = torch.zeros(5, 3)
    NorMuon(weights, lr=0.1, config=NorMuonConfig(weight_decay=0.0)).step()
    assert torch.equal(weights[0], before)


def test_steps_do_not_depend_on_the_size_of_gradients() -> None:
    found = []
    for size in (1e-3, 1.0, 1e3):
        weights = matrices((12, 8))
        optimizer = NorMuon(weights, lr=0.05)
        give_gradients(weights, 0)
        for weight in weights:
            weight.grad = size * weight.grad if weight.grad is not None else None
        optimizer.step()
        found.append(weights[0].detach())
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-5)
    torch.testing.assert_close(found[2], found[1], rtol=0, atol=1e-5)


def test_a_step_has_about_the_size_of_an_adamw_step() -> None:
    weights = matrices((64, 48))
    start = weights[0].detach().clone()
    weights[0].grad = torch.randn(64, 48)
    NorMuon(weights, lr=0.01, config=NorMuonConfig(weight_decay=0.0)).step()
    size = float((weights[0].detach() - start).square().mean().sqrt())
    assert size == pytest.approx(0.2 * 0.01, rel=0.15)


def test_equal_runs_give_equal_bits() -> None:
    first, second = (trained(NorMuon(matrices(*SHAPES), lr=0.05)) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def test_parameters_that_are_no_matrices_are_refused() -> None:
    with pytest.raises(ValueError, match=r"shape \(3,\); give it to AdamW"):
        NorMuon([nn.Parameter(torch.zeros(3))])
