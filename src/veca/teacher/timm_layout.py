"""DINOv3 models as timm stores them, which need no consent and include LingBot-Vision.

The network is the one of `transformers`; names differ, and queries, keys and values lie in one
matrix. Sizes are read off the weights.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from veca.data.normalisation import IMAGENET, Normalisation
from veca.teacher.foreign_weights import load_exactly, read_weights
from veca.teacher.libraries import transformers_class
from veca.teacher.teacher import TeacherError
from veca.weights.layout import WEIGHTS_NAME

ARCHITECTURES = ("_dinov3", "_lingbot")
"""Parts of the names of architectures that have this layout."""

HEAD_WIDTH = 64
"""Channels of a head, which weights do not tell, in every size but the largest."""

LARGEST = "vit_7b"
"""How the architecture with other heads begins."""

TOP_NAMES = {
    "cls_token": "embeddings.cls_token",
    "reg_token": "embeddings.register_tokens",
    "patch_embed.proj.weight": "embeddings.patch_embeddings.weight",
    "patch_embed.proj.bias": "embeddings.patch_embeddings.bias",
    "norm.weight": "norm.weight",
    "norm.bias": "norm.bias",
}
BLOCK_NAMES = {
    "gamma_1": "layer_scale1.lambda1",
    "gamma_2": "layer_scale2.lambda1",
    "attn.proj": "attention.o_proj",
    "attn.q_bias": "attention.q_proj.bias",
    "attn.v_bias": "attention.v_proj.bias",
    "mlp.fc1_g": "mlp.gate_proj",
    "mlp.fc1_x": "mlp.up_proj",
    "mlp.fc1": "mlp.up_proj",
    "mlp.fc2": "mlp.down_proj",
    "norm1": "norm1",
    "norm2": "norm2",
}


def is_timm(config: Mapping[str, Any]) -> bool:
    """Whether a config.json is timm's, of a model with this layout."""
    architecture = str(config.get("architecture", ""))
    known = any(part in architecture for part in ARCHITECTURES)
    return "pretrained_cfg" in config and known and not architecture.startswith(LARGEST)


def timm_normalisation(config: Mapping[str, Any]) -> Normalisation:
    """What config.json says of pixels."""
    told = config["pretrained_cfg"]
    mean, std = told.get("mean", IMAGENET.mean), told.get("std", IMAGENET.std)
    (red, green, blue), (red_std, green_std, blue_std) = mean, std
    return Normalisation((red, green, blue), (red_std, green_std, blue_std))


def timm_model(folder: Path) -> Any:  # noqa: ANN401 - the library is not typed for us
    """The model of `transformers` with the weights in a folder."""
    path = folder / WEIGHTS_NAME
    tensors = read_weights(path)
    config = transformers_class("DINOv3ViTConfig")(**_sizes(tensors, path))
    with torch.random.fork_rng(devices=[]):
        model = transformers_class("DINOv3ViTModel")(config)
    wanted = model.state_dict()
    blocks = next(name for name in wanted if name.endswith("layer.0.norm1.weight"))
    renamed = dict(_renamed(tensors, blocks.removesuffix("0.norm1.weight")))
    renamed["embeddings.mask_token"] = wanted["embeddings.mask_token"]  # for pre-training only
    load_exactly(model, renamed, source=path, kind="DINOv3")
    return model


def _sizes(tensors: Mapping[str, Tensor], path: Path) -> dict[str, Any]:
    """Fields of the configuration."""
    try:
        width, _, side, _ = tensors["patch_embed.proj.weight"].shape
        gated = "blocks.0.mlp.fc1_g.weight" in tensors
        first = tensors[f"blocks.0.mlp.fc1{'_g' if gated else ''}.weight"]
        registers = tensors["reg_token"].shape[1]
    except (KeyError, ValueError) as error:
        raise TeacherError(
            f"{path} holds no DINOv3 model ({error}); take a model whose architecture has "
            f"{' or '.join(ARCHITECTURES)} in its name."
        ) from error
    biased = "blocks.0.attn.q_bias" in tensors
    numbers = {int(name.split(".")[1]) for name in tensors if name.startswith("blocks.")}
    return {
        "hidden_size": width,
        "patch_size": side,
        "num_hidden_layers": max(numbers) + 1,
        "num_attention_heads": max(width // HEAD_WIDTH, 1),
        "intermediate_size": first.shape[0],
        "num_register_tokens": registers,
        "use_gated_mlp": gated,
        "hidden_act": "silu" if gated else "gelu",
        "query_bias": biased,
        "value_bias": biased,
    }


def _renamed(tensors: Mapping[str, Tensor], blocks: str) -> Iterator[tuple[str, Tensor]]:
    """Names as `transformers` has them; a name that is not known stays, and so is noticed."""
    for name, tensor in tensors.items():
        first, _, rest = name.partition(".")
        if first != "blocks":
            yield TOP_NAMES.get(name, name), tensor
            continue
        number, _, part = rest.partition(".")
        if part == "attn.qkv.weight":
            for letter, matrix in zip("qkv", tensor.chunk(3), strict=True):
                yield f"{blocks}{number}.attention.{letter}_proj.weight", matrix
            continue
        layer, _, kind = part.rpartition(".")
        if part in BLOCK_NAMES:
            yield f"{blocks}{number}.{BLOCK_NAMES[part]}", tensor
        else:
            yield f"{blocks}{number}.{BLOCK_NAMES.get(layer, layer)}.{kind}", tensor
