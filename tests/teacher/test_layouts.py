"""Stored models of transformers, timm, open_clip and NVIDIA give the features of the original."""

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.teacher.small_models import (
    BUILDERS,
    GRID,
    PICKLED,
    SAFE,
    SIZES,
    clip,
    config_of,
    in_open_clip_names,
    in_radio_names,
    in_timm_names,
    radio,
    small_model,
    store_clip,
    store_radio,
    store_timm,
    timm_dinov3,
    transformers,
    views,
    written,
)
from tests.weights.models import same_weights
from veca.data.transforms import IMAGENET, Normalization
from veca.runtime import VecaError
from veca.teacher.layouts import load_folder, stated_license
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


def assert_same_features(teacher: ViTTeacher, model: nn.Module) -> None:
    """Require the features of a model of transformers."""
    wanted = ViTTeacher(model, name="own", normalization=teacher.normalization)
    for found, own in zip(teacher(views(), GRID), wanted(views(), GRID), strict=True):
        torch.testing.assert_close(found, own)


@pytest.mark.parametrize(
    ("store", "tensors", "extra", "missing", "named"),
    [
        (store_timm, as_timm, "blocks.0.extra.weight", "blocks.1.gamma_2",
         r"layer\.0\.extra\.weight', '(model\.)?layer\.1\.layer_scale2\.lambda1'"),
        (store_clip, as_clip, "visual.transformer.resblocks.1.ls_1.gamma",
         "visual.ln_post.bias", r"layers\.1\.ls_1\.gamma', 'post_layernorm\.bias'"),
        (store_radio, as_radio, "radio_model.feature_normalizer.mean",
         "radio_model.model.blocks.1.norm2.bias", r"1\.norm2\.bias', 'feature_normalizer\.mean'"),
    ],
)  # fmt: skip
def test_unknown_and_missing_weights_are_named(  # noqa: PLR0917 - one layout
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
    ("store", "name", "message"),
    [
        (store_timm, "conv1.weight", "has no DINOv3 model"),
        (store_clip, "visual.trunk.stem.weight", "has no open_clip ViT model"),
        (store_radio, "radio_model.model.stem.weight", "has no RADIO model"),
    ],
)
def test_other_networks_and_damaged_files_are_refused(
    store: Store, name: str, message: str, tmp_path: Path
) -> None:
    store(tmp_path, {name: torch.zeros(4, 3, 7, 7)})
    with pytest.raises(TeacherError, match=message):
        load_folder(tmp_path, name="other")
    for file in tmp_path.glob("*.safetensors"):
        file.write_bytes(b"cut short")
    with pytest.raises(TeacherError, match="cannot be read"):
        load_folder(tmp_path, name="other")


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_a_timm_model_gives_the_features_of_transformers(
    gated: bool, biased: bool, tmp_path: Path
) -> None:
    model = timm_dinov3(gated, biased)
    store_timm(tmp_path, in_timm_names(model, gated, biased))
    teacher = load_folder(tmp_path, name="timm")
    assert teacher.normalization == Normalization((0.4, 0.5, 0.6), (0.2, 0.2, 0.3))
    assert_same_features(teacher, model)


@pytest.mark.parametrize(("quick", "file"), [(False, SAFE), (True, PICKLED)])
def test_an_open_clip_model_gives_the_features_of_transformers(
    file: str, quick: bool, tmp_path: Path
) -> None:
    model = clip("quick_gelu" if quick else "gelu")
    config = config_of(quick, mean=[0.1, 0.2, 0.3], std=[0.5, 0.6, 0.7])
    teacher = load_teacher(str(store_clip(tmp_path, in_open_clip_names(model), config, file)))
    assert isinstance(teacher, ViTTeacher)
    assert teacher.normalization == Normalization((0.1, 0.2, 0.3), (0.5, 0.6, 0.7))
    wanted = ViTTeacher(model, name="own", normalization=teacher.normalization)
    assert teacher.digest == wanted.digest  # activation and heads are part of it
    assert_same_features(teacher, model)


