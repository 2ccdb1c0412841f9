"""Checkpoints of the authors' release: every key finds its place and the numbers come out."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import veca
from tests.weights import authors
from tests.weights.authors import Layout
from tests.weights.models import same_weights
from veca.backbone.config import SIZES
from veca.weights.checkpoint import describe
from veca.weights.format import WeightsError, expected_shapes
from veca.weights.official import converted, load_official, load_official_adaptor, their_name

SMALL = Layout(layers=3, width=128, hidden=96, chunks=3)
PAPER = {
    "small": (Layout(12, 384, 1024, 8, patch=16), 21_628_961),
    "small-plus": (Layout(12, 384, 1536, 8, patch=16), 28_719_137),
    "base": (Layout(12, 768, 2048, 8, patch=16), 85_725_089),
    "large": (Layout(24, 1024, 2730, 8, patch=16), 303_195_301),
}


def checkpoint(path: Path, state: authors.State, **config: Any) -> Path:
    """A whole checkpoint as the authors' training writes it."""
    content = {
        "student": state,
        "optimizer": {"state": {0: {"exp_avg": torch.zeros(3)}}, "param_groups": [{"lr": 1e-4}]},
        "scheduler": {"last_epoch": 3},
        "config": {"model_family": "base", "nested_budgets": (8, 16), **config},
        "epoch": 3,
    }
    torch.save(content, path)
    return path


