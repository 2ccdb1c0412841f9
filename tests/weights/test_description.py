"""A stored model is described without building it, and its hash is verified."""

from pathlib import Path

import pytest
import torch

import veca
from tests.weights.models import trained_model
from veca.weights.card import Provenance
from veca.weights.checkpoint import describe
from veca.weights.format import WeightsError, weights_hash


def test_a_description_tells_what_was_saved(tmp_path: Path) -> None:
    model = trained_model(ffn_shares=(0.5, 1.0))
    veca.save(model, tmp_path, provenance=Provenance(teacher="owner/teacher"))
    facts = describe(tmp_path)
    assert facts.config == model.config
    assert facts.dtype == "float32"
    assert facts.file_bytes == (tmp_path / "model.safetensors").stat().st_size
    assert facts.digest == weights_hash(model.config, model.state_dict())
    assert facts.provenance == Provenance(teacher="owner/teacher")
    assert not facts.untrained
    assert facts.notes == ()


def test_an_untrained_model_in_half_precision_is_described_as_such(tmp_path: Path) -> None:
    veca.save(veca.build("tiny", layers=1), tmp_path, dtype=torch.float16)
    facts = describe(tmp_path)
    assert facts.dtype == "float16"
    assert facts.untrained


def test_damaged_weights_are_not_described(tmp_path: Path) -> None:
    veca.save(trained_model(), tmp_path)
    path = tmp_path / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    with pytest.raises(WeightsError, match="changed or damaged"):
        describe(tmp_path)
