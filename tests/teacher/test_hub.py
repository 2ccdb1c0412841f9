"""Teachers from the hub, tested with a local server that answers like it."""

from http import HTTPStatus
from pathlib import Path

import pytest
import torch

import veca
from tests.teacher.small_models import small_model, views, written
from tests.teacher.stored_layouts import (
    PICKLED,
    clip,
    in_open_clip_names,
    in_radio_names,
    radio,
    store_clip,
    store_radio,
)
from tests.weights.models import same_weights
from tests.weights.test_hub import Hub, go_offline
from veca.teacher import TeacherError, load_teacher
from veca.teacher.teacher import VecaTeacher
from veca.teacher.vit import ViTTeacher

GATED = "facebook/dinov3-vits16-pretrain-lvd1689m"
HELP = (
    r"These teachers need no consent: efficientnet-lite2, dinov2-small, .*lingbot-base.*timm/vit_"
)


def publish(hub: Hub, folder: Path, name: str, **options: str) -> None:
    """Put a small DINOv3 into a repository."""
    hub.publish(written(small_model("dinov3"), folder, **options), name)


def empty(folder: Path) -> Path:
    """Create a folder."""
    (folder / "teacher").mkdir()
    return folder / "teacher"


def test_a_short_name_loads_a_model_from_the_hub_with_its_licence(hub: Hub, tmp_path: Path) -> None:
    publish(hub, tmp_path / "teacher", GATED)
    teacher = load_teacher("dinov3-small")
    assert isinstance(teacher, ViTTeacher)
    assert same_weights(teacher.network, small_model("dinov3"))
    assert (teacher.name, teacher.licence) == (GATED, "other (dinov3-license)")
    assert teacher(views(), (2, 3)).patches.shape == (2, 6, 32)


def test_normalization_and_licence_come_from_the_repository(hub: Hub, tmp_path: Path) -> None:
    publish(hub, tmp_path / "teacher", "owner/vit")
    hub.files["owner/vit", "main"] |= {
        "README.md": b"---\nlicense: mit\n---\n",
        "preprocessor_config.json": b'{"image_mean": [0, 0, 0], "image_std": [1, 1, 1]}',
    }
    teacher = load_teacher("owner/vit")
    assert teacher.licence == "mit"
    assert isinstance(teacher, ViTTeacher)
    assert teacher.normalization.std == (1, 1, 1)


def test_a_sharded_model_is_downloaded_whole(hub: Hub, tmp_path: Path) -> None:
    publish(hub, tmp_path / "teacher", "owner/vit", max_shard_size="30KB")
    teacher = load_teacher("owner/vit")
    assert isinstance(teacher, ViTTeacher)
    assert same_weights(teacher.network, small_model("dinov3"))


def test_a_veca_on_the_hub_is_a_teacher(hub: Hub) -> None:
    assert hub.files
    teacher = load_teacher("owner/model")
    assert isinstance(teacher, VecaTeacher)
    assert (teacher.name, teacher.licence) == ("owner/model", "mit")
    assert same_weights(teacher.network, veca.load("owner/model"))


def test_a_repository_of_open_clip_is_a_teacher_also_offline(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, folder = clip(), empty(tmp_path)
    store_clip(folder, in_open_clip_names(model), file=PICKLED)
    hub.publish(folder, "apple/DFN2B-CLIP-ViT-B-16")
    teacher = load_teacher("dfn-clip-base")
    assert isinstance(teacher, ViTTeacher)
    assert same_weights(teacher.network, model)
    assert teacher.licence == "apple-amlr"
    go_offline(hub, monkeypatch)
    assert load_teacher("dfn-clip-base").digest == teacher.digest


def test_a_repository_of_nvidia_is_a_teacher_and_its_code_is_not_downloaded(
    hub: Hub, tmp_path: Path
) -> None:
    model, folder = radio(), empty(tmp_path)
    store_radio(folder, in_radio_names(model))
    hub.publish(folder, "nvidia/C-RADIOv3-B")
    hub.files["nvidia/C-RADIOv3-B", "main"]["hf_model.py"] = b"raise SystemExit"
    teacher = load_teacher("radio-base")
    wanted = ViTTeacher(model, name="own")
    assert teacher.licence == "other (nvidia-open-model-license)"
    assert torch.equal(teacher(views(), (2, 3)).image, wanted(views(), (2, 3)).image)
    assert not any(".py" in request for request in hub.asked)


def test_a_gated_repository_is_refused_with_open_alternatives(hub: Hub) -> None:
    hub.closed[GATED] = (HTTPStatus.UNAUTHORIZED, "GatedRepo")
    with pytest.raises(TeacherError) as error:
        load_teacher("dinov3-small")
    assert error.match(rf"accept the terms on https://huggingface\.co/{GATED} and log in")
    assert error.match(rf"`hf auth login`\. {HELP}")


def test_offline_a_model_without_its_weights_is_refused(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(hub, tmp_path / "teacher", "owner/vit")
    hub.files["owner/vit", "main"].pop("model.safetensors")
    with pytest.raises(TeacherError, match=r"has no model\.safetensors"):
        load_teacher("owner/vit")
    go_offline(hub, monkeypatch)
    with pytest.raises(TeacherError, match=r"has no model|cannot be reached"):
        load_teacher("owner/vit")


def test_pickled_weights_on_the_hub_are_not_read(hub: Hub) -> None:
    hub.files["owner/old", "main"] = {
        "config.json": b'{"model_type": "vit"}',
        "pytorch_model.bin": b"anything",
    }
    with pytest.raises(TeacherError, match=r"pickled weights are not read; .*save_pretrained"):
        load_teacher("owner/old")
    assert not any("/pytorch_model.bin" in request for request in hub.asked)


def test_the_weights_of_an_unknown_kind_are_not_downloaded(hub: Hub) -> None:
    hub.files["owner/text", "main"] = {
        "config.json": b'{"model_type": "bert"}',
        "model.safetensors": b"many bytes",
    }
    with pytest.raises(TeacherError, match="a model of type 'bert'; known are"):
        load_teacher("owner/text")
    assert not any("model.safetensors" in request for request in hub.asked)


def test_a_repository_without_config_is_refused(hub: Hub) -> None:
    hub.files["owner/data", "main"] = {"README.md": b"words"}
    with pytest.raises(TeacherError, match=r"has no config\.json, so it is not a teacher"):
        load_teacher("owner/data")
