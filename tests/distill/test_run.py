"""Whole runs: what they leave behind, and that they learn."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import torch

import veca
from tests.distill.runs import ALONE, pictures, rows, run, small_config
from veca.distill.run_folder import RunError
from veca.train.schedules import ScheduleConfig


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two dozen pictures."""
    return pictures(tmp_path_factory.mktemp("images"))


def test_a_run_leaves_models_logs_a_summary_and_checkpoints(images: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    outcome = run(small_config(images), out)

    assert outcome.finished
    assert outcome.step == 8
    for name in ("best", "last"):
        model = veca.load(out / name)
        assert model(torch.zeros(1, 3, 32, 32), budget=2).image.shape == (1, 32)
    assert "pixels" in (out / "last" / "README.md").read_text("utf-8")
    assert "apache-2.0" in (out / "last" / "README.md").read_text("utf-8")
    assert json.loads((out / "config.json").read_text("utf-8"))["config"]["seed"] == 3
    assert (out / "summary.html").read_text("utf-8").startswith("<!")
    assert len(list((out / "checkpoints").iterdir())) == 2


def test_the_log_tells_every_step_and_scores_every_budget_before_the_first(
    images: Path, tmp_path: Path
) -> None:
    run(small_config(images), tmp_path / "run")

    train = rows(tmp_path / "run", "train")
    assert [row["step"] for row in train] == list(range(8))
    assert {row["budget"] for row in train} <= {2, 4}
    for row in train:
        parts = row["loss_image"] + row["loss_patch_cosine"] + row["loss_patch_error"]
        assert row["loss"] == pytest.approx(parts)
        assert row["resolution"] == 32
    scored = rows(tmp_path / "run", "validation")
    assert [row["step"] for row in scored] == [0, 0, 0, 4, 4, 4, 8, 8, 8]
    assert [(row["budget"], row["ffn"]) for row in scored[:3]] == [(2, 1.0), (4, 1.0), (4, 0.5)]
    assert len(rows(tmp_path / "run", "baseline")) == 1
    kinds = [row["kind"] for row in rows(tmp_path / "run")]
    assert kinds.index("validation") < kinds.index("train")


def test_a_student_learns_more_than_the_best_constant_answer(images: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    run(small_config(images, steps=150, batch=8, validate_every=150), out)

    (constant,) = rows(out, "baseline")
    first, last = rows(out, "validation")[:3], rows(out, "validation")[-3:]
    assert all(row["loss"] > constant["loss"] for row in first)
    assert all(row["loss"] < 0.7 * constant["loss"] for row in last)


def test_equal_runs_write_equal_logs_and_equal_weights(images: Path, tmp_path: Path) -> None:
    for name, workers in (("a", 0), ("b", 2)):
        run(small_config(images), tmp_path / name, dataclasses.replace(ALONE, workers=workers))
    run(small_config(images, seed=4), tmp_path / "c")

    for file in ("metrics.jsonl", "last/model.safetensors", "best/model.safetensors"):
        same = [(tmp_path / name / file).read_bytes() for name in "abc"]
        assert same[0] == same[1]
        assert same[0] != same[2]


def test_a_folder_that_holds_a_run_is_refused_without_resume(images: Path, tmp_path: Path) -> None:
    run(small_config(images), tmp_path / "run")
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    with pytest.raises(RunError, match="already holds a run; add --resume"):
        run(small_config(images), tmp_path / "run")
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before


def test_resume_begins_where_there_is_nothing_and_ends_at_once_where_all_is_done(
    images: Path, tmp_path: Path
) -> None:
    assert run(small_config(images), tmp_path / "run", resume=True).finished
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    assert run(small_config(images), tmp_path / "run", resume=True).step == 8
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before


def test_a_run_of_constant_rate_can_be_prolonged(images: Path, tmp_path: Path) -> None:
    schedule = ScheduleConfig(kind="constant-decay", peak=5e-3, minimum=1e-4, warmup_steps=2)
    run(small_config(images, schedule=schedule), tmp_path / "run")
    longer = small_config(images, schedule=schedule, steps=12)
    assert run(longer, tmp_path / "run", resume=True).step == 12
    assert [row["step"] for row in rows(tmp_path / "run", "resume")] == [8]
    with pytest.raises(RunError, match="seed=3, but asked for is 4"):
        run(dataclasses.replace(longer, seed=4), tmp_path / "run", resume=True)


def test_the_length_of_a_cosine_run_cannot_change(images: Path, tmp_path: Path) -> None:
    run(small_config(images), tmp_path / "run")
    with pytest.raises(RunError, match="constant-decay"):
        run(small_config(images, steps=12), tmp_path / "run", resume=True)


def test_a_baseline_with_full_attention_trains_likewise(images: Path, tmp_path: Path) -> None:
    run(small_config(images, attention="full"), tmp_path / "run")
    assert {row["budget"] for row in rows(tmp_path / "run", "train")} == {None}
    assert veca.load(tmp_path / "run" / "last").config.attention == "full"


def test_several_teachers_each_have_their_weight_and_adaptor(images: Path, tmp_path: Path) -> None:
    config = small_config(images, teacher=("pixels", "others"), teacher_weights=(1.0, 0.5))
    efficiency = dataclasses.replace(ALONE, publish_adaptors=True)
    run(config, tmp_path / "run", efficiency)
    for row in rows(tmp_path / "run", "train"):
        first, second = row["loss_by_teacher"]
        assert row["loss"] == pytest.approx(first + 0.5 * second)
    assert (tmp_path / "run" / "last" / "adaptors.safetensors").is_file()


def test_an_average_of_the_weights_is_what_is_published(images: Path, tmp_path: Path) -> None:
    run(small_config(images), tmp_path / "plain")
    run(small_config(images, ema=0.9), tmp_path / "averaged")
    same = ("plain", "averaged")
    assert rows(tmp_path / "plain", "train") == rows(tmp_path / "averaged", "train")
    assert len({(tmp_path / n / "last/model.safetensors").read_bytes() for n in same}) == 2


def test_a_mistake_in_the_command_leaves_the_folder_free_for_the_right_one(
    images: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    with pytest.raises(ValueError, match="batch=5 cannot be cut"):
        run(small_config(images, batch=5), out, dataclasses.replace(ALONE, accumulate=2))
    with pytest.raises(ValueError, match="does not exist"):
        run(small_config(tmp_path / "nothing"), out)
    assert run(small_config(images), out).finished


def test_a_run_that_is_resumed_needs_no_model_to_start_from(images: Path, tmp_path: Path) -> None:
    run(small_config(images), tmp_path / "first")
    schedule = ScheduleConfig(kind="constant-decay", peak=5e-3, minimum=1e-4, warmup_steps=2)
    start = str(tmp_path / "first" / "best")
    config = small_config(images, start=start, schedule=schedule, teacher=("others",))
    run(config, tmp_path / "second")
    shutil.rmtree(tmp_path / "first")
    longer = dataclasses.replace(config, steps=10)
    assert run(longer, tmp_path / "second", resume=True).step == 10
    card = (tmp_path / "second" / "last" / "README.md").read_text("utf-8")
    assert "Teacher: others, pixels" in card
