"""Small models as timm, open_clip and NVIDIA store them."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.teacher.small_models import transformers

GRID = (2, 3)


TIMM_CONFIG = {
    "architecture": "vit_small_patch16_dinov3",
    "pretrained_cfg": {"mean": [0.4, 0.5, 0.6], "std": [0.2, 0.2, 0.3]},
}


def timm_dinov3(gated: bool, biased: bool) -> Any:
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


def store_timm(
    folder: Path, tensors: dict[str, Tensor], config: dict[str, Any] | None = None
) -> Path:
    """A folder as timm writes it."""
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config or TIMM_CONFIG))
    return folder


SAFE, PICKLED = "open_clip_model.safetensors", "open_clip_pytorch_model.bin"


def clip(activation: str = "gelu") -> Any:
    """A model with heads of 16 channels, every number of which is drawn."""
    config = transformers.CLIPVisionConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=48,
        image_size=32,
        patch_size=16,
        hidden_act=activation,
    )
    with torch.no_grad():
        model = transformers.CLIPVisionModel(config).eval()
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def in_open_clip_names(model: Any) -> dict[str, Tensor]:
    """The weights under the names that open_clip gives them, beside some of a text half."""
    embedding = model.embeddings
    found: dict[str, Tensor] = {
        "logit_scale": torch.ones(()),
        "positional_embedding": torch.rand(8, 16),
        "transformer.resblocks.0.ln_1.weight": torch.rand(16),
        "visual.class_embedding": embedding.class_embedding,
        "visual.positional_embedding": embedding.position_embedding.weight,
        "visual.conv1.weight": embedding.patch_embedding.weight,
        "visual.proj": torch.rand(32, 16),
        "visual.ln_pre.weight": model.pre_layrnorm.weight,
        "visual.ln_pre.bias": model.pre_layrnorm.bias,
        "visual.ln_post.weight": model.post_layernorm.weight,
        "visual.ln_post.bias": model.post_layernorm.bias,
    }
    for number, layer in enumerate(model.encoder.layers):
        block, attention = f"visual.transformer.resblocks.{number}.", layer.self_attn
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        found[f"{block}attn.in_proj_weight"] = torch.cat([one.weight for one in projections])
        found[f"{block}attn.in_proj_bias"] = torch.cat([one.bias for one in projections])
        parts = {
            "ln_1": layer.layer_norm1,
            "ln_2": layer.layer_norm2,
            "attn.out_proj": attention.out_proj,
            "mlp.c_fc": layer.mlp.fc1,
            "mlp.c_proj": layer.mlp.fc2,
        }
        for name, part in parts.items():
            found[f"{block}{name}.weight"], found[f"{block}{name}.bias"] = part.weight, part.bias
    return {name: tensor.detach().clone() for name, tensor in found.items()}


def config_of(quick: bool = False, **preprocessing: Any) -> dict[str, Any]:
    """A configuration as open_clip writes it."""
    vision = {"image_size": 32, "layers": 2, "width": 32, "patch_size": 16, "head_width": 16}
    model = {"embed_dim": 16, "vision_cfg": vision, "text_cfg": {}} | (
        {"quick_gelu": True} if quick else {}
    )
    return {"model_cfg": model, "preprocess_cfg": preprocessing}


def store_clip(folder: Path, tensors: dict[str, Tensor], config: dict[str, Any], file: str) -> Path:
    """A folder as open_clip writes it."""
    if file == SAFE:
        save_file(tensors, folder / file)
    else:
        torch.save(tensors, folder / file)
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    return folder


RADIO_CONFIG = {
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


def in_radio_names(model: Any, biased: bool = True) -> dict[str, Tensor]:
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


def store_radio(
    folder: Path, tensors: dict[str, Tensor], config: dict[str, Any] | None = None
) -> Path:
    """A folder as NVIDIA writes it."""
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config or RADIO_CONFIG))
    return folder
