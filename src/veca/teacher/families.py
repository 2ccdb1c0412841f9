"""Kinds of vision transformers: how each is called, and where in its answer the features are.

Features are taken after the last norm. The image feature is the class token, or what the model was
trained to sum an image up with where that is something else.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from veca.data.normalisation import IMAGENET, Normalisation
from veca.teacher.teacher import Targets

OPENAI = Normalisation((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
"""Of the images that CLIP was trained on."""

HALVES = Normalisation((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
"""To -1..1."""

Grid = tuple[int, int]
Weights = tuple[Float[Tensor, "D 3 P P"], Float[Tensor, " D"] | None]


@dataclass(frozen=True, kw_only=True)
class Family:
    """One class of `transformers`."""

    model: str
    """Name of the class."""

    normalisation: Normalisation
    """Where no file says another; that of RADIO lies in the model itself."""

    observe: Callable[[Any, Tensor, Grid], Targets]
    """From model and normalised pixels to features."""

    embedding: Callable[[Any], Weights]
    """From a model to the weights of its patch embedding."""

    options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """What the class is built with besides its configuration."""


def _dino(model: Any, pixels: Tensor, grid: Grid) -> Targets:  # noqa: ANN401
    """DINOv2 and DINOv3: class token, registers, patches; positions fit any grid."""
    del grid
    tokens = model(pixel_values=pixels).last_hidden_state
    registers = getattr(model.config, "num_register_tokens", 0)
    return Targets(tokens[:, 0], tokens[:, 1 + registers :])


def _vit(model: Any, pixels: Tensor, grid: Grid) -> Targets:  # noqa: ANN401
    """Plain ViT: class token, patches."""
    del grid
    tokens = model(pixel_values=pixels, interpolate_pos_encoding=True).last_hidden_state
    return Targets(tokens[:, 0], tokens[:, 1:])


def _clip(model: Any, pixels: Tensor, grid: Grid) -> Targets:  # noqa: ANN401
    """CLIP: as ViT, but the model norms the class token alone, so the patches are left to us."""
    del grid
    found = model(pixel_values=pixels, interpolate_pos_encoding=True)
    patches = found.last_hidden_state[:, 1:]
    return Targets(found.pooler_output, model.post_layernorm(patches))


def _siglip(model: Any, pixels: Tensor, grid: Grid) -> Targets:  # noqa: ANN401
    """SigLIP, and SigLIP 2 of a fixed size: patches only, summed up by a head."""
    del grid
    return _with_head(model(pixel_values=pixels, interpolate_pos_encoding=True))


def _siglip2(model: Any, pixels: Tensor, grid: Grid) -> Targets:  # noqa: ANN401
    """SigLIP 2 for any size, which wants the pixels of each patch in a row: y, x, colour."""
    side = model.config.patch_size
    squares = pixels.unflatten(2, (-1, side)).unflatten(
        4, (-1, side)
    )  # (B, 3, rows, P, columns, P)
    rows = squares.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)
    shapes = torch.tensor([grid], device=pixels.device).expand(len(pixels), -1)
    return _with_head(model(pixel_values=rows, pixel_attention_mask=None, spatial_shapes=shapes))


def _with_head(found: Any) -> Targets:  # noqa: ANN401
    """Patches and what the head makes of them; their mean where a model comes without one."""
    patches, head = found.last_hidden_state, found.pooler_output
    return Targets(patches.mean(dim=1) if head is None else head, patches)


def _radio(model: Any, pixels: Tensor, grid: Grid) -> Targets:  # noqa: ANN401
    """RADIO: several class tokens side by side, and no last norm."""
    del grid
    found = model(pixel_values=pixels)
    return Targets(found.summary, found.features)


def _convolution(layer: Any) -> Weights:  # noqa: ANN401
    """Weights of a convolution."""
    return layer.weight, layer.bias


def _linear(layer: Any, side: int, colours_last: bool) -> Weights:  # noqa: ANN401
    """Weights of a linear layer over the pixels of a patch."""
    if colours_last:
        return layer.weight.unflatten(1, (side, side, 3)).permute(0, 3, 1, 2), layer.bias
    return layer.weight.unflatten(1, (3, side, side)), layer.bias


DINOV3 = Family(
    model="DINOv3ViTModel",
    normalisation=IMAGENET,
    observe=_dino,
    embedding=lambda model: _convolution(model.embeddings.patch_embeddings),
)
CLIP = Family(
    model="CLIPVisionModel",
    normalisation=OPENAI,
    observe=_clip,
    embedding=lambda model: _convolution(model.embeddings.patch_embedding),
)
SIGLIP = Family(
    model="SiglipVisionModel",
    normalisation=HALVES,
    observe=_siglip,
    embedding=lambda model: _convolution(model.embeddings.patch_embedding),
)
SIGLIP2 = Family(
    model="Siglip2VisionModel",
    normalisation=HALVES,
    observe=_siglip2,
    embedding=lambda model: _linear(
        model.embeddings.patch_embedding, model.config.patch_size, colours_last=True
    ),
)

FAMILIES: Mapping[str, Family] = {
    "clip": CLIP,
    "clip_vision_model": CLIP,
    "dinov2": Family(
        model="Dinov2Model",
        normalisation=IMAGENET,
        observe=_dino,
        embedding=lambda model: _convolution(model.embeddings.patch_embeddings.projection),
    ),
    "dinov2_with_registers": Family(
        model="Dinov2WithRegistersModel",
        normalisation=IMAGENET,
        observe=_dino,
        embedding=lambda model: _convolution(model.embeddings.patch_embeddings.projection),
    ),
    "dinov3_vit": DINOV3,
    "radio": Family(
        model="RadioModel",
        normalisation=OPENAI,
        observe=_radio,
        embedding=lambda model: _linear(
            model.embeddings.patch_projection, model.config.patch_size, colours_last=False
        ),
    ),
    "siglip": SIGLIP,
    "siglip_vision_model": SIGLIP,
    "siglip2": SIGLIP2,
    "siglip2_vision_model": SIGLIP2,
    "vit": Family(
        model="ViTModel",
        normalisation=HALVES,
        observe=_vit,
        embedding=lambda model: _convolution(model.embeddings.patch_embeddings.projection),
        options=MappingProxyType({"add_pooling_layer": False}),
    ),
}
"""By the `model_type` of config.json; CLIP and SigLIP with their text halves or without."""