@pytest.mark.parametrize("biased", [True, False])
def test_a_radio_model_gives_the_features_of_transformers(biased: bool, tmp_path: Path) -> None:
    model = radio(biased)
    teacher = load_folder(store_radio(tmp_path, in_radio_names(model, biased)), name="radio")
    assert teacher.normalization.mean == pytest.approx((0.1, 0.2, 0.3))
    assert teacher.normalization.std == pytest.approx((0.5, 0.6, 0.7))
    assert (teacher.image_width, teacher.patch_width, teacher.stride) == (256, 128, 16)
    assert_same_features(teacher, model)


def test_defaults_of_normalization_are_those_of_the_layout(tmp_path: Path) -> None:
    config = {"architecture": "vit_small_patch16_lingbot", "pretrained_cfg": {}}
    store_timm(tmp_path, as_timm(), config)
    assert load_folder(tmp_path, name="timm").normalization.mean == (0.485, 0.456, 0.406)
    for file in tmp_path.iterdir():
        file.unlink()
    store_clip(tmp_path, as_clip())
    assert load_folder(tmp_path, name="clip").normalization == OPENAI


def test_weights_of_open_clip_are_used_if_transformers_has_pickled_ones(tmp_path: Path) -> None:
    model = clip()
    model.config.save_pretrained(tmp_path)
    store_clip(tmp_path, in_open_clip_names(model))
    (tmp_path / "pytorch_model.bin").write_bytes(b"never read")
    assert same_weights(load_folder(tmp_path, name="clip").network, model)


def test_weights_of_transformers_take_precedence(tmp_path: Path) -> None:
    model = clip()
    model.save_pretrained(tmp_path)
    store_clip(tmp_path, {"visual.conv1.weight": torch.zeros(1)})
    assert same_weights(load_folder(tmp_path, name="clip").network, model)


def test_a_configuration_of_open_clip_without_weights_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config_of()))
    with pytest.raises(TeacherError, match=rf"no weights beside it; put {SAFE} or {PICKLED}"):
        load_folder(tmp_path, name="clip")


def test_a_pickled_file_may_only_hold_tensors(tmp_path: Path) -> None:
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config_of()))
    torch.save({"epoch": 3}, tmp_path / PICKLED)
    with pytest.raises(TeacherError, match="something else than tensors by name"):
        load_folder(tmp_path, name="clip")
    torch.save(Path("any object"), tmp_path / PICKLED)
    with pytest.raises(TeacherError, match="cannot be read"):
        load_folder(tmp_path, name="clip")


def test_residual_scales_of_radio_are_one_by_default(tmp_path: Path) -> None:
    model = radio()
    tensors = {name: item for name, item in in_radio_names(model).items() if "grandma" not in name}
    with torch.no_grad():
        for layer in model.encoder.layer:
            layer.layer_scale1.lambda1.fill_(1)
            layer.layer_scale2.lambda1.fill_(1)
    teacher = load_folder(store_radio(tmp_path, tensors), name="radio")
    assert same_weights(teacher.network, ViTTeacher(model, name="own").network)


def test_residual_scales_of_radio_are_kept_under_a_configuration_of_transformers(
    tmp_path: Path,
) -> None:
    model = radio()
    model.config.save_pretrained(tmp_path)
    store_radio(tmp_path, in_radio_names(model), json.loads((tmp_path / "config.json").read_text()))
    teacher = load_folder(tmp_path, name="radio")
    assert same_weights(teacher.network, ViTTeacher(model, name="own").network)

    (tmp_path / "model.safetensors").write_bytes(b"cut short")
    with pytest.raises(TeacherError, match="cannot be read"):
        load_folder(tmp_path, name="radio")


def no_network(*_: object) -> None:
    """Replaces socket.connect."""
    raise AssertionError("the network was used")


