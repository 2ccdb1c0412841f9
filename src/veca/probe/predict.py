"""Saved heads: write and read them, find their backbone, and predict on new images.

A head is one safetensors file, `OUT/heads/NAME.safetensors`. Its metadata says what it is a head of
(task, classes, backbone, setting, preprocessing, metrics) and is hashed with the tensors. The
backbone itself is not stored: `model` names it and `weights` is its hash.
"""

import hashlib
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from veca.data.augment import ViewConfig, center_view, min_side
from veca.data.images import DecodedImage, ImageError
from veca.data.listing import absolute
from veca.probe.bootstrap import PER_IMAGE_FOLDER, save_per_image
from veca.probe.dense import DenseHead
from veca.probe.depth import FLIPS, DepthBins, predict_depth_map
from veca.probe.features import (
    InferenceConfig,
    Variant,
    extract_windows,
    select_feature,
)
from veca.probe.knn import MemoryBank, knn_votes
from veca.probe.linear import LinearHead
from veca.probe.models import FrozenFeatures, FrozenModel, find_model
from veca.probe.protocols import Feature
from veca.probe.rows import TASKS, ProbeResult, Row, Setting, Task
from veca.probe.sliding_window import argmax_pixels
from veca.runtime import VecaError
from veca.runtime.device import ResolvedPrecision
from veca.runtime.tensors import load_tensors, open_tensors, save_tensors

HEADS_FOLDER = "heads"
SUFFIX = ".safetensors"

FORMAT = 2
"""Rises when the content of a head file changes its meaning."""

MAX_RESOLUTION = MAX_NEIGHBORS = 2**14

DENSE_TASKS = ("segmentation", "dense-knn", "depth")


class HeadError(VecaError, ValueError):
    """A head that cannot be read or used."""


@dataclass(frozen=True, kw_only=True)
class SavedHead:
    """A head with all that is needed to use it on new images."""

    task: Task

    data: str
    """The data set that it was fitted on."""

    classes: tuple[str, ...]
    """Class names by index; empty for depth."""

    model: str
    """Name of its backbone."""

    weights: str | None
    """Hash of the backbone's weights."""

    setting: Setting

    resolution: int
    """Pixels of the side of a view; of the short side for dense tasks."""

    protocol: str

    seed: int

    precision: ResolvedPrecision = "fp32"
    """Precision of its backbone."""

    facts: dict[str, Any] = field(default_factory=dict)
    """What the task needs besides, such as preprocessing or the range of depth."""

    metrics: dict[str, float] = field(default_factory=dict)
    """Measured on the test split."""

    tensors: Mapping[str, Tensor] = field(default_factory=dict)


def save_head(head: SavedHead, path: Path) -> None:
    """Write a head; an existing file is replaced."""
    metadata = {item.name: getattr(head, item.name) for item in fields(head)[:-1]}
    metadata |= {"setting": head.setting._asdict(), "classes": list(head.classes)}
    save_tensors(path, head.tensors, {"kind": "head", "format": FORMAT, **metadata})


def load_head(path: Path) -> SavedHead:
    """Read a head; its hash and every field are checked."""
    try:
        tensors, metadata = load_tensors(path)
    except (FileNotFoundError, IsADirectoryError) as error:
        raise HeadError(
            f"{path} is no head; give a .safetensors file below {HEADS_FOLDER}/ that veca probe "
            "wrote."
        ) from error
    except OSError as error:
        raise HeadError(f"the head {path} cannot be read ({error}); fit it again.") from error
    if not isinstance(metadata, dict) or metadata.get("kind") != "head":
        raise HeadError(
            f"{path} holds other tensors; give a head that veca probe wrote below {HEADS_FOLDER}/."
        )
    if metadata.get("format") != FORMAT:
        raise HeadError(
            f"{path} has head format {metadata.get('format')}, but this version of veca reads "
            f"{FORMAT}; fit it again."
        )
    try:
        return _head_of(metadata, tensors)
    except (KeyError, TypeError, ValueError) as error:
        raise HeadError(f"{path} is not a usable head ({error}); fit it again.") from error


def head_files(folder: Path) -> list[Path]:
    """Heads in a folder that veca probe wrote, or in its folder of heads."""
    places = (f"{HEADS_FOLDER}/*{SUFFIX}", f"*{SUFFIX}")
    return sorted(path for place in places for path in folder.glob(place))


