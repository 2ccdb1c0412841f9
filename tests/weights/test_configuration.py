"""A configuration as JSON, and what a stranger's JSON can do wrong."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch

from veca.backbone.config import SIZES, BackboneConfig
from veca.weights.checkpoint import load_with_digest
from veca.weights.format import (
    FIRST_FIELDS,
    FORMAT,
    MOST_BYTES,
    WeightsError,
    canonical,
    check_format,
    config_from_json,
    parse_json,
    read_json,
)

STORED = Path(__file__).parents[1] / "goldens" / "format-1"
"""A model that veca 0.1.0 wrote before `local_kernel` existed."""


@pytest.mark.parametrize(
    "config",
    [
        *SIZES.values(),
        BackboneConfig(budgets=(1, 7), ffn_shares=(0.25, 1.0)),
        BackboneConfig(attention="full", prefix_tokens=5),
        BackboneConfig(local_kernel=5, core_motion="attention", default_budget=16),
    ],
)
def test_a_configuration_survives_the_way_through_json(config: BackboneConfig) -> None:
    assert config_from_json(json.loads(canonical(config)), "here") == config


def test_one_configuration_has_one_text() -> None:
    one = BackboneConfig(layers=2, width=64, heads=1)
    assert canonical(one) == canonical(BackboneConfig(heads=1, width=64, layers=2))
    assert canonical(one) != canonical(BackboneConfig(layers=3, width=64, heads=1))


def test_fields_that_came_later_are_told_only_where_they_differ_from_their_defaults() -> None:
    later = {item.name for item in fields(BackboneConfig)} - FIRST_FIELDS
    assert later == {"local_kernel", "core_motion", "default_budget"}
    assert set(json.loads(canonical(BackboneConfig()))) == FIRST_FIELDS
    changed = json.loads(canonical(BackboneConfig(local_kernel=3)))
    assert set(changed) == {*FIRST_FIELDS, "local_kernel"}


def test_a_model_stored_before_the_later_fields_loads_with_the_hash_it_has() -> None:
    loaded = load_with_digest(STORED)
    told = json.loads((STORED / "config.json").read_text())
    assert loaded.digest == told["weights_sha256"]
    assert loaded.model.config == BackboneConfig(
        layers=2, width=32, heads=2, patch_size=4, budgets=(2, 4, 8), ffn_shares=(0.5, 1.0)
    )
    features = loaded.model(torch.linspace(-1, 1, 3 * 12 * 16).reshape(1, 3, 12, 16), 4, 0.5)
    first = [-0.6526057124137878, 1.620331048965454, -1.7273602485656738, 1.1036865711212158]
    assert features.image[0, :4].tolist() == pytest.approx(first, rel=1e-5)
    assert features.patches.abs().sum().item() == pytest.approx(295.0491943359375, rel=1e-5)


def test_missing_fields_have_their_defaults_so_that_older_files_load() -> None:
    assert config_from_json({"width": 384, "heads": 6}, "here") == SIZES["small"]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "holds a NoneType as its configuration"),
        ([1], "holds a list"),
        ({"depth": 3, "\x1b": 1}, r"unknown fields '\\x1b', 'depth'; allowed are layers"),
        ({"layers": 2.0}, "layers=2.0, but a whole number is needed"),
        ({"layers": True}, "layers=True, but a whole number"),
        ({"layers": "12"}, "layers='12', but a whole number"),
        ({"ffn_ratio": "2"}, "but a number is needed"),
        ({"ffn_ratio": True}, "but a number is needed"),
        ({"ffn_ratio": float("nan")}, "a finite number"),
        ({"rotary_base": 10**400}, "a finite number"),
        ({"budgets": 8}, "a list is needed"),
        ({"budgets": [8, "16"]}, "a whole number is needed"),
        ({"budgets": []}, "no model that can be built"),
        ({"budgets": [16, 8]}, "no model that can be built"),
        ({"ffn_shares": [None]}, "a number is needed"),
        ({"attention": 1}, "text is needed"),
        ({"attention": "sparse"}, "no model that can be built"),
        ({"width": 0}, "no model that can be built"),
        ({"ffn_ratio": 1e308}, "no model that can be built"),
    ],
)
def test_a_bad_configuration_is_refused_in_words(value: Any, words: str) -> None:
    with pytest.raises(WeightsError, match=words):
        config_from_json(value, "here")


def test_a_file_of_a_newer_format_asks_for_an_update() -> None:
    check_format(FORMAT, "here")
    with pytest.raises(WeightsError, match="update veca"):
        check_format(FORMAT + 1, "here")
    for value in (None, "1", 0, True, 1.0):
        with pytest.raises(WeightsError, match="must be a whole number"):
            check_format(value, "here")


@pytest.mark.parametrize(
    "text",
    ["", "{", "[1]", "3", "\ud800", b"\xff\xfe", "[" * 100_000, "1" * 5000, " " * (MOST_BYTES + 1)],
)
def test_text_that_is_no_json_object_is_refused(text: Any) -> None:
    with pytest.raises(WeightsError):
        parse_json(text, "here")


def test_a_huge_file_is_refused_without_reading_it_whole(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(10**12)  # sparse: takes no room on the disk
    with pytest.raises(WeightsError, match="not written by veca"):
        read_json(path)
