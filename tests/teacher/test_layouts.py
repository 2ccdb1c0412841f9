"""Models of other libraries answer as the same model of transformers, or are refused."""

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.teacher.small_models import BUILDERS, SIZES, small_model, transformers, views, written
from tests.teacher.stored_layouts import (
    GRID,
    PICKLED,
    RADIO_CONFIG,
    SAFE,
    clip,
    config_of,
    in_open_clip_names,
    in_radio_names,
    in_timm_names,
    radio,
    store_clip,
    store_radio,
    store_timm,
    timm_dinov3,
)
from tests.weights.models import same_weights
from veca.data.transforms import IMAGENET, Normalization
from veca.teacher.layouts import load_folder, stated_licence
from veca.teacher.registry import load_teacher
from veca.teacher.teacher import TeacherError
from veca.teacher.vit import HALVES, OPENAI, ViTTeacher

Store = Callable[[Path, dict[str, Tensor]], Path]


def as_timm() -> dict[str, Tensor]:
    return in_timm_names(timm_dinov3(False, False), False, False)


def as_clip() -> dict[str, Tensor]:
    return in_open_clip_names(clip())


def as_radio() -> dict[str, Tensor]:
    return in_radio_names(radio())


def store_safe_clip(folder: Path, tensors: dict[str, Tensor]) -> Path:
    return store_clip(folder, tensors, config_of(), SAFE)


@pytest.mark.parametrize(
    ("store", "tensors", "extra", "missing", "named"),
    [
        (store_timm, as_timm, "blocks.0.extra.weight", "blocks.1.gamma_2",
         r"layer\.0\.extra\.weight', '(model\.)?layer\.1\.layer_scale2\.lambda1'"),
        (store_safe_clip, as_clip, "visual.transformer.resblocks.1.ls_1.gamma",
         "visual.ln_post.bias", r"layers\.1\.ls_1\.gamma', 'post_layernorm\.bias'"),
        (store_radio, as_radio, "radio_model.feature_normalizer.mean",
         "radio_model.model.blocks.1.norm2.bias", r"1\.norm2\.bias', 'feature_normalizer\.mean'"),
    ],
)  # fmt: skip
def test_weights_that_are_unknown_or_missing_are_named(  # noqa: PLR0917 - one layout
    store: Store,
    tensors: Callable[[], dict[str, Tensor]],
    extra: str,
    missing: str,
    named: str,
    tmp_path: Path,
) -> None:
    weights = tensors() | {extra: torch.zeros(128)}
    del weights[missing]
    with pytest.raises(TeacherError, match=named):
        load_folder(store(tmp_path, weights), name="other")


@pytest.mark.parametrize(
    ("store", "name", "what"),
    [
        (store_timm, "conv1.weight", "holds no DINOv3 model"),
        (store_safe_clip, "visual.trunk.stem.weight", "no vision transformer of open_clip's own"),
        (store_radio, "radio_model.model.stem.weight", "holds no RADIO model"),
    ],
)
def test_another_network_under_the_name_is_refused(
    store: Store, name: str, what: str, tmp_path: Path
) -> None:
    with pytest.raises(TeacherError, match=what):
        load_folder(store(tmp_path, {name: torch.zeros(4, 3, 7, 7)}), name="other")


@pytest.mark.parametrize("store", [store_timm, store_safe_clip, store_radio])
def test_a_damaged_file_is_refused(store: Store, tmp_path: Path) -> None:
    store(tmp_path, {"conv1.weight": torch.zeros(4)})
    for file in tmp_path.glob("*.safetensors"):
        file.write_bytes(b"cut short")
    with pytest.raises(TeacherError, match="cannot be read"):
        load_folder(tmp_path, name="other")


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_a_model_of_timm_answers_as_the_same_model_of_transformers(
    gated: bool, biased: bool, tmp_path: Path
) -> None:
    model = timm_dinov3(gated, biased)
    store_timm(tmp_path, in_timm_names(model, gated, biased))
    teacher = load_folder(tmp_path, name="timm")
    assert teacher.normalization == Normalization((0.4, 0.5, 0.6), (0.2, 0.2, 0.3))
    wanted = ViTTeacher(model, name="own", normalization=teacher.normalization)
    for found, own in zip(teacher(views(), GRID), wanted(views(), GRID), strict=True):
        torch.testing.assert_close(found, own)


def test_pixels_are_imagenets_where_timm_does_not_say(tmp_path: Path) -> None:
    config = {"architecture": "vit_small_patch16_lingbot", "pretrained_cfg": {}}
    store_timm(tmp_path, in_timm_names(timm_dinov3(False, True), False, True), config)
    assert load_folder(tmp_path, name="timm").normalization.mean == (0.485, 0.456, 0.406)


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("file", [SAFE, PICKLED])
def test_a_model_of_open_clip_answers_as_the_same_model_of_transformers(
    file: str, quick: bool, tmp_path: Path
) -> None:
    model = clip("quick_gelu" if quick else "gelu")
    config = config_of(quick, mean=[0.1, 0.2, 0.3], std=[0.5, 0.6, 0.7])
    teacher = load_teacher(str(store_clip(tmp_path, in_open_clip_names(model), config, file)))
    assert isinstance(teacher, ViTTeacher)
    assert teacher.normalization == Normalization((0.1, 0.2, 0.3), (0.5, 0.6, 0.7))
    wanted = ViTTeacher(model, name="own", normalization=teacher.normalization)
    assert teacher.digest == wanted.digest  # activation and heads are part of it
    for found, own in zip(teacher(views(), GRID), wanted(views(), GRID), strict=True):
        torch.testing.assert_close(found, own)


