"""Saved heads on new images.

Fitted heads on disk: a safetensors file, and JSON that says what it is a head of.

    head.json           task, classes, model, setting, how pictures are shown to it, its numbers
    head.safetensors    its tensors

The model itself is not in it: `model` names it, and `weights` is the hash by which it is known.

Heads and single cases of a run on disk, under names that tell people what they are.

out/heads/<name>/                    a fitted head, for `veca predict`
out/cases/<name>.safetensors         what became of each test picture, for paired comparisons

A result that is measured again takes the place of the old one. Where two models or two sets would
come by the same name, as runs/best of two disks, the second one gets a name with a hash.

What a saved head tells of new pictures: which model it needs, and the labels that it gives.

Saved heads of dense tasks on new pictures: a class or a depth for each pixel.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, UInt8
from safetensors import SafetensorError, safe_open
from torch import Tensor

from veca.data.augment import ViewConfig, center_view, least_side
from veca.data.images import Picture
from veca.data.listing import absolute
from veca.probe.bootstrap import CASES_FOLDER, case_facts
from veca.probe.dense import head_from
from veca.probe.depth import predict_depth_map
from veca.probe.depth_scale import scale_from
from veca.probe.features import ImageFeatures, side_by_side
from veca.probe.heads import LinearHead
from veca.probe.knn import MemoryBank, knn, voted_maps
from veca.probe.measured import Found
from veca.probe.models import FrozenModel, find_probe_model
from veca.probe.rows import Row, Setting, Task
from veca.probe.shown_features import Kind, Showing, observe_shown
from veca.probe.sliding_window import argmax_pixels
from veca.runtime import VecaError
from veca.runtime.device import ResolvedPrecision
from veca.runtime.files import make_folder, write_atomic
from veca.runtime.tensors import read_tensors, tensor_pieces

FACTS_NAME = "head.json"
TENSORS_NAME = "head.safetensors"

FORMAT = 1
"""Rises when the content of the files changes its meaning."""


class HeadError(VecaError, ValueError):
    """A head that cannot be read or used: what was got, what is allowed, what to do."""


@dataclass(frozen=True, kw_only=True)
class SavedHead:
    """A head with all that is needed to use it on new pictures."""

    task: str
    """Such as 'logistic', 'knn', 'segmentation', 'depth'."""

    data: str
    """The set that it was fitted on."""

    classes: tuple[str, ...]
    """Names by number; none for depth."""

    model: str
    """The name of its backbone."""

    weights: str | None
    """Hash of the backbone's weights."""

    setting: Setting

    resolution: int
    """Pixels of the side of a view; of the short side for dense tasks."""

    protocol: str

    seed: int

    precision: ResolvedPrecision = "fp32"
    """What its backbone computed with."""

    facts: dict[str, Any] = field(default_factory=dict)
    """What the task needs besides, such as the margin of a view or the range of depth."""

    metrics: dict[str, float] = field(default_factory=dict)
    """What it was measured to be worth on the test part."""

    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    """The last field, since it goes into a file of its own."""


def save_head(head: SavedHead, folder: Path) -> None:
    """Write a head; a folder that holds one already gets the new one."""
    make_folder(folder)
    pieces = b"".join(bytes(piece) for piece in tensor_pieces(head.tensors))
    facts = {part.name: getattr(head, part.name) for part in fields(head)[:-1]}
    facts["setting"] = head.setting._asdict()
    facts["classes"] = list(head.classes)
    whole = {"format": FORMAT, "tensors": hashlib.sha256(pieces).hexdigest(), **facts}
    write_atomic(folder / TENSORS_NAME, [pieces])
    write_atomic(folder / FACTS_NAME, [(json.dumps(whole, indent=2) + "\n").encode()])


def load_head(folder: Path) -> SavedHead:
    """Read a head back, its tensors checked against their hash."""
    facts = _facts(folder)
    try:
        found = hashlib.sha256((folder / TENSORS_NAME).read_bytes()).hexdigest()
        tensors = read_tensors(folder / TENSORS_NAME)
    except (OSError, SafetensorError) as error:
        raise HeadError(
            f"{folder / TENSORS_NAME} cannot be read ({error}); fit the head again."
        ) from error
    if found != facts.pop("tensors", None):
        raise HeadError(
            f"{folder / TENSORS_NAME} is not the file that {FACTS_NAME} speaks of (its hash "
            "differs); fit the head again, or copy both files together."
        )
    try:
        facts["setting"] = Setting(**facts["setting"])
        facts["classes"] = tuple(facts["classes"])
        return SavedHead(**facts, tensors=tensors)
    except (KeyError, TypeError) as error:
        raise HeadError(
            f"{folder / FACTS_NAME} lacks a field or has one too many ({error}); fit it again."
        ) from error


