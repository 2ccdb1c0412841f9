"""Vision transformers stored in a folder, in the layout of transformers or of another library.

config.json                class and size; for open_clip, open_clip_config.json may suffice
*.safetensors              the weights; pickled ones are read only for open_clip
preprocessor_config.json   normalization, if present
README.md                  licence, if present

The network is always the one of `transformers`. Three other layouts are converted to it: CLIP of
open_clip (the text half is dropped, and features are taken before the projection into text space),
C-RADIO of NVIDIA (whose own code is never run, and whose residual scales transformers would drop),
and DINOv3 of timm, which needs no consent and includes LingBot-Vision. They differ in names, store
queries, keys and values in one matrix, and are loaded only if every weight finds its place. Sizes
are read off the weights.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
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

PREPROCESSOR_NAME = "preprocessor_config.json"

OPEN_CLIP_CONFIG = "open_clip_config.json"

OPEN_CLIP_WEIGHTS = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")
"""In order of preference. The second is pickled; only its tensors are read."""

FRONT_MATTER = re.compile(r"\A---\s*\n(.*?)\n---\s*$", re.DOTALL | re.MULTILINE)

TIMM_ARCHITECTURES = ("_dinov3", "_lingbot")
"""Parts of the names of timm architectures that are DINOv3."""

TIMM_LARGEST = "vit_7b"
"""Prefix of the architecture whose heads are not of 64 channels."""

HEAD_WIDTH = 64
"""Channels of a head, which weights do not show."""

RADIO_HEADS = {1152: 16, 1280: 16}
"""Heads by width where they are not of 64 channels."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Names of another library and their counterparts in transformers."""

    kind: str
    """Name of the model in errors."""

    prefix: str = ""
    """Removed from all names."""

    dropped: tuple[str, ...] = ()
    """Names that are not used."""

    blocks: str
    """Prefix of the blocks, before their number."""

    target_blocks: str

    fused: Mapping[str, str]
    """Matrices of queries, keys and values, and their counterparts with {} for q, k or v."""

    top: Mapping[str, str]
    """Names outside of the blocks."""

    block: Mapping[str, str]
    """Names in a block, with or without the final '.weight' or '.bias'."""

    def renamed(
        self, tensors: Mapping[str, Tensor], target_blocks: str
    ) -> Iterator[tuple[str, Tensor]]:
        """Convert names; unknown ones are kept, so that loading reports them."""
        for name, tensor in tensors.items():
            if not name.startswith(self.blocks):
                yield self.top.get(name, name), tensor
                continue
            number, _, part = name.removeprefix(self.blocks).partition(".")
            block = f"{target_blocks}{number}."
            layer, _, kind = part.rpartition(".")
            if part in self.fused:
                for letter, third in zip("qkv", tensor.chunk(3), strict=True):
                    yield block + self.fused[part].format(letter), third
            elif part in self.block:
                yield block + self.block[part], tensor
            else:
                yield f"{block}{self.block.get(layer, layer)}.{kind}", tensor

    def read(self, path: Path) -> dict[str, Tensor]:
        """Read the weights without the prefix and without what is not used."""
        found = {
            name.removeprefix(self.prefix): tensor
            for name, tensor in _read_weights(path).items()
            if self is not OPEN_CLIP or name.startswith(self.prefix)  # else the text half
        }
        return {name: tensor for name, tensor in found.items() if name not in self.dropped}

    def num_blocks(self, tensors: Mapping[str, Tensor]) -> int:
        """Number of blocks."""
        return 1 + max(
            int(name.removeprefix(self.blocks).partition(".")[0])
            for name in tensors
            if name.startswith(self.blocks)
        )


