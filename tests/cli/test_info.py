"""`veca info`: what a model is, for people and for programs."""

import json
import re
from pathlib import Path

import pytest
import torch

import veca
from tests.weights.models import trained_model
from veca.cli.main import main
from veca.weights.card import Provenance
from veca.weights.checkpoint import model_info

STORY = Provenance(
    licence="mit", teacher="owner/teacher", teacher_licence="bsd", data="photographs",
    recipe="quick", command="veca distill quick", seed=5, date="2026-05-12",
    notes="[bold]no markup[/bold]",
)  # fmt: skip


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What the command prints."""
    assert main(["info", *words]) == 0
    return capsys.readouterr().out


def test_everything_known_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    veca.save(trained_model(), tmp_path, dtype=torch.bfloat16, provenance=STORY)
    text = printed(capsys, str(tmp_path))
    facts = model_info(tmp_path)
    for value in (*STORY.known().values(), facts.digest, facts.dtype, facts.training_status):
        assert str(value) in text
    for words in ("core-periphery", "2, 3, 6", "512 x 512", "has no name", "32 in 2 heads"):
        assert words in text
    cost = trained_model().cost(512, 512, budget=3)
    assert f"{cost.pairs:,}" in text


def test_a_licence_that_was_not_recorded_is_shown_as_such(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for provenance in (None, Provenance(teacher="owner/teacher")):
        veca.save(trained_model(), tmp_path, provenance=provenance)
        assert re.search(r"(?m)^license +not recorded *$", printed(capsys, str(tmp_path)))
        found = json.loads(printed(capsys, str(tmp_path), "--json"))
        assert "licence" not in found["provenance"]
    (tmp_path / "config.json").unlink()
    assert re.search(r"(?m)^license +not recorded *$", printed(capsys, str(tmp_path)))


def test_a_named_size_has_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    veca.save(veca.build("tiny"), tmp_path)
    text = printed(capsys, str(tmp_path))
    assert "tiny" in text
    assert "untrained" in text


def test_a_full_attention_model_has_no_budgets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    veca.save(trained_model(attention="full"), tmp_path)
    text = printed(capsys, str(tmp_path))
    assert "prefix tokens" in text
    assert "budgets" not in text


def test_json_holds_the_same_facts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    veca.save(trained_model(), tmp_path, provenance=STORY)
    found = json.loads(printed(capsys, str(tmp_path), "--json"))
    assert found == model_info(tmp_path).as_json()
    assert found["provenance"] == STORY.known()


def test_a_note_says_when_config_json_describes_other_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    veca.save(trained_model(seed=1), tmp_path, provenance=STORY)
    old = (tmp_path / "config.json").read_bytes()
    veca.save(trained_model(seed=2), tmp_path)
    (tmp_path / "config.json").write_bytes(old)
    text = printed(capsys, str(tmp_path))
    assert "config.json was ignored, and with it license and origin" in text
    assert "owner/teacher" not in text


def test_damaged_weights_are_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    veca.save(trained_model(), tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-4] + b"\0\0\0\0")
    assert main(["info", str(tmp_path)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "changed or damaged" in printed.err


def test_a_wrong_flag_is_an_error_that_names_the_right_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["info", str(tmp_path), "--jsn"]) == 2
    assert "--json" in capsys.readouterr().err
