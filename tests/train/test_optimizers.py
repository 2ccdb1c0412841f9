"""Parameter groups, updates, and optimizer state that survives a resume."""

import math
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import veca
from veca.distill.student import Adaptor
from veca.runtime.device import ResolvedPrecision
from veca.train import muon
from veca.train.muon import polar_express
from veca.train.optimizers import (
    MatrixOptimizer,
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


def test_frozen_parameters_are_left_out() -> None:
    model = student()
    model["backbone"].patch_embedding.requires_grad_(False)
    _, others = split_parameters(model)
    assert not any("patch_embedding" in name for name in others)
    assert any("final_norm" in name for name in others)


@pytest.mark.parametrize("matrices", ["normuon", "adamw"])
def test_cores_beyond_the_budget_are_neither_moved_nor_decayed(matrices: MatrixOptimizer) -> None:
    model = student()
    optimizers = Optimizers(model, replace(PAPER, matrices=matrices, weight_decay=0.5))
    before = weights_of(model)
    learn(model, 0, budget=4)
    optimizers.step(0.1)
    after = weights_of(model)
    same = {name for name in before if torch.equal(before[name], after[name])}
    assert same == {"backbone.core_bank.tokens.1", "backbone.core_bank.points.1"}
    assert not any("bank.tokens.1" in name for name in optimizers.state_dict())


def test_adamw_takes_the_steps_of_torch() -> None:
    ours, theirs = student(), student()
    run(ours, Optimizers(ours, replace(PAPER, matrices="adamw")), range(4))
    oracle = torch.optim.AdamW(theirs.parameters(), weight_decay=0.015, foreach=False, fused=False)
    for step in range(4):
        learn(theirs, step, budget=(4, 8)[step % 2])
        oracle.param_groups[0]["lr"] = 1e-2 / (step + 1)
        oracle.step()
        oracle.zero_grad()
    torch.testing.assert_close(weights_of(ours), weights_of(theirs), rtol=1e-4, atol=1e-4)


def decayed(config: OptimizerConfig) -> set[str]:
    """Parameters that shrink with zero gradients."""
    model = student()
    optimizers = Optimizers(model, config)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
        nn.init.ones_(parameter)
    optimizers.step(0.1)
    return {name for name, value in weights_of(model).items() if float(value.max()) < 1}


@pytest.mark.parametrize("matrices", ["normuon", "adamw"])
def test_all_parameters_decay_or_only_matrices(matrices: MatrixOptimizer) -> None:
    config = replace(PAPER, matrices=matrices)
    assert decayed(config) == {name for name, _ in student().named_parameters()}
    assert decayed(replace(config, decays="matrices")) == {
        *split_parameters(student())[0],
        "backbone.patch_embedding.weight",
        "backbone.core_steps.0.head.weight",
        "backbone.blocks.1.feedforward.contract.weight",
    }


@pytest.mark.parametrize("matrices", ["normuon", "adamw"])
@pytest.mark.parametrize("rate", ["matrix_rate", "other_rate", "core_step_rate"])
def test_rate_factors_apply_to_their_own_parameters(rate: str, matrices: MatrixOptimizer) -> None:
    def moved(config: OptimizerConfig) -> dict[str, float]:
        model = student()
        optimizers, before = Optimizers(model, config), weights_of(model)
        learn(model, 0, budget=8)
        optimizers.step(1e-3)
        after = weights_of(model)
        return {name: float((after[name] - before[name]).norm()) for name in before}

    still = replace(PAPER, weight_decay=0.0, matrices=matrices)
    plain, found = moved(still), moved(replace(still, **{rate: 2.0}))  # type: ignore[arg-type]
    inner, others = split_parameters(student())
    wanted = {
        "matrix_rate": set(inner),
        "other_rate": set(others),
        "core_step_rate": {f"backbone.core_steps.0.{part}" for part in STEP_PARTS},
    }[rate]
    for name, length in plain.items():
        assert length > 0, name
        factor = 2 if name in wanted else 1
        assert found[name] == pytest.approx(factor * length, rel=1e-3), name


@pytest.mark.parametrize("matrices", ["normuon", "adamw"])
@pytest.mark.parametrize("stop", [0, 1, 3])  # before any step, with unused cores, later
def test_a_resumed_run_equals_one_that_never_stopped(matrices: MatrixOptimizer, stop: int) -> None:
    config = replace(PAPER, matrices=matrices)
    whole = student()
    optimizers = Optimizers(whole, config)
    run(whole, optimizers, range(stop))
    stored, state = weights_of(whole), deepcopy(optimizers.state_dict())
    run(whole, optimizers, range(stop, 6))

    resumed = student(seed=1)
    again = Optimizers(resumed, config)
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
        ("betas", (0.9, 1.0)), ("matrix_rate", float("inf")), ("other_rate", -1.0),
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
