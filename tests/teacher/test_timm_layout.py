"""DINOv3 models as timm stores them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.teacher.small_models import transformers, views
from veca.data.transforms import Normalization
from veca.teacher.layouts import load_folder
from veca.teacher.teacher import TeacherError
from veca.teacher.vit import ViTTeacher

GRID = (2, 3)
CONFIG = {
    "architecture": "vit_small_patch16_dinov3",
    "pretrained_cfg": {"mean": [0.4, 0.5, 0.6], "std": [0.2, 0.2, 0.3]},
}


def dinov3(gated: bool, biased: bool) -> Any:
    """A model with heads of 64 channels, every number of which is drawn."""
    config = transformers.DINOv3ViTConfig(
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=96,
        num_register_tokens=3,
        use_gated_mlp=gated,
        hidden_act="silu" if gated else "gelu",
        query_bias=biased,
        value_bias=biased,
    )
    with torch.no_grad():
        model = transformers.DINOv3ViTModel(config).eval()
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def in_timm_names(model: Any, gated: bool, biased: bool) -> dict[str, Tensor]:
    """The weights under the names that timm gives them."""
    found: dict[str, Tensor] = {
        "cls_token": model.embeddings.cls_token,
        "reg_token": model.embeddings.register_tokens,
        "patch_embed.proj.weight": model.embeddings.patch_embeddings.weight,
        "patch_embed.proj.bias": model.embeddings.patch_embeddings.bias,
        "norm.weight": model.norm.weight,
        "norm.bias": model.norm.bias,
    }
    layers = next(m for name, m in model.named_modules() if name.endswith("layer"))
    for number, layer in enumerate(layers):
        block, attention = f"blocks.{number}.", layer.attention
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        found[f"{block}attn.qkv.weight"] = torch.cat([one.weight for one in projections])
        if biased:
            found[f"{block}attn.q_bias"] = attention.q_proj.bias
            found[f"{block}attn.v_bias"] = attention.v_proj.bias
        found[f"{block}gamma_1"] = layer.layer_scale1.lambda1
        found[f"{block}gamma_2"] = layer.layer_scale2.lambda1
        parts = {
            "attn.proj": attention.o_proj,
            "norm1": layer.norm1,
            "norm2": layer.norm2,
            "mlp.fc1_x" if gated else "mlp.fc1": layer.mlp.up_proj,
            "mlp.fc2": layer.mlp.down_proj,
        } | ({"mlp.fc1_g": layer.mlp.gate_proj} if gated else {})
        for name, part in parts.items():
            found[f"{block}{name}.weight"], found[f"{block}{name}.bias"] = part.weight, part.bias
    return {name: tensor.detach().clone() for name, tensor in found.items()}


def stored(folder: Path, tensors: dict[str, Tensor], config: dict[str, Any] | None = None) -> Path:
    """A folder as timm writes it."""
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config or CONFIG))
    return folder


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_a_model_of_timm_answers_as_the_same_model_of_transformers(
    gated: bool, biased: bool, tmp_path: Path
) -> None:
    model = dinov3(gated, biased)
    stored(tmp_path, in_timm_names(model, gated, biased))
    teacher = load_folder(tmp_path, name="timm")
    assert teacher.normalization == Normalization((0.4, 0.5, 0.6), (0.2, 0.2, 0.3))
    wanted = ViTTeacher(model, name="own", normalization=teacher.normalization)
    for found, own in zip(teacher(views(), GRID), wanted(views(), GRID), strict=True):
        torch.testing.assert_close(found, own)


def test_pixels_are_imagenets_where_timm_does_not_say(tmp_path: Path) -> None:
    config = {"architecture": "vit_small_patch16_lingbot", "pretrained_cfg": {}}
    stored(tmp_path, in_timm_names(dinov3(False, True), False, True), config)
    assert load_folder(tmp_path, name="timm").normalization.mean == (0.485, 0.456, 0.406)


def test_weights_that_are_missing_are_named(tmp_path: Path) -> None:
    tensors = in_timm_names(dinov3(False, False), False, False)
    del tensors["blocks.1.gamma_2"]
    with pytest.raises(TeacherError, match=r"does not fit .*layer\.1\.layer_scale2\.lambda1"):
        load_folder(stored(tmp_path, tensors), name="timm")


def test_weights_that_nobody_knows_are_named(tmp_path: Path) -> None:
    tensors = in_timm_names(dinov3(False, False), False, False)
    tensors |= {"pos_embed": torch.zeros(1), "blocks.0.extra.weight": torch.zeros(1)}
    with pytest.raises(TeacherError, match=r"'model\.layer\.0\.extra\.weight', 'pos_embed'"):
        load_folder(stored(tmp_path, tensors), name="timm")


def test_another_network_under_the_name_is_refused(tmp_path: Path) -> None:
    stored(tmp_path, {"conv1.weight": torch.zeros(4, 3, 7, 7)})
    with pytest.raises(TeacherError, match="holds no DINOv3 model"):
        load_folder(tmp_path, name="timm")


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    stored(tmp_path, {"conv1.weight": torch.zeros(4)})
    (tmp_path / "model.safetensors").write_bytes(b"cut short")
    with pytest.raises(TeacherError, match="cannot be read"):
        load_folder(tmp_path, name="timm")