OPEN_CLIP = Layout(
    kind="CLIP",
    prefix="visual.",
    dropped=("proj",),
    blocks="transformer.resblocks.",
    target_blocks="encoder.layers.",
    fused={
        "attn.in_proj_weight": "self_attn.{}_proj.weight",
        "attn.in_proj_bias": "self_attn.{}_proj.bias",
    },
    top={
        "class_embedding": "embeddings.class_embedding",
        "positional_embedding": "embeddings.position_embedding.weight",
        "conv1.weight": "embeddings.patch_embedding.weight",
        "ln_pre.weight": "pre_layrnorm.weight",
        "ln_pre.bias": "pre_layrnorm.bias",
        "ln_post.weight": "post_layernorm.weight",
        "ln_post.bias": "post_layernorm.bias",
    },
    block={
        "ln_1": "layer_norm1",
        "ln_2": "layer_norm2",
        "attn.out_proj": "self_attn.out_proj",
        "mlp.c_fc": "mlp.fc1",
        "mlp.c_proj": "mlp.fc2",
    },
)
RADIO = Layout(
    kind="RADIO",
    prefix="radio_model.",
    dropped=("model.reg_token",),  # registers of the network that RADIO was initialized with
    blocks="model.blocks.",
    target_blocks="encoder.layer.",
    fused={
        "attn.qkv.weight": "attention.{}_proj.weight",
        "attn.qkv.bias": "attention.{}_proj.bias",
    },
    top={
        "model.patch_generator.embedder.weight": "embeddings.patch_projection.weight",
        "model.patch_generator.pos_embed": "embeddings.position_embedding",
        "model.patch_generator.cls_token.token": "embeddings.cls_register_token",
    },
    block={
        "attn.proj": "attention.o_proj",
        "ls1.grandma": "layer_scale1.lambda1",  # their name, since 'gamma' gets renamed
        "ls2.grandma": "layer_scale2.lambda1",
    },
)
TIMM = Layout(
    kind="DINOv3",
    blocks="blocks.",
    target_blocks="model.layer.",
    fused={"attn.qkv.weight": "attention.{}_proj.weight"},
    top={
        "cls_token": "embeddings.cls_token",
        "reg_token": "embeddings.register_tokens",
        "patch_embed.proj.weight": "embeddings.patch_embeddings.weight",
        "patch_embed.proj.bias": "embeddings.patch_embeddings.bias",
    },
    block={
        "gamma_1": "layer_scale1.lambda1",
        "gamma_2": "layer_scale2.lambda1",
        "attn.proj": "attention.o_proj",
        "attn.q_bias": "attention.q_proj.bias",
        "attn.v_bias": "attention.v_proj.bias",
        "mlp.fc1_g": "mlp.gate_proj",
        "mlp.fc1_x": "mlp.up_proj",
        "mlp.fc1": "mlp.up_proj",
        "mlp.fc2": "mlp.down_proj",
    },
)


def load_folder(folder: Path, *, name: str, licence: str | None = None) -> ViTTeacher:
    """Load the teacher in a folder; without `licence` the model card's is used."""
    config = read_config(folder)
    check_kind(config, name)
    model, normalization = _read_model(folder, config)
    return ViTTeacher(
        model,
        name=name,
        licence=licence or stated_licence(folder),
        normalization=normalization,
    )


def read_config(folder: Path) -> dict[str, Any]:
    """Read config.json, or open_clip's own file if that is all there is."""
    path = config_path(folder)
    if path is None:
        raise TeacherError(
            f"{folder} holds no {CONFIG_NAME}; give the folder of a model written by "
            "save_pretrained of transformers or by veca.save."
        )
    return _read_json(path)


def config_path(folder: Path) -> Path | None:
    """The configuration file of a folder, if there is one."""
    names = (CONFIG_NAME, OPEN_CLIP_CONFIG)
    return next((folder / name for name in names if (folder / name).is_file()), None)


def check_kind(config: Mapping[str, Any], name: str) -> None:
    """Refuse unknown models before weights are read or downloaded."""
    kind = config.get("model_type")
    if kind in FAMILIES or _is_timm(config) or _is_radio(config) or _is_open_clip(config):
        return
    code = " It requires code from the hub, which is never run." * ("auto_map" in config)
    raise TeacherError(
        f"{name} is a model of type {kind!r}; known are {', '.join(FAMILIES)}, DINOv3 and LingBot "
        f"models of timm, and ViTs of open_clip.{code} Pick one of these, or wrap the model in a "
        "FunctionTeacher."
    )


def stated_licence(folder: Path) -> str | None:
    """The licence in the front matter of a model card, if there is one."""
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


def _is_open_clip(config: Mapping[str, Any]) -> bool:
    """Whether a configuration is open_clip's."""
    return isinstance(config.get("model_cfg"), dict)


def _is_radio(config: Mapping[str, Any]) -> bool:
    """Whether a configuration is NVIDIA's own."""
    return "RADIOModel" in (config.get("architectures") or []) and "args" in config


def _is_timm(config: Mapping[str, Any]) -> bool:
    """Whether a configuration is timm's, of a DINOv3 model."""
    architecture = str(config.get("architecture", ""))
    known = any(part in architecture for part in TIMM_ARCHITECTURES)
    return "pretrained_cfg" in config and known and not architecture.startswith(TIMM_LARGEST)


def _stores_radio(folder: Path, config: Mapping[str, Any]) -> bool:
    """Whether the weights are in NVIDIA's layout, whoever wrote config.json."""
    if _is_radio(config):
        return True
    if config.get("model_type") != "radio":
        return False
    try:
        with safe_open(folder / WEIGHTS_NAME, framework="pt") as file:
            return any(".ls1." in name for name in file.keys())  # noqa: SIM118
    except (SafetensorError, OSError):
        return False  # reading it will raise


