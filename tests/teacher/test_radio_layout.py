"""RADIO models as NVIDIA stores them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.teacher.small_models import small_model, transformers, views
from tests.weights.models import same_weights
from veca.teacher.layouts import load_folder
from veca.teacher.teacher import TeacherError
from veca.teacher.vit import ViTTeacher

GRID = (2, 3)
CONFIG = {
    "architectures": ["RADIOModel"],
    "args": {"model": "vit_base_patch16_224"},
    "auto_map": {"AutoModel": "hf_model.RADIOModel"},
    "version": "c-radio_v3-b",
}


def radio(biased: bool = True) -> Any:
    """A model with heads of 64 channels, every number of which is drawn."""
    config = transformers.RadioConfig(
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        mlp_ratio=1.3,
        max_img_size=64,
        qkv_bias=biased,
        num_cls_tokens=3,
        num_registers=5,
        summary_idxs=[0, 2],
        norm_mean=[0.1, 0.2, 0.3],
        norm_std=[0.5, 0.6, 0.7],
    )
    with torch.no_grad():
        model = transformers.RadioModel(config).eval()
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def in_their_names(model: Any, biased: bool = True) -> dict[str, Tensor]:
    """The weights under NVIDIA's names."""
    start = "radio_model."
    found: dict[str, Tensor] = {
        f"{start}summary_idxs": model.summary_idxs,
        f"{start}input_conditioner.norm_mean": model.input_conditioner.norm_mean,
        f"{start}input_conditioner.norm_std": model.input_conditioner.norm_std,
        f"{start}model.reg_token": torch.rand(1, 4, 128),
        f"{start}model.patch_generator.embedder.weight": model.embeddings.patch_projection.weight,
        f"{start}model.patch_generator.pos_embed": model.embeddings.position_embedding,
        f"{start}model.patch_generator.cls_token.token": model.embeddings.cls_register_token,
    }
    for number, layer in enumerate(model.encoder.layer):
        block, attention = f"{start}model.blocks.{number}.", layer.attention
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        found[f"{block}attn.qkv.weight"] = torch.cat([one.weight for one in projections])
        if biased:
            found[f"{block}attn.qkv.bias"] = torch.cat([one.bias for one in projections])
        found[f"{block}ls1.grandma"] = layer.layer_scale1.lambda1
        found[f"{block}ls2.grandma"] = layer.layer_scale2.lambda1
        parts = {
            "attn.proj": attention.o_proj,
            "norm1": layer.norm1,
            "norm2": layer.norm2,
            "mlp.fc1": layer.mlp.fc1,
            "mlp.fc2": layer.mlp.fc2,
        }
        for name, part in parts.items():
            found[f"{block}{name}.weight"], found[f"{block}{name}.bias"] = part.weight, part.bias
    return {name: tensor.detach().clone() for name, tensor in found.items()}


def stored(folder: Path, tensors: dict[str, Tensor], config: dict[str, Any] | None = None) -> Path:
    """A folder as NVIDIA writes it."""
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config or CONFIG))
    return folder


@pytest.mark.parametrize("biased", [True, False])
def test_a_model_of_nvidia_answers_as_the_same_model_of_transformers(
    biased: bool, tmp_path: Path
) -> None:
    model = radio(biased)
    teacher = load_folder(stored(tmp_path, in_their_names(model, biased)), name="radio")
    wanted = ViTTeacher(model, name="own")
    assert teacher.normalization == wanted.normalization
    assert teacher.normalization.mean == pytest.approx((0.1, 0.2, 0.3))
    assert teacher.normalization.std == pytest.approx((0.5, 0.6, 0.7))
    assert (teacher.image_width, teacher.patch_width, teacher.stride) == (256, 128, 16)
    for found, own in zip(teacher(views(), GRID), wanted(views(), GRID), strict=True):
        torch.testing.assert_close(found, own)


def test_without_scales_of_the_residuals_they_are_one(tmp_path: Path) -> None:
    model = radio()
    tensors = {name: item for name, item in in_their_names(model).items() if "grandma" not in name}
    with torch.no_grad():
        for layer in model.encoder.layer:
            layer.layer_scale1.lambda1.fill_(1)
            layer.layer_scale2.lambda1.fill_(1)
    found = load_folder(stored(tmp_path, tensors), name="radio").network
    wanted = ViTTeacher(model, name="own").network
    assert same_weights(found, wanted)


def test_scales_are_not_lost_where_the_configuration_is_that_of_transformers(
    tmp_path: Path,
) -> None:
    model = radio()
    model.config.save_pretrained(tmp_path)
    stored(tmp_path, in_their_names(model), json.loads((tmp_path / "config.json").read_text()))
    teacher = load_folder(tmp_path, name="radio")
    assert same_weights(teacher.network, ViTTeacher(model, name="own").network)


def test_a_model_in_the_layout_of_transformers_is_left_to_it(tmp_path: Path) -> None:
    model = small_model("radio")
    model.save_pretrained(tmp_path)
    teacher = load_folder(tmp_path, name="radio")
    assert same_weights(teacher.network, ViTTeacher(model, name="own").network)


def test_a_damaged_file_is_refused_whoever_wrote_the_configuration(tmp_path: Path) -> None:
    for config in (CONFIG, {"model_type": "radio"}):
        stored(tmp_path, {}, config)
        (tmp_path / "model.safetensors").write_bytes(b"cut short")
        with pytest.raises(TeacherError, match="cannot be read"):
            load_folder(tmp_path, name="radio")


def test_weights_that_nobody_knows_are_named(tmp_path: Path) -> None:
    tensors = in_their_names(radio()) | {"radio_model.feature_normalizer.mean": torch.zeros(128)}
    del tensors["radio_model.model.blocks.1.norm2.bias"]
    with pytest.raises(TeacherError, match=r"1\.norm2\.bias', 'feature_normalizer\.mean'"):
        load_folder(stored(tmp_path, tensors), name="radio")


def test_another_network_under_the_name_is_refused(tmp_path: Path) -> None:
    stored(tmp_path, {"radio_model.model.stem.weight": torch.zeros(1)})
    with pytest.raises(TeacherError, match="holds no RADIO model"):
        load_folder(tmp_path, name="radio")
