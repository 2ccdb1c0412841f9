"""How good are frozen features for your classes? kNN and logistic regression, at three budgets.

    python examples/probe.py photos --model runs/mine/best      photos/CLASS/*.jpg

Without a folder, the classes are scikit-image's sample photos: fitted on crops of each photo's left
two thirds, tested on crops of its right two thirds.
"""

import argparse
import json
from pathlib import Path

from samples import sample_classes

from veca.cli.main import main as veca


def main(words: list[str] | None = None) -> None:
    """Run two probes into one report, and print its numbers."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("photos", nargs="?", type=Path)
    parser.add_argument("--model", default="veca-tiny")
    parser.add_argument("--budgets", default="8,16,64")
    parser.add_argument("--pixels", default="160")
    parser.add_argument("--out", type=Path, default=Path("build/probes"))
    flags = parser.parse_args(words)
    photos = flags.photos or sample_classes(Path("build/samples"))

    for task in ("knn", "logistic"):
        command = ["probe", task, str(photos), "--model", flags.model, "--budgets", flags.budgets]
        code = veca([*command, "--resolution", flags.pixels, "--out", str(flags.out)])
        if code:
            raise SystemExit(code)

    for row in json.loads((flags.out / "report.json").read_text("utf-8")):
        if row["metric"] in {"top1", "top1_k10"}:
            print(f"{row['task']}, {row['budget']} cores: {row['value']:.1f} % of val is right")


if __name__ == "__main__":
    main()
