"""Recipes hold the paper's numbers and can be built; `quick` learns from photos of packages."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import veca
from tests.data.pictures import write_pictures
from tests.distill.runs import FLAGS, rows
from veca.backbone.config import SIZES, AttentionKind
from veca.backbone.cost import parameters
from veca.backbone.model import VECA
from veca.cli.main import main
from veca.data.images import DataError
from veca.distill.config import RunOptions
from veca.distill.images import check_batch
from veca.distill.run import distill
from veca.distill.run_folder import RunContext, RunFolder, as_json, check_same_config
from veca.recipes import quick as module
from veca.recipes.distill import RECIPES
from veca.recipes.quick import (
    SIDE,
    TRAINING,
    VALIDATION,
    compare_with_constant,
    installed,
    write_crops,
)
from veca.runtime.distributed import Ranks
from veca.teacher.registry import TEACHERS
from veca.train.schedules import ResolutionPhase, budget_weights, draw_resolution, learning_rate

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


PAPER = {
    "small": (21_628_961, "dinov3-small"),
    "small-plus": (28_719_137, "dinov3-small-plus"),
    "base": (85_725_089, "dinov3-base"),
    "large": (303_195_301, "dinov3-large"),
}
"""Parameters of the student (counted in the authors' model), and its teacher."""

OURS = ("quick", "tiny")
GPUS = 6
STAGES = (1, 2)


def test_every_size_of_the_paper_and_ours_has_a_recipe() -> None:
    assert set(RECIPES) == {*PAPER, *OURS}


@pytest.mark.parametrize("name", PAPER)
@pytest.mark.parametrize("stage", STAGES)
def test_a_student_of_the_paper_has_its_parameters_and_a_teacher_of_its_own_size(
    name: str, stage: int
) -> None:
    config = RECIPES[name](stage).config
    count, teacher = PAPER[name]
    assert parameters(config.student) == count
    assert config.student == SIZES[name]
    assert config.teacher == (teacher,)
    assert TEACHERS[teacher].config["hidden_size"] == config.student.width
    assert config.adaptor == "auto"  # which is none, since the widths agree
    assert not config.scale_targets


@pytest.mark.parametrize("name", PAPER)
@pytest.mark.parametrize("stage", STAGES)
def test_both_stages_of_the_paper_share_batch_views_and_optimizer(name: str, stage: int) -> None:
    config, options = RECIPES[name](stage)
    assert config.batch == 768
    images_at_once = config.batch // GPUS // options.accumulate
    assert images_at_once == (64 if name == "large" else 128)
    assert options.teacher_batch == images_at_once
    ranks, folder = Ranks(world_size=GPUS, device=torch.device("cpu")), RunFolder(Path())
    check_batch(RunContext(config=config, options=options, folder=folder, ranks=ranks))
    assert config.seed == 42
    assert (config.loss.patches, config.loss.error) == (1.0, 1.0)
    assert (config.clip, config.ema) == (None, None)
    assert config.budget_weights is None
    assert budget_weights(config.student.budgets) == (1, 1, 2, 2, 3, 3, 4, 4)
    assert config.student.budgets == (8, 16, 24, 32, 40, 48, 56, 64)
    views = config.views
    assert (views.crop, views.margin, views.flip, views.trivial_augment) == (
        "resized", 1.125, 0.5, True,
    )  # fmt: skip
    optimizer = config.optimizer
    assert optimizer.decays == "all"
    assert (optimizer.momentum, optimizer.beta2) == (0.95, 0.95)
    assert (optimizer.betas, optimizer.eps) == ((0.9, 0.999), 1e-8)
    assert optimizer.other_rate == 1.0


@pytest.mark.parametrize("name", PAPER)
def test_the_first_stage_is_the_papers(name: str) -> None:
    config = RECIPES[name](1).config
    assert (config.steps, config.epochs, config.sizes) == (None, 135.0, (256,))
    assert config.copy_patch_embedding == "auto"
    assert config.start is None
    assert config.optimizer.weight_decay == 0.015
    images = 768 * 1000
    length = config.length(images)
    assert length == 135_000
    assert learning_rate(config.schedule, 0, length) == pytest.approx(5e-5)
    assert learning_rate(config.schedule, 12_500, length) == pytest.approx((5e-5 + 4e-4) / 2)
    assert learning_rate(config.schedule, 25_000, length) == pytest.approx(4e-4)
    assert learning_rate(config.schedule, 80_000, length) == pytest.approx((5e-5 + 4e-4) / 2)
    assert learning_rate(config.schedule, length, length) == pytest.approx(5e-5)


@pytest.mark.parametrize("name", PAPER)
def test_the_second_stage_is_the_papers(name: str) -> None:
    config = RECIPES[name](2).config
    assert config.length(10**9) == 50_000
    assert config.sizes == (256, 384, 512, 768)
    assert config.phases == (
        ResolutionPhase(sizes=(256, 384, 512), weights=(0.35, 0.35, 0.30)),
        ResolutionPhase(
            sizes=(256, 384, 512, 768), weights=(0.15, 0.25, 0.30, 0.30), from_share=0.14
        ),
    )
    assert config.copy_patch_embedding == "no"  # it would undo the first stage
    assert config.optimizer.weight_decay == 0.01
    assert learning_rate(config.schedule, 0, 50_000) == pytest.approx(3e-5)
    assert learning_rate(config.schedule, 7_000, 50_000) == pytest.approx(8e-5)
    assert learning_rate(config.schedule, 50_000, 50_000) == pytest.approx(3e-5)


def test_the_largest_resolution_begins_at_step_7000() -> None:
    config = RECIPES["small"](2).config
    drawn = [draw_resolution(config.phases, 0, step, 50_000) for step in range(6_000, 8_000)]
    assert 768 not in drawn[:1000]
    assert {256, 384, 512} == set(drawn[:1000])
    assert 0.25 < drawn[1000:].count(768) / 1000 < 0.35


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("attention", ["core-periphery", "full"])
def test_every_recipe_and_its_baseline_can_be_built(
    name: str, stage: int, attention: AttentionKind
) -> None:
    config = dataclasses.replace(RECIPES[name](stage).config, attention=attention)
    with torch.device("meta"):
        model = VECA(config.student)
    assert model.config.attention == attention
    assert sum(weight.numel() for weight in model.parameters()) == parameters(config.student)
    check_same_config(config, as_json(config), 0)  # it can be stored and resumed


@pytest.mark.parametrize("name", RECIPES)
def test_the_docstring_of_a_recipe_is_its_record_with_the_command(name: str) -> None:
    text = RECIPES[name].__doc__ or ""
    assert re.search(rf"\n    Run: .*veca distill {name} .*--out ", text)
    told = re.search(r"\(([\d.]+) M parameters\)|(\d\.\d) M parameters", text)
    if name != "quick":
        assert told is not None
        millions = float(told[1] or told[2])
        assert parameters(RECIPES[name](1).config.student) / 1e6 == pytest.approx(
            millions, rel=0.01
        )


@pytest.mark.parametrize("name", RECIPES)
def test_the_name_of_a_recipe_includes_its_stage(name: str) -> None:
    assert RECIPES[name](1).config.recipe == name
    assert RECIPES[name](2).config.recipe == (name if name == "quick" else f"{name}, stage 2")
    assert RECIPES[name]() == RECIPES[name](1)


@pytest.mark.parametrize("name", OURS)
def test_our_recipes_need_no_hub_have_two_elastic_axes_and_can_be_prolonged(name: str) -> None:
    config, options = RECIPES[name](1)
    assert config.teacher[0].startswith("efficientnet-lite2")
    assert config.scale_targets  # its features are all positive
    assert len(config.student.budgets) > 1
    assert len(config.student.ffn_shares) > 1
    longer = dataclasses.replace(config, steps=config.length(1) + 1)
    check_same_config(longer, as_json(config), config.length(1))
    assert options.save_every < config.length(1)


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