def test_pixels_are_openais_where_nothing_is_said(tmp_path: Path) -> None:
    store_clip(tmp_path, in_open_clip_names(clip()), config_of(), SAFE)
    assert load_folder(tmp_path, name="clip").normalization == OPENAI


def test_weights_of_open_clip_do_where_transformers_has_only_pickled_ones(tmp_path: Path) -> None:
    model = clip()
    model.config.save_pretrained(tmp_path)
    store_clip(tmp_path, in_open_clip_names(model), config_of(), SAFE)
    (tmp_path / "pytorch_model.bin").write_bytes(b"never read")
    assert same_weights(load_folder(tmp_path, name="clip").network, model)


def test_weights_of_transformers_go_first(tmp_path: Path) -> None:
    model = clip()
    model.save_pretrained(tmp_path)
    store_clip(tmp_path, {"visual.conv1.weight": torch.zeros(1)}, config_of(), SAFE)
    assert same_weights(load_folder(tmp_path, name="clip").network, model)


def test_loading_open_clip_leaves_random_numbers_alone(tmp_path: Path) -> None:
    store_clip(tmp_path, in_open_clip_names(clip()), config_of(), SAFE)
    torch.manual_seed(3)
    untouched = torch.rand(1)
    torch.manual_seed(3)
    load_folder(tmp_path, name="clip")
    assert torch.equal(torch.rand(1), untouched)


def test_a_configuration_without_weights_says_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config_of()))
    with pytest.raises(TeacherError, match=rf"no weights beside it; put {SAFE} or {PICKLED}"):
        load_folder(tmp_path, name="clip")


def test_a_pickled_file_gives_tensors_or_nothing(tmp_path: Path) -> None:
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config_of()))
    torch.save({"epoch": 3}, tmp_path / PICKLED)
    with pytest.raises(TeacherError, match="something else than tensors by name"):
        load_folder(tmp_path, name="clip")
    torch.save(Path("any object"), tmp_path / PICKLED)
    with pytest.raises(TeacherError, match="cannot be read"):
        load_folder(tmp_path, name="clip")


@pytest.mark.parametrize("biased", [True, False])
def test_a_model_of_nvidia_answers_as_the_same_model_of_transformers(
    biased: bool, tmp_path: Path
) -> None:
    model = radio(biased)
    teacher = load_folder(store_radio(tmp_path, in_radio_names(model, biased)), name="radio")
    wanted = ViTTeacher(model, name="own")
    assert teacher.normalization == wanted.normalization
    assert teacher.normalization.mean == pytest.approx((0.1, 0.2, 0.3))
    assert teacher.normalization.std == pytest.approx((0.5, 0.6, 0.7))
    assert (teacher.image_width, teacher.patch_width, teacher.stride) == (256, 128, 16)
    for found, own in zip(teacher(views(), GRID), wanted(views(), GRID), strict=True):
        torch.testing.assert_close(found, own)


def test_without_scales_of_the_residuals_they_are_one(tmp_path: Path) -> None:
    model = radio()
    tensors = {name: item for name, item in in_radio_names(model).items() if "grandma" not in name}
    with torch.no_grad():
        for layer in model.encoder.layer:
            layer.layer_scale1.lambda1.fill_(1)
            layer.layer_scale2.lambda1.fill_(1)
    found = load_folder(store_radio(tmp_path, tensors), name="radio").network
    wanted = ViTTeacher(model, name="own").network
    assert same_weights(found, wanted)


def test_scales_are_not_lost_where_the_configuration_is_that_of_transformers(
    tmp_path: Path,
) -> None:
    model = radio()
    model.config.save_pretrained(tmp_path)
    store_radio(tmp_path, in_radio_names(model), json.loads((tmp_path / "config.json").read_text()))
    teacher = load_folder(tmp_path, name="radio")
    assert same_weights(teacher.network, ViTTeacher(model, name="own").network)


def test_a_model_in_the_layout_of_transformers_is_left_to_it(tmp_path: Path) -> None:
    model = small_model("radio")
    model.save_pretrained(tmp_path)
    teacher = load_folder(tmp_path, name="radio")
    assert same_weights(teacher.network, ViTTeacher(model, name="own").network)


def test_a_damaged_file_is_refused_whoever_wrote_the_configuration(tmp_path: Path) -> None:
    for config in (RADIO_CONFIG, {"model_type": "radio"}):
        store_radio(tmp_path, {}, config)
        (tmp_path / "model.safetensors").write_bytes(b"cut short")
        with pytest.raises(TeacherError, match="cannot be read"):
            load_folder(tmp_path, name="radio")


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
        ('{"auto_map": {}}', "type None.*code from the hub, which is never run"),
        ('{"architecture": "resnet50", "pretrained_cfg": {}}', "type None"),
        ('{"architecture": "vit_7b_patch16_dinov3", "pretrained_cfg": {}}', "type None"),
        ("[1]", "a JSON list"),
        ("{", "not a JSON file"),
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
