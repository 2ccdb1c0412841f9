"""Vision transformers in a folder."""

import json
import socket
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.teacher.small_models import BUILDERS, SIZES, small_model, transformers, views, written
from tests.weights.models import same_weights
from veca.data.transforms import IMAGENET, Normalization
from veca.teacher.layouts import load_folder, stated_licence
from veca.teacher.teacher import TeacherError
from veca.teacher.vit import HALVES, OPENAI, ViTTeacher

GRID = (2, 3)


def no_network(*_: object) -> None:
    """Stands where a connection would be made."""
    raise AssertionError("the network was used")


@pytest.mark.parametrize("kind", BUILDERS)
def test_a_model_comes_back_from_its_folder_without_a_network(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = small_model(kind)
    wanted = ViTTeacher(small_model(kind), name=kind)(views(), GRID)
    written(model, tmp_path)
    monkeypatch.setattr(socket.socket, "connect", no_network)
    teacher = load_folder(tmp_path, name="mine")
    found = teacher(views(), GRID)
    torch.testing.assert_close(found.image, wanted.image)
    torch.testing.assert_close(found.patches, wanted.patches)
    assert teacher.describe()["name"] == "mine"
    assert not any(parameter.requires_grad for parameter in teacher.parameters())


def test_the_vision_half_of_a_clip_is_taken_from_the_whole(tmp_path: Path) -> None:
    vision = SIZES | {"intermediate_size": 48, "image_size": 32, "patch_size": 16}
    text = SIZES | {"intermediate_size": 48, "vocab_size": 99, "max_position_embeddings": 8}
    config = transformers.CLIPConfig(vision_config=vision, text_config=text)
    model = transformers.CLIPModel(config)
    teacher = load_folder(written(model, tmp_path), name="clip")
    assert same_weights(teacher.network, model.vision_model)


def test_a_model_in_several_files_is_read_whole(tmp_path: Path) -> None:
    model = small_model("dinov3")
    written(model, tmp_path, max_shard_size="30KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert same_weights(load_folder(tmp_path, name="sharded").network, model)


def test_half_precision_on_disk_is_single_precision_in_use(tmp_path: Path) -> None:
    written(small_model("dinov3").half(), tmp_path)
    teacher = load_folder(tmp_path, name="half")
    assert {parameter.dtype for parameter in teacher.parameters()} == {torch.float32}


def test_loading_leaves_random_numbers_alone(tmp_path: Path) -> None:
    written(small_model("dinov3"), tmp_path)
    torch.manual_seed(3)
    untouched = torch.rand(1)
    torch.manual_seed(3)
    load_folder(tmp_path, name="mine")
    assert torch.equal(torch.rand(1), untouched)


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [("dinov3", IMAGENET), ("clip", OPENAI), ("siglip", HALVES), ("vit", HALVES)],
)
def test_without_a_word_about_pixels_each_family_has_its_own_normalization(
    kind: str, wanted: Normalization, tmp_path: Path
) -> None:
    assert load_folder(written(small_model(kind), tmp_path), name=kind).normalization == wanted


@pytest.mark.parametrize(
    ("told", "wanted"),
    [
        (
            {"image_mean": [0.1, 0.2, 0.3], "image_std": [1, 0.5, 0.25]},
            Normalization((0.1, 0.2, 0.3), (1.0, 0.5, 0.25)),
        ),
        ({"do_normalize": False}, Normalization((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))),
        ({"size": 224}, HALVES),
    ],
)
def test_what_the_folder_says_about_pixels_holds(
    told: dict[str, Any], wanted: Normalization, tmp_path: Path
) -> None:
    written(small_model("vit"), tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(told))
    assert load_folder(tmp_path, name="vit").normalization == wanted


@pytest.mark.parametrize(
    "told",
    [
        {"image_mean": [0.5], "image_std": [0.5]},
        {"image_mean": 0.5, "image_std": 0.5},
        {"image_mean": [0, 0, 0], "image_std": [1, 1, 0]},
        {"image_mean": ["a", "b", "c"], "image_std": [1, 1, 1]},
    ],
)
def test_a_normalization_that_is_none_is_refused(told: dict[str, Any], tmp_path: Path) -> None:
    written(small_model("vit"), tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(told))
    with pytest.raises(TeacherError, match="three numbers each are needed"):
        load_folder(tmp_path, name="vit")


@pytest.mark.parametrize(
    ("card", "licence"),
    [
        ("---\nlicense: apache-2.0\ntags:\n- vit\n---\n# Model", "apache-2.0"),
        ('---\nlicense: "mit"\n---\n', "mit"),
        ("---\nlicense: other\nlicense_name: dinov3-license\n---\n", "other (dinov3-license)"),
        ("---\nlicense: other\n---\n", "other"),
        ("---\ntags: [vit]\n---\nlicense: not here\n", None),
        ("# Model\nlicense: mit\n", None),
        ("", None),
    ],
)
def test_the_licence_is_read_from_the_front_matter_of_the_card(
    card: str, licence: str | None, tmp_path: Path
) -> None:
    (tmp_path / "README.md").write_text(card)
    assert stated_licence(tmp_path) == licence


def test_without_a_card_no_licence_is_recorded(tmp_path: Path) -> None:
    assert load_folder(written(small_model("vit"), tmp_path), name="vit").licence is None


def test_a_known_licence_goes_before_that_of_the_card(tmp_path: Path) -> None:
    written(small_model("vit"), tmp_path)
    (tmp_path / "README.md").write_text("---\nlicense: mit\n---\n")
    assert load_folder(tmp_path, name="vit").licence == "mit"
    assert load_folder(tmp_path, name="vit", licence="apache-2.0").licence == "apache-2.0"


def test_a_folder_without_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TeacherError, match=r"holds no config\.json"):
        load_folder(tmp_path, name="nothing")


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ('{"model_type": "resnet"}', "type 'resnet'; known are clip, .*dinov3_vit, .*vit"),
        ('{"auto_map": {}}', "type None.*code from the hub to be run, which is never done"),
        ('{"architecture": "resnet50", "pretrained_cfg": {}}', "type None"),
        ('{"architecture": "vit_7b_patch16_dinov3", "pretrained_cfg": {}}', "type None"),
        ("[1]", "a JSON list"),
        ("{", "no readable JSON"),
    ],
)
def test_a_model_of_an_unknown_type_is_refused_with_the_known_ones(
    config: str, told: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(TeacherError, match=told):
        load_folder(tmp_path, name="odd")


def test_pickled_weights_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "vit"}')
    (tmp_path / "pytorch_model.bin").write_bytes(b"anything")
    with pytest.raises(TeacherError, match=r"no \.safetensors file, and pickled weights are not"):
        load_folder(tmp_path, name="pickled")


def test_damaged_weights_are_refused_in_one_line(tmp_path: Path) -> None:
    written(small_model("dinov3"), tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"cut short")
    with pytest.raises(TeacherError, match=r"^the model in [^\n]* cannot be read [^\n]*$"):
        load_folder(tmp_path, name="damaged")


def test_weights_that_lack_a_part_are_refused_and_not_made_up(tmp_path: Path) -> None:
    written(small_model("dinov3"), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    with pytest.raises(TeacherError, match="lacks weights of a DINOv3ViTModel"):
        load_folder(tmp_path, name="short")
