"""The weights file: its content, its hash, untrusted configurations, and damage."""

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save as write_by_library
from torch import Tensor

import veca
from tests.weights.models import same_weights, trained_model
from veca.backbone.config import SIZES, BackboneConfig
from veca.weights.checkpoint import load_with_hash
from veca.weights.format import (
    FIRST_FIELDS,
    FORMAT,
    MAX_JSON_BYTES,
    METADATA_KEY,
    WeightsError,
    check_format,
    check_shapes,
    config_from_json,
    config_to_json,
    expected_shapes,
    file_pieces,
    listed,
    model_with,
    parse_json,
    read_json,
    read_weights,
    weights_hash,
)

CONFIG = BackboneConfig(layers=1, width=32, heads=1)
MIXED = {
    "b": torch.randn(3, 2),
    "a": torch.randn(5).to(torch.bfloat16),
    "c.0": torch.tensor(2.0, dtype=torch.float16),
    "d": torch.empty(0, 4),
    "e": torch.randn(2, dtype=torch.float64),
}


def file_of(tensors: Mapping[str, Tensor], config: BackboneConfig = CONFIG) -> bytes:
    """The file that holds these tensors."""
    return b"".join(file_pieces(config, tensors, weights_hash(config, tensors)))


def header_of(content: bytes) -> dict[str, dict[str, str]]:
    """The header of a file."""
    length = int.from_bytes(content[:8], "little")
    header: dict[str, dict[str, str]] = json.loads(content[8 : 8 + length])
    return header


def test_the_file_is_the_one_that_the_library_would_write() -> None:
    content = file_of(MIXED)
    written = write_by_library(MIXED, header_of(content)["__metadata__"])
    # The library hashes metadata with a random seed, so only the order of its keys may differ.
    length = int.from_bytes(content[:8], "little")
    assert written[:8] == content[:8]
    assert list(header_of(written).items()) == list(header_of(content).items())
    assert written[8 + length :] == content[8 + length :]


def test_the_header_holds_configuration_format_and_hash() -> None:
    metadata = header_of(file_of(MIXED))["__metadata__"]
    assert list(metadata) == ["format", METADATA_KEY]
    assert metadata["format"] == "pt"  # required by transformers
    assert json.loads(metadata[METADATA_KEY]) == {
        "config": json.loads(config_to_json(CONFIG)),
        "format": 1,
        "sha256": weights_hash(CONFIG, MIXED),
    }


def test_equal_models_give_equal_files_on_every_machine() -> None:
    tensors = {name: torch.arange(6.0).view(2, 3) for name in ("b", "a", "c.0")}
    content = file_of(tensors)
    assert content == file_of(dict(reversed(tensors.items())))
    assert hashlib.sha256(content).hexdigest() == GOLDEN


GOLDEN = "d1ec03f725011bb8f1a3f2ac100d82e5e551a050f205ac9af081579ff621b86b"
"""SHA-256 of a file; it never changes."""


def changes() -> list[tuple[BackboneConfig, dict[str, Tensor]]]:
    """Models that each differ from CONFIG and MIXED in one thing."""
    other = {**MIXED, "b": MIXED["b"].clone()}
    other["b"][0, 0] += 1
    renamed = {("z" if name == "a" else name): tensor for name, tensor in MIXED.items()}
    return [
        (CONFIG, other),
        (CONFIG, renamed),
        (CONFIG, {**MIXED, "b": MIXED["b"].reshape(2, 3)}),
        (CONFIG, {**MIXED, "c.0": MIXED["c.0"].view(torch.bfloat16)}),
        (CONFIG, {name: tensor for name, tensor in MIXED.items() if name != "d"}),
        (BackboneConfig(layers=1, width=32, heads=1, rotary_base=99.0), MIXED),
    ]


@pytest.mark.parametrize(("config", "tensors"), changes())
def test_the_hash_covers_configuration_names_dtypes_shapes_and_values(
    config: BackboneConfig, tensors: dict[str, Tensor]
) -> None:
    assert weights_hash(config, tensors) != weights_hash(CONFIG, MIXED)


def test_the_hash_is_the_same_for_views_and_copies() -> None:
    rows = torch.randn(4, 6)
    copy = rows.t().contiguous().requires_grad_()
    assert weights_hash(CONFIG, {"x": rows.t()}) == weights_hash(CONFIG, {"x": copy})


def test_a_file_is_read_with_its_configuration_and_hash(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(file_of(MIXED))
    tensors, config, digest = read_weights(path)
    assert (config, digest) == (CONFIG, weights_hash(CONFIG, MIXED))
    assert tensors.keys() == MIXED.keys()
    for name, tensor in MIXED.items():
        assert tensors[name].dtype == tensor.dtype
        assert torch.equal(tensors[name], tensor)


def test_a_file_of_another_program_has_no_configuration(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(write_by_library(MIXED, {"format": "pt"}))
    assert read_weights(path)[1:] == (None, None)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x80\x02}q\x00.",  # a pickle
        b"\xff" * 8,  # a header of absurd length
        file_of(MIXED)[:-1],
    ],
)
def test_incomplete_and_other_files_are_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(WeightsError, match="not a complete safetensors file"):
        read_weights(path)


