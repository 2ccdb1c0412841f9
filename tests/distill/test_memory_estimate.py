"""The estimate of memory is held against what torch really saves."""

import contextlib
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from veca.backbone.config import SIZES, BackboneConfig
from veca.backbone.cost import folds, parameters
from veca.backbone.model import VECA
from veca.distill.memory_estimate import MemoryEstimate, estimate
from veca.runtime.device import ResolvedPrecision

PLAIN = BackboneConfig(layers=2, width=96, heads=2, ffn_ratio=3.0, budgets=(48,))
FOLDED = replace(PLAIN, budgets=(4,))
FULL = BackboneConfig(layers=2, width=96, heads=2, attention="full", prefix_tokens=2)


def estimated(config: BackboneConfig, **changes: Any) -> MemoryEstimate:
    """An estimate of a small run in which everything that can be left out is."""
    given: dict[str, Any] = {
        "batch": 2,
        "resolution": 128,
        "optimizer": "adamw",
        "precision": "fp32",
        "checkpointing": False,
        "teacher_parameters": 0,
        "ema": False,
    }
    return estimate(config, **{**given, **changes})


def saved_bytes(
    config: BackboneConfig, precision: ResolvedPrecision, checkpointing: bool = False
) -> int:
    """Memory that autograd holds after the forward pass of such a run, beside the weights."""
    model = VECA(config).train()
    model.checkpoint_activations = checkpointing
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    half = precision == "bf16"
    cast = torch.autocast("cpu", torch.bfloat16) if half else contextlib.nullcontext()
    with cast, torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(torch.randn(2, 3, 128, 128))
    return sum(
        tensor.untyped_storage().nbytes()
        for address, tensor in kept.items()
        if address not in weights
    )


def test_the_small_models_run_in_the_forms_they_stand_for() -> None:
    assert folds(FOLDED, 4)
    assert not folds(PLAIN, 48)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("config", [PLAIN, FOLDED, FULL], ids=["plain", "folded", "full"])
def test_activations_are_those_that_torch_saves(
    config: BackboneConfig, precision: ResolvedPrecision
) -> None:
    guess = estimated(config, precision=precision)
    half_copies = guess.weights - 4 * parameters(config)  # torch saves them with the rest
    saved = saved_bytes(config, precision)
    assert guess.activations + half_copies == pytest.approx(saved, rel=0.05)


@pytest.mark.parametrize("config", [PLAIN, FOLDED, FULL], ids=["plain", "folded", "full"])
def test_checkpoints_keep_the_inputs_of_all_blocks_and_one_block(config: BackboneConfig) -> None:
    config = replace(config, layers=6)
    one_more = saved_bytes(replace(config, layers=7), "fp32")
    one_block = one_more - saved_bytes(config, "fp32")
    saved = saved_bytes(config, "fp32", checkpointing=True)
    guess = estimated(config, checkpointing=True).activations
    assert guess == pytest.approx(saved + one_block, rel=0.15)
    assert guess < estimated(config).activations / 2


def test_an_image_costs_a_base_model_what_was_measured_with_the_authors_code() -> None:
    given = {"resolution": 256, "precision": "bf16"}
    base = SIZES["base"]
    images = [estimated(base, batch=batch, **given).activations for batch in (1, 2)]
    assert images[1] - images[0] == pytest.approx(160e6, rel=0.3)
    whole_bank = estimated(replace(base, budgets=(64,)), batch=1, **given)
    assert whole_bank.activations == pytest.approx(160e6, rel=0.03)


def test_the_costliest_budget_counts() -> None:
    base = SIZES["base"]
    alone = [estimated(replace(base, budgets=(budget,))).activations for budget in base.budgets]
    assert estimated(base).activations == max(alone)


def test_weights_and_what_goes_with_them_follow_from_the_parameters() -> None:
    count = parameters(PLAIN)
    bare = estimated(PLAIN)
    assert (bare.weights, bare.gradients, bare.optimizer_state) == (4 * count, 4 * count, 8 * count)
    assert (bare.ema, bare.teacher) == (0, 0)
    rich = estimated(PLAIN, ema=True, teacher_parameters=1000)
    assert (rich.ema, rich.teacher) == (4 * count, 4000)
    assert rich.total == bare.total + 4 * count + 4000


def test_half_precision_adds_copies_of_the_weights_of_products() -> None:
    products = sum(
        parameter.numel()
        for name, parameter in VECA(PLAIN).named_parameters()
        if name.endswith("weight") and "norm" not in name and "patch" not in name
    )
    half = estimated(PLAIN, precision="bf16").weights - estimated(PLAIN).weights
    assert half == 2 * products


def test_normuon_keeps_one_number_for_each_weight_of_its_matrices() -> None:
    last = f"blocks.{PLAIN.layers - 1}.feedforward.contract.weight"
    matrices = sum(
        parameter.numel()
        for name, parameter in VECA(PLAIN).named_parameters()
        if name.startswith("blocks.") and parameter.ndim == 2 and name != last
    )
    saved = estimated(PLAIN).optimizer_state - estimated(PLAIN, optimizer="normuon").optimizer_state
    assert saved == 4 * matrices


def test_an_unknown_optimizer_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(ValueError, match="'sgd' is not known; use 'normuon' or 'adamw'"):
        estimated(PLAIN, optimizer="sgd")


def test_the_table_lists_what_takes_memory_and_the_sum() -> None:
    table = MemoryEstimate(
        weights=514_000_000,
        gradients=343_000_000,
        optimizer_state=352_000_000,
        ema=0,
        activations=20_000_000_000,
        teacher=344_400_000,
    )
    assert table.describe() == [
        "student weights        514 MB",
        "gradients              343 MB",
        "optimizer state        352 MB",
        "saved activations   20,000 MB",
        "teacher weights        344 MB",
        "together, at least  21,553 MB",
    ]