@pytest.mark.parametrize("size", [(8, 8), (12, 20), (24, 4)])
@pytest.mark.parametrize("budget", [8, 16, 24])
def test_the_outputs_are_those_of_the_authors_computation(
    budget: int, size: tuple[int, int], tmp_path: Path
) -> None:
    state = authors.random_state(SMALL)
    model = load_official(checkpoint(tmp_path / "student.pt", state))
    images = torch.randn(2, 3, *size)
    image, patches = authors.features(state, SMALL, 2, images, budget)
    found = model(images, budget=budget)
    torch.testing.assert_close(found.image, image, atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(found.patches, patches, atol=2e-5, rtol=1e-5)


def test_the_oracle_notices_channels_in_the_wrong_order(monkeypatch: pytest.MonkeyPatch) -> None:
    state = authors.random_state(SMALL)
    images = torch.randn(1, 3, 8, 8)
    _, expected = authors.features(state, SMALL, 2, images, 24)
    monkeypatch.setattr("veca.weights.official._reordered", lambda _, rows: rows)
    found = converted(state, {}, "here")(images).patches
    assert (found - expected).abs().max() > 0.01


def test_the_number_of_heads_comes_from_the_settings_if_they_tell_it(tmp_path: Path) -> None:
    state = authors.random_state(SMALL)
    model = load_official(checkpoint(tmp_path / "student.pt", state, num_heads=8))
    assert model.config.heads == 8
    images = torch.randn(1, 3, 8, 8)
    _, expected = authors.features(state, SMALL, 8, images, 16)
    torch.testing.assert_close(model(images, budget=16).patches, expected, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["rope_base", "rope_theta", "base"])
def test_a_rotary_base_that_the_settings_tell_is_kept(name: str) -> None:
    state = authors.random_state(SMALL)
    assert converted(state, {name: 1000}, "here").config.rotary_base == 1000
    for silent in ({}, {name: None}):
        assert converted(state, silent, "here").config.rotary_base == 100


def test_settings_that_shape_the_computation_are_kept(tmp_path: Path) -> None:
    state = authors.random_state(SMALL)
    told = {"rope_p_zero_freqs": 0.25, "rope_shift_coords": None, "rope_rescale_coords": 1.5}
    config = load_official(checkpoint(tmp_path / "student.pt", state, **told)).config
    assert config.rotary_still == 0.25
    assert config.coordinate_shift == 0
    assert config.coordinate_rescale == 1.5
    path = checkpoint(tmp_path / "student.pt", state, rope_zero_freqs_from="high")
    with pytest.raises(WeightsError, match="rope_zero_freqs_from='low'"):
        load_official(path)


@pytest.mark.parametrize(
    "prefix", ["", "module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module.", "student."]
)
def test_a_bare_state_dict_may_carry_the_prefix_of_a_wrapper(prefix: str, tmp_path: Path) -> None:
    state = authors.random_state(SMALL)
    path = tmp_path / "student.pt"
    torch.save({prefix + name: tensor for name, tensor in state.items()}, path)
    assert same_weights(load_official(path), converted(state, {}, "here"))


def test_ten_chunks_are_put_in_the_order_of_their_numbers() -> None:
    layout = Layout(layers=1, width=64, hidden=8, chunks=12, chunk=1)
    state = authors.random_state(layout)
    model = converted(dict(sorted(state.items())), {}, "here")
    bank = torch.cat(list(model.core_bank.tokens))
    expected = torch.cat([state[f"query_token_chunks.{number}"][0] for number in range(12)])
    assert model.config.budgets == tuple(range(1, 13))
    assert torch.equal(bank, expected)


def test_a_converted_model_is_saved_and_loaded_like_any_other(tmp_path: Path) -> None:
    model = load_official(checkpoint(tmp_path / "student.pt", authors.random_state(SMALL)))
    assert not model.training
    assert all(parameter.requires_grad for parameter in model.parameters())
    veca.save(model, tmp_path / "ours")
    assert same_weights(veca.load(tmp_path / "ours"), model)


def test_the_authors_weights_are_never_given_a_licence(tmp_path: Path) -> None:
    model = load_official(checkpoint(tmp_path / "student.pt", authors.random_state(SMALL)))
    veca.save(model, tmp_path / "ours")
    veca.save(veca.load(tmp_path / "ours"), tmp_path / "again")
    for folder in (tmp_path / "ours", tmp_path / "again"):
        card = (folder / "README.md").read_text("utf-8")
        assert "license:" not in card
        assert "apache" not in card + (folder / "config.json").read_text("utf-8")
        found = describe(folder).provenance
        assert found is not None
        assert found.licence is None
        assert "arXiv 2605.12491" in str(found.notes)
        assert "without a licence" in str(found.notes)


def test_half_precision_is_read_as_single(tmp_path: Path) -> None:
    state = {name: item.bfloat16() for name, item in authors.random_state(SMALL).items()}
    model = load_official(checkpoint(tmp_path / "student.pt", state))
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert same_weights(model, converted({n: t.float() for n, t in state.items()}, {}, "here"))


@pytest.mark.parametrize("name", PAPER)
def test_every_size_of_the_paper_is_recognized_to_the_parameter(name: str) -> None:
    layout, parameters = PAPER[name]
    state = {
        key: torch.empty(shape, device="meta") for key, shape in authors.shapes(layout).items()
    }
    model = converted(state, {}, "here")
    assert model.config == SIZES[name]
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


def test_a_file_of_the_small_size_is_read_whole() -> None:
    with tempfile.TemporaryDirectory() as folder:
        layout, _ = PAPER["small"]
        state = {key: torch.zeros(shape) for key, shape in authors.shapes(layout).items()}
        model = load_official(checkpoint(Path(folder, "student.pt"), state, num_heads=6))
    assert model.config == SIZES["small"]


def test_every_parameter_of_ours_has_one_name_of_theirs() -> None:
    wanted = {their_name(name) for name in expected_shapes(SIZES["small"])}
    assert wanted == authors.shapes(PAPER["small"][0]).keys()


def test_missing_and_left_over_keys_are_listed_in_the_authors_names() -> None:
    state = authors.random_state(SMALL)
    del state["blocks.1.attn.k_proj.bias"], state["pos_alpha"]
    state["patch_embed.norm.weight"] = torch.ones(128)
    with pytest.raises(WeightsError) as caught:
        converted(state, {}, "here")
    for name in ("'blocks.1.attn.k_proj.bias'", "'pos_alpha'", "'patch_embed.norm.weight'"):
        assert name in str(caught.value)


def test_forty_keys_are_listed_and_the_rest_is_counted() -> None:
    extra = {f"extra.{number:02}": torch.ones(1) for number in range(45)}
    with pytest.raises(WeightsError, match=r"'extra\.39' and 5 more left over"):
        converted(authors.random_state(SMALL) | extra, {}, "here")


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("blocks.1.attn.q_proj.weight", (64, 128)),
        ("blocks.1.attn.v_proj.weight", (128, 64)),
        ("pos_alpha", (5,)),
        ("qcoord_chunks.1", (1, 8, 3)),
        ("query_token_chunks.1", (2, 8, 128)),
        ("query_token_chunks.1", (8, 128)),
        ("patch_embed.proj.weight", (128, 48)),
        ("patch_embed.proj.weight", (128, 3, 4, 5)),
        ("patch_embed.proj.weight", (0, 3, 4, 4)),
        ("blocks.0.fc2.weight", (128,)),
    ],
)
def test_a_key_of_the_wrong_shape_is_refused(name: str, shape: tuple[int, ...]) -> None:
    state = authors.random_state(SMALL) | {name: torch.zeros(shape)}
    with pytest.raises(WeightsError, match=r"shape|dimensions|can be built|too few"):
        converted(state, {}, "here")


