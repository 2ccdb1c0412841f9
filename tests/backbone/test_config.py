"""Configurations and arguments: fields, named sizes, and the messages about invalid ones."""

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import veca
from veca.backbone.config import SIZES, BackboneConfig
from veca.backbone.model import (
    VECA,
    check_budget,
    check_ffn,
    check_images,
    patch_grid,
)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"width": 100}, "multiple of 48"),
        ({"layers": 0}, "layers=0 must be"),
        ({"in_channels": True}, "in_channels=True must be"),
        ({"budgets": ()}, "must be increasing core counts"),
        ({"budgets": (8, 8)}, "must be increasing core counts"),
        ({"budgets": (16, 8)}, "must be increasing core counts"),
        ({"budgets": (0, 8)}, "budgets=0 must be"),
        ({"ffn_shares": ()}, "end with 1.0"),
        ({"ffn_shares": (0.5,)}, "end with 1.0"),
        ({"ffn_shares": (0.0, 1.0)}, "end with 1.0"),
        ({"ffn_shares": (1.0, 0.5)}, "end with 1.0"),
        ({"ffn_ratio": 0.0001}, "no valid number of hidden units"),
        ({"ffn_ratio": float("nan")}, "no valid number of hidden units"),
        ({"ffn_ratio": 1e308}, "no valid number of hidden units"),
        ({"attention": "full", "budgets": (4, 8)}, "set prefix_tokens instead"),
        ({"prefix_tokens": 5}, "only for attention='full'"),
        ({"rotary_base": 0.0}, "above 0"),
        ({"rotary_still": 1.5}, "within"),
        ({"coordinate_shift": -0.1}, "0 or more"),
        ({"coordinate_rescale": 0.5}, "1 or more"),
        ({"coordinate_rescale": float("inf")}, "finite"),
        *(({"local_kernel": side}, "odd side such as 3 or 5") for side in (1, 2, -3)),
        ({"default_budget": 0}, "default_budget=0 must be"),
        ({"default_budget": 65}, "at most 64"),
        ({"default_budget": 1, "attention": "full"}, "None with attention='full'"),
    ],
)
def test_an_invalid_field_is_refused_with_valid_values(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        BackboneConfig(**fields)


def test_the_hidden_width_is_truncated_as_in_the_authors_large_model() -> None:
    assert BackboneConfig(width=1024, heads=16).hidden == 2730


def test_a_share_uses_at_least_one_hidden_unit() -> None:
    config = BackboneConfig(width=48, heads=12, ffn_ratio=1.0)
    assert config.hidden_units(0.5) == 24
    assert config.hidden_units(1e-6) == 1


def test_the_bank_is_as_large_as_the_largest_budget() -> None:
    assert BackboneConfig(budgets=(3, 10)).cores == 10
    assert BackboneConfig(attention="full", prefix_tokens=5).cores == 5


def test_configurations_and_the_table_of_sizes_cannot_change() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        BackboneConfig().width = 1  # type: ignore[misc]
    with pytest.raises(TypeError):
        SIZES["huge"] = SIZES["large"]  # type: ignore[index]


@pytest.mark.compiled  # without the shape hook, which would refuse these first
@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"heads": 2.0}, "heads=2.0 must be"),
        ({"budgets": (2.5,)}, "budgets=2.5 must be"),
        ({"ffn_shares": ("a", 1.0)}, "end with 1.0"),
        ({"budgets": [4, 8]}, "must be a tuple"),
        ({"budgets": 8}, "must be a tuple"),
        ({"ffn_ratio": "a"}, "must be a number"),
        ({"rotary_still": None}, "must be a number"),
        ({"core_motion": "brownian"}, "'paper', 'normalized', 'attention'"),
        ({"attention": "linear"}, "'core-periphery', 'full'"),
    ],
)
def test_a_field_of_the_wrong_type_is_refused_with_the_right_one(
    fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        BackboneConfig(**fields)


@pytest.mark.parametrize(
    ("size", "parameters"),
    [
        ("tiny", 5_526_881),
        ("small", 21_628_961),
        ("small-plus", 28_719_137),
        ("base", 85_725_089),
        ("large", 303_195_301),
    ],
)
def test_a_size_has_the_parameters_that_the_paper_states(size: str, parameters: int) -> None:
    with torch.device("meta"):
        model = veca.build(size)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    assert model.cost(256, 256).parameters == parameters


def test_overridden_fields_are_really_used() -> None:
    model = veca.build(
        "tiny", layers=3, width=64, heads=4, ffn_ratio=2.0, patch_size=8, in_channels=5,
        budgets=(2, 7), ffn_shares=(0.5, 1.0),
    )  # fmt: skip
    assert len(model.blocks) == 3
    assert model.patch_embedding.weight.shape == (64, 5, 8, 8)
    assert [len(chunk) for chunk in model.core_bank.tokens] == [2, 5]
    assert model.block_of(0).feedforward.hidden == 128
    features = model(torch.randn(1, 5, 16, 24), budget=3, ffn=0.5)
    assert features.cores.shape == (1, 3, 64)
    assert features.grid == (2, 3)


def test_an_unknown_size_or_field_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'huge' is unknown; use one of tiny, small"):
        veca.build("huge")
    with pytest.raises(ValueError, match=r"depth cannot be overridden; .* layers, width"):
        veca.build("tiny", depth=3)


def test_lists_become_tuples_so_that_configurations_stay_comparable() -> None:
    assert veca.build("tiny", layers=1, budgets=[2, 4]).config.budgets == (2, 4)


def test_one_seed_builds_one_model() -> None:
    def weights(seed: int) -> list[nn.Parameter]:
        torch.manual_seed(seed)
        return list(veca.build("tiny", layers=1).parameters())

    assert all(map(torch.equal, weights(0), weights(0)))
    assert not all(map(torch.equal, weights(0), weights(1)))


CONFIG = BackboneConfig(width=192, heads=3, ffn_shares=(0.5, 1.0))
MODEL = VECA(BackboneConfig(layers=2, width=16, heads=1))
IMAGES = torch.zeros(1, 3, 16, 16)


@pytest.mark.parametrize("budget", [0, -1, 65])
def test_a_budget_beyond_the_bank_is_refused_with_the_range_that_works(budget: int) -> None:
    with pytest.raises(ValueError, match=r"outside 1\.\.64"):
        check_budget(CONFIG, budget)


@pytest.mark.compiled  # without the shape hook, which would refuse these first
@pytest.mark.parametrize("budget", [8.0, "8", True])
def test_a_budget_that_is_no_whole_number_is_refused(budget: Any) -> None:
    with pytest.raises(ValueError, match=r"outside 1\.\.64"):
        check_budget(CONFIG, budget)


def test_no_budget_means_every_core() -> None:
    assert check_budget(CONFIG, None) == 64


def test_a_full_attention_model_takes_no_budget() -> None:
    full = BackboneConfig(attention="full", prefix_tokens=5)
    assert check_budget(full, None) == 5
    with pytest.raises(ValueError, match="has no cores; leave it out"):
        check_budget(full, 1)


@pytest.mark.parametrize("share", [0.0, -0.5, 1.01])
def test_a_share_outside_its_range_is_refused_with_the_shares_of_the_model(share: float) -> None:
    with pytest.raises(ValueError, match=r"outside \(0, 1\]; .* 0.5, 1.0"):
        check_ffn(CONFIG, share)


def test_a_model_with_whole_feedforward_parts_says_how_to_get_nested_ones() -> None:
    with pytest.raises(ValueError, match=r"ffn_shares=\(0.25, 0.5, 1.0\)"):
        check_ffn(BackboneConfig(), 0.5)
    assert check_ffn(BackboneConfig(), 1.0) == 2048


@pytest.mark.parametrize(
    ("side", "below", "above"), [(70, 64, 80), (15, 16, 32), (1, 16, 32), (0, 16, 32), (31, 16, 32)]
)
def test_a_size_that_does_not_fit_is_refused_with_the_two_nearest(
    side: int, below: int, above: int
) -> None:
    for name, height, width in (("height", side, 32), ("width", 32, side)):
        words = rf"{name}={side} .* image to {below} or {above}"
        with pytest.raises(ValueError, match=words):
            patch_grid(CONFIG, height, width)


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 4, 32, 32), (32, 32)])
def test_images_of_another_shape_are_refused_with_the_shape_needed(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"\(B, 3, height, width\)"):
        check_images(CONFIG, torch.zeros(shape))


