"""A configuration either can be built or says why not."""

import dataclasses
from typing import Any

import pytest

from veca.backbone.config import BackboneConfig


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"width": 100}, "multiple of 48"),
        ({"layers": 0}, "layers got 0"),
        ({"in_channels": True}, "in_channels got True"),
        ({"budgets": ()}, "must be core counts that rise"),
        ({"budgets": (8, 8)}, "must be core counts that rise"),
        ({"budgets": (16, 8)}, "must be core counts that rise"),
        ({"budgets": (0, 8)}, "budgets got 0"),
        ({"ffn_shares": ()}, "end with 1.0"),
        ({"ffn_shares": (0.5,)}, "end with 1.0"),
        ({"ffn_shares": (0.0, 1.0)}, "end with 1.0"),
        ({"ffn_shares": (1.0, 0.5)}, "end with 1.0"),
        ({"ffn_ratio": 0.0001}, "no number of hidden units"),
        ({"ffn_ratio": float("nan")}, "no number of hidden units"),
        ({"ffn_ratio": 1e308}, "no number of hidden units"),
        ({"attention": "full", "budgets": (4, 8)}, "set prefix_tokens instead"),
        ({"prefix_tokens": 5}, "only used with attention='full'"),
        ({"rotary_base": 0.0}, "above 0"),
        ({"rotary_still": 1.5}, "within"),
        ({"coordinate_shift": -0.1}, "0 or more"),
        ({"coordinate_rescale": 0.5}, "1 or more"),
        ({"coordinate_rescale": float("inf")}, "finite"),
    ],
)
def test_a_field_that_cannot_be_built_is_refused_with_what_can(
    fields: dict[str, Any], words: str
) -> None:
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


def test_a_configuration_cannot_change_after_it_was_checked() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        BackboneConfig().width = 1  # type: ignore[misc]


@pytest.mark.compiled  # without the shape hook, which would refuse these first
@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"heads": 2.0}, "heads got 2.0"),
        ({"budgets": (2.5,)}, "budgets got 2.5"),
        ({"ffn_shares": ("a", 1.0)}, "end with 1.0"),
        ({"budgets": [4, 8]}, "a tuple is needed"),
        ({"budgets": 8}, "a tuple is needed"),
        ({"ffn_ratio": "a"}, "a number is needed"),
        ({"rotary_still": None}, "a number is needed"),
        ({"attention": "linear"}, "'core-periphery' or 'full'"),
    ],
)
def test_a_field_of_the_wrong_kind_is_refused_with_what_is_right(
    fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        BackboneConfig(**fields)
