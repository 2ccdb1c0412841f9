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

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from veca.data.transforms import IMAGENET, Normalization
from veca.runtime.tensors import read_tensors
from veca.teacher.teacher import TeacherError
from veca.teacher.vit import FAMILIES, ViTTeacher, quiet, transformers_class
from veca.weights.format import CARD_NAME, CONFIG_NAME, WEIGHTS_NAME, listed, read_json

PREPROCESSOR_NAME = "preprocessor_config.json"

OPEN_CLIP_CONFIG = "open_clip_config.json"

OPEN_CLIP_WEIGHTS = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")
"""In order of preference. The second is pickled; only its tensors are read."""

FRONT_MATTER = re.compile(r"\A---\s*\n(.*?)\n---\s*$", re.DOTALL | re.MULTILINE)

LICENSE_FIELD = re.compile(r"^(license(?:_name)?):[ \t]*(\S.*?)[ \t]*$", re.MULTILINE)

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
    """Name of its models in errors."""

    model: str
    """Class of transformers."""

    prefix: str = ""
    """Removed from all names."""

    dropped: tuple[str, ...] = ()
    """Names that are not used; those outside of the prefix are dropped too if it is CLIP's."""

    blocks: str
    """Prefix of the blocks, before their number."""

    optional: str | None = None
    """Part of the names of weights that keep their initial values if they are missing."""

    renames: Mapping[str, str]
    """Parts of names and their replacements, in order. With {} for q, k or v, it is one matrix."""

    def renamed(self, tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """Convert names; unknown ones are kept, so that loading reports them."""
        for name, tensor in tensors.items():
            for old, new in self.renames.items():
                name = name.replace(old, new)  # noqa: PLW2901 - one part after the other
            if "{}" in name:
                for letter, third in zip("qkv", tensor.chunk(3), strict=True):
                    yield name.replace("{}", letter), third
            else:
                yield name, tensor

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
        inside = (
            name.removeprefix(self.blocks) for name in tensors if name.startswith(self.blocks)
        )
        return 1 + max(int(name.partition(".")[0]) for name in inside)


OPEN_CLIP = Layout(
    kind="open_clip ViT",
    model="CLIPVisionModel",
    prefix="visual.",
    dropped=("proj",),
    blocks="transformer.resblocks.",
    renames={
        "transformer.resblocks.": "encoder.layers.",
        "class_embedding": "embeddings.class_embedding",
        "positional_embedding": "embeddings.position_embedding.weight",
        "conv1.": "embeddings.patch_embedding.",
        "ln_pre.": "pre_layrnorm.",
        "ln_post.": "post_layernorm.",
        ".ln_1.": ".layer_norm1.",
        ".ln_2.": ".layer_norm2.",
        ".attn.in_proj_": ".self_attn.{}_proj.",
        ".attn.out_proj.": ".self_attn.out_proj.",
        ".mlp.c_fc.": ".mlp.fc1.",
        ".mlp.c_proj.": ".mlp.fc2.",
    },
)
RADIO = Layout(
    kind="RADIO",
    model="RadioModel",
    prefix="radio_model.",
    dropped=("model.reg_token",),  # registers of the network that RADIO was initialized with
    blocks="model.blocks.",
    optional=".layer_scale",
    renames={
        "model.blocks.": "encoder.layer.",
        "model.patch_generator.embedder.": "embeddings.patch_projection.",
        "model.patch_generator.pos_embed": "embeddings.position_embedding",
        "model.patch_generator.cls_token.token": "embeddings.cls_register_token",
        ".attn.qkv.": ".attention.{}_proj.",
        ".attn.proj.": ".attention.o_proj.",
        ".ls1.grandma": ".layer_scale1.lambda1",  # their name, since 'gamma' gets renamed
        ".ls2.grandma": ".layer_scale2.lambda1",
    },
)
TIMM = Layout(
    kind="DINOv3",
    model="DINOv3ViTModel",
    blocks="blocks.",
    optional="embeddings.mask_token",
    renames={
        "blocks.": "model.layer.",
        "cls_token": "embeddings.cls_token",
        "reg_token": "embeddings.register_tokens",
        "patch_embed.proj.": "embeddings.patch_embeddings.",
        ".gamma_1": ".layer_scale1.lambda1",
        ".gamma_2": ".layer_scale2.lambda1",
        ".attn.qkv.": ".attention.{}_proj.",
        ".attn.proj.": ".attention.o_proj.",
        ".attn.q_bias": ".attention.q_proj.bias",
        ".attn.v_bias": ".attention.v_proj.bias",
        ".mlp.fc1_g.": ".mlp.gate_proj.",
        ".mlp.fc1_x.": ".mlp.up_proj.",
        ".mlp.fc1.": ".mlp.up_proj.",
        ".mlp.fc2.": ".mlp.down_proj.",
    },
)


def load_folder(folder: Path, *, name: str, licence: str | None = None) -> ViTTeacher:
    """Load the teacher in a folder; without `licence` the model card's is used."""
    config = read_config(folder)
    check_kind(config, name)
    model, normalization = _read_model(folder, config)
    licence = licence or stated_license(folder)
    return ViTTeacher(model, name=name, licence=licence, normalization=normalization)


def config_path(folder: Path) -> Path | None:
    """The configuration file of a folder: config.json, or open_clip's own if that is all."""
    names = (CONFIG_NAME, OPEN_CLIP_CONFIG)
    return next((folder / name for name in names if (folder / name).is_file()), None)


def read_config(folder: Path) -> dict[str, Any]:
    """Read the configuration file of a folder."""
    path = config_path(folder)
    if path is None:
        raise TeacherError(
            f"{folder} has no {CONFIG_NAME}; give the folder of a model written by "
            "save_pretrained of transformers or by veca.save."
        )
    return read_json(path)


def check_kind(config: Mapping[str, Any], name: str) -> None:
    """Refuse unknown models before weights are read or downloaded."""
    kind = config.get("model_type")
    if kind in FAMILIES or _layout_of(config) is not None:
        return
    code = " It requires code from the hub, which is never run." * ("auto_map" in config)
    raise TeacherError(
        f"{name} is a model of type {kind!r}; known are {', '.join(FAMILIES)}, DINOv3 and LingBot "
        f"models of timm, and ViTs of open_clip.{code} Pick one of these, or wrap the model in a "
        "FunctionTeacher."
    )


def stated_license(folder: Path) -> str | None:
    """The license in the front matter of a model card, if there is one."""
    path = folder / CARD_NAME
    if not path.is_file():
        return None
    front = FRONT_MATTER.search(path.read_text("utf-8", errors="replace"))
    fields = dict(LICENSE_FIELD.findall(front[1] if front else ""))
    licence, name = (fields.get(key, "").strip("\"'") for key in ("license", "license_name"))
    if licence == "other" and name:
        return f"other ({name})"
    return licence or None


def _layout_of(config: Mapping[str, Any]) -> Layout | None:
    """The layout of a configuration that another library wrote; None for transformers."""
    if isinstance(config.get("model_cfg"), dict):
        return OPEN_CLIP
    if "RADIOModel" in (config.get("architectures") or []) and "args" in config:
        return RADIO
    architecture = str(config.get("architecture", ""))
    known = any(part in architecture for part in TIMM_ARCHITECTURES)
    if "pretrained_cfg" in config and known and not architecture.startswith(TIMM_LARGEST):
        return TIMM
    return None


def _stores_radio(folder: Path, config: Mapping[str, Any]) -> bool:
    """Whether the weights are in NVIDIA's layout beside a config.json of transformers."""
    if config.get("model_type") != "radio":
        return False
    try:
        with safe_open(folder / WEIGHTS_NAME, framework="pt") as file:
            return any(".ls1." in name for name in file.keys())  # noqa: SIM118
    except (SafetensorError, OSError):
        return False  # reading it will raise


def _read_model(folder: Path, config: Mapping[str, Any]) -> tuple[Any, Normalization | None]:
    """Read the model and its normalization, whichever layout the folder has."""
    layout, weights = _layout_of(config), folder / WEIGHTS_NAME
    clip = next((folder / name for name in OPEN_CLIP_WEIGHTS if (folder / name).is_file()), None)
    beside = (folder / OPEN_CLIP_CONFIG).is_file() and not any(folder.glob(f"{WEIGHTS_NAME}*"))
    if clip is not None and (layout is OPEN_CLIP or beside):
        config = read_json(folder / OPEN_CLIP_CONFIG)
        model = _convert(
            OPEN_CLIP, clip, partial(_open_clip_fields, model_config=config["model_cfg"])
        )
        return model, _normalization(config.get("preprocess_cfg"))
    if layout is OPEN_CLIP:
        raise TeacherError(
            f"{folder} holds {OPEN_CLIP_CONFIG} and no weights beside it; put "
            f"{' or '.join(OPEN_CLIP_WEIGHTS)} there."
        )
    if not any(folder.glob("*.safetensors")):
        raise TeacherError(
            f"{folder} has no .safetensors file, and pickled weights are not read; load the "
            "model with transformers and save it with save_pretrained."
        )
    if layout is TIMM:
        stated = {"mean": IMAGENET.mean, "std": IMAGENET.std} | config["pretrained_cfg"]
        return _convert(TIMM, weights, _timm_fields), _normalization(stated)
    if layout is RADIO or _stores_radio(folder, config):
        return _convert(RADIO, weights, _radio_fields), None
    return _transformers_model(folder, config["model_type"]), _stated_normalization(folder)


def _open_clip_fields(tensors: Mapping[str, Tensor], model_config: Any) -> dict[str, Any]:  # noqa: ANN401
    """Configuration of CLIP in open_clip's layout."""
    width, _, side, _ = tensors["conv1.weight"].shape
    places = tensors["positional_embedding"].shape[0] - 1
    return {
        "hidden_size": width,
        "patch_size": side,
        "image_size": round(places**0.5) * side,
        "num_hidden_layers": OPEN_CLIP.num_blocks(tensors),
        "num_attention_heads": width
        // model_config.get("vision_cfg", {}).get("head_width", HEAD_WIDTH),
        "intermediate_size": tensors["transformer.resblocks.0.mlp.c_fc.weight"].shape[0],
        "hidden_act": "quick_gelu" if model_config.get("quick_gelu") else "gelu",
    }


def _radio_fields(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Configuration of RADIO in NVIDIA's layout."""
    width, values = tensors["model.patch_generator.embedder.weight"].shape
    places = tensors["model.patch_generator.pos_embed"].shape[1]
    prefix = tensors["model.patch_generator.cls_token.token"].shape[0]
    summary = tensors["summary_idxs"].tolist()
    classes = max(summary) + 1  # where class tokens end and registers begin does not matter
    side = round((values / 3) ** 0.5)
    return {
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


def _timm_fields(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Configuration of DINOv3 in timm's layout."""
    width, _, side, _ = tensors["patch_embed.proj.weight"].shape
    gated = "blocks.0.mlp.fc1_g.weight" in tensors
    biased = "blocks.0.attn.q_bias" in tensors
    return {
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


def _convert(
    layout: Layout, path: Path, fields_of: Callable[[dict[str, Tensor]], dict[str, Any]]
) -> Any:  # noqa: ANN401 - not typed
    """Build a model of transformers; names or shapes that do not fit are an error."""
    tensors = layout.read(path)
    try:
        fields = fields_of(tensors)
    except (KeyError, ValueError) as error:
        raise TeacherError(
            f"{path} has no {layout.kind} model ({error}); get it again, or take another."
        ) from error
    build = transformers_class(layout.model)
    with torch.random.fork_rng(devices=[]):
        model = build(build.config_class(**fields))
    own = model.state_dict()
    state = {name: own[name] for name in own if layout.optional and layout.optional in name}
    for name, tensor in layout.renamed(tensors):  # some versions of transformers lack the prefix
        state[name if name in own else name.removeprefix("model.")] = tensor
    odd = sorted(
        name
        for name in own.keys() | state.keys()
        if name not in own or name not in state or own[name].shape != state[name].shape
    )
    if odd:
        raise TeacherError(
            f"{path} does not fit the {layout.kind} model of its size ({listed(odd)}); get it "
            "again, or take another."
        )
    model.load_state_dict(state)
    return model


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
    stated = read_json(path) if path.is_file() else {}
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
    mean, std = ((stated or {}).get(name) for name in ("mean", "std"))
    if mean is None or std is None:
        return None
    first, second = ((float(red), float(green), float(blue)) for red, green, blue in (mean, std))
    return Normalization(first, second)