@pytest.mark.parametrize("kind", BUILDERS)
def test_a_model_of_transformers_gives_the_same_features_from_its_folder(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(small_model(kind), tmp_path)
    monkeypatch.setattr(socket.socket, "connect", no_network)
    state = torch.get_rng_state()
    teacher = load_folder(tmp_path, name="mine")
    assert torch.equal(torch.get_rng_state(), state)
    assert (teacher.name, teacher.licence) == ("mine", None)
    assert_same_features(teacher, small_model(kind))
    assert not any(parameter.requires_grad for parameter in teacher.parameters())


def test_the_vision_half_of_a_clip_is_loaded_from_the_whole(tmp_path: Path) -> None:
    vision = SIZES | {"intermediate_size": 48, "image_size": 32, "patch_size": 16}
    text = SIZES | {"intermediate_size": 48, "vocab_size": 99, "max_position_embeddings": 8}
    config = transformers.CLIPConfig(vision_config=vision, text_config=text)
    model = transformers.CLIPModel(config)
    teacher = load_folder(written(model, tmp_path), name="clip")
    assert same_weights(teacher.network, model.vision_model)


def test_a_sharded_model_is_loaded_whole(tmp_path: Path) -> None:
    model = small_model("dinov3")
    written(model, tmp_path, max_shard_size="30KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert same_weights(load_folder(tmp_path, name="sharded").network, model)


def test_half_precision_weights_become_single_precision(tmp_path: Path) -> None:
    written(small_model("dinov3").half(), tmp_path)
    teacher = load_folder(tmp_path, name="half")
    assert {parameter.dtype for parameter in teacher.parameters()} == {torch.float32}


@pytest.mark.parametrize(
    ("kind", "normalization"),
    [("dinov3", IMAGENET), ("clip", OPENAI), ("siglip", HALVES), ("vit", HALVES)],
)
def test_each_family_has_a_default_normalization(
    kind: str, normalization: Normalization, tmp_path: Path
) -> None:
    teacher = load_folder(written(small_model(kind), tmp_path), name=kind)
    assert teacher.normalization == normalization


@pytest.mark.parametrize(
    ("stated", "normalization"),
    [
        (
            {"image_mean": [0.1, 0.2, 0.3], "image_std": [1, 0.5, 0.25]},
            Normalization((0.1, 0.2, 0.3), (1.0, 0.5, 0.25)),
        ),
        ({"do_normalize": False}, Normalization((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))),
        ({"size": 224}, HALVES),
    ],
)
def test_the_preprocessor_config_decides_the_normalization(
    stated: dict[str, Any], normalization: Normalization, tmp_path: Path
) -> None:
    written(small_model("vit"), tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(stated))
    assert load_folder(tmp_path, name="vit").normalization == normalization


@pytest.mark.parametrize(
    "stated",
    [
        {"image_mean": [0.5], "image_std": [0.5]},
        {"image_mean": 0.5, "image_std": 0.5},
        {"image_mean": [0, 0, 0], "image_std": [1, 1, 0]},
        {"image_mean": ["a", "b", "c"], "image_std": [1, 1, 1]},
    ],
)
def test_an_invalid_normalization_is_refused(stated: dict[str, Any], tmp_path: Path) -> None:
    written(small_model("vit"), tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(stated))
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
    assert stated_license(tmp_path) == licence


def test_a_given_licence_overrides_that_of_the_card(tmp_path: Path) -> None:
    written(small_model("vit"), tmp_path)
    (tmp_path / "README.md").write_text("---\nlicense: mit\n---\n")
    assert load_folder(tmp_path, name="vit").licence == "mit"
    assert load_folder(tmp_path, name="vit", licence="apache-2.0").licence == "apache-2.0"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ('{"model_type": "resnet"}', "type 'resnet'; known are clip, .*dinov3_vit, .*vit"),
        ('{"auto_map": {}}', "type None.*code from the hub, which is never run"),
        ('{"architecture": "resnet50", "pretrained_cfg": {}}', "type None"),
        ('{"architecture": "vit_7b_patch16_dinov3", "pretrained_cfg": {}}', "type None"),
        ("[1]", "a JSON list"),
        ("{", "not valid JSON"),
    ],
)
def test_unknown_models_and_invalid_configurations_are_refused(
    config: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(VecaError, match=message):
        load_folder(tmp_path, name="odd")


def test_pickled_weights_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "vit"}')
    (tmp_path / "pytorch_model.bin").write_bytes(b"anything")
    with pytest.raises(TeacherError, match=r"no \.safetensors file, and pickled weights are not"):
        load_folder(tmp_path, name="pickled")


def test_damaged_and_incomplete_weights_are_refused(tmp_path: Path) -> None:
    written(small_model("dinov3"), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    with pytest.raises(TeacherError, match="lacks weights of a DINOv3ViTModel"):
        load_folder(tmp_path, name="short")
    (tmp_path / "model.safetensors").write_bytes(b"cut short")
    with pytest.raises(TeacherError, match=r"^the model in [^\n]* cannot be read [^\n]*$"):
        load_folder(tmp_path, name="damaged")
