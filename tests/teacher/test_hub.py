"""Teachers from the hub, tried on a small server that answers as the hub does."""

import socket
import struct
from http import HTTPStatus
from pathlib import Path

import pytest
import torch

import veca
from tests.teacher.small_models import small_model, views, written
from tests.teacher.stored_layouts import (
    clip,
    config_of,
    in_open_clip_names,
    in_radio_names,
    radio,
    store_clip,
    store_radio,
)
from tests.weights.models import same_weights
from tests.weights.test_hub import Answers, Hub, go_offline
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
    """A new folder beside the hub's own."""
    (folder / "teacher").mkdir()
    return folder / "teacher"


def test_a_short_name_means_a_model_on_the_hub_with_its_licence(hub: Hub, tmp_path: Path) -> None:
    publish(hub, tmp_path / "teacher", GATED)
    teacher = load_teacher("dinov3-small")
    assert isinstance(teacher, ViTTeacher)
    assert same_weights(teacher.network, small_model("dinov3"))
    assert (teacher.name, teacher.licence) == (GATED, "other (dinov3-license)")
    assert teacher(views(), (2, 3)).patches.shape == (2, 6, 32)


def test_a_model_of_anyone_brings_normalization_and_licence_from_its_repository(
    hub: Hub, tmp_path: Path
) -> None:
    publish(hub, tmp_path / "teacher", "owner/vit")
    hub.files["owner/vit", "main"] |= {
        "README.md": b"---\nlicense: mit\n---\n",
        "preprocessor_config.json": b'{"image_mean": [0, 0, 0], "image_std": [1, 1, 1]}',
    }
    teacher = load_teacher("owner/vit")
    assert teacher.licence == "mit"
    assert isinstance(teacher, ViTTeacher)
    assert teacher.normalization.std == (1, 1, 1)


def test_a_model_in_several_files_is_fetched_whole(hub: Hub, tmp_path: Path) -> None:
    publish(hub, tmp_path / "teacher", "owner/vit", max_shard_size="30KB")
    teacher = load_teacher("owner/vit")
    assert isinstance(teacher, ViTTeacher)
    assert same_weights(teacher.network, small_model("dinov3"))