def _head_of(metadata: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> SavedHead:
    """Check the metadata of a file; ValueErrors say which field is odd."""
    values = {name: item for name, item in metadata.items() if name not in {"kind", "format"}}
    names = {item.name for item in fields(SavedHead)} - {"tensors"}
    if values.keys() != names:
        raise ValueError(f"its fields {sorted(values.keys() ^ names)} are missing or unknown")
    for name, fits in _FIELDS.items():
        if not fits(values[name]):
            raise ValueError(f"{name} is {values[name]!r}")
    values["setting"] = Setting(**values["setting"])
    values["classes"] = tuple(values["classes"])
    head = SavedHead(**values, tensors=tensors)
    (_check_dense if head.task in DENSE_TASKS else _check_classifier)(head)
    return head


def _is_int(value: object, low: int = 0, high: int = 2**63) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _is_number(value: object, low: float = -math.inf, high: float = math.inf) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
        and low <= value <= high
    )


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_setting(value: object) -> bool:
    if not isinstance(value, dict) or value.keys() != set(Setting._fields):
        return False
    budget, ffn = value["budget"], value["ffn"]
    return (budget is None or _is_int(budget, 1)) and (ffn is None or _is_number(ffn, 0.0, 1.0))


_FIELDS: Mapping[str, Callable[[Any], bool]] = {
    "task": lambda value: value in TASKS,
    "data": _is_text,
    "classes": lambda value: isinstance(value, list) and all(map(_is_text, value)),
    "model": _is_text,
    "weights": lambda value: value is None or _is_text(value),
    "setting": _is_setting,
    "resolution": lambda value: _is_int(value, 1, MAX_RESOLUTION),
    "protocol": _is_text,
    "seed": _is_int,
    "precision": lambda value: value in get_args(ResolvedPrecision),
    "facts": lambda value: isinstance(value, dict),
    "metrics": lambda value: isinstance(value, dict) and all(map(_is_number, value.values())),
}


def _check_classifier(head: SavedHead) -> None:
    """Check what `predict_labels` uses."""
    facts, count = head.facts, len(head.classes)
    if facts["feature"] not in get_args(Feature):
        raise ValueError(f"feature is {facts['feature']!r}")
    if not _is_number(facts["resize_ratio"], 1.0, 16.0):
        raise ValueError(f"resize_ratio is {facts['resize_ratio']!r}")
    if head.task != "knn":
        _check_shapes(head, weight=(count, None), bias=(count,))
        return
    labels = head.tensors["labels"]
    _check_shapes(head, features=(None, None), labels=(None, *([count] * (labels.ndim - 1))))
    if len(labels) != len(head.tensors["features"]):
        raise ValueError("it has not one label for each feature")
    _check_votes(head, len(labels))


def _check_dense(head: SavedHead) -> None:
    """Check what `predict_classes` and `predict_depth` use."""
    facts, count = head.facts, len(head.classes)
    inference = from_facts(InferenceConfig, facts["inference"])
    if min(inference.short_side, inference.stride) < 1 or inference.short_side > MAX_RESOLUTION:
        raise ValueError(f"inference is {facts['inference']!r}")
    if inference.mode == "slide" and inference.window_stride < 1:
        raise ValueError(f"the stride of its windows is {inference.window_stride}")
    if head.task == "dense-knn":
        _check_shapes(head, features=(None, None), shares=(None, count))
        if len(head.tensors["features"]) != len(head.tensors["shares"]):
            raise ValueError("it has not one share of classes for each feature")
        _check_votes(head, MAX_NEIGHBORS)
        return
    if head.task == "depth":
        count = _checked_bins(facts).bins
    _check_shapes(head, weight=(count, None), bias=(count,))
    if not _is_int(facts["patch_width"], 1, head.tensors["weight"].shape[1]):
        raise ValueError(f"patch_width is {facts['patch_width']!r}")


def _checked_bins(facts: Mapping[str, Any]) -> DepthBins:
    """Check what turns outputs into meters."""
    bins = from_facts(DepthBins, facts["bins"])
    if not 0 < bins.min_depth < bins.max_depth or not 1 <= bins.upsample <= 64:
        raise ValueError(f"bins is {facts['bins']!r}")
    return bins


def _check_votes(head: SavedHead, count: int) -> None:
    """Check the parameters of a vote."""
    neighbors, temperature = head.facts["neighbors"], head.facts["temperature"]
    if not _is_int(neighbors, 1, count) or not _is_number(temperature, 1e-6):
        raise ValueError(f"neighbors is {neighbors!r} and temperature {temperature!r}")


