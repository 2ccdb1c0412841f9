"""`veca analyze` from the words to the files."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.data.pictures import saved_model, write_pictures
from veca.cli.main import main

QUICK = ["--budgets", "2,4", "--size", "32", "--resolutions", "32,48", "--robust", "1"]
QUICK += ["--drift", "1", "--device", "cpu"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, photos and masks."""
    made = tmp_path_factory.mktemp("analyze")
    saved_model(made / "model[b]")
    (made / "masks").mkdir()
    for number, path in enumerate(write_pictures(made / "photos", 9)):
        with Image.open(path) as photo:
            width, height = photo.size
        mask = np.zeros((height, width), np.uint8)
        mask[4:20, 4:20] = 1 + number % 2
        Image.fromarray(mask).save(made / "masks" / path.name)
    (made / "photos" / "0002.png").write_bytes(b"no image")
    return made


def test_a_set_of_images_gives_a_table_a_file_of_numbers_and_a_page_of_plots(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(folder / "model[b]"), str(folder / "photos"), "--masks", str(folder / "masks")]
    assert main(["analyze", *words, "--out", str(tmp_path), *QUICK]) == 0
    captured = capsys.readouterr()
    assert "object IoU of a core's patches" in captured.out
    assert "model[b](untrained)" in "".join(captured.out.split())  # which is no markup
    assert "0002.png" in captured.err  # which cannot be read, and is left out
    assert "0002.png: " not in captured.err  # since the message has its name already
    with Image.open(tmp_path / "analysis.png") as page:
        assert page.width > 1000
    found = json.loads((tmp_path / "analysis.json").read_text())
    assert found["command"].startswith("veca analyze ")
    assert len(found["images"]) == len(set(found["images"])) == 9
    assert found["settings"]["seed"] == 0
    assert len(found["models"][0]["weights_sha256"]) == 64
    assert {row["measure"] for row in found["rows"]} == set(found["measures"])
    counts = {row["count"] for row in found["rows"] if row["measure"] == "path"}
    assert counts == {8 * 2, 8 * 4}  # of images and cores


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--limit", "3"], "3 images are too few; give at least 8"),
        (["--masks", "nowhere"], "0 images with a mask in nowhere are too few"),
        (["--budgets", "8,x"], "--budgets got '8,x'"),
    ],
)
def test_mistakes_are_one_sentence(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    given = [str(folder / "model[b]"), str(folder / "photos"), "--out", str(tmp_path), *QUICK]
    assert main(["analyze", *given, *words]) == 2
    assert message in capsys.readouterr().err


def test_a_missing_extra_is_named_with_its_command(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.util.find_spec

    def find_spec(name: str, package: str | None = None) -> Any:
        return None if name == "scipy" else real(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    assert main(["analyze", str(folder / "model[b]"), str(folder / "photos")]) == 2
    assert "needs scipy, which is not installed; run `pip install" in capsys.readouterr().err
