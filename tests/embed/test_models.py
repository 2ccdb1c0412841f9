"""A model is known by its hash, and found again by its name."""

from pathlib import Path

import pytest
import torch

import veca
from tests.data.pictures import saved_model, small_model
from veca.embed.models import find_model
from veca.weights.checkpoint import describe

CPU = torch.device("cpu")


def test_a_stored_model_has_the_hash_that_info_tells_and_an_absolute_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved_model(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    found = find_model("model", CPU)
    assert found.digest == describe("model").digest
    assert found.name == str(tmp_path / "model")
    assert found.untrained


def test_the_hash_is_that_of_the_file_whatever_precision_it_is_computed_in(tmp_path: Path) -> None:
    veca.save(small_model(), tmp_path, dtype=torch.float16)
    found = find_model(tmp_path, CPU)
    assert next(found.model.parameters()).dtype == torch.float32
    assert found.digest == describe(tmp_path).digest


def test_the_name_of_a_size_gives_the_same_untrained_model_every_time() -> None:
    before = torch.random.get_rng_state()
    found, again = find_model("tiny", CPU), find_model("tiny", CPU)
    assert found.digest == again.digest
    assert found.name == "tiny"
    assert found.untrained
    assert torch.equal(before, torch.random.get_rng_state())


def test_a_model_in_memory_has_the_hash_of_its_file_and_no_name(tmp_path: Path) -> None:
    model = small_model()
    veca.save(model, tmp_path)
    found = find_model(model.train(), CPU)
    assert found.digest == describe(tmp_path).digest
    assert found.name is None
    assert not found.model.training


def test_a_trained_model_is_known_as_one() -> None:
    model = small_model()
    torch.nn.init.ones_(model.final_norm.bias)
    assert not find_model(model, CPU).untrained


def test_what_was_found_is_found_as_it_is() -> None:
    found = find_model(small_model(), CPU)
    assert find_model(found, CPU) is found


def test_an_unknown_model_is_refused_with_what_can_be_named() -> None:
    with pytest.raises(veca.WeightsError, match="give a folder or"):
        find_model("nothing", CPU)
