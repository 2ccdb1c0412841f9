"""Parameter groups, updates, state that survives a resume; NorMuon and Polar Express."""

import math
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor, nn

import veca
from veca.distill.student import Adaptor
from veca.runtime.device import ResolvedPrecision
from veca.train import muon
from veca.train.muon import POLAR_EXPRESS, NorMuon, polar_express
from veca.train.optimizers import (
    OptimizerConfig,
    Optimizers,
    clip_gradients,
    gradient_norm,
    split_parameters,
)

PAPER = OptimizerConfig()
TINY = veca.BackboneConfig(layers=2, width=32, heads=2, budgets=(4, 8), ffn_shares=(0.5, 1.0))


STEP_PARTS = ("head.weight", "head.bias", "scale")
"""Of a layer that moves cores."""


def student(seed: int = 0) -> nn.ModuleDict:
    """A small backbone with an adaptor, the same at every call."""
    torch.manual_seed(seed)
    return nn.ModuleDict({"backbone": veca.VECA(TINY), "adaptor": Adaptor(32, 24, 40, "linear")})


def learn(model: nn.ModuleDict, step: int, budget: int) -> None:
    """Gradients of a step, which depend on it and on the weights alone."""
    draw = torch.Generator().manual_seed(step)
    model["backbone"].eval()
    features = model["backbone"](torch.randn(2, 3, 32, 32, generator=draw), budget)
    image, patches = model["adaptor"](features)
    (image.square().mean() + (patches - 1).square().mean()).backward()


