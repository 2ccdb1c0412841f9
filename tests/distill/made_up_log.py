"""Logs of runs that never were."""

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any


def write_log(
    folder: Path, rows: Iterable[dict[str, Any]], speeds: Iterable[dict[str, Any]] = ()
) -> Path:
    """Write rows as a run does."""
    for name, found in (("metrics.jsonl", rows), ("speed.jsonl", speeds)):
        lines = (json.dumps(row, allow_nan=False) + "\n" for row in found)
        (folder / name).write_text("".join(lines), "utf-8")
    return folder


def train(step: int, loss: float | None = 1.0, **changes: Any) -> dict[str, Any]:
    """A training row; without a loss the step was skipped."""
    row = {
        "kind": "train",
        "step": step,
        "loss": loss,
        "loss_image": loss and loss / 2,
        "loss_patch_cosine": loss and loss / 4,
        "loss_patch_error": loss and loss / 4,
        "budget": 8,
        "ffn": 1.0,
        "resolution": 128,
        "learning_rate": 4e-4,
        "gradient_norm": loss,
    }
    return {**row, **({"skipped": True} if loss is None else {}), **changes}


def validation(step: int, loss: float, budget: int | None = 8, **changes: Any) -> dict[str, Any]:
    """A validation row."""
    place = {"step": step, "budget": budget, "ffn": 1.0, "resolution": 128}
    return {"kind": "validation", **place, "loss": loss, **changes}


def speed(step: int, **changes: Any) -> dict[str, Any]:
    """A row about speed."""
    told = {"images_per_second": 200.0, "data_wait": 0.02, "memory_mb": 1500.0}
    return {"step": step, "seconds": 0.1 * step, **told, **changes}


CONSTANT = {"kind": "baseline", "loss": 2.0, "resolution": 128}


def write_run(
    folder: Path, steps: int, budgets: Sequence[int] = (8, 16), shares: Sequence[float] = (1.0,)
) -> Path:
    """A run that falls from 4 to 1, validates often, skips a step and is resumed."""

    def level(step: int) -> float:
        return 1 + 3 * math.exp(-10 * step / steps)

    rows = [CONSTANT]
    for step in range(0, steps + 1, max(1, steps // 10)):
        rows += [
            validation(step, level(step) + 1 / budget + 0.1 / share, budget, ffn=share)
            for share in shares
            for budget in budgets
        ]
    rows += [train(step, level(step) + 0.1 * (step % 3)) for step in range(steps)]
    rows += [train(steps // 3, None), {"kind": "resume", "step": steps // 2}]
    return write_log(folder, rows, (speed(step) for step in range(0, steps, 10)))
