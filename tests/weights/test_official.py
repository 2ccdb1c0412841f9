"""Checkpoints of the authors: parity with a slow copy of their model, and hostile files."""

import builtins
import io
import math
import os
import pickle
import resource
import struct
import time
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import veca
from tests.weights.models import same_weights, trained_model
from veca.backbone.config import SIZES
from veca.cli.main import main
from veca.weights.checkpoint import model_info
from veca.weights.format import WeightsError
from veca.weights.official import (
    MAX_PICKLE_BYTES,
    converted,
    load_official,
    load_official_adaptor,
)

# The authors' model as plain functions of its state dict, from the paper's equations: one dense
# attention under a mask, neighboring channels turned pair by pair.

State = dict[str, Tensor]


class Layout(NamedTuple):
    """Sizes of a checkpoint of the authors."""

    layers: int
    width: int
    hidden: int
    chunks: int = 2
    chunk: int = 8
    patch: int = 4
    channels: int = 3
    teacher_width: int | None = None


def shapes(layout: Layout) -> dict[str, tuple[int, ...]]:
    """Every key of the authors' state dict and its shape."""
    width, hidden = layout.width, layout.hidden
    found: dict[str, tuple[int, ...]] = {
        "patch_embed.proj.weight": (width, layout.channels, layout.patch, layout.patch),
        "patch_embed.proj.bias": (width,),
        "pos_alpha": (layout.layers - 1,),
        "final_norm.weight": (width,),
        "final_norm.bias": (width,),
    }
    for number in range(layout.chunks):
        found[f"query_token_chunks.{number}"] = (1, layout.chunk, width)
        found[f"qcoord_chunks.{number}"] = (1, layout.chunk, 2)
    for layer in range(layout.layers - 1):
        found[f"pos_linears.{layer}.weight"] = (2, width)
        found[f"pos_linears.{layer}.bias"] = (2,)
    for layer in range(layout.layers):
        linears = {
            "attn.q_proj": (width, width),
            "attn.k_proj": (width, width),
            "attn.v_proj": (width, width),
            "attn.out_proj": (width, width),
            "fc1": (2 * hidden, width),
            "fc2": (width, hidden),
        }
        for name, shape in linears.items():
            found[f"blocks.{layer}.{name}.weight"] = shape
            found[f"blocks.{layer}.{name}.bias"] = shape[:1]
        for name in ("norm_attn", "norm_ffn"):
            found[f"blocks.{layer}.{name}.weight"] = (width,)
            found[f"blocks.{layer}.{name}.bias"] = (width,)
    if layout.teacher_width is not None:
        found["output_proj.weight"] = (layout.teacher_width, width)
        found["output_proj.bias"] = (layout.teacher_width,)
    return found


def random_state(layout: Layout, seed: int = 0) -> State:
    """A state dict in which every number matters: biases, norms, scales and coordinates too."""
    draw = torch.Generator().manual_seed(seed)
    state = {}
    for name, shape in shapes(layout).items():
        numbers = torch.randn(shape, generator=draw)
        if "norm" in name and name.endswith("weight"):
            state[name] = 1 + 0.2 * numbers
        elif name.startswith(("query_token", "qcoord", "pos_alpha")):
            state[name] = numbers
        else:
            fan = math.prod(shape[1:]) or 1
            state[name] = numbers * (0.3 if len(shape) == 1 else fan**-0.5)
    return state


