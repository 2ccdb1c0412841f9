"""CLIP models as open_clip stores them; some makers, such as that of DFN-CLIP, have only these.

The network is the one of `transformers`; names differ, queries, keys and values lie in one matrix,
and the text half is left out. As everywhere, the image feature is taken before the projection into
the space of texts.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from veca.data.normalisation import Normalisation
from veca.teacher.foreign_weights import load_exactly, read_weights
from veca.teacher.libraries import transformers_class
from veca.teacher.teacher import TeacherError

CONFIG_FILE = "open_clip_config.json"

WEIGHT_FILES = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")
"""The better one first. The second is pickled, and read for its tensors alone."""

VISION = "visual."
"""How the names of the vision half begin."""

TOP_NAMES = {
    "class_embedding": "embeddings.class_embedding",
    "positional_embedding": "embeddings.position_embedding.weight",
    "conv1.weight": "embeddings.patch_embedding.weight",
    "ln_pre.weight": "pre_layrnorm.weight",
    "ln_pre.bias": "pre_layrnorm.bias",
    "ln_post.weight": "post_layernorm.weight",
    "ln_post.bias": "post_layernorm.bias",
}
BLOCK_NAMES = {
    "ln_1": "layer_norm1",
    "ln_2": "layer_norm2",
    "attn.out_proj": "self_attn.out_proj",
    "mlp.c_fc": "mlp.fc1",
    "mlp.c_proj": "mlp.fc2",
}


def is_open_clip(config: Mapping[str, Any]) -> bool:
    """Whether the content of a configuration file is open_clip's."""
    return isinstance(config.get("model_cfg"), dict)


def open_clip_weights(folder: Path) -> Path | None:
    """The weights in a folder; None where there are none of this layout, or nothing about them."""
    if not (folder / CONFIG_FILE).is_file():
        return None
    return next((folder / name for name in WEIGHT_FILES if (folder / name).is_file()), None)


def open_clip_normalisation(config: Mapping[str, Any]) -> Normalisation | None:
    """What the configuration says of pixels; None where it says nothing."""
    told = config.get("preprocess_cfg") or {}
    mean, std = told.get("mean"), told.get("std")
    if mean is None or std is None:
        return None
    (red, green, blue), (red_std, green_std, blue_std) = mean, std
    return Normalisation((red, green, blue), (red_std, green_std, blue_std))


def open_clip_model(path: Path, config: Mapping[str, Any]) -> Any:  # noqa: ANN401 - not typed
    """The model of `transformers` with the weights of a file."""
    tensors = {
        name.removeprefix(VISION): tensor
        for name, tensor in _read(path).items()
        if name.startswith(VISION) and name != f"{VISION}proj"
    }
    fields = _sizes(tensors, config, path)
    with torch.random.fork_rng(devices=[]):
        found = transformers_class("CLIPVisionConfig")(**fields)
        model = transformers_class("CLIPVisionModel")(found)
    load_exactly(model, dict(_renamed(tensors)), source=path, kind="CLIP")
    return model


def _read(path: Path) -> dict[str, Tensor]:
    """Every tensor of a file of either kind."""
    if path.suffix == ".safetensors":
        return read_weights(path)
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # of as many kinds as there are ways to break a file
        raise TeacherError(f"{path} cannot be read ({error}); get it again.") from error
    if not isinstance(found, dict) or not all(isinstance(item, Tensor) for item in found.values()):
        raise TeacherError(f"{path} holds something else than tensors by name; take another model.")
    return found


def _sizes(tensors: Mapping[str, Tensor], config: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Fields of the configuration of `transformers`, most of them read off the weights."""
    try:
        width, _, side, _ = tensors["conv1.weight"].shape
        hidden = tensors["transformer.resblocks.0.mlp.c_fc.weight"].shape[0]
        places = tensors["positional_embedding"].shape[0] - 1
    except (KeyError, ValueError) as error:
        raise TeacherError(
            f"{path} holds no vision transformer of open_clip's own ({error}); take one whose "
            "name has ViT in it."
        ) from error
    model = config["model_cfg"]
    numbers = {int(name.split(".")[2]) for name in tensors if name.startswith("transformer.")}
    return {
        "hidden_size": width,
        "patch_size": side,
        "image_size": round(places**0.5) * side,
        "num_hidden_layers": max(numbers) + 1,
        "num_attention_heads": width // model.get("vision_cfg", {}).get("head_width", 64),
        "intermediate_size": hidden,
        "hidden_act": "quick_gelu" if model.get("quick_gelu") else "gelu",
    }


def _renamed(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Names as `transformers` has them; a name that is not known stays, and so is noticed."""
    for name, tensor in tensors.items():
        if not name.startswith("transformer.resblocks."):
            yield TOP_NAMES.get(name, name), tensor
            continue
        number, _, part = name.removeprefix("transformer.resblocks.").partition(".")
        block = f"encoder.layers.{number}."
        if part in {"attn.in_proj_weight", "attn.in_proj_bias"}:
            kind = part.rpartition("_")[2]
            for letter, third in zip("qkv", tensor.chunk(3), strict=True):
                yield f"{block}self_attn.{letter}_proj.{kind}", third
            continue
        layer, _, kind = part.rpartition(".")
        yield f"{block}{BLOCK_NAMES.get(layer, layer)}.{kind}", tensor
