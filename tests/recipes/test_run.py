"""Running a recipe: `quick` brings its own pictures and is judged; others do as they are told."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.distill.runs import ALONE, pictures, rows, small_config
from veca.distill.config import CacheConfig, DistillConfig
from veca.distill.run import Outcome, Wishes
from veca.recipes import run as module
from veca.recipes.distill import Recipe
from veca.recipes.judge import judge
from veca.recipes.run import JUDGMENT_NAME, run_recipe
from veca.teacher.teacher import FunctionTeacher

TEACHER = ("tests.distill.runs:PixelTeacher",)
QUIET = Wishes(shown=False)


def small_quick(**changes: Any) -> DistillConfig:
    """The recipe `quick` with the small student and teacher of the tests."""
    config = dataclasses.replace(
        small_config(Path("nowhere")), recipe="quick", images=None, teacher=TEACHER, steps=2
    )
    return dataclasses.replace(config, **changes)


def run(config: DistillConfig, out: Path, wishes: Wishes = QUIET) -> tuple[Outcome, list[str]]:
    """Run a recipe; how it ended, and what it told."""
    told: list[str] = []
    return run_recipe(Recipe(config, ALONE), out, wishes, told.append), told


@pytest.fixture(autouse=True)
def _few_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make and judge few pictures, so that it takes no time."""
    monkeypatch.setattr(module, "QUICK_PICTURES", 12)
    monkeypatch.setattr(
        module, "judge", lambda *given, **options: judge(*given, **options, count=8)
    )


def test_quick_makes_pictures_learns_from_them_and_is_judged(tmp_path: Path) -> None:
    out = tmp_path / "run"
    outcome, told = run(small_quick(), out)
    assert outcome == Outcome(True, 2, None, out)
    assert (out / "pictures" / "pictures.tar").is_file()
    assert "(pictures)" in (out / "last" / "README.md").read_text("utf-8")
    judged = json.loads((out / JUDGMENT_NAME).read_text("utf-8"))
    neighbors = judged["nearest_neighbor"]
    names = [(row["model"], row["budget"]) for row in neighbors]
    assert names == [("raw pixels", None), ("untrained", 2), ("untrained", 4), ("trained", 2),
                     ("trained", 4)]  # fmt: skip
    constant = rows(out, "baseline")[0]["loss"]
    for margin, row in zip(
        judged["below_best_constant"], rows(out, "validation")[-3:], strict=True
    ):
        assert margin["below"] == pytest.approx(100 - 100 * row["loss"] / constant)
    assert len(told) == 3 + 5
    assert told[2].endswith(" % with 4 cores at FFN 0.5")
    accuracy = neighbors[1]["accuracy"]
    assert told[4] == (
        f"Nearest neighbor on generated pictures: {accuracy:.1f} % untrained with 2 cores"
    )


def test_quick_keeps_no_outputs_of_a_teacher_that_has_no_digest(tmp_path: Path) -> None:
    out = tmp_path / "run"
    run(small_quick(teacher=("tests.recipes.test_run:nameless_teacher",)), out)
    assert not (out / "teacher").exists()
    run(small_quick(), tmp_path / "kept")
    assert (tmp_path / "kept" / "teacher").is_dir()


def nameless_teacher() -> FunctionTeacher:
    """A teacher of which nothing but its answers is known."""

    def answer(pixels: Tensor) -> tuple[Tensor, Tensor]:
        return pixels.mean((2, 3)), torch.nn.functional.avg_pool2d(pixels, 16)

    return FunctionTeacher(answer, name="nameless")


def test_quick_is_resumed_with_the_pictures_that_it_made(tmp_path: Path) -> None:
    out = tmp_path / "run"
    run(small_quick(), out)
    shard = out / "pictures" / "pictures.tar"
    before = shard.stat().st_mtime_ns
    outcome, told = run(small_quick(), out, dataclasses.replace(QUIET, resume=True))
    assert outcome.finished
    assert shard.stat().st_mtime_ns == before
    assert len(told) == 8
    assert len(rows(out, "train")) == 2


def test_quick_takes_images_that_are_named(tmp_path: Path) -> None:
    images = pictures(tmp_path / "images", 12)
    run(small_quick(images=str(images)), tmp_path / "run")
    assert not (tmp_path / "run" / "pictures").exists()
    assert (tmp_path / "run" / JUDGMENT_NAME).is_file()


def test_a_home_folder_is_found_by_its_sign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    outcome, _ = run(small_quick(), Path("~/run"))
    assert outcome.folder == tmp_path / "home" / "run"
    assert (outcome.folder / JUDGMENT_NAME).is_file()
    assert not (tmp_path / "~").exists()


def test_other_recipes_bring_no_pictures_and_are_not_judged(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no images are named; give --images"):
        run(small_quick(recipe="test"), tmp_path / "none")
    images = pictures(tmp_path / "images", 12)
    _, told = run(small_quick(recipe="test", images=str(images)), tmp_path / "run")
    assert told == []
    assert not (tmp_path / "run" / JUDGMENT_NAME).exists()


def test_a_run_that_was_stopped_is_not_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = Outcome(False, 1, 15, tmp_path)
    monkeypatch.setattr(module, "distill", lambda *_: stopped)
    assert run(small_quick(), tmp_path) == (stopped, [])


def test_only_the_first_process_judges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finished = Outcome(True, 2, None, tmp_path)
    monkeypatch.setattr(module, "distill", lambda *_: finished)
    monkeypatch.setenv("RANK", "1")
    assert run(small_quick(), tmp_path) == (finished, [])


def test_quick_is_not_judged_where_only_outputs_are_kept(tmp_path: Path) -> None:
    out = tmp_path / "run"
    wishes = dataclasses.replace(QUIET, cache_only=True, cache_teacher=tmp_path / "kept")
    config = small_quick(cache=CacheConfig(crops=1))
    outcome, told = run(config, out, wishes)
    assert (outcome, told) == (Outcome(True, 0, None, out), [])
    assert not (out / JUDGMENT_NAME).exists()
