"""Keeping teacher outputs without training: many processes can do that before one trains."""

import dataclasses
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.distill.kept_outputs import CellTeacher
from tests.distill.runs import ALONE, QUIET, pictures, rows, small_config
from veca.distill.config import CacheConfig
from veca.distill.run import Outcome, distill
from veca.distill.run_folder import RunError

SMALL = CacheConfig(crops=2, dtype="float16", channels=6)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two dozen pictures."""
    return pictures(tmp_path_factory.mktemp("images"))


def run(images: Path, out: Path, teacher: CellTeacher, **wishes: Any) -> Outcome:
    """The small run with a teacher that counts, its outputs kept beside the run."""
    config = small_config(images, cache=SMALL)
    chosen = dataclasses.replace(QUIET, **{"cache_teacher": out.parent / "kept", **wishes})
    return distill(config, out, ALONE, chosen, [teacher])


def test_outputs_are_kept_and_nothing_is_trained(images: Path, tmp_path: Path) -> None:
    teacher, out = CellTeacher(), tmp_path / "run"
    outcome = run(images, out, teacher, cache_only=True)
    assert outcome == Outcome(True, 0, None, out)
    assert teacher.asked >= 22 * SMALL.crops  # 24 pictures, of which 2 are to validate on
    assert {path.name for path in out.iterdir()} <= {"index", ".lock"}


def test_a_training_in_the_same_folder_then_is_that_without_it(
    images: Path, tmp_path: Path
) -> None:
    for name in ("before", "alone"):
        (tmp_path / name).mkdir()
    run(images, tmp_path / "before" / "run", CellTeacher(), cache_only=True)
    late, alone = CellTeacher(), CellTeacher()
    assert run(images, tmp_path / "before" / "run", late).finished
    assert run(images, tmp_path / "alone" / "run", alone).finished
    assert rows(tmp_path / "before" / "run") == rows(tmp_path / "alone" / "run")
    assert late.asked < alone.asked - 20 * SMALL.crops


def test_a_stop_is_told_and_leaves_the_folder_free(images: Path, tmp_path: Path) -> None:
    teacher, out = CellTeacher(), tmp_path / "run"
    teacher.before_answer = lambda: signal.raise_signal(signal.SIGTERM)
    assert run(images, out, teacher, cache_only=True) == Outcome(False, 0, signal.SIGTERM, out)
    assert run(images, out, CellTeacher(), cache_only=True).finished


def test_without_a_folder_for_them_it_is_refused(images: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"no folder to keep outputs in; add --cache-teacher DIR\."):
        run(images, tmp_path / "run", CellTeacher(), cache_only=True, cache_teacher=None)
    assert not (tmp_path / "run").exists()
