"""Vectors and patch maps of an embedded folder, and a search in it: refactors must not move them.

Renew with `VECA_WRITE_GOLDENS=1 pytest tests/embed/test_golden.py` and say why in the commit.
"""

import json
from pathlib import Path
from typing import Any

import pytest

import veca
from tests.data.pictures import write_pictures
from tests.golden import assert_unmoved, fingerprint, golden
from tests.weights.models import trained_model
from veca.cli.main import main
from veca.embed.collection import Collection

FLAGS = ["--size", "32", "--budget", "3", "--patches", "--precision", "fp32", "--dtype", "float32",
         "--workers", "0", "--batch", "4", "--device", "cpu"]  # fmt: skip


def embedded() -> tuple[list[str], dict[str, list[float]]]:
    """The listed names, and fingerprints of the features, by the real command."""
    assert main(["embed", "photos", "--model", "model", "--out", "out", *FLAGS]) == 0
    collection = Collection.open("out")
    names = [str(Path(path).relative_to(Path.cwd())) for path in collection.paths]
    found = {}
    for name, row, feature in zip(names, collection.rows(), collection.features(), strict=True):
        patch_map = collection.patch_map(row.path)
        found[f"vector of {name}"] = fingerprint(feature)
        found[f"patch map of {name}"] = fingerprint(patch_map)
        sides = [float(side) for side in (row.width, row.height, *patch_map.shape[1:]) if side]
        found[f"sides of {name} and of its map"] = sides
    return names, found


def neighbors(image: str, capsys: pytest.CaptureFixture[str]) -> tuple[list[str], list[float]]:
    """What a search finds: names in order, and their similarities."""
    capsys.readouterr()
    assert main(["search", image, "--in", "out", "--top", "6", "--json", "--device", "cpu"]) == 0
    answer: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["matches"]
    return (
        [str(Path(one["path"]).relative_to(Path.cwd())) for one in answer],
        [one["similarity"] for one in answer],
    )


def test_an_embedded_folder_and_a_search_in_it_are_what_they_always_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_pictures(tmp_path / "photos", 12)
    write_pictures(tmp_path, 1, first=50)
    veca.save(trained_model(patch_size=16), tmp_path / "model")
    names, numbers = embedded()
    found: dict[str, Any] = {"names": names, "found": {}, "numbers": numbers}
    for image in ("photos/0004.png", "0050.png"):  # one of the folder, and another one
        found["found"][image], similarities = neighbors(image, capsys)
        numbers[f"similarities to {image}"] = similarities
    written = golden("embed", found)
    assert (found["names"], found["found"]) == (written["names"], written["found"])
    assert_unmoved(numbers, written["numbers"])