def _facts(folder: Path) -> dict[str, Any]:
    """What the JSON says, or why it cannot be used."""
    try:
        facts = json.loads((folder / FACTS_NAME).read_text("utf-8"))
    except FileNotFoundError as error:
        raise HeadError(
            f"{folder} is no head (it has no {FACTS_NAME}); give a folder below heads/ that "
            "veca probe wrote."
        ) from error
    except ValueError as error:
        raise HeadError(f"{folder / FACTS_NAME} is damaged ({error}); fit it again.") from error
    if not isinstance(facts, dict) or facts.pop("format", None) != FORMAT:
        raise HeadError(
            f"{folder / FACTS_NAME} is of another version of veca; this one reads format {FORMAT}: "
            "fit the head again."
        )
    return facts


HEADS_FOLDER = "heads"


@dataclass(frozen=True, kw_only=True)
class Origin:
    """What a result is of, besides what was found."""

    task: Task

    data: str
    """The set of the head, as it was named."""

    classes: tuple[str, ...]

    feature: str | None
    """As it was asked for; None means the usual one, which is left out of names."""

    pictures: str
    """Hash of the measured pictures."""

    row: Row | None = None
    """One of the rows that the result became, by which its cases are found again; None if none."""


def keep_result(found: Found, origin: Origin, out: Path) -> Path | None:
    """Write the cases and, if there is one, the head; return the folder of the head."""
    measured = found.measured
    name = _free_name(_name(found, origin), _owner(found, origin), out / CASES_FOLDER)
    metadata = {
        "data": measured.data.name,
        "sha256": origin.pictures,
        "owner": _owner(found, origin),
    }
    if origin.row is not None:
        metadata |= case_facts(origin.row, measured.data.scored)
    make_folder(out / CASES_FOLDER)
    write_atomic(_cases(out / CASES_FOLDER, name), tensor_pieces(measured.cases, metadata))
    if measured.head is None:
        return None
    head = SavedHead(
        task=origin.task,
        data=measured.data.name,
        classes=origin.classes,
        model=_model(found),
        weights=found.who.model.digest,
        setting=measured.setting,
        resolution=found.resolution,
        protocol=measured.protocol,
        seed=measured.seed,
        precision=found.who.model.precision,
        facts=measured.head.facts,
        metrics=dict(measured.metrics),
        tensors=measured.head.tensors,
    )
    folder = out / HEADS_FOLDER / name
    save_head(head, folder)
    return folder


def _name(found: Found, origin: Origin) -> str:
    """What was measured, in letters that are safe in a file name."""
    measured, asked = found.measured, found.who.asked
    path = Path(asked).expanduser()
    model = "-".join(path.parts[-2:]) if path.exists() else asked
    words = [origin.task, measured.data.name, model, measured.setting.label]
    words += [f"{found.resolution}px", measured.protocol]
    words += [] if origin.feature is None else [origin.feature]
    words += [] if found.who.model.precision == "fp32" else [found.who.model.precision]
    return re.sub(r"[^A-Za-z0-9.+=_-]+", "-", "_".join([*words, f"s{measured.seed}"]))


def _model(found: Found) -> str:
    """The name of a model, which for a path is the same in every folder."""
    asked = found.who.asked
    return absolute(asked) if Path(asked).expanduser().exists() else asked


def _owner(found: Found, origin: Origin) -> str:
    """Hash of what a name may leave open: where the model lies, and where the set."""
    name, mark, folder = origin.data.partition("=")
    where = f"{name}={absolute(folder)}" if mark else absolute(origin.data)
    text = f"{_model(found)}\n{where}"
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def _free_name(name: str, owner: str, folder: Path) -> str:
    """The name, longer where it is another one's."""
    try:
        with safe_open(_cases(folder, name), "pt") as file:
            taken = (file.metadata() or {}).get("owner", owner) != owner
    except (OSError, SafetensorError):  # none, or damaged
        taken = False
    return f"{name}-{owner[:8]}" if taken else name


def _cases(folder: Path, name: str) -> Path:
    """The file of the cases of a name."""
    return folder / f"{name}.safetensors"


DENSE_TASKS = ("segmentation", "dense-knn", "depth")


class Told(NamedTuple):
    """A class that a head tells, with the share of its trust that it gives it."""

    label: str
    share: float


