"""Per-image results of made-up models on disk, with the rows that their tasks would give."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.probe.made_up_rows import row
from veca.probe.bootstrap import compare_to_baseline, save_per_image
from veca.probe.metrics import (
    PER_IMAGE,
    depth_metrics,
    intersections,
    segmentation_metrics,
    top1,
    unions,
)
from veca.probe.rows import Row
from veca.runtime.files import make_folder

CLASSES = ("field", "barn", "pond", "never", "unscored")
SCORED = (0, 1, 2, 3)
"""The last class is in unions of the others only, and nothing is of the one before."""


TWIN: dict[str, Any] = {
    "model": "runs/twin", "role": "baseline", "weights": "e" * 64, "budget": None,
}  # fmt: skip
LOGISTIC: dict[str, Any] = {"task": "logistic", "metric": "top1"}
DOGS: dict[str, Any] = {"data": "dogs", "data_sha256": "4" * 64}


def write_cases(
    folder: Path,
    of: Row,
    cases: dict[str, Tensor],
    scored: Sequence[int] | None = None,
    name: str | None = None,
) -> Path:
    """Cases as a run writes them, under a name that says nothing."""
    make_folder(folder)
    path = folder / f"{name or len(list(folder.iterdir()))}.safetensors"
    save_per_image(path, cases, of, scored)
    return path


def class_row(folder: Path, right: Tensor, **changes: Any) -> Row:
    """A row of a classification task with these correct images, and its per-image file."""
    scores, labels = torch.stack((right, ~right), 1).float(), torch.zeros(len(right)).long()
    known: dict[str, Any] = {"counts": {"train": 9, "test": len(right)}, "data_sha256": "5" * 64}
    found = row(value=top1(scores, labels), **known | changes)
    name = found.metric.replace("top1", "correct")
    write_cases(folder, found, {name: right})
    return found


def mask_row(folder: Path, counts: Tensor, **changes: Any) -> Row:
    """A row of segmentation with these counts of pixels in each picture, with its cases."""
    known: dict[str, Any] = {
        "task": "segmentation", "data": "farm", "protocol": "small", "feature": "patches",
        "counts": {"train": 9, "test": len(counts)}, "data_sha256": "6" * 64,
        "data_facts": {"scored": [CLASSES[number] for number in SCORED]},
    }  # fmt: skip
    metrics = segmentation_metrics(counts.sum(0), CLASSES, SCORED)
    found = row(metric="miou", value=metrics["miou"], **known | changes)
    cases = {"intersections": intersections(counts), "unions": unions(counts)}
    write_cases(folder, found, cases, SCORED)
    return found


def depth_row(folder: Path, errors: np.ndarray, **changes: Any) -> Row:
    """A row of depth with these errors of each picture (N, all kinds), with its cases."""
    known: dict[str, Any] = {
        "task": "depth", "data": "rooms", "protocol": "small", "feature": "patches", "unit": "m",
        "counts": {"train": 9, "test": len(errors)}, "data_sha256": "7" * 64,
    }  # fmt: skip
    found = row(metric="rmse", value=depth_metrics(errors)["rmse"], **known | changes)
    write_cases(
        folder,
        found,
        {name: torch.from_numpy(errors[:, at].copy()) for at, name in enumerate(PER_IMAGE)},
    )
    return found


def right_of(seed: int, share: float = 0.7, pictures: int = 60) -> Tensor:
    """Which images are correct; some are hard for every seed."""
    hard = torch.rand(pictures, generator=torch.Generator().manual_seed(99)) * 0.6
    return torch.rand(pictures, generator=torch.Generator().manual_seed(seed)) < share + 0.3 - hard


def confusions_of(seed: int, skill: int = 3, pictures: int = 20) -> Tensor:
    """Confusion matrices of pictures, each with some of the classes, none with `never`."""
    draw = np.random.default_rng(seed)
    shown = np.random.default_rng(1).random((pictures, len(CLASSES))) < 0.5
    shown[:, CLASSES.index("never")] = False
    counts = draw.integers(0, 30, (pictures, len(CLASSES), len(CLASSES)))
    counts += skill * 30 * np.eye(len(CLASSES), dtype=np.int64)
    counts[..., CLASSES.index("never")] = 0
    return torch.from_numpy(counts * shown[:, :, None])


def errors_of(seed: int, scale: float = 1.0, pictures: int = 30) -> np.ndarray:
    """Errors of pictures as `image_errors` gives them; the last picture has no depth."""
    errors = np.random.default_rng(seed).random((pictures, len(PER_IMAGE) + 2)) * scale + 0.1
    errors[:, -1] = 1
    errors[-1] = [np.nan] * len(PER_IMAGE) + [0, 0]
    return errors


def every_task(folder: Path) -> list[Row]:
    """Two budgets and a twin, all kinds of tasks, several seeds of what is fitted."""
    rows = []
    for number, who in enumerate(({"budget": 8}, {"budget": 64}, TWIN)):
        rows.append(class_row(folder, right_of(number), **who))
        rows.append(class_row(folder, right_of(5 + number, pictures=45), **DOGS, **who))
        for seed in (0, 1):
            it = 10 * number + seed
            rows += [
                class_row(folder, right_of(20 + it), **LOGISTIC, seed=seed, **who),
                mask_row(folder, confusions_of(30 + it, skill=number + 1), seed=seed, **who),
                mask_row(folder, confusions_of(60 + it), task="dense-knn", seed=seed, **who),
                depth_row(folder, errors_of(90 + it), seed=seed, **who),
            ]
    return rows


def against(rows: Sequence[Row], cases: Path, rounds: int = 400) -> dict[str, Any]:
    """The comparison with the only baseline."""
    (found,) = compare_to_baseline(rows, cases, rounds)
    return found
