"""Models by the names that users type."""

from pathlib import Path

import pytest
import torch

import veca
from veca.weights.checkpoint import describe, named_model
from veca.weights.format import weights_hash


def test_the_name_of_a_size_gives_an_untrained_model_that_says_so() -> None:
    found = named_model("tiny", layers=1)
    assert not found.trained
    assert found.title.endswith("untrained")
    assert not found.model.training


def test_the_same_seed_gives_the_same_untrained_model_and_leaves_torchs_seed_alone() -> None:
    before = torch.get_rng_state()
    digests = [named_model("tiny", layers=1, seed=seed).digest for seed in (0, 0, 1)]
    assert digests[0] == digests[1] != digests[2]
    assert torch.equal(before, torch.get_rng_state())


def test_a_stored_model_is_loaded_and_known_to_be_trained(tmp_path: Path) -> None:
    model = veca.build("tiny", layers=1)
    torch.nn.init.normal_(model.final_norm.bias)
    veca.save(model, tmp_path / "mine")
    found = named_model(str(tmp_path / "mine"))
    assert found.trained
    assert torch.equal(found.model.final_norm.bias, model.final_norm.bias)
    with pytest.raises(ValueError, match="cannot be changed"):
        named_model(str(tmp_path / "mine"), layers=3)


@pytest.mark.parametrize("dtype", [None, torch.float16, torch.bfloat16])
def test_a_stored_model_is_known_by_the_hash_of_its_file(
    dtype: torch.dtype | None, tmp_path: Path
) -> None:
    veca.save(veca.build("tiny", layers=1), tmp_path, dtype=dtype)
    assert named_model(str(tmp_path)).digest == describe(tmp_path).digest


def test_an_untrained_model_has_the_hash_that_it_would_be_saved_with(tmp_path: Path) -> None:
    found = named_model("tiny", layers=1)
    assert found.digest == weights_hash(found.model.config, found.model.state_dict())
    veca.save(found.model, tmp_path)
    assert found.digest == describe(tmp_path).digest


def test_an_unknown_name_is_refused_with_what_is_known() -> None:
    with pytest.raises(ValueError, match="is not known"):
        named_model("huge")
