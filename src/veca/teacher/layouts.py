"""Weights of other libraries in the layout of transformers.

Weights under other makers' names: loaded only if every one of them finds its place.

CLIP models as open_clip stores them; some makers, such as that of DFN-CLIP, have only these.

The network is the one of `transformers`; names differ, queries, keys and values lie in one matrix,
and the text half is left out. As everywhere, the image feature is taken before the projection into
the space of texts.

RADIO models as NVIDIA stores them beside code of its own, which is never run.

The network is the one of `transformers`. That library can rename the weights of some of them by
itself, but leaves out the scales of the residuals, which C-RADIOv3 has in sizes base and large.

DINOv3 models as timm stores them, which need no consent and include LingBot-Vision.

The network is the one of `transformers`; names differ, and queries, keys and values lie in one
matrix. Sizes are read off the weights.

A vision transformer in a folder, in the layout of one of several makers; no network is used.

config.json                which class, of which size; of open_clip, open_clip_config.json may do
*.safetensors              the weights; pickled ones are read of open_clip alone
preprocessor_config.json   how pixels are normalized, if it is there
README.md                  the licence, if it is there
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from veca.data.transforms import IMAGENET, Normalization
from veca.runtime.tensors import read_tensors
from veca.teacher.teacher import TeacherError
from veca.teacher.vit import FAMILIES, ViTTeacher, quiet, transformers_class
from veca.weights.format import CARD_NAME, CONFIG_NAME, WEIGHTS_NAME, listed


def read_weights(path: Path) -> dict[str, Tensor]:
    """Every tensor of a safetensors file, under the names that it has there."""
    try:
        return read_tensors(path)
    except (SafetensorError, OSError) as error:
        raise TeacherError(f"{path} cannot be read ({error}); get it again.") from error


def load_exactly(model: Any, tensors: Mapping[str, Tensor], *, source: Path, kind: str) -> None:  # noqa: ANN401
    """Fill a model of `transformers`; names or shapes that do not fit are told, not left out."""
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    given = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    odd = sorted(
        name for name in wanted.keys() | given.keys() if wanted.get(name) != given.get(name)
    )
    if odd:
        raise TeacherError(
            f"{source} does not fit a {kind} model ({listed(odd)}); get it again, or take another."
        )
    model.load_state_dict(tensors)


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


def open_clip_normalization(config: Mapping[str, Any]) -> Normalization | None:
    """What the configuration says of pixels; None where it says nothing."""
    told = config.get("preprocess_cfg") or {}
    mean, std = told.get("mean"), told.get("std")
    if mean is None or std is None:
        return None
    (red, green, blue), (red_std, green_std, blue_std) = mean, std
    return Normalization((red, green, blue), (red_std, green_std, blue_std))


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


HEADS = {1152: 16, 1280: 16}
"""Heads by width, where they are not of 64 channels; weights do not tell."""

START = "radio_model."
BLOCKS = "model.blocks."
UNUSED = {"model.reg_token"}
"""Registers of the network that RADIO was made of; its own lie beside the class tokens."""

RADIO_LAYOUT_TOP_NAMES = {
    "model.patch_generator.embedder.weight": "embeddings.patch_projection.weight",
    "model.patch_generator.pos_embed": "embeddings.position_embedding",
    "model.patch_generator.cls_token.token": "embeddings.cls_register_token",
}
RADIO_LAYOUT_BLOCK_NAMES = {
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
    config = transformers_class("RadioConfig")(**_radio_layout_sizes(tensors, path))
    with torch.random.fork_rng(devices=[]):
        model = transformers_class("RadioModel")(config)
    own = model.state_dict()
    renamed = {name: own[name] for name in own if ".layer_scale" in name}  # ones
    renamed |= dict(_radio_layout_renamed(tensors))
    load_exactly(model, renamed, source=path, kind="RADIO")
    return model


def _radio_layout_sizes(tensors: Mapping[str, Tensor], path: Path) -> dict[str, Any]:
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


def _radio_layout_renamed(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Names as `transformers` has them; a name that is not known stays, and so is noticed."""
    for name, tensor in tensors.items():
        if not name.startswith(BLOCKS):
            yield RADIO_LAYOUT_TOP_NAMES.get(name, name), tensor
            continue
        number, _, part = name.removeprefix(BLOCKS).partition(".")
        block = f"encoder.layer.{number}."
        layer, _, kind = part.rpartition(".")
        if layer == "attn.qkv":
            for letter, third in zip("qkv", tensor.chunk(3), strict=True):
                yield f"{block}attention.{letter}_proj.{kind}", third
        elif part in RADIO_LAYOUT_BLOCK_NAMES:
            yield f"{block}{RADIO_LAYOUT_BLOCK_NAMES[part]}", tensor
        else:
            yield f"{block}{RADIO_LAYOUT_BLOCK_NAMES.get(layer, layer)}.{kind}", tensor


