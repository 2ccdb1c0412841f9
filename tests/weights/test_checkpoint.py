"""Saving and loading: the same weights, provenance, hashes, names, and interrupted saves."""

import json
import math
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file, save_model
from torch import distributed, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

import veca
from tests.runtime.faults import FaultyDisk
from tests.weights.models import same_weights, trained_model
from veca.backbone.config import BackboneConfig
from veca.weights.card import Provenance
from veca.weights.checkpoint import load, load_or_build, model_info, save
from veca.weights.format import WeightsError, file_pieces, weights_hash

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


@settings(max_examples=15)
@given(fields=fields(), dtype=st.sampled_from([None, torch.float64]))
def test_any_model_survives_saving_and_loading(
    fields: dict[str, Any], dtype: torch.dtype | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("model")
    model = veca.VECA(BackboneConfig(**fields))
    save(model, folder, dtype=dtype)
    found = load(folder)
    assert found.config == model.config
    assert same_weights(found, model.to(dtype or torch.float32))


@pytest.mark.parametrize("attention", ["core-periphery", "full"])
def test_a_loaded_model_gives_the_outputs_of_the_saved_one(attention: str, tmp_path: Path) -> None:
    model = trained_model(attention=attention)
    save(model, tmp_path)
    expected, found = model(IMAGES), load(tmp_path)(IMAGES)
    assert torch.equal(found.cores, expected.cores)
    assert torch.equal(found.patches, expected.patches)


def test_a_loaded_model_is_in_evaluation_mode_and_can_be_trained(tmp_path: Path) -> None:
    save(MODEL.train(), tmp_path)
    MODEL.eval()
    before = torch.get_rng_state()
    model = load(tmp_path)
    assert torch.equal(torch.get_rng_state(), before)
    assert not model.training
    features = model.train()(IMAGES)
    (features.image.sum() + features.patches.square().sum()).backward()
    torch.optim.AdamW(model.parameters()).step()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_saving_again_changes_no_file(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine", "utf-8")
    save(MODEL, tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert before.keys() == {
        "notes.txt", "config.json", "model.safetensors", "preprocessor_config.json", "README.md",
    }  # fmt: skip
    save(MODEL, tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_config_json_holds_configuration_hash_and_provenance(tmp_path: Path) -> None:
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
def test_half_precision_halves_the_file_and_becomes_fp32_on_a_cpu(
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


def test_other_devices_keep_the_dtypes_of_the_file(tmp_path: Path) -> None:
    model = trained_model()
    model.final_norm.double()
    save(model, tmp_path)
    assert same_weights(load(tmp_path), model)
    save(MODEL, tmp_path, dtype=torch.bfloat16)
    moved = load(tmp_path, device="meta")  # a device that every machine has
    assert {parameter.dtype for parameter in moved.parameters()} == {torch.bfloat16}
    assert {parameter.device.type for parameter in moved.parameters()} == {"meta"}


def test_values_too_large_for_fp16_are_refused(tmp_path: Path) -> None:
    model = trained_model()
    with torch.no_grad():
        model.final_norm.weight[0] = 1e5
    with pytest.raises(WeightsError, match=r"final_norm\.weight has values too large"):
        save(model, tmp_path, dtype=torch.float16)
    assert not list(tmp_path.iterdir())
    save(model, tmp_path, dtype=torch.bfloat16)


def test_other_budgets_split_the_same_bank_into_other_chunks(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("budgets", [(6,), (1, 4), (1, 2, 6), (2, 3, 6)])
def test_with_other_budgets_each_chunk_owns_its_memory(
    budgets: tuple[int, ...], tmp_path: Path
) -> None:
    save(MODEL, tmp_path)
    model = load(tmp_path, budgets=budgets)
    save_model(model, str(tmp_path / "by_library.safetensors"))  # refuses tensors that overlap


@pytest.mark.parametrize(
    ("budgets", "words"),
    [((8,), "end with 6 or fewer"), ((), "must be increasing core counts"), ((3, 2), "increasing")],
)
def test_budgets_beyond_the_bank_are_refused(
    budgets: tuple[int, ...], words: str, tmp_path: Path
) -> None:
    save(MODEL, tmp_path)
    with pytest.raises(ValueError, match=words):
        load(tmp_path, budgets=budgets)
    save(trained_model(attention="full"), tmp_path)
    with pytest.raises(WeightsError, match="no cores"):
        load(tmp_path, budgets=budgets)


def test_other_dtypes_are_refused(tmp_path: Path) -> None:
    for dtype in (torch.int8, torch.float8_e5m2, torch.complex64):
        with pytest.raises(WeightsError, match="is not a type of weights"):
            save(MODEL, tmp_path, dtype=dtype)
        with pytest.raises(WeightsError, match="is not a type of weights"):
            load(tmp_path, dtype=dtype)
    with pytest.raises(WeightsError, match=r"has type torch\.float8_e5m2"):
        save(trained_model().to(torch.float8_e5m2), tmp_path)


@pytest.mark.parametrize("device", ["abacus", "cuda:99", torch.device("cuda:99")])
def test_an_unavailable_device_is_refused(device: torch.device | str, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"the device '.*' is not available; use 'cpu'"):
        load(tmp_path / "nothing", device=device)


def test_only_complete_models_are_saved_into_folders(tmp_path: Path) -> None:
    unchecked: Any = getattr(save, "__wrapped__", save)  # past the type checks of the test run
    with pytest.raises(WeightsError, match="pass the VECA model itself"):
        unchecked(nn.Linear(2, 2), tmp_path)
    with pytest.raises(WeightsError, match="is on the meta device"):
        save(trained_model().to("meta"), tmp_path)
    changed = trained_model()
    changed.final_norm.register_buffer("extra", torch.zeros(2))
    with pytest.raises(WeightsError, match=r"unexpected 'final_norm\.extra'"):
        save(changed, tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(WeightsError, match="is a file"):
        save(MODEL, tmp_path / "file")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


STORY = Provenance(
    licence="other", teacher="owner/teacher", teacher_licence="other", notes="ask the teacher"
)


@pytest.fixture
def licensed(tmp_path: Path) -> Path:
    """A folder with a model that has a licence."""
    veca.save(trained_model(), tmp_path / "model", provenance=STORY)
    return tmp_path / "model"


def test_loading_and_saving_again_keeps_the_provenance(licensed: Path) -> None:
    assert veca.load(licensed).provenance == STORY
    veca.save(veca.load(licensed, budgets=(1, 4)), licensed.parent / "another")
    for target in (licensed, licensed.parent / "another"):
        assert model_info(target).provenance == STORY
        card = (target / "README.md").read_text("utf-8")
        assert 'license: "other"' in card
        assert "ask the teacher" in card
    veca.save(veca.load(licensed), licensed, provenance=Provenance(licence="mit"))
    assert model_info(licensed).provenance == Provenance(licence="mit")


def test_a_model_without_provenance_gets_no_licence(licensed: Path) -> None:
    (licensed / "config.json").unlink()
    model = veca.load(licensed)
    assert model.provenance is None
    veca.save(model, licensed)
    assert model_info(licensed).provenance == Provenance()
    assert "license:" not in (licensed / "README.md").read_text("utf-8")


def test_model_info_describes_the_file(tmp_path: Path) -> None:
    model = trained_model(ffn_shares=(0.5, 1.0))
    veca.save(model, tmp_path, provenance=Provenance(teacher="owner/teacher"))
    facts = model_info(tmp_path)
    assert facts.config == model.config
    assert facts.dtype == "float32"
    assert facts.file_bytes == (tmp_path / "model.safetensors").stat().st_size
    assert facts.digest == weights_hash(model.config, model.state_dict())
    assert facts.provenance == Provenance(teacher="owner/teacher")
    assert (facts.untrained, facts.notes) == (False, ())
    veca.save(veca.build("tiny", layers=1), tmp_path, dtype=torch.float16)
    assert (model_info(tmp_path).dtype, model_info(tmp_path).untrained) == ("float16", True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a model of known provenance."""
    veca.save(MODEL, tmp_path, provenance=Provenance(licence="mit", data="photographs"))
    return tmp_path


def change_config(folder: Path, **changes: Any) -> None:
    """Write other values into config.json."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | changes), "utf-8")


def strip_header(folder: Path) -> None:
    """Store the weights as another program would, without our entry in the header."""
    save_file(MODEL.state_dict(), folder / "model.safetensors")


def test_after_an_interrupted_save_the_old_config_json_is_ignored(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old = (folder / "config.json").read_bytes()
    newer = trained_model(seed=1, layers=1)
    veca.save(newer, folder)
    (folder / "config.json").write_bytes(old)

    assert same_weights(veca.load(folder), newer)
    assert "license and origin: it describes other weights" in caplog.text
    facts = model_info(folder)
    assert facts.provenance is None
    assert "other weights" in facts.notes[0]


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"format": 2}', b"\xff", b'{"format": 1, "provenance": 3}']
)
def test_a_damaged_config_json_is_ignored_with_a_warning_and_a_note(
    folder: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "config.json").write_bytes(content)
    assert same_weights(veca.load(folder), MODEL)
    assert "config.json was ignored, and with it license and origin" in caplog.text
    assert model_info(folder).provenance is None
    assert "ignored" in model_info(folder).notes[0]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_are_not_finite_are_neither_saved_nor_loaded(
    folder: Path, value: float
) -> None:
    broken = trained_model()
    with torch.no_grad():
        broken.final_norm.weight[3] = value
    words = "has NaN or infinite values in 'final_norm.weight'; use an earlier copy"
    with pytest.raises(WeightsError, match=f"the model {words}"):
        veca.save(broken, folder)
    assert same_weights(veca.load(folder), MODEL)  # what was there stays

    digest = weights_hash(broken.config, broken.state_dict())  # as an earlier veca saved it
    pieces = file_pieces(broken.config, broken.state_dict(), digest)
    (folder / "model.safetensors").write_bytes(b"".join(pieces))
    for read in (veca.load, model_info):
        with pytest.raises(WeightsError, match=f"model.safetensors {words}"):
            read(folder)


def test_the_weights_file_is_sufficient(folder: Path) -> None:
    (folder / "config.json").unlink()
    assert same_weights(veca.load(folder / "model.safetensors"), MODEL)
    assert "no config.json" in model_info(folder).notes[0]


def test_weights_without_our_header_are_read_with_config_json(folder: Path) -> None:
    strip_header(folder)
    assert same_weights(veca.load(folder), MODEL)
    assert "config.json was used" in model_info(folder).notes[0]
    assert model_info(folder).provenance == Provenance(licence="mit", data="photographs")


def test_a_config_written_by_hand_needs_neither_hash_nor_provenance(folder: Path) -> None:
    strip_header(folder)
    content = json.loads((folder / "config.json").read_text("utf-8"))
    by_hand = {name: content[name] for name in ("format", "model_type", "backbone")}
    (folder / "config.json").write_text(json.dumps(by_hand), "utf-8")
    assert same_weights(veca.load(folder), MODEL)
    assert model_info(folder).provenance is None


def test_weights_without_any_configuration_are_refused(folder: Path) -> None:
    strip_header(folder)
    (folder / "config.json").unlink()
    with pytest.raises(WeightsError, match="has no configuration in its header"):
        veca.load(folder)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "vit"}, "type 'vit', not 'veca'"),
        ({"format": 2}, "update veca"),
        ({"backbone": {"depth": 2}}, "unknown fields 'depth'"),
        ({"backbone": {"layers": 10**9}}, "too few for its configuration"),
        ({"backbone": {}}, "too few|lacks"),
        ({"weights_sha256": "0" * 64}, f"saved with {'0' * 16}.*changed or damaged"),
        ({"provenance": 3}, "provenance"),
    ],
)
def test_a_config_that_does_not_fit_weights_without_our_header_is_refused(
    folder: Path, changes: Any, words: str
) -> None:
    strip_header(folder)
    change_config(folder, **changes)
    with pytest.raises(WeightsError, match=words):
        veca.load(folder)


def test_the_name_of_a_size_builds_an_untrained_model(tmp_path: Path) -> None:
    before = torch.get_rng_state()
    built = load_or_build("tiny")
    assert torch.equal(before, torch.get_rng_state())
    assert not built.trained
    assert built.title.endswith("untrained")
    assert not built.model.training
    assert load_or_build("tiny").digest == built.digest
    veca.save(built.model, tmp_path)
    assert built.digest == model_info(tmp_path).digest


@pytest.mark.parametrize("dtype", [None, torch.float16])
def test_a_stored_model_has_the_hash_of_its_file(dtype: torch.dtype | None, tmp_path: Path) -> None:
    veca.save(MODEL, tmp_path / "mine", dtype=dtype)
    found = load_or_build(str(tmp_path / "mine"))
    assert found.trained
    assert found.digest == model_info(tmp_path / "mine").digest


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ValueError, match="is unknown"):
        load_or_build("huge")


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[DeviceMesh]:
    """A group of this one process."""
    meeting = f"file://{tmp_path}/meeting"
    distributed.init_process_group("gloo", init_method=meeting, rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    distributed.destroy_process_group()


def test_a_sharded_model_is_refused_and_saved_as_the_error_suggests(
    mesh: DeviceMesh, tmp_path: Path
) -> None:
    sharded = trained_model()
    fully_shard(sharded, mesh=mesh)
    with pytest.raises(WeightsError, match=r"is a DTensor.*get_model_state_dict.*full_state_dict"):
        veca.save(sharded, tmp_path / "model")
    assert not (tmp_path / "model").exists()
    options = StateDictOptions(full_state_dict=True)
    whole = veca.VECA(sharded.config)
    whole.load_state_dict(get_model_state_dict(sharded, options=options))
    veca.save(whole, tmp_path / "model")
    assert same_weights(veca.load(tmp_path / "model"), trained_model())


OLD, NEW = trained_model(seed=1, layers=1), trained_model(seed=2, layers=2)


def content_of(folder: Path) -> dict[str, bytes]:
    """Every file of a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def put(folder: Path, content: dict[str, bytes]) -> None:
    """Make a folder hold these files."""
    for name, data in content.items():
        (folder / name).write_bytes(data)


def test_a_crash_at_any_call_leaves_a_complete_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    veca.save(OLD, tmp_path, provenance=Provenance(notes="old"))
    old = content_of(tmp_path)
    disk = FaultyDisk(monkeypatch)
    veca.save(NEW, tmp_path, provenance=Provenance(notes="new"))
    new, states = content_of(tmp_path), []
    # Python ignores a failed mkdir of a folder that exists.
    calls = [n for n, call in enumerate(disk.calls) if not call.startswith("mkdir")]
    for call in calls:
        put(tmp_path, old)
        disk.fail(call, dies=True)
        with pytest.raises(OSError, match="injected"):
            veca.save(NEW, tmp_path, provenance=Provenance(notes="new"))
        disk.fail(None)
        states.append({name: content_of(tmp_path)[name] for name in old})

    distinct = [state for at, state in enumerate(states) if state not in states[:at]]
    assert distinct == [  # in the order of the calls: weights, then config.json, then the card
        old,
        old | {"model.safetensors": new["model.safetensors"]},
        new | {"README.md": old["README.md"]},
        new,
    ]
    for state in distinct:
        put(tmp_path, state)
        assert same_weights(veca.load(tmp_path), OLD if state == old else NEW)


def test_loading_while_others_save_gives_one_of_the_models(tmp_path: Path) -> None:
    veca.save(OLD, tmp_path)
    stop = threading.Event()

    def save_in_turns() -> None:
        while not stop.is_set():
            veca.save(NEW, tmp_path)
            veca.save(OLD, tmp_path)

    thread = threading.Thread(target=save_in_turns)
    thread.start()
    try:
        for _ in range(10):
            model = veca.load(tmp_path)
            assert same_weights(model, OLD) or same_weights(model, NEW)
    finally:
        stop.set()
        thread.join()
    assert len(list(tmp_path.iterdir())) == 4
