"""`veca predict`: labels, overlays or depth for new pictures, with a fitted head."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro
from PIL import Image

from veca.data.images import ImageError, Picture, decode
from veca.data.listing import MEMBER_MARK, Inputs, failure, list_images, open_input
from veca.probe.label_sheet import TILE, Labeled, label_sheet
from veca.probe.models import FrozenModel
from veca.probe.overlay import depth_map, segmentation_overlay
from veca.probe.predict import (
    DENSE_TASKS,
    FACTS_NAME,
    HeadError,
    SavedHead,
    Told,
    heads_below,
    load_head,
    model_of,
    predict_classes,
    predict_depth,
    predict_labels,
    shown_least_side,
)
from veca.runtime.device import pick_device

DESCRIPTION = """Use a head that veca probe fitted on new pictures.

Labels with scores are printed and, with --out, drawn below the pictures on a sheet (labels.png).
Segmentations are drawn over the pictures, and depth as a map with a scale in meters, beside PNG
files for programs: classes as numbers, depth in millimeters (16 bits; heads that tell more than 65
meters: in 256ths of a meter). With --json all that is told comes as JSON lines.

Example: veca predict probes/heads/logistic_pets_tiny_c64_128px_dinov2_s0 holiday.jpg"""

USUAL_FOLDER = Path("predictions")

MOST_ON_A_SHEET = 60
"""Pictures that are drawn with their labels; those of more would be too small to see."""

MOST_NAMES = 8
"""Heads that a message lists."""

MILLIMETERS = 1000
KITTI_STEPS = 256
"""In a meter: what 16 bits hold is 65 m, or as in KITTI's files 256 m."""


@dataclass
class Drawings:
    """Where drawings go, and what they are called."""

    folder: Path

    labels: bool
    """Whether pictures with their labels are gathered for a sheet."""

    taken: set[str] = field(default_factory=set)
    sheet: list[Labeled] = field(default_factory=list)

    def stem(self, name: str) -> Path:
        """Where the files of a picture begin; pictures of one name are numbered."""
        self.folder.mkdir(parents=True, exist_ok=True)
        stem, number = Path(name.rpartition(MEMBER_MARK)[2]).stem, 1
        found = stem
        while found in self.taken:
            number += 1
            found = f"{stem}-{number}"
        self.taken.add(found)
        return self.folder / found

    def add(self, name: str, picture: Picture, labels: Sequence[Told]) -> None:
        """Gather a picture for the sheet, if there is room."""
        if self.labels and len(self.sheet) < MOST_ON_A_SHEET:
            self.sheet.append(Labeled(_small(picture), Path(name).name, labels))

    def write_sheet(self) -> str | None:
        """Draw the pictures that were gathered; say where, for people."""
        if not self.sheet:
            return None
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / "labels.png"
        label_sheet(self.sheet).save(path)
        return f"{path} shows {len(self.sheet)} pictures with their labels."


def predict(words: Sequence[str]) -> None:
    """Run the command on the words after its name."""
    tyro.cli(_predict, prog="veca predict", description=DESCRIPTION, args=words)


def _predict(  # noqa: PLR0913 - the flags of the command
    head: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="HEAD")],
    images: Annotated[
        tuple[str, ...],
        tyro.conf.Positional,
        tyro.conf.arg(metavar="IMAGES...", help_behavior_hint="(one or more)"),
    ],
    /,
    *,
    out: Annotated[
        Path | None,
        tyro.conf.arg(metavar="DIR", help_behavior_hint=f"(default: {USUAL_FOLDER}; labels: none)"),
    ] = None,
    top: int = 3,
    as_json: Annotated[bool, tyro.conf.arg(name="json"), tyro.conf.FlagCreatePairsOff] = False,
    model: Annotated[
        str | None, tyro.conf.arg(metavar="M", help_behavior_hint="(default: as recorded)")
    ] = None,
    device: str = "auto",
) -> None:
    """Predict.

    Args:
        head: folder of a head, or of a report that has one only
        images: pictures, folders, .tar shards, .txt or .lst lists, patterns in quotes
        out: where drawings go
        top: how many labels to tell
        as_json: print JSON lines, for programs
        model: where the head's model is now, if it has moved
        device: where the model runs
    """
    if top < 1:
        raise ValueError(f"--top got {top}; use whole numbers from 1 on.")
    if not images:
        raise ValueError("no picture is named; give files, folders, .tar shards, lists, patterns.")
    loaded = load_head(_head_folder(head))
    found = list_images(images)
    backbone = model_of(loaded, pick_device(device), model)
    drawings = Drawings(out or USUAL_FOLDER, labels=out is not None)
    failed = 0
    for name, picture in _pictures(found, shown_least_side(loaded, backbone)):
        told = _told(loaded, backbone, (name, picture), drawings, top)
        failed += "error" in told
        print(json.dumps({"image": name, **told}) if as_json else f"{name}: {_words(told)}")
    line = drawings.write_sheet()
    if line is not None and not as_json:
        print(line)
    if failed:
        raise SystemExit(1)


