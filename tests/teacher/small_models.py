"""Small models of the real classes, and images for them."""

from pathlib import Path
from typing import Any

import pytest
import torch
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
