"""A vision transformer in a folder, in the layout of one of several makers; no network is used.

config.json                which class, of which size; of open_clip, open_clip_config.json may do
*.safetensors              the weights; pickled ones are read of open_clip alone
preprocessor_config.json   how pixels are normalised, if it is there
README.md                  the licence, if it is there
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from veca.data.normalisation import Normalisation
from veca.teacher import open_clip_layout
from veca.teacher.families import FAMILIES
from veca.teacher.libraries import quiet, transformers_class
from veca.teacher.open_clip_layout import (
    is_open_clip,
    open_clip_model,
    open_clip_normalisation,
    open_clip_weights,
)
from veca.teacher.radio_layout import is_radio, radio_model, stores_radio
from veca.teacher.teacher import TeacherError
from veca.teacher.timm_layout import is_timm, timm_model, timm_normalisation
from veca.teacher.vision_transformer import VisionTransformerTeacher
from veca.weights.errors import listed
from veca.weights.layout import CARD_NAME, CONFIG_NAME, WEIGHTS_NAME

PREPROCESSOR_NAME = "preprocessor_config.json"

FRONT_MATTER = re.compile(r"\A---\s*\n(.*?)\n---\s*$", re.DOTALL | re.MULTILINE)


def load_folder(folder: Path, *, name: str, licence: str | None = None) -> VisionTransformerTeacher:
    """The teacher in a folder; without `licence` the folder's model card tells it."""
    config = read_config(folder)
    check_kind(config, name)
    model, normalisation = _read(folder, config)
    return VisionTransformerTeacher(
        model,
        name=name,
        licence=licence or stated_licence(folder),
        normalisation=normalisation,
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
    names = (CONFIG_NAME, open_clip_layout.CONFIG_FILE)
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


def _read(folder: Path, config: Mapping[str, Any]) -> tuple[Any, Normalisation | None]:
    """The model, and what its folder says of pixels, in whichever layout that is."""
    others = open_clip_weights(folder)
    if others is not None and (is_open_clip(config) or not any(folder.glob(f"{WEIGHTS_NAME}*"))):
        told = _read_json(folder / open_clip_layout.CONFIG_FILE)
        return open_clip_model(others, told), open_clip_normalisation(told)
    if is_open_clip(config):
        raise TeacherError(
            f"{folder} holds {open_clip_layout.CONFIG_FILE} and no weights beside it; put "
            f"{' or '.join(open_clip_layout.WEIGHT_FILES)} there."
        )
    if not any(folder.glob("*.safetensors")):
        raise TeacherError(
            f"{folder} holds no .safetensors file, and pickled weights are not read; load the "
            "model with transformers and write it anew with save_pretrained."
        )
    if is_timm(config):
        return timm_model(folder), timm_normalisation(config)
    if stores_radio(folder, config):
        return radio_model(folder), None
    return _load(folder, config["model_type"]), _stated_normalisation(folder)


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


def _stated_normalisation(folder: Path) -> Normalisation | None:
    """What the folder says of pixels; None where it says nothing."""
    path = folder / PREPROCESSOR_NAME
    if not path.is_file():
        return None
    told = _read_json(path)
    if told.get("do_normalize") is False:
        return Normalisation((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    mean, std = told.get("image_mean"), told.get("image_std")
    if mean is None or std is None:
        return None
    try:
        (red, green, blue), (red_std, green_std, blue_std) = mean, std
        return Normalisation(
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
