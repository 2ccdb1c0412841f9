"""Whole runs: what they leave behind, and that they learn."""

import contextlib
import dataclasses
import itertools
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import veca
from tests.data.pictures import saved_model
from tests.distill.runs import ALONE, TINY, pictures, rows, run, small_config
from veca.backbone.config import PAPER_BUDGETS, BackboneConfig
from veca.distill.config import CacheConfig, DistillConfig, RunOptions
from veca.distill.run_folder import RunError
from veca.distill.trainer import Trainer
from veca.runtime.device import Precision
from veca.train.schedules import ResolutionPhase, ScheduleConfig


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two dozen pictures."""
    return pictures(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def whole(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that was never stopped, to look at."""
    out = tmp_path_factory.mktemp("whole") / "run"
    outcome = run(small_config(images), out)
    assert (outcome.finished, outcome.step) == (True, 8)
    return out


def test_a_run_leaves_models_logs_a_summary_and_checkpoints(whole: Path) -> None:
    out = whole
    for name in ("best", "last"):
        model = veca.load(out / name)
        assert model(torch.zeros(1, 3, 32, 32), budget=2).image.shape == (1, 32)
    assert "pixels" in (out / "last" / "README.md").read_text("utf-8")
    assert "apache-2.0" in (out / "last" / "README.md").read_text("utf-8")
    assert json.loads((out / "config.json").read_text("utf-8"))["config"]["seed"] == 3
    assert len(list((out / "checkpoints").iterdir())) == 2


def test_the_log_has_every_step_and_scores_every_budget_before_the_first(whole: Path) -> None:
    train = rows(whole, "train")
    assert [row["step"] for row in train] == list(range(8))
    assert {row["budget"] for row in train} <= {2, 4}
    for row in train:
        parts = row["loss_image"] + row["loss_patch_cosine"] + row["loss_patch_error"]
        assert row["loss"] == pytest.approx(parts)
        assert row["resolution"] == 32
    scored = rows(whole, "validation")
    assert [row["step"] for row in scored] == [0, 0, 0, 4, 4, 4, 8, 8, 8]
    assert [(row["budget"], row["ffn"]) for row in scored[:3]] == [(2, 1.0), (4, 1.0), (4, 0.5)]
    assert len(rows(whole, "baseline")) == 1
    kinds = [row["kind"] for row in rows(whole)]
    assert kinds.index("validation") < kinds.index("train")


