"""The scripts and notebooks of examples/ run from beginning to end, on small pictures."""

import importlib
import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest

from tests.rules import ROOT

EXAMPLES = ROOT / "examples"


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Few small crops of the sample photos, in train/ and val/."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXAMPLES)
        samples = importlib.import_module("samples")
        folder: Path = samples.sample_classes(
            tmp_path_factory.mktemp("photos"), train=3, val=1, side=64
        )
    return folder


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results go to a folder that is thrown away, and figures to no screen."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(EXAMPLES)
    mpl.use("agg")


def run(script: str, *words: str) -> None:
    """Call the main function of a script with these arguments."""
    importlib.import_module(script).main(list(words))


def test_features_of_photos_become_a_picture(capsys: pytest.CaptureFixture[str]) -> None:
    run("features", "--size", "96", "--budgets", "2", "64")
    assert "64 cores, 1.000 similar" in capsys.readouterr().out
    assert Path("build/features.jpg").stat().st_size > 1000


def test_a_picture_of_the_folder_is_most_similar_to_itself(
    photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = photos / "train" / "coffee" / "01.jpg"
    run("search", str(photos), str(image))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("20 images")
    assert lines[1] == f"1.000  {image}"


def test_a_model_is_trained_and_loaded(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("train", str(photos), "--steps", "2", "--batch", "2", "--pixels", "32")
    printed = capsys.readouterr().out
    assert "stopped at step 2 of 2" in printed
    assert "parameters in build/mine/best" in printed


def test_a_labeled_folder_is_probed(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("probe", str(photos), "--budgets", "2", "--pixels", "32")
    printed = capsys.readouterr().out
    assert "knn, 2 cores: " in printed
    assert "logistic, 2 cores: " in printed


def code_cells(notebook: Path) -> list[tuple[str, bool]]:
    """The code of each cell, and whether it sets the parameters."""
    content: dict[str, Any] = json.loads(notebook.read_text("utf-8"))
    return [
        ("".join(cell["source"]), "parameters" in cell["metadata"].get("tags", []))
        for cell in content["cells"]
        if cell["cell_type"] == "code"
    ]


SMALL: dict[str, dict[str, Any]] = {
    "features_and_similarity": {"SIZE": 64, "BUDGETS": (2, 64)},
    "search_your_photos": {"SIZE": 64},
    "train_and_evaluate": {"STEPS": 2, "BATCH": 2, "PIXELS": 32},
}
"""What the test sets after the cell of parameters, so that a notebook takes seconds."""


@pytest.mark.parametrize("name", SMALL)
def test_a_notebook_runs_from_top_to_bottom(name: str, photos: Path) -> None:
    folders = {"FOLDER": str(photos), "PHOTOS": str(photos)}
    names: dict[str, Any] = {"__name__": "__main__"}
    cells = code_cells(EXAMPLES / f"{name}.ipynb")
    assert [parameters for _, parameters in cells].count(True) == 1
    for code, parameters in cells:
        exec(compile(code, f"{name}.ipynb", "exec"), names)
        if parameters:
            given = {**folders, **SMALL[name]}
            names.update({key: value for key, value in given.items() if key in names})


def test_notebooks_are_stored_without_outputs() -> None:
    notebooks = sorted(EXAMPLES.glob("*.ipynb"))
    assert [one.stem for one in notebooks] == sorted(SMALL)
    for notebook in notebooks:
        for cell in json.loads(notebook.read_text("utf-8"))["cells"]:
            assert not cell.get("outputs")
            assert cell.get("execution_count") is None
