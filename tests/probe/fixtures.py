"""Small labeled sets whose colors give classes and depth, models that see colors, made-up rows."""

import os
import signal
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from jaxtyping import UInt8
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

import veca
from tests.data.pictures import write_pictures
from tests.weights.models import trained_model
from veca.data.listing import ImageEntry, TableBuilder
from veca.data.sets.dataset import IGNORE_INDEX, DepthRange, LabeledDataset, Split
from veca.probe import protocols
from veca.probe import protocols as dense_protocols
from veca.probe.bootstrap import compare_to_baseline
from veca.probe.feature_cache import ProbeContext, Variant
from veca.probe.features import InferenceConfig
from veca.probe.metrics import (
    PER_IMAGE,
    depth_metrics,
    segmentation_metrics,
    top1,
)
from veca.probe.models import FrozenFeatures, FrozenModel
from veca.probe.protocols import (
    DenseKnnProtocol,
    DepthAugment,
    DepthProtocol,
    SegmentationAugment,
    SegmentationProtocol,
)
from veca.probe.rows import ProbeResult, Row, Setting
from veca.probe.run import Evaluator
from veca.runtime.distributed import Ranks
from veca.runtime.tensors import save_tensors

CPU = torch.device("cpu")
ALONE = Ranks(device=CPU)
CLASSES = ("field", "barn", "pond", "never")
SCENE_COLORS = ((60, 140, 60), (180, 40, 40), (40, 60, 190))
SIZES = ((40, 56), (48, 48), (64, 40))
FEW, ALL = Setting(1), Setting(8)

AUGMENT = SegmentationAugment(brightness=8.0, contrast=(0.9, 1.1), saturation=(0.9, 1.1), hue=0.02)
USUAL: dict[str, Any] = {
    "name": "small", "resolution": 32, "steps": 60, "batch": 4, "learning_rates": (0.05,),
    "weight_decay": 1e-4, "schedule": "poly", "num_crops": 2,
}  # fmt: skip
SMALL = SegmentationProtocol(**USUAL, augment=AUGMENT)
SMALL_DEPTH = DepthProtocol(
    **USUAL, bins=16, upsample=2, warmup_iters=5, augment=DepthAugment(crop=(0.75, 0.75), color=0.0)
)


class ColorModel(FrozenModel):
    """Mean colors of cells and their squares; a small budget sees only some of these."""

    def __init__(self, digest: str = "colors", stride: int = 8) -> None:
        super().__init__(
            device=CPU,
            name="colors",
            kind="veca",
            digest=digest,
            trained=True,
            stride=stride,
            image_width=3,
            patch_width=6,
            default_resolution=32,
        )
        self.asked: Counter[Setting] = Counter()
        """Images that it was asked about, at each setting."""

    def forward(
        self, images: UInt8[Tensor, "B 3 H W"], grid: tuple[int, int], setting: Setting
    ) -> FrozenFeatures:
        self.asked[setting] += len(images)
        cells = F.adaptive_avg_pool2d(images.float() / 255, grid)
        patches = torch.cat((cells, cells.square()), 1)
        patches[:, setting.budget or 6 :] = 0
        return FrozenFeatures(cells.mean((2, 3)), patches)


def context_in(folder: Path, ranks: Ranks = ALONE, **others: Any) -> ProbeContext:
    """A silent run context without worker processes."""
    usual: dict[str, Any] = {"num_workers": 0, "show_progress": False}
    return ProbeContext(cache=folder, ranks=ranks, **usual | others)


def read_array(path: str) -> NDArray[Any]:
    """A target of these sets."""
    found: NDArray[Any] = np.load(path)
    return found


