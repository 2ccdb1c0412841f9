"""Times every way to run that a suite has measured, all in turns in one run, for the card.

    python docs/results/2026-11-16_veca-tiny/times.py docs/results/2026-11-16_veca-tiny/suite

from the top of the repository, on a quiet machine; writes times.json into that folder. The times of
the suite's own jobs are of one thread beside another process, a few rounds each and hours apart.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path

import torch

from veca.analysis.machine import load_average, this_machine
from veca.probe.models import find_model, time_models
from veca.probe.report import read_report

NAME = "times.json"

ROUNDS = 60


def main(folder: str) -> None:
    """Every resolution by itself."""
    rows = read_report(Path(folder))
    if not rows:
        raise SystemExit(f"{folder} has no report.json; the suite's command makes it of jobs/.")
    models = {name: find_model(name, torch.device("cpu")) for name in {r.model for r in rows}}
    before, found = load_average(), []
    for side in sorted({row.resolution for row in rows}):
        ways = list(dict.fromkeys((r.model, r.setting) for r in rows if r.resolution == side))
        calls = [(models[name], setting) for name, setting in ways]
        for (name, setting), time in zip(
            ways, time_models(calls, (side, side), ROUNDS), strict=True
        ):
            found.append({"model": name, "resolution": side, **setting._asdict(), "ms": time})
            sys.stdout.write(f"{side} px {name} {setting.label}: {time:.1f} ms\n")
    facts = {
        "machine": asdict(this_machine()),
        "threads": torch.get_num_threads(),
        "load_average_before": before,
        "most_rounds": ROUNDS,
    }
    text = json.dumps({**facts, "times": found}, indent=1)
    (Path(folder) / NAME).write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