def test_a_model_that_was_fetched_once_needs_no_network(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(hub, tmp_path / "teacher", "owner/vit")
    before = load_teacher("owner/vit")
    go_offline(hub, monkeypatch)
    again = load_teacher("owner/vit")
    assert torch.equal(before(views(), (2, 3)).image, again(views(), (2, 3)).image)
    assert hub.asked == []


def test_a_veca_on_the_hub_is_a_teacher(hub: Hub) -> None:
    assert hub.files
    teacher = load_teacher("owner/model")
    assert isinstance(teacher, VecaTeacher)
    assert (teacher.name, teacher.licence) == ("owner/model", "mit")
    assert same_weights(teacher.network, veca.load("owner/model"))


def test_a_repository_of_open_clip_alone_is_a_teacher_also_without_a_network(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, folder = clip(), empty(tmp_path)
    store_clip(folder, in_open_clip_names(model), config_of(), "open_clip_pytorch_model.bin")
    hub.publish(folder, "apple/DFN2B-CLIP-ViT-B-16")
    teacher = load_teacher("dfn-clip-base")
    assert isinstance(teacher, ViTTeacher)
    assert same_weights(teacher.network, model)
    assert teacher.licence == "apple-amlr"
    go_offline(hub, monkeypatch)
    assert load_teacher("dfn-clip-base").digest == teacher.digest


def test_weights_of_open_clip_are_fetched_where_there_are_no_others_without_pickle(
    hub: Hub, tmp_path: Path
) -> None:
    model, folder = clip(), empty(tmp_path)
    model.config.save_pretrained(folder)
    store_clip(folder, in_open_clip_names(model), config_of(), "open_clip_model.safetensors")
    hub.publish(folder, "laion/CLIP-ViT-B-16-laion2B-s34B-b88K")
    teacher = load_teacher("openclip-base")
    assert isinstance(teacher, ViTTeacher)
    assert same_weights(teacher.network, model)
    assert not any("pytorch_model.bin" in request for request in hub.asked)


def test_a_repository_of_nvidia_is_a_teacher_and_its_code_is_not_fetched(
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


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (HTTPStatus.UNAUTHORIZED, "GatedRepo"),
        (HTTPStatus.FORBIDDEN, "GatedRepo"),
        (HTTPStatus.FORBIDDEN, ""),
    ],
)
def test_a_gated_repository_says_how_to_get_in_and_what_needs_no_gate(
    hub: Hub, status: HTTPStatus, code: str
) -> None:
    hub.closed[GATED] = (status, code)
    with pytest.raises(TeacherError) as error:
        load_teacher("dinov3-small")
    assert error.match(rf"accept the terms on https://huggingface\.co/{GATED} and log in")
    assert error.match(rf"`hf auth login`\. {HELP}")


def test_an_absent_repository_says_what_else_there_is(hub: Hub) -> None:
    assert hub.files
    with pytest.raises(TeacherError, match=f"owner/nothing is not on the hub, or is .*. {HELP}"):
        load_teacher("owner/nothing")


def test_without_a_network_an_unknown_teacher_says_what_to_do(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_offline(hub, monkeypatch)
    with pytest.raises(TeacherError, match=f"cannot be reached .* load that. {HELP}"):
        load_teacher("dinov2-small")


def test_without_a_network_a_model_whose_weights_never_came_says_what_to_do(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(hub, tmp_path / "teacher", "owner/vit")
    hub.files["owner/vit", "main"].pop("model.safetensors")
    with pytest.raises(TeacherError, match=r"has no model\.safetensors"):
        load_teacher("owner/vit")
    go_offline(hub, monkeypatch)
    with pytest.raises(TeacherError, match=r"has no model|cannot be reached"):
        load_teacher("owner/vit")


def test_an_answer_that_nobody_foresaw_is_told_with_its_number(hub: Hub) -> None:
    hub.closed["owner/model"] = (HTTPStatus.GONE, "")
    with pytest.raises(TeacherError, match="hub answered 410"):
        load_teacher("owner/model")


def test_pickled_weights_on_the_hub_are_not_read(hub: Hub) -> None:
    hub.files["owner/old", "main"] = {
        "config.json": b'{"model_type": "vit"}',
        "pytorch_model.bin": b"anything",
    }
    with pytest.raises(TeacherError, match=r"pickled weights are not read; .*save_pretrained"):
        load_teacher("owner/old")
    assert not any("pytorch_model.bin" in request for request in hub.asked)


def test_the_weights_of_an_unknown_kind_are_not_even_fetched(hub: Hub) -> None:
    hub.files["owner/text", "main"] = {
        "config.json": b'{"model_type": "bert"}',
        "model.safetensors": b"many bytes",
    }
    with pytest.raises(TeacherError, match="a model of type 'bert'; known are"):
        load_teacher("owner/text")
    assert not any("model.safetensors" in request for request in hub.asked)


def test_a_repository_without_config_is_no_teacher(hub: Hub) -> None:
    hub.files["owner/data", "main"] = {"README.md": b"words"}
    with pytest.raises(TeacherError, match=r"has no config\.json, so it is not a teacher"):
        load_teacher("owner/data")


def test_a_download_that_breaks_off_says_so(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    def break_off(answers: Answers, content: bytes) -> None:
        reset = struct.pack("ii", 1, 0)  # linger for no time: the connection is reset
        answers.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        answers.wfile.write(content[: len(content) // 2])
        answers.connection.close()

    monkeypatch.setattr(Answers, "send_body", break_off)
    assert hub.files
    with pytest.raises(TeacherError, match="failed"):
        load_teacher("owner/model")


def test_a_name_that_the_hub_cannot_have_is_refused(hub: Hub) -> None:
    with pytest.raises(TeacherError, match="is not a valid name on the hub"):
        load_teacher("owner/a..b")
    assert hub.asked == []
