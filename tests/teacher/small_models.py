"""Small models of the real classes, and pictures for them to see."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

transformers = pytest.importorskip("transformers", reason="needs veca[teachers]")

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
MIDDLE = {"intermediate_size": 48}


def _dinov3(**changes: Any) -> Any:
    fields = SIZES | MIDDLE | {"num_register_tokens": 4} | changes
    return transformers.DINOv3ViTModel(transformers.DINOv3ViTConfig(**fields))


def _dinov2() -> Any:
    return transformers.Dinov2Model(transformers.Dinov2Config(**SIZES, image_size=28))


def _dinov2_with_registers() -> Any:
    config = transformers.Dinov2WithRegistersConfig(
        **SIZES, image_size=28, patch_size=14, num_register_tokens=3
    )
    return transformers.Dinov2WithRegistersModel(config)


def _clip() -> Any:
    config = transformers.CLIPVisionConfig(**SIZES, **MIDDLE, image_size=32, patch_size=16)
    return transformers.CLIPVisionModel(config)


def _siglip(**changes: Any) -> Any:
    fields = SIZES | MIDDLE | {"image_size": 32} | changes
    return transformers.SiglipVisionModel(transformers.SiglipVisionConfig(**fields))


def _siglip2() -> Any:
    config = transformers.Siglip2VisionConfig(**SIZES, **MIDDLE, num_patches=4)
    return transformers.Siglip2VisionModel(config)


def _radio() -> Any:
    config = transformers.RadioConfig(**SIZES, mlp_ratio=2.0, max_img_size=64, num_cls_tokens=3)
    return transformers.RadioModel(config)


def _vit() -> Any:
    config = transformers.ViTConfig(**SIZES, **MIDDLE, image_size=32)
    return transformers.ViTModel(config, add_pooling_layer=False)


BUILDERS: dict[str, Callable[[], Any]] = {
    "dinov3": _dinov3,
    "dinov3-gated-mlp": lambda: _dinov3(use_gated_mlp=True, hidden_act="silu"),
    "dinov2": _dinov2,
    "dinov2-registers": _dinov2_with_registers,
    "clip": _clip,
    "siglip": _siglip,
    "siglip-without-head": lambda: _siglip(vision_use_head=False),
    "siglip2": _siglip2,
    "radio": _radio,
    "vit": _vit,
}
PREFIXES = {"dinov3": 5, "dinov2": 1, "dinov2-registers": 4, "clip": 1, "siglip": 0, "vit": 1}
"""Tokens before the patches."""


def small_model(kind: str, seed: int = 0) -> Any:
    """A model in which every number differs from how it is drawn, so that nothing hides."""
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        model = BUILDERS[kind]()
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def written(model: nn.Module, folder: Path, **options: Any) -> Path:
    """A folder with a model as its library writes it."""
    transformers.utils.logging.disable_progress_bar()
    model.save_pretrained(folder, **options)  # type: ignore[operator]
    return folder


def views(count: int = 2, height: int = 32, width: int = 48, seed: int = 1) -> Tensor:
    """Random 8-bit images."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, 3, height, width), dtype=torch.uint8, generator=draw)