ARCHITECTURES = ("_dinov3", "_lingbot")
"""Parts of the names of architectures that have this layout."""

HEAD_WIDTH = 64
"""Channels of a head, which weights do not tell, in every size but the largest."""

LARGEST = "vit_7b"
"""How the architecture with other heads begins."""

TIMM_LAYOUT_TOP_NAMES = {
    "cls_token": "embeddings.cls_token",
    "reg_token": "embeddings.register_tokens",
    "patch_embed.proj.weight": "embeddings.patch_embeddings.weight",
    "patch_embed.proj.bias": "embeddings.patch_embeddings.bias",
    "norm.weight": "norm.weight",
    "norm.bias": "norm.bias",
}
TIMM_LAYOUT_BLOCK_NAMES = {
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


def timm_normalization(config: Mapping[str, Any]) -> Normalization:
    """What config.json says of pixels."""
    told = config["pretrained_cfg"]
    mean, std = told.get("mean", IMAGENET.mean), told.get("std", IMAGENET.std)
    (red, green, blue), (red_std, green_std, blue_std) = mean, std
    return Normalization((red, green, blue), (red_std, green_std, blue_std))


def timm_model(folder: Path) -> Any:  # noqa: ANN401 - the library is not typed for us
    """The model of `transformers` with the weights in a folder."""
    path = folder / WEIGHTS_NAME
    tensors = read_weights(path)
    config = transformers_class("DINOv3ViTConfig")(**_timm_layout_sizes(tensors, path))
    with torch.random.fork_rng(devices=[]):
        model = transformers_class("DINOv3ViTModel")(config)
    wanted = model.state_dict()
    blocks = next(name for name in wanted if name.endswith("layer.0.norm1.weight"))
    renamed = dict(_timm_layout_renamed(tensors, blocks.removesuffix("0.norm1.weight")))
    renamed["embeddings.mask_token"] = wanted["embeddings.mask_token"]  # for pre-training only
    load_exactly(model, renamed, source=path, kind="DINOv3")
    return model


def _timm_layout_sizes(tensors: Mapping[str, Tensor], path: Path) -> dict[str, Any]:
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


def _timm_layout_renamed(
    tensors: Mapping[str, Tensor], blocks: str
) -> Iterator[tuple[str, Tensor]]:
    """Names as `transformers` has them; a name that is not known stays, and so is noticed."""
    for name, tensor in tensors.items():
        first, _, rest = name.partition(".")
        if first != "blocks":
            yield TIMM_LAYOUT_TOP_NAMES.get(name, name), tensor
            continue
        number, _, part = rest.partition(".")
        if part == "attn.qkv.weight":
            for letter, matrix in zip("qkv", tensor.chunk(3), strict=True):
                yield f"{blocks}{number}.attention.{letter}_proj.weight", matrix
            continue
        layer, _, kind = part.rpartition(".")
        if part in TIMM_LAYOUT_BLOCK_NAMES:
            yield f"{blocks}{number}.{TIMM_LAYOUT_BLOCK_NAMES[part]}", tensor
        else:
            yield f"{blocks}{number}.{TIMM_LAYOUT_BLOCK_NAMES.get(layer, layer)}.{kind}", tensor


PREPROCESSOR_NAME = "preprocessor_config.json"

FRONT_MATTER = re.compile(r"\A---\s*\n(.*?)\n---\s*$", re.DOTALL | re.MULTILINE)


def load_folder(folder: Path, *, name: str, licence: str | None = None) -> ViTTeacher:
    """The teacher in a folder; without `licence` the folder's model card tells it."""
    config = read_config(folder)
    check_kind(config, name)
    model, normalization = _model_folder_read(folder, config)
    return ViTTeacher(
        model,
        name=name,
        licence=licence or stated_licence(folder),
        normalization=normalization,
    )


def read_config(folder: Path) -> dict[str, Any]:
    """The content of config.json, or of open_clip's own file where that is all there is."""
    path = config_path(folder)
    if path is None:
        raise TeacherError(
            f"{folder} holds no {CONFIG_NAME}; give the folder of a model as save_pretrained of "
            "transformers, or veca.save, wrote it."
        )
    return _read_json(path)


def config_path(folder: Path) -> Path | None:
    """The file that says what a folder holds; None where there is none."""
    names = (CONFIG_NAME, CONFIG_FILE)
    return next((folder / name for name in names if (folder / name).is_file()), None)


def check_kind(config: Mapping[str, Any], name: str) -> None:
    """Refuse models that are not known, before weights are read or fetched."""
    kind = config.get("model_type")
    if kind in FAMILIES or is_timm(config) or is_radio(config) or is_open_clip(config):
        return
    code = " It asks for code from the hub to be run, which is never done." * ("auto_map" in config)
    raise TeacherError(
        f"{name} is a model of type {kind!r}; known are {', '.join(FAMILIES)}, DINOv3 and LingBot "
        f"models of timm, and ViTs of open_clip.{code} Pick one of these, or wrap the model in a "
        "FunctionTeacher."
    )


def stated_licence(folder: Path) -> str | None:
    """The licence in the front matter of a model card; None where none is told."""
    path = folder / CARD_NAME
    if not path.is_file():
        return None
    front = FRONT_MATTER.search(path.read_text("utf-8", errors="replace"))
    fields = dict(re.findall(r"^(license(?:_name)?):[ \t]*(\S.*?)[ \t]*$", front[1], re.MULTILINE)
                  if front else [])  # fmt: skip
    licence, name = (fields.get(key, "").strip("\"'") for key in ("license", "license_name"))
    if licence == "other" and name:
        return f"other ({name})"
    return licence or None


def _model_folder_read(folder: Path, config: Mapping[str, Any]) -> tuple[Any, Normalization | None]:
    """The model, and what its folder says of pixels, in whichever layout that is."""
    others = open_clip_weights(folder)
    if others is not None and (is_open_clip(config) or not any(folder.glob(f"{WEIGHTS_NAME}*"))):
        told = _read_json(folder / CONFIG_FILE)
        return open_clip_model(others, told), open_clip_normalization(told)
    if is_open_clip(config):
        raise TeacherError(
            f"{folder} holds {CONFIG_FILE} and no weights beside it; put "
            f"{' or '.join(WEIGHT_FILES)} there."
        )
    if not any(folder.glob("*.safetensors")):
        raise TeacherError(
            f"{folder} holds no .safetensors file, and pickled weights are not read; load the "
            "model with transformers and write it anew with save_pretrained."
        )
    if is_timm(config):
        return timm_model(folder), timm_normalization(config)
    if stores_radio(folder, config):
        return radio_model(folder), None
    return _load(folder, config["model_type"]), _stated_normalization(folder)


def _load(folder: Path, kind: str) -> Any:  # noqa: ANN401 - the library is not typed for us
    """The model with all of its weights."""
    family = FAMILIES[kind]
    found = transformers_class(family.model)
    try:
        with quiet(), torch.random.fork_rng(devices=[]):
            model, report = found.from_pretrained(
                str(folder),
                use_safetensors=True,
                local_files_only=True,
                dtype=torch.float32,
                output_loading_info=True,
                **family.options,
            )
    except Exception as error:  # as many kinds as the library has
        words = str(error).strip().splitlines() or [type(error).__name__]
        raise TeacherError(
            f"the model in {folder} cannot be read ({words[0]}); get it again, or write it anew "
            "with save_pretrained of transformers."
        ) from error
    if report["missing_keys"]:
        raise TeacherError(
            f"{folder} lacks weights of a {family.model} ({listed(sorted(report['missing_keys']))})"
            "; they would be random numbers: get the model again."
        )
    return model


def _stated_normalization(folder: Path) -> Normalization | None:
    """What the folder says of pixels; None where it says nothing."""
    path = folder / PREPROCESSOR_NAME
    if not path.is_file():
        return None
    told = _read_json(path)
    if told.get("do_normalize") is False:
        return Normalization((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    mean, std = told.get("image_mean"), told.get("image_std")
    if mean is None or std is None:
        return None
    try:
        (red, green, blue), (red_std, green_std, blue_std) = mean, std
        return Normalization(
            (float(red), float(green), float(blue)),
            (float(red_std), float(green_std), float(blue_std)),
        )
    except (TypeError, ValueError) as error:
        raise TeacherError(
            f"{path} has image_mean={mean!r} and image_std={std!r}; three numbers each are needed, "
            "the deviations above zero."
        ) from error


def _read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file that anyone may have written."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise TeacherError(f"{path} holds no readable JSON ({error}); get it again.") from error
    if not isinstance(content, dict):
        raise TeacherError(f"{path} holds a JSON {type(content).__name__}; it must be an object.")
    return content