def scene(number: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """A picture with a barn and a pond, and its classes; some pixels do not count."""
    draw = np.random.default_rng(number)
    height, width = SIZES[number % len(SIZES)]
    mask = np.zeros((height, width), np.uint8)
    mask[height // 2 :, : int(draw.integers(8, width // 2))] = 1
    mask[: int(draw.integers(8, height // 2)), width // 2 :] = 2
    picture = np.array(SCENE_COLORS)[mask] + draw.integers(-12, 13, (height, width, 3))
    mask[0, :5] = IGNORE_INDEX
    return picture.clip(0, 255).astype(np.uint8), mask


def ramp(number: int) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """A picture that is darker where it is farther away, and its depth; some of it is unknown."""
    draw = np.random.default_rng(100 + number)
    across, down = np.meshgrid(np.arange(48), np.arange(48))
    far = (across * draw.random() + down * draw.random()) / 96
    depth = (1 + 6 * far).astype(np.float32)
    picture = np.repeat((250 * (1 - far))[:, :, None], 3, 2).astype(np.uint8)
    depth[:3, :3] = 0
    return picture, depth


def split_of(name: str, paths: Sequence[Path], **more: Any) -> Split:
    """A split of stored pictures."""
    table = TableBuilder()
    for path in paths:
        table.add(ImageEntry(str(path), path.stat().st_size))
    keys = tuple(path.name for path in paths)
    return Split(name=name, images=table.table(), keys=keys, **more)


def dense_split(folder: Path, name: str, kind: str, numbers: Sequence[int]) -> Split:
    """A part of a set, which is written first unless it is there."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{kind}-{number}.png" for number in numbers]
    targets = tuple(str(path.with_suffix(".npy")) for path in paths)
    for number, path, target in zip(numbers, paths, targets, strict=True):
        if not Path(target).exists():
            pixels, told = scene(number) if kind == "masks" else ramp(number)
            Image.fromarray(pixels).save(path)
            np.save(target, told)
    return split_of(name, paths, targets=targets, read_target=read_array)


def farm(folder: Path, train: int = 9, test: int = 5) -> LabeledDataset:
    """A set with masks."""
    return LabeledDataset(
        name="farm",
        kind="masks",
        classes=CLASSES,
        train=dense_split(folder, "train", "masks", range(train)),
        test=dense_split(folder, "val", "masks", range(50, 50 + test)),
    )


def ramps(folder: Path, train: int = 8, test: int = 4) -> LabeledDataset:
    """A set with depth."""
    return LabeledDataset(
        name="ramps",
        kind="depth",
        train=dense_split(folder, "train", "depth", range(train)),
        test=dense_split(folder, "val", "depth", range(50, 50 + test)),
        depth=DepthRange(),
    )


def by_setting(found: Iterable[ProbeResult]) -> dict[tuple[Setting, int], ProbeResult]:
    """Results by setting and seed."""
    return {(one.setting, one.seed): one for one in found}


SIDE = 16
SETTINGS = (Setting(2), Setting(4, 0.5), Setting(8))
WHOLE_IMAGES = InferenceConfig(short_side=SIDE, stride=4)
VARIANTS = (Variant(SETTINGS[0]),)


class CellModel(FrozenModel):
    """Features of the colors of each cell, through random weights, another mix for each budget."""

    def __init__(self, *, seed: int = 0, digest: str | None = "cells", die_at: int = 0) -> None:
        super().__init__(
            device=CPU,
            name="cells",
            kind="veca",
            digest=digest,
            trained=False,
            stride=4,
            image_width=5,
            patch_width=6,
            default_resolution=SIDE,
        )
        draw = torch.Generator().manual_seed(seed)
        self.weight = torch.randn(8 + 1, 3, 6, generator=draw)
        self.asked: Counter[Setting] = Counter()
        """Views that it was asked about, at each setting."""
        self.lots: set[int] = set()
        """How many it was asked about at once."""
        self.die_at = die_at
        """Calls after which the process ends as by a power cut; 0 is never."""
        self.calls = 0
        self.counting = threading.Lock()

    def forward(
        self, images: UInt8[Tensor, "B 3 H W"], grid: tuple[int, int], setting: Setting
    ) -> FrozenFeatures:
        """Colors of cells, mixed and bent."""
        with self.counting:
            self.asked[setting] += len(images)
            self.lots.add(len(images))
            self.calls += 1
            if self.calls == self.die_at:
                os.kill(os.getpid(), signal.SIGKILL)
        cells = F.adaptive_avg_pool2d(images.float() / 255, grid)
        mixed = torch.einsum("bchw,cd->bdhw", cells, self.weight[setting.budget or 0])
        patches = torch.tanh(mixed * (setting.ffn or 1.0))
        return FrozenFeatures(patches.flatten(2).amax(2)[:, :5], patches)


def image_split(folder: Path, count: int = 11) -> Split:
    """A split of some pictures, which are written first."""
    return split_of("train", write_pictures(folder, count), labels=np.arange(count) % 3)


def files_in(folder: Path) -> dict[str, bytes]:
    """The content of all files below a folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


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


def class_split(folder: Path, name: str, labels: NDArray[Any], **more: Any) -> Split:
    """A part with pictures whose colors follow the first class that they have."""
    folder.mkdir(parents=True, exist_ok=True)
    paths, colors = [], list(COLORS)
    for place, label in enumerate(labels):
        shown = int(np.argmax(label)) if labels.ndim > 1 else int(label)
        paths.append(folder / f"{name}-{place}.png")
        Image.fromarray(photo(colors[shown], len(name) * 50 + place)).save(paths[-1])
    return split_of(name, paths, labels=labels, **more)


def color_set(folder: Path, **changes: Any) -> LabeledDataset:
    """A set of 18 training and 9 test pictures in memory."""
    usual: dict[str, Any] = {
        "name": "colors",
        "kind": "classes",
        "classes": tuple(COLORS),
        "train": class_split(folder, "train", np.arange(18) % 3),
        "test": class_split(folder, "test", np.arange(9) % 3),
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


DIGEST = "0123456789abcdef" * 4


def row(**changes: Any) -> Row:
    """A row of kNN on pets."""
    facts: dict[str, Any] = {
        "task": "knn",
        "model": "runs/tiny",
        "data": "pets",
        "budget": 8,
        "resolution": 128,
        "metric": "top1_k20",
        "value": 60.0,
        "unit": "%",
        "weights": DIGEST,
        "split": "val",
        "counts": {"train": 888, "test": 444},
        "protocol": "dinov2",
        "feature": "image",
        "command": "veca probe knn pets --model runs/tiny --out out",
    }
    return Row(**facts | changes)


def teacher(**changes: Any) -> Row:
    """A row of the teacher of the same probe; it has no budgets."""
    facts = {"model": "efficientnet-lite2", "role": "teacher", "budget": None, "weights": "f" * 64}
    return row(**facts | changes)


def baseline(**changes: Any) -> Row:
    """A row of the baseline, which has budgets too."""
    return row(**{"model": "runs/baseline", "role": "baseline", "weights": "e" * 64} | changes)


def knn_rows() -> list[Row]:
    """Two budgets and three seeds, with a teacher and a baseline, and the costs of all."""
    found = []
    for seed, noise in ((0, -1.0), (1, 0.0), (2, 1.0)):
        for budget, top in ((8, 60.0), (16, 64.0), (32, 66.0), (64, 67.0)):
            cost = {"milliseconds": budget / 4 + noise, "gflops": 0.1 * budget, "seed": seed,
                    "patches_per_core": 64 / budget}  # fmt: skip
            found += [
                row(budget=budget, value=top + noise, **cost),
                row(budget=budget, value=top + noise - 2, metric="top1_k10", **cost),
                baseline(budget=budget, value=top + noise / 2 - 6, **cost),
            ]
        found.append(teacher(value=80.0, milliseconds=31.0, gflops=1.7, seed=seed))
        found.append(teacher(value=78.0, metric="top1_k10", seed=seed))
    return found


def depth_rows() -> list[Row]:
    """Depth at two resolutions, one seed."""
    facts: dict[str, Any] = {
        "task": "depth", "data": "nyu-v2", "protocol": "dinov3", "feature": "patches",
        "metric": "rmse", "unit": "m", "split": "test", "counts": {"train": 24231, "test": 654},
    }  # fmt: skip
    values = ((256, 8, 0.515), (256, 64, 0.46), (512, 8, 0.50), (512, 64, 0.44))
    return [
        *(row(**facts, resolution=side, budget=budget, value=v) for side, budget, v in values),
        *(teacher(**facts, resolution=side, value=v) for side, v in ((256, 0.42), (512, 0.40))),
    ]


EVERY_CLASS = (*CLASSES, "unscored")
SCORED = (0, 1, 2, 3)
"""The last class is in unions of the others only, and nothing is of the one before."""

FULL: dict[str, Any] = {
    "model": "runs/full", "role": "baseline", "weights": "e" * 64, "budget": None,
}  # fmt: skip
LOGISTIC: dict[str, Any] = {"task": "logistic", "metric": "top1"}
DOGS: dict[str, Any] = {"data": "dogs", "data_sha256": "4" * 64}


def write_per_image(
    folder: Path, of: Row, tensors: dict[str, Tensor], scored: Sequence[int] | None = None
) -> Path:
    """Per-image results as a run saves them, under any name."""
    path = folder / f"{len(list(folder.glob('*')))}.safetensors"
    save_tensors(
        path, tensors, {"row": of.as_json(), "eval_classes": scored and list(scored), "owner": ""}
    )
    return path


def class_row(folder: Path, right: Tensor, **changes: Any) -> Row:
    """A row of a classification task with these correct images, and its per-image file."""
    scores, labels = torch.stack((right, ~right), 1).float(), torch.zeros(len(right)).long()
    known: dict[str, Any] = {"counts": {"train": 9, "test": len(right)}, "data_sha256": "5" * 64}
    found = row(value=top1(scores, labels), **known | changes)
    name = found.metric.replace("top1", "correct")
    write_per_image(folder, found, {name: right})
    return found


def pixel_counts_of(confusion: Tensor) -> Tensor:
    """The counts (..., 3, K) of `pixel_counts`, from confusion matrices."""
    correct, true = confusion.diagonal(dim1=-2, dim2=-1), confusion.sum(-1)
    return torch.stack((correct, true + confusion.sum(-2) - correct, true), -2)


def mask_row(folder: Path, counts: Tensor, **changes: Any) -> Row:
    """A row of segmentation with these counts of pixels in each image, and its per-image file."""
    known: dict[str, Any] = {
        "task": "segmentation", "data": "farm", "protocol": "small", "feature": "patches",
        "counts": {"train": 9, "test": len(counts)}, "data_sha256": "6" * 64,
        "data_facts": {"scored": [EVERY_CLASS[number] for number in SCORED]},
    }  # fmt: skip
    metrics = segmentation_metrics(pixel_counts_of(counts.sum(0)), EVERY_CLASS, SCORED)
    found = row(metric="miou", value=metrics["miou"], **known | changes)
    correct, union, _ = pixel_counts_of(counts).unbind(-2)
    tensors = {"intersections": correct.contiguous(), "unions": union}
    write_per_image(folder, found, tensors, SCORED)
    return found


def depth_row(folder: Path, errors: np.ndarray, **changes: Any) -> Row:
    """A row of depth with these errors of each image (N, all kinds), and its per-image file."""
    known: dict[str, Any] = {
        "task": "depth", "data": "rooms", "protocol": "small", "feature": "patches", "unit": "m",
        "counts": {"train": 9, "test": len(errors)}, "data_sha256": "7" * 64,
    }  # fmt: skip
    rmse = depth_metrics(torch.from_numpy(errors))["rmse"]
    found = row(metric="rmse", value=rmse, **known | changes)
    tensors = {name: torch.from_numpy(errors[:, at].copy()) for at, name in enumerate(PER_IMAGE)}
    write_per_image(folder, found, tensors)
    return found


def correct_of(seed: int, share: float = 0.7, images: int = 60) -> Tensor:
    """Which images are correct; some are hard for every seed."""
    hard = torch.rand(images, generator=torch.Generator().manual_seed(99)) * 0.6
    return torch.rand(images, generator=torch.Generator().manual_seed(seed)) < share + 0.3 - hard


def confusions_of(seed: int, skill: int = 3, images: int = 20) -> Tensor:
    """Confusion matrices of images, each with some of the classes, none with `never`."""
    draw = np.random.default_rng(seed)
    shown = np.random.default_rng(1).random((images, len(EVERY_CLASS))) < 0.5
    shown[:, EVERY_CLASS.index("never")] = False
    counts = draw.integers(0, 30, (images, len(EVERY_CLASS), len(EVERY_CLASS)))
    counts += skill * 30 * np.eye(len(EVERY_CLASS), dtype=np.int64)
    counts[..., EVERY_CLASS.index("never")] = 0
    return torch.from_numpy(counts * shown[:, :, None])


def errors_of(seed: int, scale: float = 1.0, images: int = 30) -> np.ndarray:
    """Errors of images as `image_errors` gives them; the last image has no depth."""
    errors = np.random.default_rng(seed).random((images, len(PER_IMAGE) + 2)) * scale + 0.1
    errors[:, -1] = 1
    errors[-1] = [np.nan] * len(PER_IMAGE) + [0, 0]
    return errors


def every_task(folder: Path) -> list[Row]:
    """Two budgets and a baseline, all kinds of tasks, several seeds of what is fitted."""
    rows = []
    for number, who in enumerate(({"budget": 8}, {"budget": 64}, FULL)):
        rows.append(class_row(folder, correct_of(number), **who))
        rows.append(class_row(folder, correct_of(5 + number, images=45), **DOGS, **who))
        for seed in (0, 1):
            it = 10 * number + seed
            rows += [
                class_row(folder, correct_of(20 + it), **LOGISTIC, seed=seed, **who),
                mask_row(folder, confusions_of(30 + it, skill=number + 1), seed=seed, **who),
                mask_row(folder, confusions_of(60 + it), task="dense-knn", seed=seed, **who),
                depth_row(folder, errors_of(90 + it), seed=seed, **who),
            ]
    return rows


def against(rows: Sequence[Row], folder: Path, rounds: int = 400) -> dict[str, Any]:
    """The comparison with the only baseline."""
    (found,) = compare_to_baseline(rows, folder, rounds)
    return found


def cells(line: str) -> list[str]:
    """The cells of a line of a table."""
    return [cell.strip() for cell in line.strip("|").split("|")]
