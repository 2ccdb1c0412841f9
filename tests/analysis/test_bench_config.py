"""Settings of a benchmark, and what is refused before minutes are spent."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.analysis.made_up import TINY, TWIN, plain, veca
from veca.analysis.benchmark import BenchConfig
from veca.backbone.config import BackboneConfig


def config(**fields: Any) -> BenchConfig:
    """Settings that hold, with some changed."""
    good = {"model": "m", "backbone": TINY, "resolutions": (32,), "budgets": (4, 2)}
    return BenchConfig(**{**good, "shares": (0.25, 1.0), "precisions": ("fp32",), **fields})


def test_every_budget_meets_every_share_and_has_a_plain_form() -> None:
    assert config().contenders() == [
        veca(2), veca(4), veca(2, 0.25), veca(4, 0.25), plain(2), plain(4), TWIN,
    ]  # fmt: skip


def test_every_contender_takes_part_in_every_precision() -> None:
    once = config().contenders()
    half = [replace(item, precision="bf16") for item in once]
    assert config(precisions=("fp32", "bf16")).contenders() == once + half


@pytest.mark.parametrize("native", [True, False])
def test_auto_is_settled_before_the_run(native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: native)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    assert config(precisions=("auto",)).resolved == (("bf16",) if native else ("fp32",))
    assert config(precisions=("fp32", "auto")).resolved == ("fp32", "bf16")[: 1 + native]


def test_the_model_is_built_so_that_it_takes_the_shares() -> None:
    setup = config(shares=(0.5,), batch=3, threads=1).setup(64)
    assert setup.backbone.ffn_shares == (0.5, 1.0)
    assert (setup.resolution, setup.patches, setup.batch, setup.threads) == (64, 256, 3, 1)


def test_the_device_is_settled_before_the_run() -> None:
    assert config(device="auto").setup(32).device in {"cpu", "cuda", "mps"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"backbone": BackboneConfig(attention="full")}, "name a VECA model or a size"),
        ({"resolutions": ()}, "give at least one, and each of them once"),
        ({"budgets": (2, 2)}, "give at least one, and each of them once"),
        ({"resolutions": (30,)}, "nearest that fit are 28 and 32"),
        ({"budgets": (5,)}, "outside 1..4"),
        ({"shares": (0.0, 1.0)}, "must lie above 0 and not above 1"),
        ({"batch": 0}, "whole numbers of 1 or more"),
        ({"threads": 0}, "whole numbers of 1 or more"),
        pytest.param(
            {"precisions": ("fp32", "int8")},
            "precision='int8' is not known; use fp32",
            marks=pytest.mark.compiled,  # without the shape hook, which would refuse it first
        ),
        ({"precisions": ()}, "precisions got"),
        ({"device": "abacus"}, "cannot be used here"),
    ],
)
def test_what_cannot_be_measured_is_refused_at_once(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config(**fields)
