"""Small models of the real classes, as transformers, timm, open_clip and NVIDIA store them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

transformers = pytest.importorskip("transformers", reason="needs veca[teachers]")

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
MIDDLE = {"intermediate_size": 48}
DINOV3 = SIZES | MIDDLE | {"num_register_tokens": 4}
SMALL = SIZES | MIDDLE | {"image_size": 32}
DINOV2 = SIZES | {"image_size": 28, "patch_size": 14}

BUILDERS: dict[str, tuple[str, dict[str, Any]]] = {
    "dinov3": ("DINOv3ViTModel", DINOV3),
    "dinov3-gated-mlp": (
        "DINOv3ViTModel",
        DINOV3 | {"use_gated_mlp": True, "hidden_act": "silu"},
    ),
    "dinov2": ("Dinov2Model", DINOV2),
    "dinov2-registers": ("Dinov2WithRegistersModel", DINOV2 | {"num_register_tokens": 3}),
    "clip": ("CLIPVisionModel", SMALL | {"patch_size": 16}),
    "siglip": ("SiglipVisionModel", SMALL),
    "siglip-without-head": ("SiglipVisionModel", SMALL | {"vision_use_head": False}),
    "siglip2": ("Siglip2VisionModel", SIZES | MIDDLE | {"num_patches": 4}),
    "radio": (
        "RadioModel",
        SIZES | {"mlp_ratio": 2.0, "max_img_size": 64, "num_cls_tokens": 3},
    ),
    "vit": ("ViTModel", SMALL),
}
"""Class and configuration of small models."""

PREFIXES = {"dinov3": 5, "dinov2": 1, "dinov2-registers": 4, "clip": 1, "siglip": 0, "vit": 1}
"""Tokens before the patches."""


def small_model(kind: str, seed: int = 0) -> Any:
    """A model in which every parameter is random, also those with constant initial values."""
    name, fields = BUILDERS[kind]
    build = getattr(transformers, name)
    options = {"add_pooling_layer": False} if kind == "vit" else {}
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        model = build(build.config_class(**fields), **options)
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def written(model: nn.Module, folder: Path, **options: Any) -> Path:
    """Save a model into a folder as its library does."""
    transformers.utils.logging.disable_progress_bar()
    model.save_pretrained(folder, **options)  # type: ignore[operator]
    return folder


def views(count: int = 2, height: int = 32, width: int = 48, seed: int = 1) -> Tensor:
    """Random 8-bit images."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, 3, height, width), dtype=torch.uint8, generator=draw)


GRID = (2, 3)

SAFE, PICKLED = "open_clip_model.safetensors", "open_clip_pytorch_model.bin"

TIMM_CONFIG = {
    "architecture": "vit_small_patch16_dinov3",
    "pretrained_cfg": {"mean": [0.4, 0.5, 0.6], "std": [0.2, 0.2, 0.3]},
}

RADIO_CONFIG = {
    "architectures": ["RADIOModel"],
    "args": {"model": "vit_base_patch16_224"},
    "auto_map": {"AutoModel": "hf_model.RADIOModel"},
    "version": "c-radio_v3-b",
}


def drawn(kind: str, **fields: Any) -> Any:
    """A model of two layers and heads in which every parameter is random."""
    build = getattr(transformers, kind)
    with torch.no_grad():
        model = build(
            build.config_class(num_hidden_layers=2, num_attention_heads=2, **fields)
        ).eval()
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def flat(modules: Mapping[str, Tensor | nn.Module]) -> dict[str, Tensor]:
    """Copies of tensors, and of weights and biases of modules, by name."""
    found = {name: item for name, item in modules.items() if isinstance(item, Tensor)}
    for name, item in modules.items():
        if isinstance(item, nn.Module):
            found |= {f"{name}.{part}": tensor for part, tensor in item.named_parameters()}
    return {name: tensor.detach().clone() for name, tensor in found.items()}


def joined(attention: Any, part: str) -> Tensor:
    """Weights or biases of queries, keys and values as one tensor."""
    layers = (attention.q_proj, attention.k_proj, attention.v_proj)
    return torch.cat([getattr(layer, part) for layer in layers])


def timm_dinov3(gated: bool, biased: bool) -> Any:
    """A model with heads of 64 channels."""
    return drawn(
        "DINOv3ViTModel",
        hidden_size=128,
        intermediate_size=96,
        num_register_tokens=3,
        use_gated_mlp=gated,
        hidden_act="silu" if gated else "gelu",
        query_bias=biased,
        value_bias=biased,
    )


def in_timm_names(model: Any, gated: bool, biased: bool) -> dict[str, Tensor]:
    """The weights under the names that timm gives them."""
    found: dict[str, Any] = {
        "cls_token": model.embeddings.cls_token,
        "reg_token": model.embeddings.register_tokens,
        "patch_embed.proj": model.embeddings.patch_embeddings,
        "norm": model.norm,
    }
    layers = next(m for name, m in model.named_modules() if name.endswith("layer"))
    for number, layer in enumerate(layers):
        block, attention = f"blocks.{number}.", layer.attention
        found |= {
            f"{block}attn.qkv.weight": joined(attention, "weight"),
            f"{block}gamma_1": layer.layer_scale1.lambda1,
            f"{block}gamma_2": layer.layer_scale2.lambda1,
            f"{block}attn.proj": attention.o_proj,
            f"{block}norm1": layer.norm1,
            f"{block}norm2": layer.norm2,
            f"{block}mlp.fc1{'_x' * gated}": layer.mlp.up_proj,
            f"{block}mlp.fc2": layer.mlp.down_proj,
        }
        if gated:
            found[f"{block}mlp.fc1_g"] = layer.mlp.gate_proj
        if biased:
            found[f"{block}attn.q_bias"] = attention.q_proj.bias
            found[f"{block}attn.v_bias"] = attention.v_proj.bias
    return flat(found)