def test_images_of_whole_numbers_are_refused_with_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"torch.uint8, .* veca.preprocess"):
        check_images(CONFIG, torch.zeros(1, 3, 32, 32, dtype=torch.uint8))


@pytest.mark.compiled  # without the shape hook, which would refuse these first
@pytest.mark.parametrize("number", [np.int64, np.array, torch.tensor])
def test_numbers_of_other_libraries_are_taken(number: Callable[[float], Any]) -> None:
    assert check_budget(CONFIG, number(8)) == 8
    assert check_ffn(CONFIG, number(1)) == 512
    assert len(MODEL.intermediates(IMAGES, [number(1)])) == 1
    assert MODEL.attention_maps(IMAGES, number(1)).shape[2] == 64
    given = BackboneConfig(layers=number(2), budgets=(number(4), number(8)))
    assert given == BackboneConfig(layers=2, budgets=(4, 8))
    json.dumps(dataclasses.asdict(given))


@pytest.mark.compiled
def test_shares_of_other_libraries_are_taken() -> None:
    for share in (np.float32(0.5), np.float64(0.5), torch.tensor(0.5)):
        assert check_ffn(CONFIG, share) == 256  # type: ignore[arg-type]
        assert BackboneConfig(ffn_shares=(share, 1)) == BackboneConfig(ffn_shares=(0.5, 1.0))  # type: ignore[arg-type]


@pytest.mark.compiled
@pytest.mark.parametrize("budget", [torch.tensor(16.0), torch.tensor([8, 16]), np.True_])
def test_other_numbers_are_refused_with_what_is_allowed(budget: Any) -> None:
    with pytest.raises(ValueError, match=r"budget=.* is outside 1\.\.64"):
        check_budget(CONFIG, budget)
    with pytest.raises(ValueError, match=r"ffn=.* is outside \(0, 1\]"):
        check_ffn(CONFIG, torch.tensor([0.5, 1.0]))  # type: ignore[arg-type]


@pytest.mark.compiled
def test_other_types_are_refused() -> None:
    with pytest.raises(ValueError, match=r"images is a ndarray, .* veca.preprocess"):
        check_images(CONFIG, np.zeros((1, 3, 32, 32)))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"outside \(0, 1\]"):
        check_ffn(CONFIG, "a")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'bogus' is unknown; use 'auto', 'plain', 'folded'"):
        MODEL.set_attention_form("bogus")  # type: ignore[arg-type]


@pytest.mark.parametrize("layer", [-3, 2])
def test_a_layer_that_is_not_there_is_refused_with_the_layers_that_are(layer: int) -> None:
    for call in (MODEL.intermediates, MODEL.attention_maps, MODEL.core_maps):
        with pytest.raises(ValueError, match=rf"layer {layer} is outside -2\.\.1; count"):
            call(IMAGES, layer)
    with pytest.raises(ValueError, match=r"outside -2\.\.1"):
        MODEL.intermediates(IMAGES, [0, layer])