def _check_shapes(head: SavedHead, **shapes: tuple[int | None, ...]) -> None:
    """Check names and shapes of the tensors; None allows any length."""
    if head.tensors.keys() != shapes.keys():
        raise ValueError(f"its tensors are {sorted(head.tensors)}")
    for name, wanted in shapes.items():
        found = tuple(head.tensors[name].shape)
        if len(found) != len(wanted) or any(
            size not in {length, None} for length, size in zip(found, wanted, strict=True)
        ):
            raise ValueError(f"its tensor {name!r} has the shape {found}")


Config = TypeVar("Config", InferenceConfig, DepthBins)


def from_facts(config: type[Config], values: object) -> Config:
    """A flat dataclass from plain values, if each has its declared type."""
    hints = get_type_hints(config)
    if not isinstance(values, dict) or values.keys() != hints.keys():
        raise ValueError(f"{config.__name__} is {values!r}")
    for name, hint in hints.items():
        value = values[name]
        if get_origin(hint) is Literal:
            fits = value in get_args(hint)
        elif hint is bool:
            fits = isinstance(value, bool)
        else:
            fits = _is_int(value) if hint is int else _is_number(value)
        if not fits:
            raise ValueError(f"{name} of {config.__name__} is {value!r}")
    return config(**values)


def save_result(result: ProbeResult, row: Row, feature: str | None, out: Path) -> Path | None:
    """Save the per-image results and, if there is one, the head; return the file of the head.

    Args:
        result: what a task found.
        row: one of its rows, which identifies it.
        feature: as the user gave it; None means the default, which is left out of names.
        out: folder of the report.
    """
    owner = _owner(row)
    name = _free_name(_name(row, feature), owner, out / PER_IMAGE_FOLDER)
    path = out / PER_IMAGE_FOLDER / f"{name}{SUFFIX}"
    save_per_image(path, result.per_image, row, result.data.eval_classes, owner)
    if not result.tensors:
        return None
    head = SavedHead(
        task=row.task,
        data=row.data,
        classes=result.data.classes,
        model=_model(row),
        weights=row.weights,
        setting=result.setting,
        resolution=row.resolution,
        protocol=row.protocol,
        seed=result.seed,
        precision=row.precision,
        facts=dict(result.facts),
        metrics=dict(result.metrics),
        tensors=result.tensors,
    )
    path = out / HEADS_FOLDER / f"{name}{SUFFIX}"
    save_head(head, path)
    return path


def _name(row: Row, feature: str | None) -> str:
    """What was measured, in characters that are safe in a file name."""
    path = Path(row.model).expanduser()
    model = "-".join(path.parts[-2:]) if path.exists() else row.model
    parts = [row.task, row.data, model, row.setting.label, f"{row.resolution}px", row.protocol]
    parts += [] if feature is None else [feature]
    parts += [] if row.precision == "fp32" else [row.precision]
    return re.sub(r"[^A-Za-z0-9.+=_-]+", "-", "_".join([*parts, f"s{row.seed}"]))


def _model(row: Row) -> str:
    """The name of a model; a path becomes absolute."""
    return absolute(row.model) if Path(row.model).expanduser().exists() else row.model


def _owner(row: Row) -> str:
    """Hash of what a name leaves open: which weights and which images."""
    text = f"{row.weights or _model(row)}\n{row.data_sha256}"
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def _free_name(name: str, owner: str, folder: Path) -> str:
    """The name, with a hash if another model or data set has it."""
    try:
        with open_tensors(folder / f"{name}{SUFFIX}") as file:
            taken = file.metadata.get("owner", owner) != owner
    except OSError:  # none, or damaged
        taken = False
    return f"{name}-{owner[:8]}" if taken else name


class Prediction(NamedTuple):
    """A class and its score."""

    label: str
    score: float


def load_backbone(
    head: SavedHead, device: torch.device, moved_to: str | None = None
) -> FrozenModel:
    """The backbone of a head, verified by its hash; `moved_to` is where it is now."""
    name = moved_to or head.model
    try:
        model = find_model(name, device)
    except (ValueError, OSError) as error:
        if moved_to is not None:
            raise
        raise HeadError(
            f"the model of the head, {name}, cannot be loaded ({str(error).rstrip('.')}); give its "
            "new place with --model."
        ) from error
    if model.digest != head.weights:
        raise HeadError(
            f"{name} is not the model that the head was fitted on (its weights hash to "
            f"{str(model.digest)[:12]}, not {str(head.weights)[:12]}); name the right one with "
            "--model, or fit the head again."
        )
    model.precision = head.precision
    return model


def decode_side(head: SavedHead, model: FrozenModel) -> int | None:
    """The `min_side` to decode new images with, as test images were; None for dense heads."""
    if head.task in DENSE_TASKS:
        return None
    return min_side(model.round_down_to_patch(head.resolution), _views(head))


