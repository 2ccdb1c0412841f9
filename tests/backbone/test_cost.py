"""Costs against the authors' table, torch's counter, and each other."""

from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import veca
from tests.weights.models import trained_model
from veca.backbone.config import SIZES, BackboneConfig
from veca.backbone.cost import cost, cost_rows, folded_flops, folds, parameters, plain_flops

RESOLUTIONS = (256, 384, 512, 768, 1024)
VECA_GFLOPS = {
    "small": (0.434, 0.875, 1.491, 3.253, 5.719),
    "base": (1.623, 3.259, 5.549, 12.092, 21.253),
    "large": (2.835, 5.687, 9.680, 21.089, 37.061),
}
DINOV3_GFLOPS = {
    "small": (0.413, 1.204, 2.840, 10.913, 30.670),
    "base": (1.441, 3.778, 8.108, 27.274, 71.016),
    "large": (2.468, 6.256, 12.969, 41.207, 103.289),
}


def on_meta(size: str, **overrides: object) -> veca.VECA:
    with torch.device("meta"):
        return veca.build(size, **overrides)


@pytest.mark.parametrize("size", VECA_GFLOPS)
def test_attention_flops_are_the_fifteen_values_of_the_authors_table(size: str) -> None:
    model = on_meta(size)
    for side, gflops in zip(RESOLUTIONS, VECA_GFLOPS[size], strict=True):
        assert round(model.cost(side, side, budget=64).attention_flops / 1e9, 3) == gflops


@pytest.mark.parametrize("size", DINOV3_GFLOPS)
def test_the_full_baseline_with_five_prefix_tokens_costs_what_dinov3_costs(size: str) -> None:
    model = on_meta(size, attention="full", prefix_tokens=5)
    for side, gflops in zip(RESOLUTIONS, DINOV3_GFLOPS[size], strict=True):
        assert round(model.cost(side, side).attention_flops / 1e9, 3) == gflops


@pytest.mark.parametrize(
    ("side", "budget", "pairs"),
    [
        (256, 8, 4_160), (256, 64, 36_864), (512, 8, 16_448), (512, 64, 135_168),
        (768, 64, 299_008), (1024, 8, 65_600), (1024, 64, 528_384),
    ],
)  # fmt: skip
def test_pairs_are_those_of_the_paper(side: int, budget: int, pairs: int) -> None:
    assert on_meta("base").cost(side, side, budget=budget).pairs == pairs


FULL = {"attention": "full", "prefix_tokens": 5, "ffn_shares": (1.0,)}


@pytest.mark.parametrize("form", ["plain", "folded", "auto"])
@pytest.mark.parametrize(
    ("budget", "share", "fields"),
    [
        (1, 1.0, {"local_kernel": 0}),
        (8, 0.5, {"local_kernel": 3}),
        (20, 1.0, {"local_kernel": 5, "core_motion": "normalized"}),
        (8, 1.0, {"core_motion": "attention"}),
        (64, 1.0, {"core_motion": "attention"}),
        (None, 1.0, FULL),
    ],
)
def test_flops_are_what_torch_counts(
    form: str, budget: int | None, share: float, fields: dict[str, Any]
) -> None:
    shape = {"layers": 3, "ffn_shares": (0.5, 1.0), "in_channels": 4}
    model = veca.build("tiny", **{**shape, **fields}).eval()
    model.set_attention_form(form)  # type: ignore[arg-type]
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
        model(torch.randn(1, 4, 48, 80), budget=budget, ffn=share)
    expected = model.cost(48, 80, budget=budget, ffn=share).flops
    assert counter.get_total_flops() == expected


@pytest.mark.parametrize("attention", ["core-periphery", "full"])
@pytest.mark.parametrize(
    ("kernel", "motion"), [(0, "paper"), (3, "normalized"), (5, "attention"), (3, "paper")]
)
def test_parameters_by_formula_are_the_parameters_of_the_model(
    attention: str, kernel: int, motion: Any
) -> None:
    config = BackboneConfig(
        layers=3, width=40, heads=5, ffn_ratio=1.7, patch_size=4, in_channels=2,
        attention=attention,  # type: ignore[arg-type]
        budgets=(2, 7) if attention != "full" else BackboneConfig.budgets,
        prefix_tokens=3 if attention == "full" else 1,
        local_kernel=kernel, core_motion=motion,
    )  # fmt: skip
    model = veca.VECA(config)
    assert parameters(config) == sum(parameter.numel() for parameter in model.parameters())


def test_cost_grows_linearly_with_patches() -> None:
    model = on_meta("small")
    one, two, three = (model.cost(256 * n, 256, budget=16).flops for n in (1, 2, 3))
    assert three - two == two - one


def test_flops_grow_with_the_budget_except_where_the_form_changes() -> None:
    config = SIZES["small"]

    def flops(cores: int) -> int:
        folded = folds(config, cores)
        return cost(config, (32, 32), cores=cores, hidden=config.hidden, folded=folded).flops

    costs = [flops(cores) for cores in range(1, 65)]
    drops = [i for i in range(63) if costs[i + 1] < costs[i]]
    assert not drops


@pytest.mark.parametrize("size", SIZES)
def test_a_form_is_folded_only_where_that_saves(size: str) -> None:
    config = SIZES[size]
    for cores in range(1, 65):
        if folds(config, cores):
            assert folded_flops(config, 4096, cores) < plain_flops(config, 4096, cores)
    assert folds(config, 8)


@pytest.mark.parametrize("patch_size", [4, 14, 600])
def test_costs_are_those_of_the_model(patch_size: int) -> None:
    model = trained_model(patch_size=patch_size)
    rows = cost_rows(model.config)
    assert [row.budget for row in rows] == [2, 2, 3, 3, 6, 6]
    for row in rows:
        cost = model.cost(row.side, row.side, budget=row.budget)
        assert (row.pairs, row.gflops) == (cost.pairs, cost.flops / 1e9)


def test_sides_are_the_nearest_that_patches_fill() -> None:
    sides = [row.side for row in cost_rows(trained_model(patch_size=14, budgets=(1,)).config)]
    assert sides == [252, 518]


def test_a_full_attention_model_has_no_budget_and_no_folded_form() -> None:
    model = trained_model(attention="full")
    rows = cost_rows(model.config)
    assert not folds(model.config, 1)
    assert [row.budget for row in rows] == [None, None]
    assert rows[0].pairs == model.cost(256, 256).pairs
