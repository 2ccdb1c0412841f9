"""Copies the logs of all ablations beside this file and prints their table.

    python docs/results/2026-11-17_ablations/collect.py

from the top of the repository. Of a log every fifth training step and all validations are kept.
"""

import json
import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from veca.probe.report import read_report

RUNS = Path("build/ablations")

BASE = "base"

LAST = 100
"""Steps at the end whose training losses are held against those of `base`."""

HEADS = ("NAME", "cores", "loss", "of the image", "of patches, cosine", "training, less base",
         "20-NN imagenette", "logistic imagenette", "20-NN pets", "dense kNN mIoU")  # fmt: skip

TASKS = (("knn", "imagenette"), ("logistic", "imagenette"), ("knn", "pets"),
         ("dense-knn", "voc2012_animals"))  # fmt: skip
"""What was probed, in the order of the columns."""

Log = list[dict[str, Any]]


def main() -> None:
    """Every run that has ended."""
    found = {run.name: read(run) for run in sorted(RUNS.iterdir()) if (run / "last").exists()}
    write(HEADS)
    write(["---", *["--:"] * (len(HEADS) - 1)])
    for name, log in found.items():
        kept = [row for row in log if row["kind"] != "train" or row["step"] % 5 == 0]
        text = "".join(json.dumps(row) + "\n" for row in kept)
        Path(__file__).with_name(f"{name}.jsonl").write_text(text, "utf-8")
        table(name, log, found[BASE])


def read(run: Path) -> Log:
    """All rows of a run."""
    return [json.loads(line) for line in (run / "metrics.jsonl").open(encoding="utf-8")]


def table(name: str, log: Log, base: Log) -> None:
    """A line for 8 cores and one for 64, as far as the run has them."""
    rows = read_report(RUNS / name / "probes")
    last = max(row["step"] for row in log if row["kind"] == "validation")
    for end in log:
        whole = (end["kind"], end.get("step"), end.get("ffn")) == ("validation", last, 1.0)
        if not whole or (budget := end["budget"]) not in {8, 64, None}:
            continue
        cells = [f"{end[part]:.3f}" for part in ("loss", "loss_image", "loss_patch_cosine")]
        cells.append(difference(log, base) if budget != 8 else "")
        for task, data in TASKS:
            probed = [r for r in rows if (r.task, r.data, r.budget) == (task, data, budget)]
            cells.append(f"{probed[0].value:.2f}" if probed else "")
        write([f"`{name}`", str(budget or ""), *cells])


def difference(log: Log, base: Log) -> str:
    """The mean difference of losses at the same steps, all budgets, with its standard error."""
    mine, others = (
        {row["step"]: row["loss"] for row in rows if row["kind"] == "train"} for rows in (log, base)
    )
    apart = [mine[step] - others[step] for step in sorted(mine)[-LAST:]]
    error = statistics.stdev(apart) / math.sqrt(len(apart))
    return f"{statistics.mean(apart):+.4f} ± {error:.4f}"


def write(cells: Sequence[str]) -> None:
    """A line of a table."""
    sys.stdout.write(f"| {' | '.join(cells)} |\n")


if __name__ == "__main__":
    main()