def model_of(head: SavedHead, device: torch.device, moved: str | None = None) -> FrozenModel:
    """The backbone of a head, known by its hash; `moved` says where it is now."""
    name = moved or head.model
    try:
        model = find_probe_model(name, device)
    except (ValueError, OSError) as error:
        if moved is not None:
            raise
        raise HeadError(
            f"the model of the head, {name}, cannot be had ({str(error).rstrip('.')}); say with "
            "--model where it is now."
        ) from error
    if model.digest != head.weights:
        raise HeadError(
            f"{name} is not the model that the head was fitted on (its weights hash to "
            f"{str(model.digest)[:12]}, not {str(head.weights)[:12]}); name the right one with "
            "--model, or fit the head again."
        )
    model.precision = head.precision
    return model


def shown_least_side(head: SavedHead, model: FrozenModel) -> int | None:
    """The `least_side` to decode new pictures with, so that they are shown as test pictures were.

    None for dense heads, whose pictures are decoded whole.
    """
    if head.task in DENSE_TASKS:
        return None
    return least_side(model.round_down_to_patch(head.resolution), _views(head))


def predict_labels(
    model: FrozenModel, head: SavedHead, picture: Picture, top: int = 5
) -> list[Told]:
    """The likeliest classes of a picture, the first the likeliest."""
    side = model.round_down_to_patch(head.resolution)
    view = center_view(picture, side, _views(head))
    frozen = model.observe(view[None], head.setting)
    shares = _shares(head, ImageFeatures(frozen.image, frozen.patches.flatten(2).mean(2)))
    best = shares.sort(descending=True, stable=True)  # equals in the order of the metrics
    return [
        Told(head.classes[number], share)
        for share, number in zip(best.values[:top].tolist(), best.indices.tolist(), strict=False)
    ]


def _views(head: SavedHead) -> ViewConfig:
    """How test pictures were cut for a head of classes."""
    return ViewConfig(margin=float(head.facts["margin"]))


def _shares(head: SavedHead, features: ImageFeatures) -> Tensor:
    """How much trust each class gets: the sum is one, but for votes of pictures with several."""
    tensors = head.tensors
    vector = side_by_side(features, head.facts["feature"]).cpu()
    if head.task == "knn":
        k = int(head.facts["neighbors"])
        votes = knn(
            tensors["features"], tensors["labels"], vector, len(head.classes),
            ks=(k,), temperature=float(head.facts["temperature"]),
        )  # fmt: skip
        return votes[k][0]
    return LinearHead(weight=tensors["weight"], bias=tensors["bias"]).probabilities(vector)[0]


def heads_below(folder: Path) -> list[Path]:
    """Heads in a folder that veca probe wrote, or in its folder of heads."""
    places = (f"{HEADS_FOLDER}/*/{FACTS_NAME}", f"*/{FACTS_NAME}")
    return sorted(path.parent for place in places for path in folder.glob(place))


@torch.no_grad()
def predict_classes(
    model: FrozenModel, head: SavedHead, picture: Picture
) -> UInt8[Tensor, "height width"]:
    """The class of each pixel of a picture, at its own size, by a number of `head.classes`."""
    _check_task(head, ("segmentation", "dense-knn"))
    observed, layout = observe_shown(model, picture, _showing(model, head), Kind(head.setting))
    if head.task == "segmentation":
        maps = head_from(head.tensors, head.facts).to(model.device).maps(observed)
    else:
        bank = MemoryBank(
            *(head.tensors[name].to(model.device).float() for name in ("features", "shares"))
        )
        count = int(head.facts["neighbors"])
        maps = voted_maps(observed, bank, (count,), float(head.facts["temperature"]))[count]
    return argmax_pixels(maps, layout).cpu()


@torch.no_grad()
def predict_depth(
    model: FrozenModel, head: SavedHead, picture: Picture
) -> Float[Tensor, "height width"]:
    """The meters of each pixel of a picture, at its own size."""
    _check_task(head, ("depth",))
    showing = _showing(model, head)
    flips = (False, True) if head.facts["flip_average"] else (False,)
    shown = [observe_shown(model, picture, showing, Kind(head.setting, flip)) for flip in flips]
    views = [(observed, flip) for (observed, _), flip in zip(shown, flips, strict=True)]
    fitted = head_from(head.tensors, head.facts).to(model.device)
    return predict_depth_map(fitted, scale_from(head.facts["scale"]), views, shown[0][1]).cpu()


def _check_task(head: SavedHead, tasks: tuple[str, ...]) -> None:
    """Refuse a head of another task."""
    if head.task not in tasks:
        raise HeadError(
            f"the head is of the task {head.task!r}; this needs one of {' or '.join(tasks)}."
        )


def _showing(model: FrozenModel, head: SavedHead) -> Showing:
    """How pictures are shown, which must fit the model."""
    showing = Showing(**head.facts["showing"])
    if showing.multiple != model.stride:
        raise HeadError(
            f"the head was fitted on patches of {showing.multiple} pixels, but {model.name} has "
            f"{model.stride}; use the model that it names, {head.model}."
        )
    return showing
