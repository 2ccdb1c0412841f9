"""Rows with made-up numbers, for tests of what is written about them."""

from typing import Any

from veca.probe.rows import Row

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
    return [
        *(
            row(**facts, resolution=side, budget=budget, value=value)
            for side, budget, value in (
                (256, 8, 0.515),
                (256, 64, 0.46),
                (512, 8, 0.50),
                (512, 64, 0.44),
            )
        ),
        *(teacher(**facts, resolution=side, value=v) for side, v in ((256, 0.42), (512, 0.40))),
    ]
