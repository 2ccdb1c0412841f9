"""What is known of weights goes with them, from file to model to file; nothing is made up."""

from pathlib import Path

import pytest

import veca
from tests.weights.models import trained_model
from veca.weights.card import Provenance
from veca.weights.checkpoint import describe

STORY = Provenance(
    licence="other", teacher="owner/teacher", teacher_licence="other", notes="ask the teacher"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a model whose licence is not ours to choose."""
    veca.save(trained_model(), tmp_path / "model", provenance=STORY)
    return tmp_path / "model"


def test_a_loaded_model_knows_where_it_comes_from(folder: Path) -> None:
    assert veca.load(folder).provenance == STORY
    assert veca.load(folder, budgets=(1, 4)).provenance == STORY


@pytest.mark.parametrize("name", ["another", "model"])
def test_saving_a_loaded_model_keeps_its_provenance(name: str, folder: Path) -> None:
    target = folder.parent / name
    veca.save(veca.load(folder), target)
    assert describe(target).provenance == STORY
    card = (target / "README.md").read_text("utf-8")
    assert 'license: "other"' in card
    assert "ask the teacher" in card


def test_provenance_that_is_given_goes_before_that_of_the_model(folder: Path) -> None:
    veca.save(veca.load(folder), folder, provenance=Provenance(licence="mit"))
    assert describe(folder).provenance == Provenance(licence="mit")


def test_weights_that_nobody_tells_of_get_no_licence(folder: Path) -> None:
    (folder / "config.json").unlink()
    model = veca.load(folder)
    assert model.provenance is None
    veca.save(model, folder)
    assert describe(folder).provenance == Provenance()


def test_an_untrained_model_gets_no_licence_that_would_outlive_its_training(
    tmp_path: Path,
) -> None:
    veca.save(veca.build("tiny", layers=1), tmp_path)
    assert describe(tmp_path).provenance == Provenance()
    assert "license:" not in (tmp_path / "README.md").read_text("utf-8")