@pytest.mark.parametrize(
    ("about", "words"),
    [
        ("{", "not valid JSON"),
        ('{"format": 2, "sha256": "0", "config": {}}', "update veca"),
        ('{"format": 1, "config": {}}', "no hash"),
        ('{"format": 1, "sha256": "0"}', "as its configuration"),
        ('{"format": 1, "sha256": "0", "config": {"layers": 0}}', "invalid configuration"),
    ],
)
def test_an_invalid_header_is_refused(about: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(write_by_library(MIXED, {METADATA_KEY: about}))
    with pytest.raises(WeightsError, match=words):
        read_weights(path)


def test_other_dtypes_and_missing_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(write_by_library({"steps": torch.arange(3)}))
    with pytest.raises(WeightsError, match=r"'steps'.*allowed are F64, F32, F16, BF16"):
        read_weights(path)
    with pytest.raises(WeightsError, match="does not exist"):
        read_weights(tmp_path / "nothing.safetensors")


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
def test_a_configuration_survives_json(config: BackboneConfig) -> None:
    assert config_from_json(json.loads(config_to_json(config)), "here") == config


def test_later_fields_are_stored_only_if_they_differ_from_their_defaults() -> None:
    later = {item.name for item in fields(BackboneConfig)} - FIRST_FIELDS
    assert later == {"local_kernel", "core_motion", "default_budget"}
    assert set(json.loads(config_to_json(BackboneConfig()))) == FIRST_FIELDS
    changed = json.loads(config_to_json(BackboneConfig(local_kernel=3)))
    assert set(changed) == {*FIRST_FIELDS, "local_kernel"}


def test_a_model_stored_before_the_later_fields_keeps_its_hash() -> None:
    model, digest = load_with_hash(STORED)
    stored = json.loads((STORED / "config.json").read_text())
    assert digest == stored["weights_sha256"]
    assert model.config == BackboneConfig(
        layers=2, width=32, heads=2, patch_size=4, budgets=(2, 4, 8), ffn_shares=(0.5, 1.0)
    )
    features = model(torch.linspace(-1, 1, 3 * 12 * 16).reshape(1, 3, 12, 16), 4, 0.5)
    first = [-0.6526057124137878, 1.620331048965454, -1.7273602485656738, 1.1036865711212158]
    assert features.image[0, :4].tolist() == pytest.approx(first, rel=1e-5)
    assert features.patches.abs().sum().item() == pytest.approx(295.0491943359375, rel=1e-5)


def test_missing_fields_have_their_defaults() -> None:
    assert config_from_json({"width": 384, "heads": 6}, "here") == SIZES["small"]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "has a NoneType as its configuration"),
        ([1], "has a list"),
        ({"depth": 3, "\x1b": 1}, r"unknown fields '\\x1b', 'depth'; allowed are layers"),
        ({"layers": 2.0}, "layers=2.0, but it must be an integer"),
        ({"layers": True}, "layers=True, but it must be an integer"),
        ({"layers": "12"}, "layers='12', but it must be an integer"),
        ({"ffn_ratio": "2"}, "must be a finite number"),
        ({"ffn_ratio": True}, "must be a finite number"),
        ({"ffn_ratio": float("nan")}, "a finite number"),
        ({"rotary_base": 10**400}, "a finite number"),
        ({"budgets": 8}, "it must be a list"),
        ({"budgets": [8, "16"]}, "it must be an integer"),
        ({"budgets": []}, "invalid configuration"),
        ({"budgets": [16, 8]}, "invalid configuration"),
        ({"ffn_shares": [None]}, "must be a finite number"),
        ({"attention": 1}, "must be a string"),
        ({"attention": "sparse"}, "invalid configuration"),
        ({"width": 0}, "invalid configuration"),
        ({"ffn_ratio": 1e308}, "invalid configuration"),
    ],
)
def test_an_invalid_configuration_is_refused(value: Any, words: str) -> None:
    with pytest.raises(WeightsError, match=words):
        config_from_json(value, "here")


def test_a_newer_format_asks_for_an_update() -> None:
    check_format(FORMAT, "here")
    with pytest.raises(WeightsError, match="update veca"):
        check_format(FORMAT + 1, "here")
    for value in (None, "1", 0, True, 1.0):
        with pytest.raises(WeightsError, match="must be an integer"):
            check_format(value, "here")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[1]",
        b"\xff\xfe",
        "[" * 100_000,
        "1" * 5000,
        " " * (MAX_JSON_BYTES + 1),
    ],
)
def test_text_other_than_a_json_object_is_refused(text: Any) -> None:
    with pytest.raises(WeightsError):
        parse_json(text, "here")