def _read_model(folder: Path, config: Mapping[str, Any]) -> tuple[Any, Normalization | None]:
    """Read the model and its normalization, whichever layout the folder has."""
    weights = next((folder / name for name in OPEN_CLIP_WEIGHTS if (folder / name).is_file()), None)
    if (
        weights is not None
        and (folder / OPEN_CLIP_CONFIG).is_file()
        and (_is_open_clip(config) or not any(folder.glob(f"{WEIGHTS_NAME}*")))
    ):
        config = _read_json(folder / OPEN_CLIP_CONFIG)
        return _open_clip_model(weights, config), _normalization(config.get("preprocess_cfg"))
    if _is_open_clip(config):
        raise TeacherError(
            f"{folder} holds {OPEN_CLIP_CONFIG} and no weights beside it; put "
            f"{' or '.join(OPEN_CLIP_WEIGHTS)} there."
        )
    if not any(folder.glob("*.safetensors")):
        raise TeacherError(
            f"{folder} holds no .safetensors file, and pickled weights are not read; load the "
            "model with transformers and save it with save_pretrained."
        )
    if _is_timm(config):
        stated = {"mean": IMAGENET.mean, "std": IMAGENET.std} | config["pretrained_cfg"]
        return _timm_model(folder / WEIGHTS_NAME), _normalization(stated)
    if _stores_radio(folder, config):
        return _radio_model(folder / WEIGHTS_NAME), None
    return _transformers_model(folder, config["model_type"]), _stated_normalization(folder)


def _open_clip_model(path: Path, config: Mapping[str, Any]) -> Any:  # noqa: ANN401 - not typed
    """Load CLIP in open_clip's layout."""
    tensors = OPEN_CLIP.read(path)
    model_config = config["model_cfg"]
    try:
        width, _, side, _ = tensors["conv1.weight"].shape
        places = tensors["positional_embedding"].shape[0] - 1
        fields = {
            "hidden_size": width,
            "patch_size": side,
            "image_size": round(places**0.5) * side,
            "num_hidden_layers": OPEN_CLIP.num_blocks(tensors),
            "num_attention_heads": width
            // model_config.get("vision_cfg", {}).get("head_width", 64),
            "intermediate_size": tensors["transformer.resblocks.0.mlp.c_fc.weight"].shape[0],
            "hidden_act": "quick_gelu" if model_config.get("quick_gelu") else "gelu",
        }
    except (KeyError, ValueError) as error:
        raise TeacherError(
            f"{path} holds no vision transformer of open_clip's own ({error}); take one whose "
            "name has ViT in it."
        ) from error
    return _build(OPEN_CLIP, "CLIPVisionConfig", "CLIPVisionModel", fields, tensors, path)


