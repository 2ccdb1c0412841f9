"""RADIO models as NVIDIA stores them beside code of its own, which is never run.

The network is the one of `transformers`. That library can rename the weights of some of them by
itself, but leaves out the scales of the residuals, which C-RADIOv3 has in sizes base and large.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from veca.teacher.foreign_weights import load_exactly, read_weights
from veca.teacher.libraries import transformers_class
from veca.teacher.teacher import TeacherError
from veca.weights.layout import WEIGHTS_NAME

HEADS = {1152: 16, 1280: 16}
"""Heads by width, where they are not of 64 channels; weights do not tell."""

START = "radio_model."
BLOCKS = "model.blocks."
UNUSED = {"model.reg_token"}
"""Registers of the network that RADIO was made of; its own lie beside the class tokens."""

TOP_NAMES = {
    "model.patch_generator.embedder.weight": "embeddings.patch_projection.weight",
    "model.patch_generator.pos_embed": "embeddings.position_embedding",
    "model.patch_generator.cls_token.token": "embeddings.cls_register_token",
}
BLOCK_NAMES = {
    "attn.proj": "attention.o_proj",
    "ls1.grandma": "layer_scale1.lambda1",  # their word, chosen because 'gamma' gets renamed
    "ls2.grandma": "layer_scale2.lambda1",
}


def is_radio(config: Mapping[str, Any]) -> bool:
    """Whether a config.json is one of NVIDIA's own."""
    return "RADIOModel" in (config.get("architectures") or []) and "args" in config


def stores_radio(folder: Path, config: Mapping[str, Any]) -> bool:
    """Whether the weights in a folder must be read here, whichever of the two wrote config.json."""
    if is_radio(config):
        return True
    if config.get("model_type") != "radio":
        return False
    try:
        with safe_open(folder / WEIGHTS_NAME, framework="pt") as file:
            return any(".ls1." in name for name in file.keys())  # noqa: SIM118
    except (SafetensorError, OSError):
        return False  # whoever reads it says what is wrong


def radio_model(folder: Path) -> Any:  # noqa: ANN401 - the library is not typed for us
    """The model of `transformers` with the weights in a folder."""
    path = folder / WEIGHTS_NAME
    tensors = {
        name.removeprefix(START): tensor
        for name, tensor in read_weights(path).items()
        if name.removeprefix(START) not in UNUSED
    }
    config = transformers_class("RadioConfig")(**_sizes(tensors, path))
    with torch.random.fork_rng(devices=[]):
        model = transformers_class("RadioModel")(config)
    own = model.state_dict()
    renamed = {name: own[name] for name in own if ".layer_scale" in name}  # ones
    renamed |= dict(_renamed(tensors))
    load_exactly(model, renamed, source=path, kind="RADIO")
    return model


def _sizes(tensors: Mapping[str, Tensor], path: Path) -> dict[str, Any]:
    """Fields of the configuration, read off the weights."""
    try:
        width, numbers = tensors["model.patch_generator.embedder.weight"].shape
        places = tensors["model.patch_generator.pos_embed"].shape[1]
        prefix = tensors["model.patch_generator.cls_token.token"].shape[0]
        summary = tensors["summary_idxs"].tolist()
        classes = max(summary) + 1  # where class tokens end and registers begin does not matter
        hidden = tensors[f"{BLOCKS}0.mlp.fc1.weight"].shape[0]
    except (KeyError, ValueError) as error:
        raise TeacherError(
            f"{path} holds no RADIO model ({error}); take one such as nvidia/C-RADIOv3-B."
        ) from error
    side = round((numbers / 3) ** 0.5)
    layers = {
        int(name.removeprefix(BLOCKS).split(".")[0]) for name in tensors if name.startswith(BLOCKS)
    }
    return {
        "hidden_size": width,
        "patch_size": side,
        "max_img_size": round(places**0.5) * side,
        "num_hidden_layers": max(layers) + 1,
        "num_attention_heads": HEADS.get(width, max(width // 64, 1)),
        "mlp_ratio": (hidden + 0.5) / width,  # the class rounds the product down
        "qkv_bias": f"{BLOCKS}0.attn.qkv.bias" in tensors,
        "num_cls_tokens": classes,
        "num_registers": prefix - classes,
        "summary_idxs": summary,
    }


def _renamed(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Names as `transformers` has them; a name that is not known stays, and so is noticed."""
    for name, tensor in tensors.items():
        if not name.startswith(BLOCKS):
            yield TOP_NAMES.get(name, name), tensor
            continue
        number, _, part = name.removeprefix(BLOCKS).partition(".")
        block = f"encoder.layer.{number}."
        layer, _, kind = part.rpartition(".")
        if layer == "attn.qkv":
            for letter, third in zip("qkv", tensor.chunk(3), strict=True):
                yield f"{block}attention.{letter}_proj.{kind}", third
        elif part in BLOCK_NAMES:
            yield f"{block}{BLOCK_NAMES[part]}", tensor
        else:
            yield f"{block}{BLOCK_NAMES.get(layer, layer)}.{kind}", tensor
