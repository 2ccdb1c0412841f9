"""The header of the weights decides what a model is; config.json only tells of it."""

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file

import veca
from tests.weights.models import same_weights, trained_model
from veca.weights.card import Provenance
from veca.weights.checkpoint import check_hash, describe, identify
from veca.weights.format import WeightsError, open_weights

MODEL = trained_model()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a model of known provenance."""
    veca.save(MODEL, tmp_path, provenance=Provenance(licence="mit", data="photographs"))
    return tmp_path


def change_config(folder: Path, **changes: Any) -> None:
    """Write other values into config.json."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | changes), "utf-8")


def strip_description(folder: Path) -> None:
    """Store the weights as another program would, without our description."""
    save_file(MODEL.state_dict(), folder / "model.safetensors")


def test_a_whole_model_is_identified_with_its_provenance(folder: Path) -> None:
    with open_weights(folder / "model.safetensors") as file:
        found = identify(file, folder / "config.json")
    assert found.config == MODEL.config
    assert found.provenance == Provenance(licence="mit", data="photographs")
    assert found.notes == ()


def test_after_an_interrupted_save_the_weights_win_and_the_old_story_is_dropped(
    folder: Path,
) -> None:
    old = (folder / "config.json").read_bytes()
    newer = trained_model(seed=1, layers=1)
    veca.save(newer, folder)
    (folder / "config.json").write_bytes(old)

    assert same_weights(veca.load(folder), newer)
    facts = describe(folder)
    assert facts.provenance is None
    assert "other weights" in facts.notes[0]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"format": 2}', b"\xff"])
def test_a_broken_config_beside_weights_that_describe_themselves_is_only_noted(
    folder: Path, content: bytes
) -> None:
    (folder / "config.json").write_bytes(content)
    assert same_weights(veca.load(folder), MODEL)
    assert describe(folder).provenance is None
    assert describe(folder).notes


def test_nonsense_in_the_provenance_is_only_noted(folder: Path) -> None:
    change_config(folder, provenance={"seed": "x"})
    assert same_weights(veca.load(folder), MODEL)
    assert "ignored" in describe(folder).notes[0]


def test_weights_alone_are_enough(folder: Path) -> None:
    (folder / "config.json").unlink()
    assert same_weights(veca.load(folder / "model.safetensors"), MODEL)
    assert "no config.json" in describe(folder).notes[0]


def test_weights_without_a_description_are_read_by_the_config_beside_them(folder: Path) -> None:
    strip_description(folder)
    assert same_weights(veca.load(folder), MODEL)
    assert "config.json was used" in describe(folder).notes[0]
    assert describe(folder).provenance == Provenance(licence="mit", data="photographs")


def test_a_config_written_by_hand_needs_no_hash_and_no_story(folder: Path) -> None:
    strip_description(folder)
    content = json.loads((folder / "config.json").read_text("utf-8"))
    by_hand = {name: content[name] for name in ("format", "model_type", "backbone")}
    (folder / "config.json").write_text(json.dumps(by_hand), "utf-8")
    assert same_weights(veca.load(folder), MODEL)
    assert describe(folder).provenance is None


def test_weights_without_any_description_are_refused(folder: Path) -> None:
    strip_description(folder)
    (folder / "config.json").unlink()
    with pytest.raises(WeightsError, match="does not say what model it holds"):
        veca.load(folder)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "vit"}, "type 'vit', not 'veca'"),
        ({"format": 2}, "update veca"),
        ({"backbone": {"depth": 2}}, "unknown fields 'depth'"),
        ({"backbone": {"layers": 10**9}}, "too few for its configuration"),
        ({"backbone": {}}, "too few|lacks"),
        ({"weights_sha256": "0" * 64}, "was changed or damaged"),
        ({"provenance": 3}, "provenance"),
    ],
)
def test_a_config_that_does_not_fit_weights_without_description_is_refused(
    folder: Path, changes: Any, words: str
) -> None:
    strip_description(folder)
    change_config(folder, **changes)
    with pytest.raises(WeightsError, match=words):
        veca.load(folder)


def test_a_wrong_hash_is_told_beside_the_right_one(folder: Path) -> None:
    with open_weights(folder / "model.safetensors") as file:
        identity = identify(file, None)
    assert identity.digest is not None
    check_hash(identity.digest, identity, folder)
    with pytest.raises(WeightsError, match=f"SHA-256 {'0' * 16}.*{identity.digest[:16]}"):
        check_hash("0" * 64, identity, folder)
