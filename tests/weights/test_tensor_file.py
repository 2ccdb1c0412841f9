"""The weights file: what is in it, that it is the same every time, and that it verifies itself."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load as read_by_library
from safetensors.torch import save as write_by_library
from torch import Tensor

from tests.weights.models import trained_model
from veca.backbone.config import BackboneConfig
from veca.runtime.tensors import bytes_of
from veca.weights.format import (
    METADATA_KEY,
    WeightsError,
    WeightsHash,
    canonical,
    file_pieces,
    names_of_types,
    open_weights,
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
        "config": json.loads(canonical(CONFIG)),
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
    assert one.text() == other.text()
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
    with pytest.raises(WeightsError, match="no whole safetensors file"), open_weights(path):
        pass


@pytest.mark.parametrize(
    ("about", "words"),
    [
        ("{", "no readable JSON"),
        ('{"format": 2, "sha256": "0", "config": {}}', "update veca"),
        ('{"format": 1, "config": {}}', "no hash"),
        ('{"format": 1, "sha256": "0"}', "as its configuration"),
        ('{"format": 1, "sha256": "0", "config": {"layers": 0}}', "can be built"),
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
    assert names_of_types([torch.float32, torch.float32]) == "float32"
    assert names_of_types([torch.float32, torch.bfloat16]) == "bfloat16, float32"
