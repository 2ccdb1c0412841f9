"""A vision transformer in a folder, as `transformers` or `timm` wrote it; no network is used.

config.json                which class, of which size
*.safetensors              the weights; pickled ones are not read
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
from veca.teacher.families import FAMILIES
from veca.teacher.libraries import quiet, transformers_class
from veca.teacher.teacher import TeacherError
from veca.teacher.timm_layout import is_timm, timm_model, timm_normalisation
from veca.teacher.vision_transformer import VisionTransformerTeacher
from veca.weights.errors import listed
from veca.weights.layout import CARD_NAME, CONFIG_NAME

PREPROCESSOR_NAME = "preprocessor_config.json"

FRONT_MATTER = re.compile(r"\A---\s*\n(.*?)\n---\s*$", re.DOTALL | re.MULTILINE)


def load_folder(folder: Path, *, name: str, licence: str | None = None) -> VisionTransformerTeacher:
    """The teacher in a folder; without `licence` the folder's model card tells it."""
    config = read_config(folder)
    check_kind(config, name)
    if not any(folder.glob("*.safetensors")):
        raise TeacherError(
            f"{folder} holds no .safetensors file, and pickled weights are not read; load the "
            "model with transformers and write it anew with save_pretrained."
        )
    timm = is_timm(config)
    return VisionTransformerTeacher(
        timm_model(folder) if timm else _load(folder, config["model_type"]),
        name=name,
        licence=licence or stated_licence(folder),
        normalisation=timm_normalisation(config) if timm else _stated_normalisation(folder),
    )


def read_config(folder: Path) -> dict[str, Any]:
    """The content of config.json."""
    path = folder / CONFIG_NAME
    if not path.is_file():
        raise TeacherError(
            f"{folder} holds no {CONFIG_NAME}; give the folder of a model as save_pretrained of "
            "transformers, or veca.save, wrote it."
        )
    return _read_json(path)


def check_kind(config: Mapping[str, Any], name: str) -> None:
    """Refuse models that are not known, before weights are read or fetched."""
    kind = config.get("model_type")
    if is_timm(config) or kind in FAMILIES:
        return
    code = " It asks for code from the hub to be run, which is never done." * ("auto_map" in config)
    raise TeacherError(
        f"{name} is a model of type {kind!r}; known are {', '.join(FAMILIES)}, and DINOv3 and "
        f"LingBot models of timm.{code} Pick one of these, or wrap the model in a FunctionTeacher."
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