def test_a_huge_file_is_refused_without_reading_it_whole(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(10**12)  # sparse
    with pytest.raises(WeightsError, match="not written by veca"):
        read_json(path)


MODEL = trained_model(layers=3)
TENSORS = MODEL.state_dict()


@pytest.mark.parametrize("attention", ["core-periphery", "full"])
def test_the_tensors_of_a_model_fit_its_configuration(attention: str) -> None:
    model = trained_model(attention=attention)
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    assert expected_shapes(model.config) == shapes
    check_shapes(model.config, model.state_dict(), "here")


def test_missing_unexpected_and_misshaped_tensors_are_listed() -> None:
    tensors = {**TENSORS, "head.weight": torch.ones(3, 4), "final_norm.bias": torch.ones(33)}
    del tensors["blocks.0.attention.key.bias"]
    with pytest.raises(
        WeightsError,
        match=r"lacks 'blocks.0.attention.key.bias' and has unexpected 'head.weight' and has other "
        r"shapes: 'final_norm.bias \(33,\) instead of \(32,\)'",
    ):
        check_shapes(MODEL.config, tensors, "here")
    few = {name: item for name, item in TENSORS.items() if not name.startswith("blocks.1")}
    with pytest.raises(WeightsError, match="and 11 more") as caught:
        check_shapes(MODEL.config, few, "here")
    assert len(str(caught.value)) < 700


@pytest.mark.parametrize(
    "absurd",
    [
        BackboneConfig(layers=10**9, width=32, heads=2),
        BackboneConfig(layers=2, width=10**9, heads=5),
        BackboneConfig(layers=2, width=32, heads=2, patch_size=10**9),
        BackboneConfig(layers=2, width=32, heads=2, in_channels=10**9),
        BackboneConfig(layers=2, width=32, heads=2, ffn_ratio=1e9),
        BackboneConfig(layers=2, width=32, heads=2, budgets=(10**9,)),
        BackboneConfig(layers=2, width=32, heads=2, budgets=tuple(range(1, 100_000))),
        BackboneConfig(layers=2, width=32, heads=2, attention="full", prefix_tokens=10**9),
    ],
)
def test_an_absurd_configuration_is_refused_before_anything_is_built(
    absurd: BackboneConfig,
) -> None:
    start = time.perf_counter()
    with pytest.raises(WeightsError, match="too few for its configuration") as caught:
        check_shapes(absurd, TENSORS, "here")
    assert time.perf_counter() - start < 1
    assert len(str(caught.value)) < 500


def test_a_built_model_owns_its_memory_and_draws_no_random_numbers() -> None:
    before = torch.get_rng_state()
    model = model_with(MODEL.config, {name: item.clone() for name, item in TENSORS.items()})
    assert torch.equal(torch.get_rng_state(), before)
    assert same_weights(model, MODEL)
    assert not model.training
    assert all(item.requires_grad and not item.is_meta for item in model.parameters())
    memory = [item.untyped_storage() for item in model.parameters()]
    assert [item.nbytes() for item in memory] == [item.nbytes for item in model.parameters()]
    assert len({item.data_ptr() for item in memory}) == len(memory)


def test_the_first_names_are_listed_and_the_rest_is_counted() -> None:
    assert listed(["a", "b"]) == "'a', 'b'"
    assert listed(str(number) for number in range(10)).endswith("'5' and 4 more")
    assert listed(map(str, range(10)), most=9).endswith("'8' and 1 more")
    assert listed(map(str, range(10)), most=10).endswith("'9'")
    assert "\x1b" not in listed(["\x1b[31mred"])
    assert len(listed(["x" * 1000])) < 100


SMALL = trained_model(layers=1, width=8, heads=1, patch_size=1, budgets=(1, 2))
CONTENT = b"".join(
    file_pieces(SMALL.config, SMALL.state_dict(), weights_hash(SMALL.config, SMALL.state_dict()))
)
HEADER = 8 + int.from_bytes(CONTENT[:8], "little")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rotary_base": 99.0}, "changed or damaged"),
        ({"budgets": [2]}, "unexpected"),
        ({"width": 10**9}, "too few for its configuration"),
        ({"color": "red"}, "unknown fields 'color'"),
    ],
)
def test_a_changed_configuration_in_the_header_is_refused(
    changes: Any, words: str, tmp_path: Path
) -> None:
    header = json.loads(CONTENT[8:HEADER])
    entry = json.loads(header["__metadata__"]["veca"])
    entry["config"] |= changes
    header["__metadata__"]["veca"] = json.dumps(entry)
    text = json.dumps(header).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + CONTENT[HEADER:])
    with pytest.raises(WeightsError, match=words):
        veca.load(path)
