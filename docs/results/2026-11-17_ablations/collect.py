"""Keeps the logs and probes of all ablations beside this file and prints their table.

    python docs/results/2026-11-17_ablations/collect.py

from the top of the repository. Runs that have ended in build/ablations are copied first: of a log
all validations and every fifth training step, of the last ones all; of probes the number that a
task is known by. The table is made of what is kept, so it also has runs of machines that are gone.
"""

import json
import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from veca.probe.report import read_report
from veca.probe.rows import primary_metric

RUNS, KEPT = Path("build/ablations"), Path(__file__).parent

PROBES = KEPT / "probes.json"
"""By run, then by number of cores, then by task and set."""

BASE = "base"

STEPS, LAST = 400, 100
"""Of a run, and those at its end whose training losses are held against those of `base`."""

PARTS = ("loss_image", "loss_patch_cosine", "loss_patch_error")
"""Of the loss, here with weights of one whatever a run was trained with."""

HEADS = ("NAME", "cores", "loss", "of the image", "of patches, cosine", "training, less base",
         "20-NN imagenette", "20-NN pets", "dense kNN mIoU")  # fmt: skip

TASKS = ("knn imagenette", "knn pets", "dense-knn voc2012_animals")
"""What was probed, in the order of the columns."""

Log = list[dict[str, Any]]


def main() -> None:
    """Copy what is new, then the table."""
    probes = json.loads(PROBES.read_text("utf-8")) if PROBES.exists() else {}
    for run in sorted(RUNS.glob("*")):
        log = read(run / "metrics.jsonl") if (run / "last").exists() else []
        if any((row["kind"], row.get("step")) == ("validation", STEPS) for row in log):
            keep(run.name, log)
            probes |= {run.name: found} if (found := probed(run)) else {}
    PROBES.write_text(json.dumps(probes, indent=1, sort_keys=True) + "\n", "utf-8")
    logs = {path.stem: read(path) for path in sorted(KEPT.glob("*.jsonl"))}
    write(HEADS)
    write(["---", *["--:"] * (len(HEADS) - 1)])
    for name, log in logs.items():
        table(name, log, logs[BASE], probes.get(name, {}))


def keep(name: str, log: Log) -> None:
    """Copy a log."""
    text = "".join(
        json.dumps(row) + "\n"
        for row in log
        if row["kind"] != "train" or row["step"] % 5 == 0 or row["step"] >= STEPS - LAST
    )
    (KEPT / f"{name}.jsonl").write_text(text, "utf-8")


def probed(run: Path) -> dict[str, dict[str, float]]:
    """The leading numbers of a run's probes."""
    found: dict[str, dict[str, float]] = {}
    rows = read_report(run / "probes")
    for row in rows:
        same = [r.metric for r in rows if (r.task, r.data) == (row.task, row.data)]
        if row.metric == primary_metric(same):
            found.setdefault(str(row.budget), {})[f"{row.task} {row.data}"] = row.value
    return found


def read(path: Path) -> Log:
    """All rows of a log."""
    return [json.loads(line) for line in path.open(encoding="utf-8")]


def table(name: str, log: Log, base: Log, probes: dict[str, dict[str, float]]) -> None:
    """A line for 8 cores and one for 64, as far as the run has them."""
    ends = [row for row in log if (row["kind"], row.get("step")) == ("validation", STEPS)]
    for end in (row for row in ends if row["ffn"] in {1.0, None}):
        if (budget := end["budget"]) not in {8, 64, None}:
            continue
        cells = [f"{value:.3f}" for value in (whole(end), end[PARTS[0]], end[PARTS[1]])]
        cells.append(difference(log, base) if budget != 8 else "")
        mine = probes.get(str(budget), {})
        cells += [f"{mine[task]:.2f}" if task in mine else "" for task in TASKS]
        write([f"`{name}`", str(budget or ""), *cells])


def difference(log: Log, base: Log) -> str:
    """The mean difference of losses at the same steps, all budgets, with its standard error."""
    mine, others = (
        {row["step"]: whole(row) for row in rows if row["kind"] == "train"} for rows in (log, base)
    )
    both = sorted(mine.keys() & others.keys())
    apart = [mine[step] - others[step] for step in both if step >= STEPS - LAST]
    error = statistics.stdev(apart) / math.sqrt(len(apart))
    return f"{statistics.mean(apart):+.4f} ± {error:.4f}"


def whole(row: dict[str, Any]) -> float:
    """The loss as all runs but those with other weights have it."""
    return math.fsum(row[part] for part in PARTS)


def write(cells: Sequence[str]) -> None:
    """A line of a table."""
    sys.stdout.write(f"| {' | '.join(cells)} |\n")


if __name__ == "__main__":
    main()
