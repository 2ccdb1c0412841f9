"""The paper's recipes, proven by two real steps with a teacher of the real class and size."""

import dataclasses
from pathlib import Path

import pytest

import veca
from tests.data.pictures import write_pictures
from tests.distill.runs import rows
from veca.distill.config import RunOptions
from veca.distill.run import distill
from veca.recipes.distill import RECIPES

ONE_BY_ONE = RunOptions(device="cpu", precision="fp32", workers=0)


def two_steps(name: str, stage: int, folder: Path, start: Path | None = None) -> Path:
    """Two steps of one image; everything else is the recipe's."""
    write_pictures(folder / "images", 4)
    recipe = RECIPES[name](stage)
    config = dataclasses.replace(
        recipe.config,
        images=str(folder / "images"),
        teacher=tuple(f"random:{teacher}" for teacher in recipe.config.teacher),
        batch=1,
        steps=2,
        validation_images=1,
        statistics_images=1,
        start=None if start is None else str(start),
    )
    out = folder / f"stage-{stage}"
    assert distill(config, out, ONE_BY_ONE, show_progress=False).finished
    losses = [row["loss"] for row in rows(out, "train")]
    assert len(losses) == 2
    assert all(loss is not None for loss in losses)
    return out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("small", 21_628_961),
        ("small-plus", 28_719_137),
        ("base", 85_725_089),
        ("large", 303_195_301),
    ],
)
def test_both_stages_of_a_size_run_with_a_teacher_of_the_real_size(
    tmp_path: Path, name: str, parameters: int
) -> None:
    first = two_steps(name, 1, tmp_path)
    second = two_steps(name, 2, tmp_path, start=first / "best")
    assert {row["resolution"] for row in rows(second, "validation")} == {256, 384, 512, 768}
    for out in (first, second):
        assert sum(p.numel() for p in veca.load(out / "last").parameters()) == parameters
