"""Rows with made-up numbers, some with the per-image results that their tasks would save."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from veca.probe.bootstrap import compare_to_baseline
from veca.probe.metrics import (
    PER_IMAGE,
    depth_metrics,
    segmentation_metrics,
    top1,
)
from veca.probe.rows import Row
from veca.runtime.tensors import save_tensors

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


CLASSES = ("field", "barn", "pond", "never", "unscored")
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
        "data_facts": {"scored": [CLASSES[number] for number in SCORED]},
    }  # fmt: skip
    metrics = segmentation_metrics(pixel_counts_of(counts.sum(0)), CLASSES, SCORED)
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
    shown = np.random.default_rng(1).random((images, len(CLASSES))) < 0.5
    shown[:, CLASSES.index("never")] = False
    counts = draw.integers(0, 30, (images, len(CLASSES), len(CLASSES)))
    counts += skill * 30 * np.eye(len(CLASSES), dtype=np.int64)
    counts[..., CLASSES.index("never")] = 0
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
