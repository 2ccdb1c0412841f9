"""A VECA as a teacher."""

from pathlib import Path

import pytest
import torch

import veca
from tests.teacher.small_models import views
from tests.weights.models import trained_model
from veca.data.transforms import IMAGENET
from veca.teacher.teacher import TeacherError, VecaTeacher, veca_teacher
from veca.weights.checkpoint import model_info


def test_a_veca_teaches_with_its_whole_bank() -> None:
    model = trained_model()
    images = views(2, 8, 12)
    targets = VecaTeacher(model, name="small")(images, (2, 3))
    features = model(IMAGENET.normalize(images), budget=model.config.cores)
    torch.testing.assert_close(targets.image, features.image.detach())
    torch.testing.assert_close(targets.patches, features.patches.detach())


def test_a_full_attention_model_teaches_too() -> None:
    teacher = VecaTeacher(trained_model(attention="full"), name="twin")
    assert teacher(views(1, 8, 8), (2, 2)).image.shape == (1, 32)


def test_a_stored_veca_brings_its_licence_and_the_digest_of_its_file(tmp_path: Path) -> None:
    veca.save(trained_model(), tmp_path / "model", provenance=veca.Provenance(licence="mit"))
    teacher = veca_teacher(tmp_path / "model", "mine")
    assert (teacher.name, teacher.licence, teacher.stride) == ("mine", "mit", 4)
    assert teacher.digest == model_info(tmp_path / "model").digest


def test_a_veca_in_memory_has_a_digest_of_its_own() -> None:
    one, same, other = (VecaTeacher(trained_model(seed), name="small") for seed in (1, 1, 2))
    assert one.licence is None
    assert one.digest == same.digest
    assert one.digest != other.digest


def test_its_patch_embedding_is_its_own_and_no_part_of_it() -> None:
    model = trained_model()
    teacher = VecaTeacher(model, name="small")
    embedding = teacher.patch_embedding(4)
    assert embedding is not None
    assert torch.equal(embedding[0], model.patch_embedding.weight)
    embedding[0].zero_()
    assert model.patch_embedding.weight.any()
    assert teacher.patch_embedding(16) is None


def test_a_veca_of_other_colors_is_refused() -> None:
    with pytest.raises(TeacherError, match="4 colors; a teacher needs three"):
        VecaTeacher(trained_model(in_channels=4), name="odd")
