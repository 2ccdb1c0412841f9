"""The weights file: its content, its hash, untrusted configurations, and damage."""

import hashlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load as read_by_library
from safetensors.torch import save as write_by_library
from torch import Tensor

import veca
from tests.weights.models import same_weights, trained_model
from veca.backbone.config import SIZES, BackboneConfig
from veca.runtime.tensors import bytes_of
from veca.weights.checkpoint import load_with_hash
from veca.weights.format import (
    FIRST_FIELDS,
    FORMAT,
    MAX_JSON_BYTES,
    METADATA_KEY,
    WeightsError,
    WeightsHash,
    check_format,
    check_plausible,
    check_shapes,
    config_from_json,
    config_to_json,
    dtype_names,
    expected_shapes,
    file_pieces,
    listed,
    model_with,
    open_weights,
    parse_json,
    read_json,
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


def test_the_library_reads_back_every_tensor() -> None:
    found = read_by_library(file_of(MIXED))
    assert found.keys() == MIXED.keys()
    for name, tensor in MIXED.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)


def test_the_header_tells_configuration_format_and_hash_and_nothing_else() -> None:
    metadata = header_of(file_of(MIXED))["__metadata__"]
    assert list(metadata) == ["format", METADATA_KEY]
    assert metadata["format"] == "pt"  # what transformers asks a file for
    about = json.loads(metadata[METADATA_KEY])
    assert about == {
        "config": json.loads(config_to_json(CONFIG)),
        "format": 1,
        "sha256": weights_hash(CONFIG, MIXED),
    }


def test_equal_models_give_equal_files_in_every_process() -> None:
    code = (
        "import hashlib, sys; from tests.weights.models import trained_model as t;"
        "from veca.weights.format import *; m = t(); s = m.state_dict();"
        "p = file_pieces(m.config, s, weights_hash(m.config, s));"
        "print(hashlib.sha256(b''.join(p)).hexdigest())"
    )
    model = trained_model()
    expected = hashlib.sha256(file_of(model.state_dict(), model.config)).hexdigest()
    paths = os.pathsep.join(sys.path)
    found = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": paths},
        check=True,
        capture_output=True,
    )
    assert found.stdout.decode().strip() == expected


def test_the_order_of_the_tensors_does_not_matter() -> None:
    assert file_of(MIXED) == file_of(dict(reversed(MIXED.items())))


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
def test_the_hash_depends_on_all_that_makes_a_model(
    config: BackboneConfig, tensors: dict[str, Tensor]
) -> None:
    assert weights_hash(config, tensors) != weights_hash(CONFIG, MIXED)


def test_the_hash_is_the_same_for_views_and_copies() -> None:
    rows = torch.randn(4, 6)
    one, other = WeightsHash(CONFIG), WeightsHash(CONFIG)
    one.add("x", rows.t())
    other.add("x", rows.t().contiguous().requires_grad_())
    assert one.hexdigest() == other.hexdigest()
    assert bytes_of(rows.t()) == bytes_of(rows.t().contiguous())