def store_timm(
    folder: Path, tensors: dict[str, Tensor], config: dict[str, Any] = TIMM_CONFIG
) -> Path:
    """A folder as timm writes it."""
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def clip(activation: str = "gelu") -> Any:
    """A model with heads of 16 channels."""
    sizes = {"hidden_size": 32, "intermediate_size": 48, "image_size": 32, "patch_size": 16}
    return drawn("CLIPVisionModel", **sizes, hidden_act=activation)


def in_open_clip_names(model: Any) -> dict[str, Tensor]:
    """The weights under the names that open_clip gives them, and some of a text half."""
    embedding = model.embeddings
    found: dict[str, Any] = {
        "logit_scale": torch.ones(()),
        "positional_embedding": torch.rand(8, 16),
        "transformer.resblocks.0.ln_1.weight": torch.rand(16),
        "visual.class_embedding": embedding.class_embedding,
        "visual.positional_embedding": embedding.position_embedding.weight,
        "visual.conv1": embedding.patch_embedding,
        "visual.proj": torch.rand(32, 16),
        "visual.ln_pre": model.pre_layrnorm,
        "visual.ln_post": model.post_layernorm,
    }
    for number, layer in enumerate(model.encoder.layers):
        block, attention = f"visual.transformer.resblocks.{number}.", layer.self_attn
        found |= {
            f"{block}attn.in_proj_weight": joined(attention, "weight"),
            f"{block}attn.in_proj_bias": joined(attention, "bias"),
            f"{block}attn.out_proj": attention.out_proj,
            f"{block}ln_1": layer.layer_norm1,
            f"{block}ln_2": layer.layer_norm2,
            f"{block}mlp.c_fc": layer.mlp.fc1,
            f"{block}mlp.c_proj": layer.mlp.fc2,
        }
    return flat(found)


def config_of(quick: bool = False, **preprocessing: Any) -> dict[str, Any]:
    """A configuration as open_clip writes it."""
    vision = {"image_size": 32, "layers": 2, "width": 32, "patch_size": 16, "head_width": 16}
    model: dict[str, Any] = {"embed_dim": 16, "vision_cfg": vision, "text_cfg": {}}
    if quick:
        model["quick_gelu"] = True
    return {"model_cfg": model, "preprocess_cfg": preprocessing}


def store_clip(
    folder: Path,
    tensors: dict[str, Tensor],
    config: dict[str, Any] | None = None,
    file: str = SAFE,
) -> Path:
    """A folder as open_clip writes it."""
    (save_file if file == SAFE else torch.save)(tensors, folder / file)
    (folder / "open_clip_config.json").write_text(json.dumps(config or config_of()))
    return folder


def radio(biased: bool = True) -> Any:
    """A model with heads of 64 channels."""
    return drawn(
        "RadioModel",
        hidden_size=128,
        mlp_ratio=1.3,
        max_img_size=64,
        qkv_bias=biased,
        num_cls_tokens=3,
        num_registers=5,
        summary_idxs=[0, 2],
        norm_mean=[0.1, 0.2, 0.3],
        norm_std=[0.5, 0.6, 0.7],
    )


def in_radio_names(model: Any, biased: bool = True) -> dict[str, Tensor]:
    """The weights under NVIDIA's names."""
    found: dict[str, Any] = {
        "summary_idxs": model.summary_idxs,
        "input_conditioner.norm_mean": model.input_conditioner.norm_mean,
        "input_conditioner.norm_std": model.input_conditioner.norm_std,
        "model.reg_token": torch.rand(1, 4, 128),
        "model.patch_generator.embedder": model.embeddings.patch_projection,
        "model.patch_generator.pos_embed": model.embeddings.position_embedding,
        "model.patch_generator.cls_token.token": model.embeddings.cls_register_token,
    }
    for number, layer in enumerate(model.encoder.layer):
        block, attention = f"model.blocks.{number}.", layer.attention
        found |= {
            f"{block}attn.qkv.weight": joined(attention, "weight"),
            f"{block}attn.proj": attention.o_proj,
            f"{block}ls1.grandma": layer.layer_scale1.lambda1,
            f"{block}ls2.grandma": layer.layer_scale2.lambda1,
            f"{block}norm1": layer.norm1,
            f"{block}norm2": layer.norm2,
            f"{block}mlp.fc1": layer.mlp.fc1,
            f"{block}mlp.fc2": layer.mlp.fc2,
        }
        if biased:
            found[f"{block}attn.qkv.bias"] = joined(attention, "bias")
    return {f"radio_model.{name}": tensor for name, tensor in flat(found).items()}


def store_radio(
    folder: Path, tensors: dict[str, Tensor], config: dict[str, Any] = RADIO_CONFIG
) -> Path:
    """A folder as NVIDIA writes it."""
    return store_timm(folder, tensors, config)