def test_a_student_learns_more_than_the_best_constant_answer(images: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    run(small_config(images, steps=90, batch=8, validate_every=90), out)

    (constant,) = rows(out, "baseline")
    first, last = rows(out, "validation")[:3], rows(out, "validation")[-3:]
    assert all(row["loss"] > constant["loss"] for row in first)
    assert all(row["loss"] < 0.7 * constant["loss"] for row in last)


def test_equal_runs_write_equal_logs_and_equal_weights(
    images: Path, tmp_path: Path, whole: Path
) -> None:
    run(small_config(images), tmp_path / "again", dataclasses.replace(ALONE, workers=2))
    run(small_config(images, seed=4, steps=2), tmp_path / "other")
    for file in ("metrics.jsonl", "last/model.safetensors", "best/model.safetensors"):
        same = [
            (out / file).read_bytes() for out in (whole, tmp_path / "again", tmp_path / "other")
        ]
        assert same[0] == same[1]
        assert same[0] != same[2]


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
    with pytest.raises(RunError, match="seed=3, got 4"):
        run(dataclasses.replace(longer, seed=4), tmp_path / "run", resume=True)


def test_a_baseline_with_full_attention_can_be_trained(images: Path, tmp_path: Path) -> None:
    run(small_config(images, attention="full"), tmp_path / "run")
    assert {row["budget"] for row in rows(tmp_path / "run", "train")} == {None}
    assert veca.load(tmp_path / "run" / "last").config.attention == "full"


def test_a_mistake_in_the_command_leaves_the_folder_free_for_the_right_one(
    images: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    with pytest.raises(ValueError, match="batch=5 does not split"):
        run(small_config(images, batch=5), out, dataclasses.replace(ALONE, accumulate=2))
    with pytest.raises(ValueError, match="does not exist"):
        run(small_config(tmp_path / "nothing"), out)
    for start in (tmp_path / "nothing", saved_model(tmp_path / "other")):
        with pytest.raises(ValueError, match=r"nothing|other"):
            run(small_config(images, start=str(start)), out)
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


class PowerCutError(Exception):
    """Ends a run at a chosen step, in the middle of things."""


@contextmanager
def cut_at(step: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let every run fail when it begins a step."""
    train_step = Trainer.train_step

    def failing(self: Trainer, *arguments: Any) -> Any:
        if self.state.step == step:
            raise PowerCutError
        return train_step(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "train_step", failing)
        yield


def lasting_rows(out: Path) -> list[str]:
    """Rows of the log by their places, the last one of a place, but no word of resumes."""
    places: dict[Any, str] = {}
    for row in rows(out):
        if row["kind"] != "resume":
            place = tuple(row.get(name) for name in ("kind", "step", "budget", "ffn", "resolution"))
            places[place] = json.dumps(row)
    return list(places.values())


@pytest.mark.parametrize(("step", "ema"), [(1, None), (4, None), (6, 0.9)])
def test_a_resumed_run_takes_the_same_steps_as_one_that_never_stopped(  # noqa: PLR0917
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: Path,
    step: int, ema: float | None,
) -> None:  # fmt: skip
    config = small_config(images, ema=ema)
    if ema is not None:
        whole = tmp_path / "whole"
        run(config, whole)
    with cut_at(step, monkeypatch), pytest.raises(PowerCutError):
        run(config, tmp_path / "cut")
    torch.manual_seed(99)  # nothing of this process's own state may matter
    run(config, tmp_path / "cut", dataclasses.replace(ALONE, workers=1), resume=True)

    assert lasting_rows(tmp_path / "cut") == lasting_rows(whole)
    for name in ("best", "last"):
        files = [out / name / "model.safetensors" for out in (whole, tmp_path / "cut")]
        assert files[0].read_bytes() == files[1].read_bytes()
    resumed = [row["step"] for row in rows(tmp_path / "cut", "resume")]
    assert resumed == ([] if step < 4 else [4])


def test_kept_and_recomputed_activations_teach_the_same(
    images: Path, tmp_path: Path, whole: Path
) -> None:
    again = dataclasses.replace(ALONE, checkpoint_activations=True)
    run(small_config(images), tmp_path / "run", again)
    for one, other in zip(rows(whole, "train"), rows(tmp_path / "run", "train"), strict=True):
        assert other["loss"] == pytest.approx(one["loss"], rel=1e-6)


def other(precision: Precision) -> RunOptions:
    """The small run's, in another precision."""
    return dataclasses.replace(ALONE, precision=precision)


def test_a_run_resumed_in_another_precision_continues_with_a_warning_and_a_row(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config, out = small_config(images), tmp_path / "run"
    cuts: list[tuple[int, Precision]] = [(5, "fp32"), (6, "bf16"), (9, "bf16")]
    for step, precision in cuts:
        with contextlib.suppress(PowerCutError), cut_at(step, monkeypatch):
            run(config, out, other(precision), resume=True)
    assert "used fp32 up to step 4 and continues in bf16" in caplog.text
    told = {"kind": "precision", "step": 4, "precision": "bf16", "before": "fp32"}
    # The second resume is from step 4 as well: no checkpoint was written in bf16 before it.
    assert rows(out, "precision") == [told, told]
    assert rows(out, "train")[-1]["step"] == 7
    assert json.loads((out / "config.json").read_text("utf-8"))["options"]["precision"] == "bf16"


def test_a_run_resumed_in_its_own_precision_logs_no_warning(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_config(images)
    run(config, tmp_path / "whole", other("bf16"))
    with cut_at(5, monkeypatch), pytest.raises(PowerCutError):
        run(config, tmp_path / "cut", other("bf16"))
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    run(config, tmp_path / "cut", other("auto"), resume=True)
    assert rows(tmp_path / "cut", "precision") == []
    assert lasting_rows(tmp_path / "cut") == lasting_rows(tmp_path / "whole")
    written = json.loads((tmp_path / "cut" / "config.json").read_text("utf-8"))
    assert written["options"]["precision"] == "bf16"  # never 'auto'


def test_bf16_trains_nearly_as_fp32_does(images: Path, tmp_path: Path, whole: Path) -> None:
    run(small_config(images), tmp_path / "run", other("bf16"))
    half, full = ([row["loss"] for row in rows(out, "train")] for out in (tmp_path / "run", whole))
    assert half != full
    assert half == pytest.approx(full, rel=0.03)


def test_kept_outputs_stay_those_of_the_first_precision(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_config(images, cache=CacheConfig(crops=2, dtype="float16"))
    out, kept = tmp_path / "run", tmp_path / "kept"
    with cut_at(5, monkeypatch), pytest.raises(PowerCutError):
        run(config, out, other("bf16"), cache_teacher=kept)
    (folder,) = kept.iterdir()
    assert '"precision": "bf16"' in (folder / "facts.json").read_text("utf-8")
    assert run(config, out, other("fp32"), cache_teacher=kept, resume=True).finished
    assert list(kept.iterdir()) == [folder]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("batch", 0, "batch=0 is invalid: it must be >= 1"),
        ("steps", 0, "steps=0 is invalid: it must be >= 1"),
        ("validate_every", 0, "validate_every=0 is invalid: it must be >= 1"),
        ("statistics_images", 0, "statistics_images=0 is invalid: it must be >= 1"),
        ("validation_images", 0, "validation_images=0 is invalid: it must be >= 1"),
        ("most_images", 0, "most_images=0 is invalid: it must be >= 1"),
        ("max_skips", -1, "max_skips=-1 is invalid: it must be >= 0"),
        ("epochs", 0.0, r"epochs=0.0 is invalid: it must be in \(0.0"),
        ("epochs", float("inf"), "epochs=inf is invalid"),
        ("epochs", float("nan"), "epochs=nan is invalid"),
        ("ema", 0.0, r"ema=0.0 is invalid: it must be in \(0.0, 1.0\)"),
        ("ema", 1.0, r"ema=1.0 is invalid: it must be in \(0.0, 1.0\)"),
        ("clip", 0.0, r"clip=0.0 is invalid: it must be in \(0.0"),
        (r"max_unreadable", 1.5, r"max_unreadable=1.5 is invalid: it must be in \[0, 1\]"),
        (r"max_unreadable", -0.1, r"max_unreadable=-0.1 is invalid: it must be in \[0, 1\]"),
        ("teacher", (), "teacher is empty; name one, such as efficientnet-lite2"),
        ("teacher_weights", (1.0, 1.0), r"give one number >= 0 for each of the 1 teachers"),
        ("teacher_weights", (-1.0,), "is invalid"),
        ("teacher_weights", (0.0,), "at least one of them above 0"),
        ("teacher_margin", -32, "teacher_margin=-32 is invalid: it must be >= 0"),
        ("resolution", 36, r"resolution 36 is not a multiple of the patch size 8; use 32"),
        ("resolution", 4, r"resolution 4 is not a multiple of the patch size 8; use 8"),
        ("resolutions", (ResolutionPhase(sizes=(32, 33)),), "resolution 33 is not a multiple"),
        ("resolutions", (), "the first must begin at 0"),
        ("resolutions", (ResolutionPhase(sizes=(32,), from_share=0.5),), "must begin at 0"),
        ("budget_weights", (1.0,), "give 2 numbers >= 0"),
        ("budget_weights", (0.0, 0.0), "at least one of them above 0"),
        ("share_weights", (1.0, 1.0, 1.0), "give 2 numbers >= 0"),
        (
            "backbone",
            BackboneConfig(attention="full"),
            "set attention='full' of the run instead",
        ),
    ],
)
def test_an_invalid_configuration_of_a_run_is_refused_with_valid_values(
    field: str, value: Any, message: str
) -> None:
    fine = DistillConfig(backbone=TINY)
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(fine, **{field: value})


@pytest.mark.parametrize(
    ("field", "least"), [("workers", 0), ("accumulate", 1), ("teacher_batch", 1), ("save_every", 1)]
)
def test_counts_below_their_minimum_are_refused_with_it(field: str, least: int) -> None:
    fine: dict[str, Any] = {field: least}
    bad: dict[str, Any] = {field: least - 1}
    assert getattr(RunOptions(**fine), field) == least
    with pytest.raises(ValueError, match=f"{field}={least - 1} is invalid: it must be >= {least}"):
        RunOptions(**bad)


def test_the_baseline_has_the_same_sizes_but_no_budgets_of_its_own() -> None:
    config = DistillConfig(backbone=TINY, attention="full")
    assert config.student.attention == "full"
    assert config.student.budgets == PAPER_BUDGETS
    same = dataclasses.replace(config.student, attention=TINY.attention, budgets=TINY.budgets)
    assert same == TINY
    assert DistillConfig(backbone=TINY).student == TINY


def test_a_baseline_may_be_given_as_it_is() -> None:
    baseline = BackboneConfig(layers=1, width=32, heads=2, attention="full", prefix_tokens=3)
    assert DistillConfig(backbone=baseline, attention="full").student == baseline


@given(st.integers(1, 10**7), st.integers(1, 4096), st.floats(0.01, 300.0), st.integers(1, 10**6))
def test_epochs_become_the_fewest_steps_that_show_as_many_images(
    images: int, batch: int, epochs: float, steps: int
) -> None:
    config = DistillConfig(backbone=TINY, batch=batch, epochs=epochs)
    found = config.length(images)
    assert found >= 1
    assert found * batch >= epochs * images * (1 - 1e-12)
    assert found == 1 or (found - 1) * batch < epochs * images
    assert dataclasses.replace(config, steps=steps).length(images) == steps


def test_one_resolution_takes_the_place_of_all_phases() -> None:
    phases = (ResolutionPhase(sizes=(64, 32)), ResolutionPhase(sizes=(32, 96), from_share=0.5))
    config = DistillConfig(backbone=TINY, resolutions=phases)
    assert config.phases == phases
    assert config.sizes == (32, 64, 96)
    one = dataclasses.replace(config, resolution=48)
    assert one.phases == (ResolutionPhase(sizes=(48,)),)
    assert one.sizes == (48,)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_teachers_have_equal_weights_by_default(count: int) -> None:
    config = DistillConfig(backbone=TINY, teacher=("some",) * count)
    assert config.weights == pytest.approx([1 / count] * count)
    told = tuple(float(number) for number in range(1, count + 1))
    assert dataclasses.replace(config, teacher_weights=told).weights == told


def test_the_defaults_are_the_first_stage_of_the_paper() -> None:
    config = DistillConfig(backbone=TINY)
    assert (config.batch, config.epochs, config.seed, config.sizes) == (768, 135.0, 42, (256,))
    assert (config.clip, config.ema, config.scale_targets) == (None, None, False)
    assert (config.loss.patches, config.loss.error) == (1.0, 1.0)
    assert config.views.trivial_augment


def test_larger_budgets_join_one_by_one_over_the_ramp() -> None:
    config = DistillConfig(backbone=TINY, budget_ramp=0.5)
    budgets = config.student.budgets
    seen = [{config.draw_budget(step, 400) for step in range(start, start + 50)}
            for start in range(0, 400, 50)]  # fmt: skip
    assert seen[0] == {budgets[0]}
    assert seen[-1] == set(budgets)
    assert all(max(filter(None, one)) <= max(filter(None, two))
               for one, two in itertools.pairwise(seen))  # fmt: skip
    flat = dataclasses.replace(config, budget_ramp=0.0)
    late = range(200, 400)
    assert [config.draw_budget(s, 400) for s in late] == [flat.draw_budget(s, 400) for s in late]