def test_an_open_file_tells_its_model_and_its_tensors_in_order(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(file_of(MIXED))
    with open_weights(path) as file:
        assert file.config == CONFIG
        assert file.digest == weights_hash(CONFIG, MIXED)
        assert file.shapes == {name: tuple(tensor.shape) for name, tensor in MIXED.items()}
        assert file.dtypes == {name: tensor.dtype for name, tensor in MIXED.items()}
        assert [name for name, _ in file.tensors()] == sorted(MIXED)
        assert all(torch.equal(tensor, MIXED[name]) for name, tensor in file.tensors())


def test_a_file_of_another_library_describes_no_model(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(write_by_library(MIXED, {"format": "pt"}))
    with open_weights(path) as file:
        assert file.config is None
        assert file.digest is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"text",
        b"\x80\x02}q\x00.",  # a pickle
        b"PK\x03\x04" + bytes(100),  # a zip archive
        b"\xff" * 8,  # a header of absurd length
        file_of(MIXED)[:-1],
        file_of(MIXED)[:40],
        file_of(MIXED) + b"\0",
    ],
)
def test_what_is_no_whole_file_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(WeightsError, match="not a complete safetensors file"), open_weights(path):
        pass


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
def test_a_bad_description_is_refused(about: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(write_by_library(MIXED, {METADATA_KEY: about}))
    with pytest.raises(WeightsError, match=words), open_weights(path):
        pass


def test_whole_numbers_are_no_weights(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(write_by_library({"steps": torch.arange(3)}))
    with pytest.raises(WeightsError, match=r"'steps'.*allowed are F64, F32, F16, BF16"):
        open_weights(path).__enter__()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with (
        pytest.raises(WeightsError, match="does not exist"),
        open_weights(tmp_path / "model.safetensors"),
    ):
        pass


def test_types_are_told_once_each() -> None:
    assert dtype_names([torch.float32, torch.float32]) == "float32"
    assert dtype_names([torch.float32, torch.bfloat16]) == "bfloat16, float32"


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
    assert config_from_json(json.loads(config_to_json(config)), "here") == config


def test_one_configuration_has_one_text() -> None:
    one = BackboneConfig(layers=2, width=64, heads=1)
    assert config_to_json(one) == config_to_json(BackboneConfig(heads=1, width=64, layers=2))
    assert config_to_json(one) != config_to_json(BackboneConfig(layers=3, width=64, heads=1))


def test_fields_that_came_later_are_told_only_where_they_differ_from_their_defaults() -> None:
    later = {item.name for item in fields(BackboneConfig)} - FIRST_FIELDS
    assert later == {"local_kernel", "core_motion", "default_budget"}
    assert set(json.loads(config_to_json(BackboneConfig()))) == FIRST_FIELDS
    changed = json.loads(config_to_json(BackboneConfig(local_kernel=3)))
    assert set(changed) == {*FIRST_FIELDS, "local_kernel"}


def test_a_model_stored_before_the_later_fields_loads_with_the_hash_it_has() -> None:
    loaded = load_with_hash(STORED)
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
        (None, "has a NoneType as its configuration"),
        ([1], "has a list"),
        ({"depth": 3, "\x1b": 1}, r"unknown fields '\\x1b', 'depth'; allowed are layers"),
        ({"layers": 2.0}, "layers=2.0, but it must be an integer"),
        ({"layers": True}, "layers=True, but it must be an integer"),
        ({"layers": "12"}, "layers='12', but it must be an integer"),
        ({"ffn_ratio": "2"}, "but it must be a number"),
        ({"ffn_ratio": True}, "but it must be a number"),
        ({"ffn_ratio": float("nan")}, "a finite number"),
        ({"rotary_base": 10**400}, "a finite number"),
        ({"budgets": 8}, "it must be a list"),
        ({"budgets": [8, "16"]}, "it must be an integer"),
        ({"budgets": []}, "invalid configuration"),
        ({"budgets": [16, 8]}, "invalid configuration"),
        ({"ffn_shares": [None]}, "must be a number"),
        ({"attention": 1}, "must be a string"),
        ({"attention": "sparse"}, "invalid configuration"),
        ({"width": 0}, "invalid configuration"),
        ({"ffn_ratio": 1e308}, "invalid configuration"),
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
        with pytest.raises(WeightsError, match="must be an integer"):
            check_format(value, "here")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[1]",
        "3",
        "\ud800",
        b"\xff\xfe",
        "[" * 100_000,
        "1" * 5000,
        " " * (MAX_JSON_BYTES + 1),
    ],
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


MODEL = trained_model(layers=3)
SHAPES = {name: tuple(tensor.shape) for name, tensor in MODEL.state_dict().items()}


def copies() -> dict[str, Tensor]:
    """The weights of the model, copied."""
    return {name: tensor.clone() for name, tensor in MODEL.state_dict().items()}


@pytest.mark.parametrize("attention", ["core-periphery", "full"])
def test_the_tensors_of_a_model_fit_its_configuration(attention: str) -> None:
    model = trained_model(attention=attention)
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    assert expected_shapes(model.config) == shapes
    check_shapes(model.config, shapes, "here")


def test_missing_and_extra_tensors_are_listed() -> None:
    shapes = {**SHAPES, "head.weight": (3, 4)}
    del shapes["blocks.0.attention.key.bias"]
    words = r"lacks 'blocks.0.attention.key.bias' and has unexpected 'head.weight'"
    with pytest.raises(WeightsError, match=words):
        check_shapes(MODEL.config, shapes, "here")


def test_long_lists_are_shortened() -> None:
    shapes = {name: shape for name, shape in SHAPES.items() if not name.startswith("blocks.1")}
    with pytest.raises(WeightsError, match="and 11 more") as caught:
        check_shapes(MODEL.config, shapes, "here")
    assert len(str(caught.value)) < 700


def test_wrong_shapes_are_listed_beside_the_right_ones() -> None:
    shapes = {**SHAPES, "final_norm.bias": (33,)}
    with pytest.raises(WeightsError, match=r"final_norm.bias \(33,\) instead of \(32,\)"):
        check_shapes(MODEL.config, shapes, "here")


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
        check_shapes(absurd, SHAPES, "here")
    assert time.perf_counter() - start < 1
    assert len(str(caught.value)) < 500
    with pytest.raises(WeightsError):
        check_plausible(absurd, SHAPES, "here")


def test_an_assembled_model_has_the_tensors_and_draws_no_random_numbers() -> None:
    before = torch.get_rng_state()
    model = model_with(MODEL.config, copies())
    assert torch.equal(torch.get_rng_state(), before)
    assert same_weights(model, MODEL)
    assert not model.training


def test_parameters_own_their_memory_and_can_be_trained() -> None:
    model = model_with(MODEL.config, copies())
    for parameter in model.parameters():
        assert parameter.requires_grad
        assert not parameter.is_meta
        assert parameter.untyped_storage().nbytes() == parameter.numel() * parameter.element_size()
    memory = [parameter.untyped_storage().data_ptr() for parameter in model.parameters()]
    assert len(set(memory)) == len(memory)


def test_a_few_names_are_listed_and_the_rest_is_counted() -> None:
    assert listed(["a", "b"]) == "'a', 'b'"
    assert listed(str(number) for number in range(10)).endswith("'5' and 4 more")
    assert listed(map(str, range(10)), most=9).endswith("'8' and 1 more")
    assert listed(map(str, range(10)), most=10).endswith("'9'")


def test_names_from_a_file_cannot_command_the_terminal_or_fill_it() -> None:
    assert "\x1b" not in listed(["\x1b[31mred"])
    assert len(listed(["x" * 1000])) < 100


def test_a_weights_error_is_a_value_error_with_a_public_name() -> None:
    assert issubclass(WeightsError, ValueError)
    assert veca.WeightsError is WeightsError


SMALL = trained_model(layers=1, width=8, heads=1, patch_size=1, budgets=(1, 2))
CONTENT = b"".join(
    file_pieces(SMALL.config, SMALL.state_dict(), weights_hash(SMALL.config, SMALL.state_dict()))
)
HEADER = 8 + int.from_bytes(CONTENT[:8], "little")


def refused_or_same(content: bytes, folder: Path) -> bool:
    """Whether a file is refused in words; if not, it must hold the same model."""
    path = folder / "model.safetensors"
    path.write_bytes(content)
    try:
        found = veca.load(path)
    except WeightsError:
        return True
    assert found.config == SMALL.config
    assert same_weights(found, SMALL)
    return False


def flipped(place: int, mask: int) -> bytes:
    """The file with some bits of one byte turned."""
    content = bytearray(CONTENT)
    content[place] ^= mask
    return bytes(content)


@settings(max_examples=100)
@given(place=st.integers(HEADER, len(CONTENT) - 1), mask=st.integers(1, 255))
def test_any_change_of_a_weight_is_refused(
    place: int, mask: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert refused_or_same(flipped(place, mask), tmp_path_factory.getbasetemp())


@settings(max_examples=200)
@given(place=st.integers(0, HEADER - 1), mask=st.integers(1, 255))
def test_any_change_of_the_header_is_refused_or_means_nothing(
    place: int, mask: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    refused_or_same(flipped(place, mask), tmp_path_factory.getbasetemp())


@settings(max_examples=100)
@given(length=st.integers(0, len(CONTENT) - 1))
def test_any_truncation_is_refused(length: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    assert refused_or_same(CONTENT[:length], tmp_path_factory.getbasetemp())


def test_pieces_cut_out_swapped_or_doubled_are_refused(tmp_path: Path) -> None:
    draw = random.Random(0)
    for _ in range(100):
        first, second, third = sorted(draw.sample(range(len(CONTENT)), 3))
        head, one, two, tail = (
            CONTENT[:first], CONTENT[first:second], CONTENT[second:third], CONTENT[third:]
        )  # fmt: skip
        for content in (head + two + one + tail, head + one + tail, head + one + one + tail):
            if content != CONTENT:
                assert refused_or_same(content, tmp_path)


def retold(**changes: Any) -> bytes:
    """The file with other words in its description, of the right length."""
    header = json.loads(CONTENT[8:HEADER])
    about = json.loads(header["__metadata__"]["veca"])
    about["config"] |= changes
    header["__metadata__"]["veca"] = json.dumps(about)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + CONTENT[HEADER:]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rotary_base": 99.0}, "changed or damaged"),
        ({"budgets": [2]}, "unexpected"),
        ({"layers": 10**9}, "too few for its configuration"),
        ({"width": 10**9}, "too few for its configuration"),
        ({"color": "red"}, "unknown fields 'color'"),
        ({"layers": "1"}, "must be an integer"),
    ],
)
def test_a_description_that_was_changed_is_refused(
    changes: Any, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(retold(**changes))
    with pytest.raises(WeightsError, match=words):
        veca.load(path)
