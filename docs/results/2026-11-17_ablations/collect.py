"""Copies the logs of all ablations beside this file and prints their table.

    python docs/results/2026-11-17_ablations/collect.py

from the top of the repository. Of a log every fifth training step and all validations are kept.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from veca.probe.report import read_report

RUNS = Path("build/ablations")

HEADS = ("NAME", "cores", "loss", "of the image", "of patches, cosine", "20-NN imagenette",
         "logistic imagenette", "20-NN pets", "dense kNN mIoU")  # fmt: skip

TASKS = (("knn", "imagenette"), ("logistic", "imagenette"), ("knn", "pets"),
         ("dense-knn", "voc2012_animals"))  # fmt: skip
"""What was probed, in the order of the columns."""


def main() -> None:
    """Every run that has ended."""
    write(HEADS)
    write(["---", *["--:"] * (len(HEADS) - 1)])
    for run in sorted(RUNS.iterdir()):
        if (run / "probes").exists():
            log = [json.loads(line) for line in (run / "metrics.jsonl").open(encoding="utf-8")]
            keep(log, Path(__file__).with_name(f"{run.name}.jsonl"))
            table(run, log)


def keep(log: list[dict[str, Any]], path: Path) -> None:
    """What a reader needs to draw the curve."""
    kept = [row for row in log if row["kind"] != "train" or row["step"] % 5 == 0]
    path.write_text("".join(json.dumps(row) + "\n" for row in kept), "utf-8")


def table(run: Path, log: list[dict[str, Any]]) -> None:
    """A line for each budget that was probed."""
    rows = read_report(run / "probes")
    last = max(row["step"] for row in log if row["kind"] == "validation")
    for budget in sorted({row.budget for row in rows}, key=lambda one: one or 0):
        end = next(
            row for row in log
            if (row["kind"], row["step"], row["budget"], row["ffn"])
            == ("validation", last, budget, 1.0)
        )  # fmt: skip
        cells = [f"{end[name]:.3f}" for name in ("loss", "loss_image", "loss_patch_cosine")]
        for task, data in TASKS:
            found = [r for r in rows if (r.task, r.data, r.budget) == (task, data, budget)]
            cells.append(f"{found[0].value:.2f}" if found else "")
        write([f"`{run.name}`", str(budget or ""), *cells])


def write(cells: Sequence[str]) -> None:
    """A line of a table."""
    sys.stdout.write(f"| {' | '.join(cells)} |\n")


if __name__ == "__main__":
    main()