def features(
    state: State, layout: Layout, heads: int, images: Tensor, budget: int
) -> tuple[Tensor, Tensor]:
    """The global feature and the patches, for a budget of whole chunks."""
    used = range(budget // layout.chunk)
    count = len(images)
    cores = torch.cat([state[f"query_token_chunks.{n}"] for n in used], 1).repeat(count, 1, 1)
    places = torch.cat([state[f"qcoord_chunks.{n}"] for n in used], 1).repeat(count, 1, 1)
    embedding = F.conv2d(
        images, state["patch_embed.proj.weight"], state["patch_embed.proj.bias"], layout.patch
    )
    rows, columns = embedding.shape[2:]
    tokens = torch.cat((cores, embedding.flatten(2).transpose(1, 2)), 1)
    centers = [
        [(column + 0.5) / columns * 2 - 1, (row + 0.5) / rows * 2 - 1]
        for row in range(rows)
        for column in range(columns)
    ]
    grid = torch.tensor(centers).repeat(count, 1, 1)
    for layer in range(layout.layers):
        if layer > 0:
            step = linear(state, f"pos_linears.{layer - 1}", tokens[:, :budget])
            places = places + state["pos_alpha"][layer - 1] * step
        points = torch.cat((places.tanh(), grid), 1)
        tokens = block(state, f"blocks.{layer}", tokens, points, heads=heads, budget=budget)
    tokens = norm(state, "final_norm", tokens)
    return tokens[:, 0], tokens[:, budget:]


def block(
    state: State, name: str, tokens: Tensor, points: Tensor, *, heads: int, budget: int
) -> Tensor:
    """Attention under the core-periphery mask, then SwiGLU."""
    normed = norm(state, f"{name}.norm_attn", tokens)
    query, key, value = (
        linear(state, f"{name}.attn.{part}_proj", normed).unflatten(2, (heads, -1)).transpose(1, 2)
        for part in "qkv"
    )
    total = tokens.shape[1]
    reads = torch.zeros(total, total, dtype=torch.bool)
    reads[:budget] = True  # cores read everything
    reads[:, :budget] = True  # everything reads cores
    scores = turned(query, points) @ turned(key, points).transpose(2, 3) / query.shape[3] ** 0.5
    mixed = scores.masked_fill(~reads, -math.inf).softmax(3) @ value
    tokens = tokens + linear(state, f"{name}.attn.out_proj", mixed.transpose(1, 2).flatten(2))
    normed = norm(state, f"{name}.norm_ffn", tokens)
    gates, values = linear(state, f"{name}.fc1", normed).chunk(2, 2)
    return tokens + linear(state, f"{name}.fc2", F.silu(gates) * values)


def turned(vectors: Tensor, points: Tensor) -> Tensor:
    """Rotary position: x turns the first half of the channels, y the second, in neighbor pairs."""
    channels = vectors.shape[3]
    quarter = channels // 4
    still = round(0.125 * quarter)
    found = torch.empty_like(vectors)
    for axis in range(2):
        for number in range(quarter):
            first = axis * channels // 2 + 2 * number
            period = math.inf if number >= quarter - still else 100 ** (number / quarter)
            angle = (2 * math.pi * points[:, None, :, axis]) / period
            one, other = vectors[..., first], vectors[..., first + 1]
            found[..., first] = one * angle.cos() - other * angle.sin()
            found[..., first + 1] = other * angle.cos() + one * angle.sin()
    return found


def linear(state: State, name: str, inputs: Tensor) -> Tensor:
    """A linear layer."""
    return inputs @ state[f"{name}.weight"].T + state[f"{name}.bias"]


def norm(state: State, name: str, inputs: Tensor) -> Tensor:
    """Layer normalization."""
    centered = inputs - inputs.mean(-1, keepdim=True)
    spread = (centered.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    return centered / spread * state[f"{name}.weight"] + state[f"{name}.bias"]


SMALL = Layout(layers=3, width=128, hidden=96, chunks=3)
PUBLISHED = Layout(layers=2, width=64, hidden=128, patch=16)
PAPER = {
    "small": (Layout(12, 384, 1024, 8, patch=16), 21_628_961),
    "small-plus": (Layout(12, 384, 1536, 8, patch=16), 28_719_137),
    "base": (Layout(12, 768, 2048, 8, patch=16), 85_725_089),
    "large": (Layout(24, 1024, 2730, 8, patch=16), 303_195_301),
}


def checkpoint(path: Path, state: State, **config: Any) -> Path:
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
def test_outputs_equal_the_authors_computation(
    budget: int, size: tuple[int, int], tmp_path: Path
) -> None:
    state = random_state(SMALL)
    model = load_official(checkpoint(tmp_path / "student.pt", state))
    images = torch.randn(2, 3, *size)
    image, patches = features(state, SMALL, 2, images, budget)
    found = model(images, budget=budget)
    torch.testing.assert_close(found.image, image, atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(found.patches, patches, atol=2e-5, rtol=1e-5)


def test_the_oracle_detects_channels_in_the_wrong_order(monkeypatch: pytest.MonkeyPatch) -> None:
    state = random_state(SMALL)
    images = torch.randn(1, 3, 8, 8)
    _, expected = features(state, SMALL, 2, images, 24)
    monkeypatch.setattr("veca.weights.official._permuted", lambda _, rows: rows)
    found = converted(state, {}, "here")(images).patches
    assert (found - expected).abs().max() > 0.01


def test_settings_of_the_checkpoint_are_used(tmp_path: Path) -> None:
    state = random_state(SMALL)
    settings = {
        "num_heads": 8,
        "rope_p_zero_freqs": 0.25,
        "rope_shift_coords": None,
        "rope_rescale_coords": 1.5,
    }
    model = load_official(checkpoint(tmp_path / "student.pt", state, **settings))
    assert model.config.heads == 8
    assert model.config.rotary_still == 0.25
    assert model.config.coordinate_shift == 0
    assert model.config.coordinate_rescale == 1.5
    for name in ("rope_base", "rope_theta", "base"):
        assert converted(state, {name: 1000}, "here").config.rotary_base == 1000
        assert converted(state, {name: None}, "here").config.rotary_base == 100

    images = torch.randn(1, 3, 8, 8)
    _, expected = features(state, SMALL, 8, images, 16)
    found = converted(state, {"num_heads": 8}, "here")(images, budget=16).patches
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("prefix", ["", "student.", "module._orig_mod.", "_orig_mod.module."])
def test_prefixes_of_wrappers_are_removed(prefix: str, tmp_path: Path) -> None:
    state = random_state(SMALL)
    path = tmp_path / "student.pt"
    torch.save({prefix + name: tensor for name, tensor in state.items()}, path)
    assert same_weights(load_official(path), converted(state, {}, "here"))


def test_a_checkpoint_with_nan_is_refused(tmp_path: Path) -> None:
    state = random_state(SMALL)
    state["final_norm.weight"] = state["final_norm.weight"] * torch.nan
    with pytest.raises(WeightsError, match="has NaN or infinite values in 'final_norm"):
        load_official(checkpoint(tmp_path / "student.pt", state))


def test_chunks_are_ordered_by_number() -> None:
    layout = Layout(layers=1, width=64, hidden=8, chunks=12, chunk=1)
    state = random_state(layout)
    model = converted(dict(sorted(state.items())), {}, "here")
    bank = torch.cat(list(model.core_bank.tokens))
    expected = torch.cat([state[f"query_token_chunks.{number}"][0] for number in range(12)])
    assert model.config.budgets == tuple(range(1, 13))
    assert torch.equal(bank, expected)


def test_a_converted_model_survives_saving_without_a_licence(tmp_path: Path) -> None:
    model = load_official(checkpoint(tmp_path / "student.pt", random_state(SMALL)))
    assert not model.training
    assert all(parameter.requires_grad for parameter in model.parameters())
    veca.save(model, tmp_path / "ours")
    again = veca.load(tmp_path / "ours")
    assert same_weights(again, model)
    veca.save(again, tmp_path / "again")
    for folder in (tmp_path / "ours", tmp_path / "again"):
        card = (folder / "README.md").read_text("utf-8")
        assert "\nlicense:" not in card
        assert "* License: not recorded\n" in card
        assert "apache" not in card + (folder / "config.json").read_text("utf-8")
        provenance = model_info(folder).provenance
        assert provenance is not None
        assert provenance.licence is None
        assert "states no license" in str(provenance.notes)
        assert "student.pt (SHA-256 " in str(provenance.notes)


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> State:
    """The state of authors.pt in the current folder, in patches of 16 pixels as published."""
    monkeypatch.chdir(tmp_path)
    state = random_state(PUBLISHED)
    checkpoint(tmp_path / "authors.pt", state)
    return state


def test_a_checkpoint_becomes_a_folder_that_says_where_it_is_from(
    published: State, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["import", "authors.pt", "--out", "ours"]) == 0
    text = capsys.readouterr().out
    assert "ours holds a VECA (2 layers, width 64, 0.1 M parameters, budgets 8, 16)" in text
    assert "no license" in text
    assert text.endswith("Try: veca demo --model ours\n")
    assert main(["info", "ours"]) == 0
    assert "authors.pt (SHA-256 " in capsys.readouterr().out
    card = Path("ours/README.md").read_text("utf-8")
    assert "* License: not recorded" in card
    assert "github.com/alansong1322/VECA" in card
    pixels = torch.rand(1, 3, 32, 48)
    image, _ = features(published, PUBLISHED, 1, pixels, 8)
    found = veca.load("ours")(pixels, budget=8).image
    torch.testing.assert_close(found, image, atol=2e-5, rtol=1e-5)


@pytest.mark.usefixtures("published")
def test_an_import_replaces_no_model_and_a_load_says_how_to_import(
    capsys: pytest.CaptureFixture[str],
) -> None:
    veca.save(trained_model(), "mine")
    before = model_info("mine").digest
    assert main(["import", "authors.pt", "--out", "mine"]) == 2
    assert "mine already holds a model; give another folder" in capsys.readouterr().err
    assert model_info("mine").digest == before
    assert main(["info", "authors.pt"]) == 2
    assert "run `veca import authors.pt --out DIR`" in capsys.readouterr().err


def test_half_precision_becomes_fp32(tmp_path: Path) -> None:
    state = {name: item.bfloat16() for name, item in random_state(SMALL).items()}
    model = load_official(checkpoint(tmp_path / "student.pt", state))
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert same_weights(model, converted({n: t.float() for n, t in state.items()}, {}, "here"))


@pytest.mark.parametrize("name", PAPER)
def test_sizes_of_the_paper_have_the_published_parameters(name: str) -> None:
    layout, parameters = PAPER[name]
    state = {key: torch.empty(shape, device="meta") for key, shape in shapes(layout).items()}
    model = converted(state, {}, "here")
    assert model.config == SIZES[name]
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


def test_missing_and_unexpected_keys_are_listed() -> None:
    state = random_state(SMALL)
    del state["blocks.1.attn.k_proj.bias"], state["pos_alpha"]
    state |= {f"extra.{number:02}": torch.ones(1) for number in range(45)}
    with pytest.raises(WeightsError) as caught:
        converted(state, {}, "here")
    for name in ("'blocks.1.attn.k_proj.bias'", "'pos_alpha'", "'extra.39' and 5 more"):
        assert name in str(caught.value)


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
    state = random_state(SMALL) | {name: torch.zeros(shape)}
    with pytest.raises(WeightsError, match=r"shape|dimensions|invalid configuration|too few"):
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
        {"rope_zero_freqs_from": "high"},
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(WeightsError, match=r"invalid configuration|='low'"):
        converted(random_state(SMALL), settings, "here")


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
def test_other_checkpoints_are_refused(content: Any, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "other.pt")
    with pytest.raises(WeightsError):
        load_official(tmp_path / "other.pt")
    with pytest.raises(WeightsError):
        load_official(tmp_path)
    with pytest.raises(WeightsError, match="is not a file"):
        load_official(tmp_path / "nothing.pt")


def test_tensors_larger_than_the_file_are_refused(tmp_path: Path) -> None:
    state = random_state(SMALL)
    state["final_norm.bias"] = torch.zeros(1).expand(10**12)  # one number, repeated
    torch.save(state, tmp_path / "student.pt")
    with pytest.raises(WeightsError, match="more than the file has"):
        load_official(tmp_path / "student.pt")


def test_the_output_projection_is_read_as_an_adaptor(tmp_path: Path) -> None:
    layout = SMALL._replace(teacher_width=40)
    state = random_state(layout)
    path = checkpoint(tmp_path / "student.pt", state)
    adaptor = load_official_adaptor(path)
    assert isinstance(adaptor, nn.Linear)
    assert torch.equal(adaptor.weight, state["output_proj.weight"])
    assert adaptor.bias is not None
    assert torch.equal(adaptor.bias, state["output_proj.bias"])
    assert adaptor(load_official(path)(torch.randn(1, 3, 8, 8)).patches).shape == (1, 4, 40)
    plain = checkpoint(tmp_path / "plain.pt", random_state(SMALL))
    assert load_official_adaptor(plain) is None
    bad = checkpoint(tmp_path / "bad.pt", state | {"output_proj.bias": torch.ones(3)})
    with pytest.raises(WeightsError, match="bias does not fit"):
        load_official_adaptor(bad)


LAYOUT = Layout(layers=1, width=64, hidden=8)


class Calls:
    """An object that calls a function when it is unpickled."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def saved(content: Any, **options: Any) -> bytes:
    """What torch.save writes."""
    buffer = io.BytesIO()
    torch.save(content, buffer, **options)
    return buffer.getvalue()


def archived(
    pickled: bytes,
    compression: int = zipfile.ZIP_STORED,
    entries: Mapping[str, bytes] | None = None,
) -> bytes:
    """An archive as torch.save lays it out, around any pickle."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        archive.writestr("student/data.pkl", pickled)
        for name, content in {"version": b"3\n", **(entries or {})}.items():
            archive.writestr(f"student/{name}", content)
    return buffer.getvalue()


def archived_twice(one: bytes, other: bytes) -> bytes:
    """An archive with two pickles."""
    buffer = io.BytesIO(archived(one))
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.writestr("other/data.pkl", other)
    return buffer.getvalue()


def false_sizes(content: bytes) -> bytes:
    """An archive whose directory claims an entry of four gigabytes."""
    place = content.index(b"PK\x01\x02")
    claim = struct.pack("<II", 2**32 - 2, 2**32 - 2)
    return content[: place + 20] + claim + content[place + 28 :]


def state() -> State:
    """The weights of a good checkpoint."""
    return random_state(LAYOUT)


def good() -> bytes:
    """A good checkpoint."""
    return saved(state())


def shell(marker: Path) -> Calls:
    """An object that creates the marker when it is unpickled."""
    return Calls(os.system, f"touch {marker}")


def code(marker: Path) -> Calls:
    """Another one."""
    return Calls(builtins.exec, f"open({str(marker)!r}, 'w')")


HOSTILE: dict[str, Callable[[Path], bytes]] = {
    "system": lambda marker: saved(shell(marker)),
    "system beside the student": lambda m: saved({"student": state(), "config": shell(m)}),
    "exec as a tensor": lambda marker: saved(state() | {"final_norm.bias": code(marker)}),
    "legacy format": lambda m: saved(shell(m), _use_new_zipfile_serialization=False),
    "plain pickle": lambda marker: pickle.dumps(shell(marker)),
    "newer pickle in an archive": lambda marker: archived(pickle.dumps(shell(marker), 4)),
    "memory for a tensor": lambda _: archived(pickle.dumps(Calls(torch.Tensor, 10**11), 2)),
    "zip bomb": lambda _: archived(b"\x80\x02}.", zipfile.ZIP_DEFLATED, {"x": bytes(50_000_000)}),
    "false sizes": lambda _: false_sizes(good()),
    "two pickles": lambda marker: archived_twice(b"\x80\x02}.", pickle.dumps(shell(marker), 2)),
    "no pickle": lambda _: archived(b"").replace(b"data.pkl", b"data.pk_"),
    "huge pickle": lambda _: archived(b"\x80\x02" + b"0" * MAX_PICKLE_BYTES),
    "junk before": lambda _: b"#!/bin/sh\n" + good(),
    "archive after archive": lambda marker: good() + saved(shell(marker)),
    "truncated": lambda _: good()[:5000],
    "broken pickle": lambda _: archived(pickle.dumps({"a": 1}, 2)[:-3]),
    "endless pickle": lambda _: archived(b"\x80\x02" + b"(" * 200_000),
    "empty": lambda _: b"",
}
"""Files that try to create the marker or to exhaust memory, or that are damaged."""


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_quickly_and_runs_no_code(name: str, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    path = tmp_path / "student.pt"
    path.write_bytes(HOSTILE[name](marker))
    start, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(WeightsError) as caught:
        load_official(path)
    assert time.process_time() - start < 5  # it takes 0.3; a zip bomb would take minutes
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # kilobytes
    assert len(str(caught.value)) < 1000
    assert not marker.exists()


def test_the_hostile_files_run_code_in_an_ordinary_unpickler(tmp_path: Path) -> None:
    marker, path = tmp_path / "marker", tmp_path / "student.pt"
    path.write_bytes(HOSTILE["system"](marker))
    torch.load(path, weights_only=False)
    assert marker.exists()


def test_a_damaged_checkpoint_is_refused_or_read(tmp_path: Path) -> None:
    content = good()
    directory = content.index(b"PK\x01\x02")
    path = tmp_path / "student.pt"
    outcomes = set()
    for place in range(0, 200, 20):
        for start in (0, 60, directory, len(content) - 200):
            changed = bytearray(content)
            changed[start + place] ^= 0xFF
            path.write_bytes(changed)
            try:
                load_official(path)
                outcomes.add("read")
            except WeightsError:
                outcomes.add("refused")
    assert outcomes == {"read", "refused"}


def test_other_classes_in_the_pickle_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "student.pt"
    path.write_bytes(saved({"student": {}, "config": Path("x")}))
    with pytest.raises(WeightsError, match=r"cannot be read by torch .* of the student only"):
        load_official(path)
