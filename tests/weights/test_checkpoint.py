"""Saving and loading: the same model comes back, in the form that was asked for."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_model
from torch import nn

import veca
from tests.weights.models import same_weights, trained_model
from veca.backbone.config import BackboneConfig
from veca.weights.card import Provenance
from veca.weights.checkpoint import load, save
from veca.weights.format import WeightsError

MODEL = trained_model()
IMAGES = torch.randn(2, 3, 8, 12, generator=torch.Generator().manual_seed(1))


@st.composite
def fields(draw: st.DrawFn) -> dict[str, Any]:
    """The fields of small models of every kind."""
    heads = draw(st.integers(1, 3))
    sizes = {
        "layers": draw(st.integers(1, 3)),
        "width": 4 * heads * draw(st.integers(1, 3)),
        "heads": heads,
        "ffn_ratio": draw(st.floats(0.3, 4.0)),
        "patch_size": draw(st.integers(1, 5)),
        "in_channels": draw(st.integers(1, 4)),
        "ffn_shares": draw(st.sampled_from([(1.0,), (0.3, 1.0), (0.1, 0.7, 1.0)])),
        "rotary_base": draw(st.floats(1, 1e4)),
        "rotary_still": draw(st.floats(0, 1)),
    }
    if draw(st.booleans()):
        return sizes | {"attention": "full", "prefix_tokens": draw(st.integers(1, 4))}
    budgets = draw(st.sets(st.integers(1, 12), min_size=1, max_size=4))
    return sizes | {"budgets": tuple(sorted(budgets))}


@settings(max_examples=30)
@given(fields=fields(), dtype=st.sampled_from([None, torch.float64]))
def test_any_model_comes_back_as_it_was_saved(
    fields: dict[str, Any], dtype: torch.dtype | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("model")
    model = veca.VECA(BackboneConfig(**fields))
    save(model, folder, dtype=dtype)
    found = load(folder)
    assert found.config == model.config
    assert same_weights(found, model.to(dtype or torch.float32))


@pytest.mark.parametrize("attention", ["core-periphery", "full"])
def test_a_loaded_model_computes_what_the_saved_one_did(attention: str, tmp_path: Path) -> None:
    model = trained_model(attention=attention)
    save(model, tmp_path)
    expected, found = model(IMAGES), load(tmp_path)(IMAGES)
    assert torch.equal(found.cores, expected.cores)
    assert torch.equal(found.patches, expected.patches)


def test_a_loaded_model_is_in_evaluation_mode_and_can_be_trained(tmp_path: Path) -> None:
    save(MODEL.train(), tmp_path)
    MODEL.eval()
    model = load(tmp_path)
    assert not model.training
    features = model.train()(IMAGES)
    (features.image.sum() + features.patches.square().sum()).backward()
    torch.optim.AdamW(model.parameters()).step()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_loading_leaves_the_random_numbers_of_the_caller_alone(tmp_path: Path) -> None:
    save(MODEL, tmp_path)
    before = torch.get_rng_state()
    load(tmp_path)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_loaded_model_does_not_change_when_its_file_does(tmp_path: Path) -> None:
    save(MODEL, tmp_path)
    model = load(tmp_path)
    path = tmp_path / "model.safetensors"
    with path.open("r+b") as file:
        file.write(bytes(path.stat().st_size))
    assert same_weights(model, MODEL)


def test_equal_models_give_equal_files(tmp_path: Path) -> None:
    save(trained_model(), tmp_path / "one", provenance=Provenance(date="2026-01-01"))
    save(trained_model(), tmp_path / "another place", provenance=Provenance(command="x"))
    one, other = (tmp_path / name / "model.safetensors" for name in ("one", "another place"))
    assert one.read_bytes() == other.read_bytes()


def test_saving_again_changes_nothing_and_leaves_other_files_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine", "utf-8")
    save(MODEL, tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert before.keys() == {"notes.txt", "config.json", "model.safetensors", "README.md"}
    save(MODEL, tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_config_json_tells_the_model_and_its_story(tmp_path: Path) -> None:
    save(MODEL, tmp_path, provenance=Provenance(seed=5))
    content = json.loads((tmp_path / "config.json").read_text("utf-8"))
    assert content["model_type"] == "veca"
    assert content["format"] == 1
    assert content["veca_version"] == veca.__version__
    assert content["backbone"]["budgets"] == [2, 3, 6]
    assert content["dtype"] == "float32"
    assert len(content["weights_sha256"]) == 64
    assert content["provenance"] == {"seed": 5}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_halves_the_file_and_loads_in_single_precision_on_a_cpu(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    save(MODEL, tmp_path / "whole")
    save(MODEL, tmp_path / "half", dtype=dtype)
    sizes = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("half", "whole")]
    assert 0.45 < sizes[0] / sizes[1] < 0.6
    model = load(tmp_path / "half")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    for mine, theirs in zip(model.parameters(), MODEL.parameters(), strict=True):
        assert torch.equal(mine, theirs.to(dtype).float())
    kept = load(tmp_path / "half", dtype=dtype)
    assert {parameter.dtype for parameter in kept.parameters()} == {dtype}


def test_other_devices_keep_the_precision_of_the_file(tmp_path: Path) -> None:
    save(MODEL, tmp_path, dtype=torch.bfloat16)
    model = load(tmp_path, device="meta")  # the one other device that every machine has
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}


def test_a_model_of_several_precisions_keeps_them(tmp_path: Path) -> None:
    model = trained_model()
    model.final_norm.double()
    save(model, tmp_path)
    assert same_weights(load(tmp_path), model)


def test_numbers_too_large_for_half_precision_are_refused(tmp_path: Path) -> None:
    model = trained_model()
    with torch.no_grad():
        model.final_norm.weight[0] = 1e5
    with pytest.raises(WeightsError, match=r"final_norm\.weight has numbers too large"):
        save(model, tmp_path, dtype=torch.float16)
    assert not list(tmp_path.iterdir())
    save(model, tmp_path, dtype=torch.bfloat16)


def test_other_budgets_cut_the_same_bank_into_other_chunks(tmp_path: Path) -> None:
    save(MODEL, tmp_path)
    model = load(tmp_path, budgets=(1, 4, 5, 6))
    assert model.config.budgets == (1, 4, 5, 6)
    assert [len(chunk) for chunk in model.core_bank.tokens] == [1, 3, 1, 1]
    for budget in (1, 3, 6):
        expected, found = MODEL(IMAGES, budget=budget), model(IMAGES, budget=budget)
        torch.testing.assert_close(found.patches, expected.patches)
        torch.testing.assert_close(found.cores, expected.cores)


def test_a_smaller_last_budget_keeps_the_first_cores(tmp_path: Path) -> None:
    save(MODEL, tmp_path)
    model = load(tmp_path, budgets=(1, 4))
    assert model.config.cores == 4
    torch.testing.assert_close(model(IMAGES).patches, MODEL(IMAGES, budget=4).patches)
    save(model, tmp_path)
    assert same_weights(load(tmp_path), model)


@pytest.mark.parametrize("budgets", [(6,), (4,), (1, 4), (1, 2, 6), (2, 3, 6)])
def test_with_other_budgets_each_chunk_owns_its_memory(
    budgets: tuple[int, ...], tmp_path: Path
) -> None:
    save(MODEL, tmp_path)
    model = load(tmp_path, budgets=budgets)
    for parameter in model.parameters():
        assert parameter.untyped_storage().nbytes() == parameter.numel() * parameter.element_size()
    save_model(model, str(tmp_path / "by_library.safetensors"))  # refuses tensors that overlap


@pytest.mark.parametrize(
    ("budgets", "words"),
    [((8,), "end with 6 or fewer"), ((), "must be core counts"), ((3, 2), "rise")],
)
def test_budgets_that_the_bank_cannot_give_are_refused(
    budgets: tuple[int, ...], words: str, tmp_path: Path
) -> None:
    save(MODEL, tmp_path)
    with pytest.raises(ValueError, match=words):
        load(tmp_path, budgets=budgets)


def test_a_full_attention_model_takes_no_budgets(tmp_path: Path) -> None:
    save(trained_model(attention="full"), tmp_path)
    with pytest.raises(WeightsError, match="no cores"):
        load(tmp_path, budgets=(8,))


def test_types_that_no_model_has_are_refused(tmp_path: Path) -> None:
    for dtype in (torch.int8, torch.float8_e5m2, torch.complex64):
        with pytest.raises(WeightsError, match="is no type of weights"):
            save(MODEL, tmp_path, dtype=dtype)
        with pytest.raises(WeightsError, match="is no type of weights"):
            load(tmp_path, dtype=dtype)
    with pytest.raises(WeightsError, match=r"the type torch\.float8_e5m2"):
        save(trained_model().to(torch.float8_e5m2), tmp_path)


@pytest.mark.parametrize("device", ["abacus", "cuda:99", torch.device("cuda:99")])
def test_a_device_that_is_not_there_is_refused_before_anything_is_read(
    device: torch.device | str, tmp_path: Path
) -> None:
    with pytest.raises(WeightsError, match=r"the device '.*' cannot be used here; use 'cpu'"):
        load(tmp_path / "nothing", device=device)


def test_what_is_not_a_whole_model_is_not_saved(tmp_path: Path) -> None:
    unchecked: Any = getattr(save, "__wrapped__", save)  # past the type checks of the test run
    with pytest.raises(WeightsError, match="pass the VECA model itself"):
        unchecked(nn.Linear(2, 2), tmp_path)
    with pytest.raises(WeightsError, match="no memory"):
        save(trained_model().to("meta"), tmp_path)
    changed = trained_model()
    changed.final_norm.register_buffer("extra", torch.zeros(2))
    with pytest.raises(WeightsError, match=r"'final_norm\.extra' left over"):
        save(changed, tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(WeightsError, match="is a file"):
        save(MODEL, tmp_path / "file")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
