"""Rows become scalars that TensorBoard reads back."""

import sys
from pathlib import Path
from typing import Any

import pytest

from veca.distill.tensorboard import open_tensorboard, scalars

TRAIN: dict[str, Any] = {
    "kind": "train",
    "step": 7,
    "loss": 0.75,
    "loss_image": 0.5,
    "budget": 8,
    "ffn": 0.5,
    "resolution": 128,
}
VALIDATION: dict[str, Any] = {**TRAIN, "kind": "validation"}


def events(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Step and value of every scalar that lies in a folder."""
    name = "tensorboard.backend.event_processing.event_accumulator"
    accumulator = pytest.importorskip(name, reason="needs the package tensorboard")
    found = accumulator.EventAccumulator(str(folder)).Reload()
    return {
        tag: [(event.step, event.value) for event in found.Scalars(tag)]
        for tag in found.Tags()["scalars"]
    }


def written(folder: Path, rows: list[dict[str, Any]], step: int | None = None) -> None:
    """Write rows, or skip the test where that is not possible."""
    pytest.importorskip("tensorboard", reason="needs the package tensorboard")
    board = open_tensorboard(folder, step)
    assert board is not None
    for row in rows:
        board.write(row)
    board.close()


def test_what_was_written_can_be_read_back(tmp_path: Path) -> None:
    written(tmp_path, [TRAIN, {**TRAIN, "step": 8, "loss": 0.5}, {"kind": "baseline", "loss": 2}])
    found = events(tmp_path)
    assert found["train/loss"] == [(7, 0.75), (8, 0.5)]
    assert found["train/budget"] == [(7, 8.0), (8, 8.0)]
    assert found["baseline/loss"] == [(0, 2.0)]


def test_a_resumed_run_shows_no_step_twice(tmp_path: Path) -> None:
    written(tmp_path, [{**TRAIN, "step": step, "loss": 1.0} for step in range(6)])
    written(tmp_path, [{**TRAIN, "step": step, "loss": 2.0} for step in range(3, 6)], step=3)
    steps = [(step, 1.0 if step < 3 else 2.0) for step in range(6)]
    assert events(tmp_path)["train/loss"] == steps


def test_a_training_row_gives_a_scalar_for_each_number() -> None:
    assert scalars(TRAIN) == {
        "train/loss": 0.75,
        "train/loss_image": 0.5,
        "train/budget": 8,
        "train/ffn": 0.5,
        "train/resolution": 128,
    }


def test_a_skipped_step_has_no_loss() -> None:
    row = {"kind": "train", "step": 7, "loss": None, "skipped": True, "budget": None}
    assert scalars(row) == {"train/skipped": 1.0}


def test_validation_names_what_it_is_about() -> None:
    assert scalars(VALIDATION) == {
        "validation/loss/128px/ffn_0.5/8_cores": 0.75,
        "validation/loss_image/128px/ffn_0.5/8_cores": 0.5,
    }


def test_a_resume_has_no_numbers() -> None:
    assert scalars({"kind": "resume", "step": 5}) == {}


def test_without_the_package_there_is_no_board(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    assert open_tensorboard(tmp_path) is None
    assert list(tmp_path.iterdir()) == []
