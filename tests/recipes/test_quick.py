"""The recipe `quick`: crops of photographs that installed packages contain, and its verdict."""

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.distill.processes import FLAGS
from tests.distill.runs import rows
from veca.cli.main import main
from veca.data.images import DataError
from veca.recipes import quick as module
from veca.recipes.quick import (
    SIDE,
    TRAINING,
    VALIDATION,
    compare_with_constant,
    installed,
    write_crops,
)

pytest.importorskip("skimage", reason="needs veca[samples]")


def content(folder: Path) -> dict[str, bytes]:
    """Names and bytes of all files."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_training_and_validation_share_no_photograph() -> None:
    assert not set(TRAINING) & set(VALIDATION)
    assert len(list(installed(TRAINING))) >= 10
    assert list(installed(VALIDATION))
    assert list(installed([("no_such_package", "a.png"), ("skimage", "data/none.png")])) == []


def test_crops_are_the_same_every_time_and_appear_when_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "other"):
        write_crops(tmp_path / name / "images", TRAINING[:3], 7)
    one = content(tmp_path / "one" / "images")
    assert one == content(tmp_path / "other" / "images")
    assert len(one) == 7
    for path in (tmp_path / "one" / "images").iterdir():
        with Image.open(path) as image:
            assert image.size == (SIDE, SIDE)
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["images"]

    (tmp_path / "killed" / "images.tmp").mkdir(parents=True)
    (tmp_path / "killed" / "images.tmp" / "torn.jpg").touch()
    write_crops(tmp_path / "killed" / "images", TRAINING[:3], 7)
    assert content(tmp_path / "killed" / "images") == one
    monkeypatch.setattr(module, "installed", lambda _: pytest.fail("they were there"))
    write_crops(tmp_path / "one" / "images", TRAINING[:3], 7)


def test_without_photographs_the_error_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"pip install 'veca\[samples\]', or give --images"):
        write_crops(tmp_path / "images", [("no_such_package", "a.png")], 3)


def test_the_verdict_is_how_far_the_last_losses_are_below_the_constant_predictor() -> None:
    def scored(step: int, budget: int | None, ffn: float, loss: float | None) -> dict[str, Any]:
        return {"kind": "validation", "step": step, "budget": budget, "ffn": ffn, "loss": loss}

    found = [
        {"kind": "baseline", "loss": 2.0}, scored(0, 8, 1.0, 3.0), scored(9, 8, 1.0, 1.5),
        scored(9, 64, 0.5, 1.0), scored(9, 64, 1.0, None), scored(9, None, 1.0, 2.2),
    ]  # fmt: skip
    assert compare_with_constant(found) == [
        "Validation loss 25.0 % below the constant predictor: 8 cores",
        "Validation loss 50.0 % below the constant predictor: 64 cores and FFN 0.5",
        "Validation loss -10.0 % below the constant predictor: full attention",
    ]
    assert compare_with_constant([]) == []


def test_quick_needs_no_images_and_is_resumed_with_those_it_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "TRAINING_CROPS", 12)
    monkeypatch.setattr(module, "VALIDATION_CROPS", 4)
    monkeypatch.setenv("HOME", str(tmp_path))
    words = ["distill", "quick", "--out", "~/run", *FLAGS, "--workers", "0", "--steps", "2"]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert printed.count("% below the constant predictor: ") == 3
    assert (tmp_path / "run" / "teacher").is_dir()
    assert main([*words, "--resume"]) == 0
    assert len(rows(tmp_path / "run", "train")) == 2
    card = (tmp_path / "run" / "last" / "README.md").read_text("utf-8")
    assert "12 unlabeled images (images)" in card