@pytest.mark.parametrize(
    "settings",
    [
        {"num_heads": 7},
        {"num_heads": [2]},
        {"rope_p_zero_freqs": []},
        {"rope_base": -1},
        {"rope_base": 10**400},
        {"base": "large"},
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(WeightsError, match="can be built"):
        converted(authors.random_state(SMALL), settings, "here")


@pytest.mark.parametrize(
    "content",
    [
        [],
        {},
        3,
        {"student": None},
        {"model": {"weight": torch.ones(2)}},
        {"student": {"weight": torch.ones(2, dtype=torch.int64)}},
        {"student": {("a", 1): torch.ones(2)}},
        {"head.weight": torch.ones(2)},
    ],
)
def test_a_checkpoint_of_something_else_is_refused(content: Any, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "other.pt")
    with pytest.raises(WeightsError):
        load_official(tmp_path / "other.pt")
    with pytest.raises(WeightsError):
        load_official(tmp_path)
    with pytest.raises(WeightsError, match="is no file"):
        load_official(tmp_path / "nothing.pt")


def test_tensors_that_claim_more_than_the_file_holds_are_refused(tmp_path: Path) -> None:
    state = authors.random_state(SMALL)
    state["final_norm.bias"] = torch.zeros(1).expand(10**12)  # one number, shown many times
    torch.save(state, tmp_path / "student.pt")
    with pytest.raises(WeightsError, match="more than the file has"):
        load_official(tmp_path / "student.pt")


def test_the_projection_to_a_teacher_is_an_adaptor_beside_the_model(tmp_path: Path) -> None:
    layout = SMALL._replace(teacher_width=40)
    state = authors.random_state(layout)
    path = checkpoint(tmp_path / "student.pt", state)
    adaptor = load_official_adaptor(path)
    assert isinstance(adaptor, nn.Linear)
    assert torch.equal(adaptor.weight, state["output_proj.weight"])
    assert adaptor.bias is not None
    assert torch.equal(adaptor.bias, state["output_proj.bias"])
    assert adaptor(load_official(path)(torch.randn(1, 3, 8, 8)).patches).shape == (1, 4, 40)
    plain = checkpoint(tmp_path / "plain.pt", authors.random_state(SMALL))
    assert load_official_adaptor(plain) is None
    bad = checkpoint(tmp_path / "bad.pt", state | {"output_proj.bias": torch.ones(3)})
    with pytest.raises(WeightsError, match="bias does not fit"):
        load_official_adaptor(bad)
