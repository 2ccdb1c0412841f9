"""The door of the model: what a caller can get wrong, and what to do instead."""

import operator
from collections.abc import Sequence
from typing import SupportsIndex, cast, get_args

from torch import SymInt, Tensor

from veca.backbone.attention import Form
from veca.backbone.config import BackboneConfig


def checked_budget(config: BackboneConfig, budget: int | None) -> int:
    """The number of cores to use; None uses the configuration's default, else all of them."""
    if budget is None:
        return config.cores if config.default_budget is None else config.default_budget
    if config.attention == "full":
        raise ValueError(
            f"budget={budget} means nothing to a full-attention model, which has no cores to "
            "leave out; pass budget=None."
        )
    cores = _whole(budget)
    if cores is None or not 1 <= cores <= config.cores:
        raise ValueError(
            f"budget={budget!r} is outside 1..{config.cores}, the cores of this model; pick one "
            "of these, or leave budget out to use every core."
        )
    return cores


def checked_units(config: BackboneConfig, share: float | None) -> int:
    """The number of hidden units that a share of the feed-forward parts uses."""
    if share is None or share == 1:
        return config.hidden
    if config.ffn_shares == (1.0,):
        raise ValueError(
            f"ffn={share} needs a model with nested feed-forward parts, but this one has only "
            "whole ones; leave ffn out, or build with ffn_shares=(0.25, 0.5, 1.0) and train it."
        )
    if not isinstance(share, int | float) or not 0 < share <= 1:
        raise ValueError(
            f"ffn={share} is outside (0, 1]; this model was made for the shares "
            f"{', '.join(map(str, config.ffn_shares))}."
        )
    return config.hidden_units(share)


def checked_grid(config: BackboneConfig, images: Tensor) -> tuple[int, int]:
    """Rows and columns of patches."""
    if not isinstance(images, Tensor):
        raise ValueError(
            f"images is a {type(images).__name__}, but a torch tensor is needed; veca.preprocess "
            "makes one of a picture or an array."
        )
    if images.ndim != 4 or images.shape[1] != config.in_channels:
        raise ValueError(
            f"images has the shape {tuple(images.shape)}, but a batch of shape "
            f"(B, {config.in_channels}, height, width) is needed; add a batch dimension with "
            "images[None], or build the model with other in_channels."
        )
    if not images.is_floating_point():
        raise ValueError(
            f"images holds {images.dtype} numbers, but normalised floating-point ones are needed; "
            "veca.preprocess gives them."
        )
    return grid_of(config, images.shape[2], images.shape[3])


def grid_of(config: BackboneConfig, height: int, width: int) -> tuple[int, int]:
    """Rows and columns of patches of an image of this size."""
    for name, side in (("height", height), ("width", width)):
        if side % config.patch_size or side < 1:
            below = max(side // config.patch_size, 1) * config.patch_size
            raise ValueError(
                f"{name}={side} is not a multiple of the patch size {config.patch_size}; the "
                f"nearest that fit are {below} and {below + config.patch_size}: resize, crop or "
                "pad the image to one of them."
            )
    return height // config.patch_size, width // config.patch_size


def checked_layers(config: BackboneConfig, layers: Sequence[int]) -> tuple[int, ...]:
    """Layers counted from 0."""
    for layer in layers:
        if _whole(layer) is None or not 0 <= layer < config.layers:
            raise ValueError(
                f"layer {layer!r} is outside 0..{config.layers - 1}, the layers of this model, "
                "which count from 0."
            )
    return tuple(layers)


def checked_form(form: Form) -> None:
    """Refuse a form of attention that is not known."""
    if form not in get_args(Form):
        raise ValueError(f"form={form!r} is not known; use {', '.join(map(repr, get_args(Form)))}.")


def _whole(value: SupportsIndex) -> int | None:
    """A whole number of any library, or None; while compiling it may be a symbol, and stays one."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | SymInt):
        return cast(int, value)
    return operator.index(value) if hasattr(value, "__index__") else None