def run(model: nn.ModuleDict, optimizers: Optimizers, steps: range) -> None:
    """Steps with changing budgets and rates."""
    for step in steps:
        learn(model, step, budget=(4, 8)[step % 2])
        optimizers.step(1e-2 / (step + 1))
        optimizers.zero_grad()


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Copies of all weights."""
    return {name: value.detach().clone() for name, value in model.named_parameters()}


@pytest.mark.parametrize(
    ("size", "matrices", "others"),
    [
        ("small", 20_840_448, 788_513),
        ("small-plus", 27_721_728, 997_409),
        ("base", 83_361_792, 2_363_297),
        ("large", 299_145_216, 4_050_085),
    ],
)
def test_the_split_has_the_papers_counts(size: str, matrices: int, others: int) -> None:
    with torch.device("meta"):
        split = split_parameters(veca.build(size))
    assert sum(parameter.numel() for parameter in split[0].values()) == matrices
    assert sum(parameter.numel() for parameter in split[1].values()) == others


def test_matrices_are_the_linear_weights_except_output_layers() -> None:
    matrices, others = split_parameters(student())
    block = ("attention.query", "attention.key", "attention.value", "attention.output")
    names = [f"backbone.blocks.{index}.{part}.weight" for index in (0, 1)
             for part in (*block, "feedforward.expand", "feedforward.contract")]  # fmt: skip
    names.remove("backbone.blocks.1.feedforward.contract.weight")
    assert set(matrices) == {*names, "adaptor.image.weight", "adaptor.patches.weight"}
    assert "backbone.core_steps.0.head.weight" in others
    assert "backbone.core_bank.tokens.0" in others
    assert set(matrices) | set(others) == {name for name, _ in student().named_parameters()}


def test_cores_beyond_the_budget_are_neither_moved_nor_decayed() -> None:
    model = student()
    optimizers = Optimizers(model, replace(PAPER, weight_decay=0.5))
    before = weights_of(model)
    learn(model, 0, budget=4)
    optimizers.step(0.1)
    after = weights_of(model)
    same = {name for name in before if torch.equal(before[name], after[name])}
    assert same == {"backbone.core_bank.tokens.1", "backbone.core_bank.points.1"}
    assert not any("bank.tokens.1" in name for name in optimizers.state_dict())


def decayed(config: OptimizerConfig) -> set[str]:
    """Parameters that shrink with zero gradients."""
    model = student()
    optimizers = Optimizers(model, config)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
        nn.init.ones_(parameter)
    optimizers.step(0.1)
    return {name for name, value in weights_of(model).items() if float(value.max()) < 1}


def test_all_parameters_decay_or_only_matrices() -> None:
    assert decayed(PAPER) == {name for name, _ in student().named_parameters()}
    assert decayed(replace(PAPER, decays="matrices")) == {
        *split_parameters(student())[0],
        "backbone.patch_embedding.weight",
        "backbone.core_steps.0.head.weight",
        "backbone.blocks.1.feedforward.contract.weight",
    }


@pytest.mark.parametrize("rate", ["other_rate", "core_step_rate"])
def test_rate_factors_apply_to_their_own_parameters(rate: str) -> None:
    def moved(config: OptimizerConfig) -> dict[str, float]:
        model = student()
        optimizers, before = Optimizers(model, config), weights_of(model)
        learn(model, 0, budget=8)
        optimizers.step(1e-3)
        after = weights_of(model)
        return {name: float((after[name] - before[name]).norm()) for name in before}

    still = replace(PAPER, weight_decay=0.0)
    plain, found = moved(still), moved(replace(still, **{rate: 2.0}))  # type: ignore[arg-type]
    _, others = split_parameters(student())
    wanted = {
        "other_rate": set(others),
        "core_step_rate": {f"backbone.core_steps.0.{part}" for part in STEP_PARTS},
    }[rate]
    for name, length in plain.items():
        assert length > 0, name
        factor = 2 if name in wanted else 1
        assert found[name] == pytest.approx(factor * length, rel=1e-3), name


@pytest.mark.parametrize("stop", [0, 1, 3])  # before any step, with unused cores, later
def test_a_resumed_run_equals_one_that_never_stopped(stop: int) -> None:
    whole = student()
    optimizers = Optimizers(whole, PAPER)
    run(whole, optimizers, range(stop))
    stored, state = weights_of(whole), deepcopy(optimizers.state_dict())
    run(whole, optimizers, range(stop, 6))

    resumed = student(seed=1)
    again = Optimizers(resumed, PAPER)
    run(resumed, again, range(2))  # what is loaded replaces what was there
    resumed.load_state_dict(stored)
    again.load_state_dict(state)
    run(resumed, again, range(stop, 6))
    torch.testing.assert_close(weights_of(resumed), weights_of(whole), rtol=0, atol=0)
    torch.testing.assert_close(again.state_dict(), optimizers.state_dict(), rtol=0, atol=0)


def test_later_steps_do_not_change_the_loaded_tensors() -> None:
    model = student()
    optimizers = Optimizers(model, PAPER)
    run(model, optimizers, range(2))
    state = deepcopy(optimizers.state_dict())
    before = deepcopy(state)
    optimizers.load_state_dict(state)
    run(model, optimizers, range(2, 4))
    torch.testing.assert_close(state, before, rtol=0, atol=0)


def test_each_parameter_counts_its_own_steps() -> None:
    model = student()
    optimizers = Optimizers(model, PAPER)
    run(model, optimizers, range(3))
    state = optimizers.state_dict()
    assert state["backbone.core_bank.tokens.0/step"] == 3
    assert state["backbone.core_bank.tokens.1/step"] == 1
    assert "adaptor.image.weight/step" not in state


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("weight_decay", -0.1), ("eps", float("nan")), ("momentum", 1.0), ("beta2", -0.5),
        ("betas", (0.9, 1.0)), ("other_rate", float("inf")), ("other_rate", -1.0),
        ("core_step_rate", float("nan")),
    ],
)  # fmt: skip
def test_hyperparameters_out_of_range_are_refused(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"{field}.* is invalid"):
        replace(PAPER, **{field: value})  # type: ignore[arg-type]


def test_models_without_matrices_or_without_others_are_trained() -> None:
    for model in (nn.LayerNorm(4), nn.Linear(4, 4, bias=False)):
        before = weights_of(model)
        optimizers = Optimizers(model, PAPER)
        model(torch.randn(3, 4)).square().sum().backward()
        optimizers.step(0.1)
        assert not any(
            torch.equal(before[name], value) for name, value in weights_of(model).items()
        )


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_matrix_products_use_the_precision_of_the_run(
    precision: ResolvedPrecision, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = set()

    def watched(matrices: Tensor, dtype: torch.dtype) -> Tensor:
        seen.add(dtype)
        return polar_express(matrices, dtype)

    monkeypatch.setattr(muon, "polar_express", watched)
    model = student()
    optimizers = Optimizers(model, PAPER, precision)
    run(model, optimizers, range(1))
    assert seen == {torch.bfloat16 if precision == "bf16" else torch.float32}
    assert {tensor.dtype for tensor in optimizers.state_dict().values()} == {torch.float32}


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
    for bad in (math.nan, math.inf, -math.inf):
        assert not gradient_norm(parameters([3.0, 4.0], [bad, 1.0])).isfinite()


def test_only_gradients_beyond_the_limit_are_scaled() -> None:
    found = parameters([3.0, 4.0], None, [12.0])
    clip_gradients(found, gradient_norm(found), 13.0)
    assert gradients_of(found) == [[3.0, 4.0], None, [12.0]]
    clip_gradients(found, gradient_norm(found), 6.5)
    assert gradients_of(found) == [[1.5, 2.0], None, [6.0]]


SHAPES = ((12, 8), (8, 12), (12, 8), (10, 10), (12, 8), (4, 30))


def matrices(*shapes: tuple[int, int]) -> list[nn.Parameter]:
    """Weights, the same at every call."""
    draw = torch.Generator().manual_seed(5)
    return [nn.Parameter(torch.randn(shape, generator=draw)) for shape in shapes]


def give_gradients(weights: list[nn.Parameter], step: int) -> None:
    """Set gradients whose rows differ in size; they depend on the step alone."""
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
    """The paper's update in double precision."""
    weight = weight.double().clone()
    rows, columns = weight.shape
    momentum, moments = torch.zeros_like(weight), [0.0] * rows
    for gradient in (gradient.double() for gradient in gradients):
        momentum = 0.95 * momentum + gradient
        step = slow_polar(gradient + 0.95 * momentum)
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
def test_steps_follow_the_paper(decay: float) -> None:
    weights = matrices(*SHAPES)
    starts = [weight.detach().clone() for weight in weights]
    gradients: list[list[Tensor]] = []
    for step in range(4):
        give_gradients(weights, step)
        gradients.append([weight.grad.clone() for weight in weights if weight.grad is not None])
    found = trained(NorMuon(weights, lr=0.05, weight_decay=decay))
    for index, (start, end) in enumerate(zip(starts, found, strict=True)):
        wanted = slow_normuon(start, [given[index] for given in gradients], 0.05, decay)
        torch.testing.assert_close(end.double(), wanted, rtol=0, atol=2e-5)