def _head_folder(given: Path) -> Path:
    """The folder of a head; a report with a single one means that."""
    if (given / FACTS_NAME).is_file():
        return given
    found = heads_below(given)
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(str(path) for path in found[:MOST_NAMES])
        more = f" and {len(found) - MOST_NAMES} more" if len(found) > MOST_NAMES else ""
        raise HeadError(f"{given} holds {len(found)} heads; name one of them: {names}{more}.")
    return given


def _pictures(inputs: Inputs, least: int | None) -> Iterator[tuple[str, Picture | str]]:
    """Every picture that is named, decoded as `decode` does with `least`, or why it cannot be."""
    for row in inputs.rows.tolist():
        source = inputs.table[row]
        problem = inputs.problems.get(row)
        if problem is not None:
            yield source.name, problem
            continue
        try:
            with open_input(source) as file:
                picture = decode(file, least_side=least)
        except (ImageError, OSError, MemoryError) as error:
            yield source.name, failure(error)
        else:
            yield source.name, picture


def _told(
    head: SavedHead,
    model: FrozenModel,
    named: tuple[str, Picture | str],
    drawings: Drawings,
    top: int,
) -> dict[str, Any]:
    """What a head tells of one picture, or why it could not be read, as plain values."""
    name, picture = named
    if isinstance(picture, str):
        return {"error": picture}
    if head.task in DENSE_TASKS:
        return _told_of_pixels(head, model, picture, drawings.stem(name), top)
    labels = predict_labels(model, head, picture, top)
    drawings.add(name, picture, labels)
    return {"labels": [{"label": one.label, "score": one.share} for one in labels]}


def _told_of_pixels(
    head: SavedHead, model: FrozenModel, picture: Picture, stem: Path, top: int
) -> dict[str, Any]:
    """What a dense head tells of one picture, as plain values; drawings are written."""
    if head.task == "depth":
        meters = predict_depth(model, head, picture).numpy()
        depth_map(meters, _drawable(picture)).save(f"{stem}_depth.png")
        # By the head and not by the picture, so that all files of a head have one unit.
        steps = MILLIMETERS
        if float(head.facts["scale"]["most"]) * MILLIMETERS > np.iinfo(np.uint16).max:
            steps = KITTI_STEPS
        file = f"{stem}_{'millimeters' if steps == MILLIMETERS else f'{steps}ths'}.png"
        Image.fromarray((meters * steps).round().astype(np.uint16)).save(file)
        limits = {"least": meters.min(), "mean": meters.mean(), "most": meters.max()}
        return {
            "drawing": f"{stem}_depth.png",
            "depth": file,
            "steps_in_a_metre": steps,
            "meters": {name: float(value) for name, value in limits.items()},
        }
    classes = predict_classes(model, head, picture).numpy()
    segmentation_overlay(_drawable(picture), classes, head.classes).save(f"{stem}_classes.png")
    Image.fromarray(classes).save(f"{stem}_mask.png")
    shares = np.bincount(classes.ravel(), minlength=len(head.classes)) / classes.size
    order = [one for one in np.argsort(-shares, kind="stable")[:top] if shares[one]]
    return {
        "drawing": f"{stem}_classes.png",
        "mask": f"{stem}_mask.png",
        "classes": [{"label": head.classes[one], "share": float(shares[one])} for one in order],
    }


def _drawable(picture: Picture) -> Image.Image:
    """A picture in 8 bits."""
    pixels = picture.pixels()
    if pixels.is_floating_point():
        pixels = (255 * pixels).round().byte()
    return Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())


def _small(picture: Picture) -> Image.Image:
    """A picture as small as a sheet shows it."""
    drawn = _drawable(picture)
    drawn.thumbnail((TILE, TILE))
    return drawn


def _words(told: dict[str, Any]) -> str:
    """What was told, for people."""
    if "error" in told:
        return str(told["error"])
    if "labels" in told:
        return ", ".join(f"{one['label']} {one['score']:.1%}" for one in told["labels"])
    if "classes" in told:
        parts = ", ".join(f"{one['label']} {one['share']:.0%}" for one in told["classes"])
        return f"{parts} of the pixels: {told['drawing']}"
    meters = told["meters"]
    return f"{meters['least']:.2f} to {meters['most']:.2f} m: {told['drawing']}"