def _radio_model(path: Path) -> Any:  # noqa: ANN401 - not typed
    """Load RADIO in NVIDIA's layout."""
    tensors = RADIO.read(path)
    try:
        width, values = tensors["model.patch_generator.embedder.weight"].shape
        places = tensors["model.patch_generator.pos_embed"].shape[1]
        prefix = tensors["model.patch_generator.cls_token.token"].shape[0]
        summary = tensors["summary_idxs"].tolist()
        classes = max(summary) + 1  # where class tokens end and registers begin does not matter
        side = round((values / 3) ** 0.5)
        fields = {
            "hidden_size": width,
            "patch_size": side,
            "max_img_size": round(places**0.5) * side,
            "num_hidden_layers": RADIO.num_blocks(tensors),
            "num_attention_heads": RADIO_HEADS.get(width, max(width // HEAD_WIDTH, 1)),
            # transformers rounds the product with the width down
            "mlp_ratio": (tensors["model.blocks.0.mlp.fc1.weight"].shape[0] + 0.5) / width,
            "qkv_bias": "model.blocks.0.attn.qkv.bias" in tensors,
            "num_cls_tokens": classes,
            "num_registers": prefix - classes,
            "summary_idxs": summary,
        }
    except (KeyError, ValueError) as error:
        raise TeacherError(
            f"{path} holds no RADIO model ({error}); take one such as nvidia/C-RADIOv3-B."
        ) from error
    return _build(RADIO, "RadioConfig", "RadioModel", fields, tensors, path, (".layer_scale",))


def _timm_model(path: Path) -> Any:  # noqa: ANN401 - not typed
    """Load DINOv3 in timm's layout."""
    tensors = TIMM.read(path)
    try:
        width, _, side, _ = tensors["patch_embed.proj.weight"].shape
        gated = "blocks.0.mlp.fc1_g.weight" in tensors
        biased = "blocks.0.attn.q_bias" in tensors
        fields = {
            "hidden_size": width,
            "patch_size": side,
            "num_hidden_layers": TIMM.num_blocks(tensors),
            "num_attention_heads": max(width // HEAD_WIDTH, 1),
            "intermediate_size": tensors[f"blocks.0.mlp.fc1{'_g' * gated}.weight"].shape[0],
            "num_register_tokens": tensors["reg_token"].shape[1],
            "use_gated_mlp": gated,
            "hidden_act": "silu" if gated else "gelu",
            "query_bias": biased,
            "value_bias": biased,
        }
    except (KeyError, ValueError) as error:
        raise TeacherError(
            f"{path} holds no DINOv3 model ({error}); take a model whose architecture has "
            f"{' or '.join(TIMM_ARCHITECTURES)} in its name."
        ) from error
    return _build(
        TIMM, "DINOv3ViTConfig", "DINOv3ViTModel", fields, tensors, path, ("embeddings.mask_token",)
    )


def _build(  # noqa: PLR0913, PLR0917 - one call per layout
    layout: Layout,
    config: str,
    model: str,
    fields: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    path: Path,
    optional: tuple[str, ...] = (),
) -> Any:  # noqa: ANN401 - not typed
    """Build a model of transformers; names or shapes that do not fit are an error.

    Weights whose names contain one of `optional` keep their initial values if they are missing.
    """
    with torch.random.fork_rng(devices=[]):
        found = transformers_class(model)(transformers_class(config)(**fields))
    own = found.state_dict()
    renamed = {name: own[name] for name in own if any(part in name for part in optional)}
    blocks = layout.target_blocks
    if not any(name.startswith(blocks) for name in own):  # some versions of transformers
        blocks = blocks.removeprefix("model.")
    renamed |= dict(layout.renamed(tensors, blocks))
    wanted = {name: tuple(tensor.shape) for name, tensor in own.items()}
    given = {name: tuple(tensor.shape) for name, tensor in renamed.items()}
    odd = sorted(
        name for name in wanted.keys() | given.keys() if wanted.get(name) != given.get(name)
    )
    if odd:
        raise TeacherError(
            f"{path} does not fit a {layout.kind} model ({listed(odd)}); get it again, or take "
            "another."
        )
    found.load_state_dict(renamed)
    return found


def _read_weights(path: Path) -> dict[str, Tensor]:
    """Read every tensor of a file."""
    try:
        if path.suffix == ".safetensors":
            return read_tensors(path)
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # pickled files are damaged in many ways
        raise TeacherError(f"{path} cannot be read ({error}); get it again.") from error
    if not isinstance(found, dict) or not all(isinstance(item, Tensor) for item in found.values()):
        raise TeacherError(f"{path} holds something else than tensors by name; take another model.")
    return found


def _transformers_model(folder: Path, kind: str) -> Any:  # noqa: ANN401 - not typed
    """Load a model in the layout of transformers, with all of its weights."""
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
    except Exception as error:  # transformers raises many kinds
        message = str(error).strip().splitlines() or [type(error).__name__]
        raise TeacherError(
            f"the model in {folder} cannot be read ({message[0]}); get it again, or save it again "
            "with save_pretrained of transformers."
        ) from error
    if report["missing_keys"]:
        raise TeacherError(
            f"{folder} lacks weights of a {family.model} ({listed(sorted(report['missing_keys']))})"
            ", which would be random; get the model again."
        )
    return model


def _stated_normalization(folder: Path) -> Normalization | None:
    """The normalization in the folder's preprocessor configuration, if there is one."""
    path = folder / PREPROCESSOR_NAME
    if not path.is_file():
        return None
    stated = _read_json(path)
    if stated.get("do_normalize") is False:
        return Normalization((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    mean, std = stated.get("image_mean"), stated.get("image_std")
    try:
        return _normalization({"mean": mean, "std": std})
    except (TypeError, ValueError) as error:
        raise TeacherError(
            f"{path} has image_mean={mean!r} and image_std={std!r}; three numbers each are needed, "
            "and deviations above zero."
        ) from error


def _normalization(stated: Mapping[str, Any] | None) -> Normalization | None:
    """The normalization of a mapping with mean and std, if it has both."""
    mean, std = (stated or {}).get("mean"), (stated or {}).get("std")
    if mean is None or std is None:
        return None
    (red, green, blue), (red_std, green_std, blue_std) = mean, std
    return Normalization(
        (float(red), float(green), float(blue)),
        (float(red_std), float(green_std), float(blue_std)),
    )


def _read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file that anyone may have written."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise TeacherError(f"{path} is not a JSON file ({error}); get it again.") from error
    if not isinstance(content, dict):
        raise TeacherError(f"{path} holds a JSON {type(content).__name__}; it must be an object.")
    return content