def test_matrices_without_a_gradient_keep_weights_and_state() -> None:
    weights = matrices((12, 8), (12, 8), (12, 8))
    optimizer = NorMuon(weights, lr=0.1)
    give_gradients(weights, 0)
    weights[1].grad = None
    before = [weight.detach().clone() for weight in weights]
    optimizer.step()
    moved = [not torch.equal(weight, old) for weight, old in zip(weights, before, strict=True)]
    assert moved == [True, False, True]
    assert weights[1] not in optimizer.state


def test_a_matrix_without_a_gradient_for_a_step_keeps_its_momentum() -> None:
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


@pytest.mark.parametrize("most", [1, 250])
def test_steps_do_not_depend_on_the_size_of_groups(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = trained(NorMuon(matrices(*SHAPES), lr=0.05))
    monkeypatch.setattr(muon, "MAX_ELEMENTS_ON_CPU", most)
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
    NorMuon(weights, lr=0.1, weight_decay=0.0).step()
    assert torch.equal(weights[0], before)


def test_steps_do_not_depend_on_the_size_of_gradients_and_repeat_exactly() -> None:
    found = []
    for size in (1e-3, 1.0, 1.0, 1e3):
        weights = matrices((12, 8))
        optimizer = NorMuon(weights, lr=0.05)
        give_gradients(weights, 0)
        for weight in weights:
            weight.grad = size * weight.grad if weight.grad is not None else None
        optimizer.step()
        found.append(weights[0].detach())
    assert torch.equal(found[1], found[2])
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-5)
    torch.testing.assert_close(found[3], found[1], rtol=0, atol=1e-5)


