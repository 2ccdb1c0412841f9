"""Numbers and heads of all six probe tasks, written down: refactors must not move them.

Renew with `VECA_WRITE_GOLDENS=1 pytest tests/probe/test_golden.py` and say why in the commit.
"""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.golden import assert_unmoved, fingerprint, golden
from tests.probe.fixtures import use_quick_protocols, write_classes, write_dense, write_model
from veca.cli.main import main
from veca.probe.heads import load_head
from veca.probe.rows import TASKS

CLASSES, MASKS, DEPTH = "photos", "farm", "rooms"

JOBS = {
    "knn": (CLASSES, "dinov2"),
    "logistic": (CLASSES, "dinov2"),
    "linear": (CLASSES, "quick"),
    "dense-knn": (MASKS, "quick"),
    "segmentation": (MASKS, "quick"),
    "depth": (DEPTH, "quick"),
}
"""The set and the protocol of each task."""

FLAGS = ["--model", "model", "--budgets", "2,6", "--resolution", "32", "--precision", "fp32",
         "--workers", "0", "--device", "cpu"]  # fmt: skip

LOOSE = {
    "dense-knn head": 1e-3,  # kept in half precision, whose last bit rounding can flip
    "segmentation head": 2e-4,  # fitted to views kept in half precision, by AdamW, which makes
    "depth head": 1e-4,  # whole steps of small gradients, so that rounding grows with the steps
}
"""Entries that another machine may compute with more rounding; measured with weights moved by 1e-7:
at most 4e-5, and below 2e-6 in all others."""


def rows_of(task: str) -> list[dict[str, Any]]:
    """The rows of a report by the real command."""
    data, protocol = JOBS[task]
    words = ["probe", task, data, "--protocol", protocol, "--out", f"out-{task}", *FLAGS]
    assert main(words) == 0
    found: list[dict[str, Any]] = json.loads(Path(f"out-{task}", "report.json").read_text("utf-8"))
    return found


def numbers_of(row: dict[str, Any]) -> list[float]:
    """The value of a row, its cost, and what was chosen for it."""
    chosen = [value for value in row["chosen"].values() if isinstance(value, int | float)]
    return [row["value"], row["gflops"], row["patches_per_core"], *chosen]


def heads_of(task: str) -> dict[str, list[float]]:
    """Fingerprints of the fitted heads, or of what neighbors are sought in."""
    heads = [load_head(folder) for folder in Path(f"out-{task}", "heads").iterdir()]
    return {
        f"{task} head at {head.setting.budget} cores, {name}": fingerprint(tensor)
        for head in sorted(heads, key=lambda head: head.setting.budget or 0)
        for name, tensor in sorted(head.tensors.items())
    }


def measured() -> dict[str, Any]:
    """The fields and numbers of all tasks, in the working directory."""
    found: dict[str, Any] = {"fields": {}, "numbers": {}}
    for task in JOBS:
        rows = rows_of(task)
        found["fields"][task] = sorted(set.intersection(*(set(row) for row in rows)))
        for row in rows:
            name = f"{task} at {row['budget']} cores, {row['metric']}"
            found["numbers"][name] = numbers_of(row)
        found["numbers"] |= heads_of(task)
    return found


@pytest.fixture
def small_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model and a set of each kind, in the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "veca.analysis.figures", None)  # slower than all else
    use_quick_protocols(monkeypatch)
    write_classes(tmp_path / CLASSES, train=12, val=9)
    for number in range(4):  # classes of several sizes, whose mean is not that of the images
        (tmp_path / CLASSES / "val" / "red" / f"{number}.png").unlink()
    write_dense(tmp_path / MASKS, "masks")
    write_dense(tmp_path / DEPTH, "depth")
    write_model(tmp_path / "model")


@pytest.mark.usefixtures("small_sets")
def test_every_probe_task_finds_what_it_always_did() -> None:
    assert set(JOBS) == set(TASKS)
    found = measured()
    written = golden("probe", found)
    for task, fields in written["fields"].items():
        assert set(fields) <= set(found["fields"][task]), task  # a report may gain fields
    assert_unmoved(found["numbers"], written["numbers"], loose=LOOSE)
