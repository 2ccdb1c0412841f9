"""Small labeled sets on disk, and small models, for tests from names to rows."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

import veca
from tests.probe.dense_scenes import CLASSES, SMALL, SMALL_DEPTH, context_in, ramp, scene
from tests.weights.models import trained_model
from veca.data.listing import TableBuilder
from veca.data.sets.dataset import LabeledDataset, Split
from veca.probe import protocols
from veca.probe import protocols as dense_protocols
from veca.probe.protocols import DenseKnnProtocol
from veca.probe.rows import Row
from veca.probe.run import Evaluator

COLORS = {"blue": (40, 60, 190), "green": (60, 140, 60), "red": (180, 40, 40)}
"""Of the classes; a picture has a color of its own too, so that they are hard to tell apart."""


def photo(name: str, number: int) -> NDArray[np.uint8]:
    """A picture of a class: noise about a color between that of the class and its own."""
    draw = np.random.default_rng([number, *name.encode()])
    height, width = ((24, 24), (24, 32), (40, 24))[number % 3]
    noise, own = draw.integers(0, 256, (height, width, 3)), draw.integers(0, 256, 3)
    return ((noise + 2 * own + np.array(COLORS[name])) // 4).astype(np.uint8)


def write_classes(folder: Path, **counts: int) -> Path:
    """A set with folders of classes; `counts` has the pictures of a class in each part."""
    for number, (part, count) in enumerate(counts.items()):
        for name in COLORS:
            (folder / part / name).mkdir(parents=True)
            for place in range(count):
                picture = Image.fromarray(photo(name, 100 * number + place))
                picture.save(folder / part / name / f"{place}.png")
    return folder


def write_dense(folder: Path, kind: str, train: int = 6, val: int = 3) -> Path:
    """A set in one of the two plain layouts of pixels: 'masks' or 'depth'."""
    for name in ("images", kind):
        (folder / name).mkdir(parents=True)
    for part, numbers in (("train", range(train)), ("val", range(50, 50 + val))):
        for number in numbers:
            pixels, told = scene(number) if kind == "masks" else ramp(number)
            Image.fromarray(pixels).save(folder / "images" / f"{number}.png")
            stored = told if kind == "masks" else (1000 * told).round().astype(np.uint16)
            Image.fromarray(stored).save(folder / kind / f"{number}.png")
        (folder / f"{part}.txt").write_text("".join(f"{number}\n" for number in numbers))
    if kind == "masks":
        (folder / "classes.txt").write_text("".join(f"{name}\n" for name in CLASSES))
    return folder


def write_model(folder: Path, seed: int = 0) -> Path:
    """A model with budgets 2, 3 and 6 and patches of 8 pixels."""
    veca.save(trained_model(seed, patch_size=8), folder)
    return folder


def split_of(folder: Path, name: str, labels: NDArray[Any], **more: Any) -> Split:
    """A part with pictures whose colors follow the first class that they have."""
    folder.mkdir(parents=True, exist_ok=True)
    table, keys, colors = TableBuilder(), [], list(COLORS)
    for place, label in enumerate(labels):
        shown = int(np.argmax(label)) if labels.ndim > 1 else int(label)
        path = folder / f"{name}-{place}.png"
        Image.fromarray(photo(colors[shown], len(name) * 50 + place)).save(path)
        table.add_file(str(path), path.stat().st_size)
        keys.append(path.name)
    return Split(name=name, images=table.table(), keys=tuple(keys), labels=labels, **more)


def color_set(folder: Path, **changes: Any) -> LabeledDataset:
    """A set of 18 training and 9 test pictures in memory."""
    usual: dict[str, Any] = {
        "name": "colors",
        "kind": "classes",
        "classes": tuple(COLORS),
        "train": split_of(folder, "train", np.arange(18) % 3),
        "test": split_of(folder, "test", np.arange(9) % 3),
    }
    return LabeledDataset(**usual | changes)


def evaluator_in(folder: Path, **changes: Any) -> Evaluator:
    """An evaluator that is silent and takes no times."""
    usual: dict[str, Any] = {
        "ctx": context_in(folder / "features"),
        "out": folder / "out",
        "rounds": 0,
    }
    return Evaluator(**usual | changes)


def use_quick_protocols(patch: pytest.MonkeyPatch) -> None:
    """Let 'quick' be a protocol of every task that fits something, over in no time."""
    quick = replace(
        protocols.DINOV3, name="quick", steps=20, batch=8, learning_rates=(0.1, 0.5), num_crops=2
    )
    patch.setitem(protocols.LINEAR, "quick", quick)
    patch.setitem(dense_protocols.SEGMENTATION, "quick", replace(SMALL, name="quick", steps=20))
    patch.setitem(dense_protocols.DEPTH, "quick", replace(SMALL_DEPTH, name="quick", steps=20))
    bank = DenseKnnProtocol(name="quick", resolution=32, k=5)
    patch.setitem(dense_protocols.DENSE_KNN, "quick", bank)


def timeless(rows: list[Row]) -> list[dict[str, Any]]:
    """Rows without what another run may change."""
    kept = [row.as_json() for row in rows]
    return [{**row, "milliseconds": None, "command": "", "date": ""} for row in kept]