def test_a_step_has_about_the_size_of_an_adamw_step() -> None:
    weights = matrices((64, 48))
    start = weights[0].detach().clone()
    weights[0].grad = torch.randn(64, 48)
    NorMuon(weights, lr=0.01, weight_decay=0.0).step()
    size = float((weights[0].detach() - start).square().mean().sqrt())
    assert size == pytest.approx(0.2 * 0.01, rel=0.15)


def test_other_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match=r"shape \(3,\); give it to AdamW"):
        NorMuon([nn.Parameter(torch.zeros(3))])


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
    """The same steps on singular values, in double precision."""
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


def test_the_five_steps_are_those_of_the_derivation() -> None:
    steps = derived_steps(5, low=1e-3, cushion=0.02, safety=1.01)
    torch.testing.assert_close(
        torch.stack(steps), torch.tensor(POLAR_EXPRESS).double(), rtol=0, atol=2e-6
    )


@pytest.mark.parametrize("shape", [(24, 24), (40, 24), (24, 60), (60, 24), (1, 7), (7, 1), (1, 1)])
def test_only_singular_values_change(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape)
    torch.testing.assert_close(
        polar_express(matrix).double(), slow_polar(matrix), rtol=0, atol=1e-4
    )


@pytest.mark.parametrize("columns", [48, 96, 300])  # steps one by one, and in two groups
@pytest.mark.parametrize(
    "values",
    [
        torch.logspace(0, -3, 48),
        torch.logspace(0, -6, 48),
        torch.cat((torch.ones(4), torch.zeros(44))),
        torch.cat((torch.ones(1), torch.full((47,), 1e-4))),
    ],
)
def test_ill_conditioned_matrices_lose_no_precision(columns: int, values: Tensor) -> None:
    matrix = with_values(values, 48, columns)
    found, wanted = polar_express(matrix).double(), slow_polar(matrix)
    assert float((found - wanted).norm() / wanted.norm()) < 2e-4


@settings(max_examples=10)
@given(
    count=st.integers(1, 4), rows=st.integers(1, 20), columns=st.integers(1, 20),
    scale=st.sampled_from([1e-3, 1.0, 1e4]),
)  # fmt: skip
def test_a_stack_gives_the_results_of_its_matrices(
    count: int, rows: int, columns: int, scale: float
) -> None:
    stack = scale * torch.randn(count, rows, columns)
    singly = torch.stack([polar_express(matrix) for matrix in stack])
    torch.testing.assert_close(polar_express(stack), singly, rtol=1e-5, atol=1e-5)


def test_zeros_stay_zero_and_the_input_is_not_changed() -> None:
    assert torch.equal(polar_express(torch.zeros(2, 4, 3)), torch.zeros(2, 4, 3))
    matrix = torch.randn(5, 4)
    before = matrix.clone()
    polar_express(matrix)
    assert torch.equal(matrix, before)


def test_bf16_products_return_the_dtype_of_the_input() -> None:
    matrix = torch.randn(64, 256)
    half = polar_express(matrix, torch.bfloat16)
    assert half.dtype == torch.float32
    assert not torch.equal(half, polar_express(matrix))
    assert float((half - polar_express(matrix)).norm() / half.norm()) < 0.03


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(192, 192), (1024, 192), (192, 512)])
def test_singular_values_of_layers_come_near_one(
    shape: tuple[int, int], dtype: torch.dtype
) -> None:
    decades = torch.logspace(0, -2.3, min(shape))  # down to 0.001 of the Frobenius norm
    for matrix in (
        with_values(decades, *shape),
        with_values(torch.rand(min(shape)) + 0.01, *shape),
    ):
        values = torch.linalg.svdvals(polar_express(matrix, dtype))
        assert float(values.min()) > 0.86
        assert float(values.max()) < 1.14
