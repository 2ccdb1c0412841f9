"""`veca predict`: labels, masks or depth for new images, with a fitted head."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro
from PIL import Image

from veca.cli.flags import from_here, read_flags
from veca.data.images import DecodedImage, ImageError, decode
from veca.data.listing import ImageEntry, free_stem, list_images, one_line, open_image
from veca.probe.heads import DENSE_TASKS, HEADS_FOLDER, SavedHead, load_head
from veca.probe.models import FrozenModel
from veca.probe.pictures import color_name, depth_image, overlay
from veca.probe.predict import (
    decode_side,
    load_backbone,
    predict_classes,
    predict_depth,
    predict_labels,
    save_mask,
)
from veca.probe.rows import ProbeError
from veca.runtime.device import pick_device
from veca.runtime.files import printable

DESCRIPTION = """Predict on new images with a head that veca probe fitted.

Classification heads print labels with scores, which rank the labels but are not calibrated.
Segmentation heads write a mask (class indices, with a palette) and an overlay on the image; depth
heads write 16-bit PNG files (millimeters; 1/256 m for heads whose range exceeds 65 m) and a colored
map. --json prints JSON lines.

Example: veca predict probes holiday.jpg --top 3"""

MAX_LISTED = 8
"""Heads that a message lists."""

MILLIMETERS = 1000
KITTI_UNITS = 256
"""Steps per meter of depth files: 16 bits hold 65 m, or as in KITTI's files 256 m."""


def predict(words: Sequence[str]) -> None:
    """Run the command with these arguments."""
    read_flags(_predict, words, prog="veca predict", description=DESCRIPTION)


def _predict(  # noqa: PLR0913 - the flags of the command
    head: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="HEAD")],
    images: Annotated[
        tuple[str, ...],
        tyro.conf.Positional,
        tyro.conf.arg(metavar="IMAGES...", help_behavior_hint="(one or more)"),
    ],
    /,
    *,
    out: Annotated[Path, tyro.conf.arg(metavar="DIR")] = Path("predictions"),
    top: int = 3,
    as_json: Annotated[bool, tyro.conf.arg(name="json"), tyro.conf.FlagCreatePairsOff] = False,
    model: Annotated[
        str | None, tyro.conf.arg(metavar="M", help_behavior_hint="(default: as recorded)")
    ] = None,
    device: str = "auto",
) -> None:
    """Predict.

    Args:
        head: file of a head, or folder of a report that has only one
        images: images, folders, .tar shards, .txt or .lst lists, patterns in quotes
        out: where masks, overlays and depth maps are written
        top: number of labels to print
        as_json: print JSON lines
        model: where the head's model is now, if it has moved
        device: where the model runs
    """
    if top < 1:
        raise ValueError(f"--top is {top}; it must be a whole number >= 1.")
    if not images:
        raise ValueError("no image is named; give files, folders, .tar shards, lists or patterns.")
    loaded = load_head(_head_file(head))
    found = list_images(images)
    backbone = load_backbone(loaded, pick_device(device), model)
    taken, failed, least = set[str](), False, decode_side(loaded, backbone)
    for row in found.rows.tolist():
        name = found.table[row].name
        try:
            if row in found.problems:
                raise ImageError(found.problems[row])
            image = _decode(found.table[row], least)
            if loaded.task in DENSE_TASKS:
                out.mkdir(parents=True, exist_ok=True)
                stem = out / free_stem(name, taken)
                draw = _predict_depth if loaded.task == "depth" else _predict_classes
                result: dict[str, Any] = draw(loaded, backbone, image, stem, top)
            else:
                scores = predict_labels(backbone, loaded, image, top)
                result = {"labels": [{"label": label, "score": score} for label, score in scores]}
        except ImageError as error:
            result = {"error": one_line(error)}
        failed |= "error" in result
        line = f"{from_here(name)}: {printable(_text(result))}"
        print(json.dumps({"image": name, **result}) if as_json else line)
    if failed:
        raise SystemExit(1)


def _head_file(given: Path) -> Path:
    """The file of a head; a folder with a single one means that."""
    if not given.is_dir():
        return given
    found = sorted(
        path for name in (HEADS_FOLDER, ".") for path in given.glob(f"{name}/*.safetensors")
    )
    if len(found) == 1:
        return found[0]
    if not found:
        raise ProbeError(f"{given} contains no head; give the --out folder of a veca probe run.")
    names = ", ".join(map(str, found[:MAX_LISTED]))
    more = f" and {len(found) - MAX_LISTED} more" if len(found) > MAX_LISTED else ""
    raise ProbeError(f"{given} contains {len(found)} heads; name one of them: {names}{more}.")


def _decode(source: ImageEntry, least: int | None) -> DecodedImage:
    """Decode an image with this `min_side`; a file that cannot be read is an ImageError."""
    try:
        with open_image(source) as file:
            return decode(file, min_side=least)
    except (OSError, MemoryError) as error:
        raise ImageError(one_line(error)) from error


def _predict_depth(
    head: SavedHead, model: FrozenModel, image: DecodedImage, stem: Path, _: int
) -> dict[str, Any]:
    """Write the depth of an image; returns the names of the files and a summary."""
    meters = predict_depth(model, head, image).numpy()
    depth_image(meters).save(f"{stem}_depth.png")
    # By the range of the head and not of the image, so that all its files have one unit.
    far = float(head.facts["bins"]["max_depth"]) * MILLIMETERS > np.iinfo(np.uint16).max
    units, kind = (KITTI_UNITS, "256ths") if far else (MILLIMETERS, "millimeters")
    file = f"{stem}_{kind}.png"
    Image.fromarray((meters * units).round().astype(np.uint16)).save(file)
    limits = {"min": meters.min(), "mean": meters.mean(), "max": meters.max()}
    return {
        "overlay": f"{stem}_depth.png",
        "depth": file,
        "units_per_meter": units,
        "meters": {name: float(value) for name, value in limits.items()},
    }


def _predict_classes(
    head: SavedHead, model: FrozenModel, image: DecodedImage, stem: Path, top: int
) -> dict[str, Any]:
    """Write the classes of an image; returns the names of the files and the largest classes."""
    classes, pixels = predict_classes(model, head, image).numpy(), image.pixels()
    if pixels.is_floating_point():
        pixels = (255 * pixels).round().byte()
    picture = Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())
    overlay(picture, classes, head.classes).save(f"{stem}_classes.png")
    save_mask(classes, Path(f"{stem}_mask.png"))
    shares = np.bincount(classes.ravel(), minlength=len(head.classes)) / classes.size
    order = [int(one) for one in np.argsort(-shares, kind="stable")[:top] if shares[one]]
    return {
        "overlay": f"{stem}_classes.png",
        "mask": f"{stem}_mask.png",
        "classes": [
            {"label": head.classes[one], "share": float(shares[one]), "color": color_name(one)}
            for one in order
        ],
    }


def _text(result: dict[str, Any]) -> str:
    """A result for people; the colors are the legend of the overlay."""
    if "error" in result:
        return str(result["error"])
    if "labels" in result:
        return ", ".join(f"{one['label']} {one['score']:.1%}" for one in result["labels"])
    if "classes" in result:
        parts = [f"{one['label']} {one['share']:.0%} {one['color']}" for one in result["classes"]]
        return f"{', '.join(parts)}: {result['overlay']}"
    meters = result["meters"]
    return f"{meters['min']:.2f} m (light) to {meters['max']:.2f} m (dark): {result['overlay']}"