def predict_labels(
    model: FrozenModel, head: SavedHead, picture: DecodedImage, top: int = 5
) -> list[Prediction]:
    """The classes of an image with the highest scores, best first."""
    side = model.round_down_to_patch(head.resolution)
    view = center_view(picture, side, _views(head))
    frozen = model.extract(view[None], head.setting)
    scores = _scores(head, frozen)
    best = scores.sort(descending=True, stable=True)  # ties in class order, as in the metrics
    return [
        Prediction(head.classes[index], score)
        for score, index in zip(best.values[:top].tolist(), best.indices.tolist(), strict=False)
    ]


def _views(head: SavedHead) -> ViewConfig:
    """How test images were cropped for a classifier."""
    return ViewConfig(margin=float(head.facts["resize_ratio"]))


def _scores(head: SavedHead, features: FrozenFeatures) -> Tensor:
    """Class scores; they sum to one, except for votes of images with several labels."""
    tensors = head.tensors
    vector = select_feature(features, head.facts["feature"]).cpu()
    width = tensors["features" if head.task == "knn" else "weight"].shape[1]
    if width != vector.shape[1]:
        raise HeadError(
            f"the head takes features of {width} numbers, but its model gives {vector.shape[1]}; "
            "fit it again."
        )
    if head.task == "knn":
        k = int(head.facts["neighbors"])
        votes = knn_votes(
            tensors["features"], tensors["labels"], vector, len(head.classes),
            ks=(k,), temperature=float(head.facts["temperature"]),
        )  # fmt: skip
        return votes[k][0]
    return LinearHead(weight=tensors["weight"], bias=tensors["bias"]).probabilities(vector)[0]


@torch.no_grad()
def predict_classes(
    model: FrozenModel, head: SavedHead, picture: DecodedImage
) -> UInt8[Tensor, "height width"]:
    """The class index of each pixel, at the image's own size."""
    _check_task(head, ("segmentation", "dense-knn"))
    observed, layout = extract_windows(
        model, picture, _inference(model, head), Variant(head.setting)
    )
    if head.task == "segmentation":
        maps = _dense_head(head, model)(observed)
    else:
        features, shares = (
            head.tensors[name].to(model.device).float() for name in ("features", "shares")
        )
        facts = head.facts
        maps = MemoryBank(features, shares, facts["neighbors"], float(facts["temperature"]))(
            observed
        )
    return argmax_pixels(maps, layout).cpu()


@torch.no_grad()
def predict_depth(
    model: FrozenModel, head: SavedHead, picture: DecodedImage
) -> Float[Tensor, "height width"]:
    """Meters of each pixel, at the image's own size; of a KITTI head, at that of its crop."""
    _check_task(head, ("depth",))
    inference, bins = _inference(model, head), from_facts(DepthBins, head.facts["bins"])
    views = [
        extract_windows(model, picture, inference, Variant(head.setting, flip)) for flip in FLIPS
    ]
    return predict_depth_map(_dense_head(head, model), bins, views).cpu()


def _dense_head(head: SavedHead, model: FrozenModel) -> DenseHead:
    """The linear head of a dense task on the device of its model."""
    weight, bias = head.tensors["weight"], head.tensors["bias"]
    return DenseHead(weight, bias, head.facts["patch_width"]).to(model.device)


def crop_as_tested(head: SavedHead, picture: DecodedImage) -> DecodedImage:
    """What a dense head sees of an image: all of it, or the benchmark crop of KITTI."""
    try:
        return from_facts(InferenceConfig, head.facts["inference"]).crop(picture)
    except ValueError as error:
        raise ImageError(str(error)) from error


def _check_task(head: SavedHead, tasks: tuple[str, ...]) -> None:
    """Refuse a head of another task."""
    if head.task not in tasks:
        raise HeadError(f"the head is for {head.task}; use one for {' or '.join(tasks)}.")


def _inference(model: FrozenModel, head: SavedHead) -> InferenceConfig:
    """How images are shown, if the head fits the model."""
    inference = from_facts(InferenceConfig, head.facts["inference"])
    if head.task == "dense-knn":
        width = wanted = int(head.tensors["features"].shape[1])
    else:
        width, wanted = int(head.facts["patch_width"]), int(head.tensors["weight"].shape[1])
    own, whole = model.patch_width, model.patch_width + model.image_width
    if inference.stride != model.stride or width != own or wanted not in {own, whole}:
        raise HeadError(
            f"the head was fitted on patches of {inference.stride} pixels and {width} channels, "
            f"but {model.name} has {model.stride} and {own}; use the model that it names, "
            f"{head.model}."
        )
    return inference
