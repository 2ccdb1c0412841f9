"""Keep the logs of the trials, and print their table.

    python docs/results/2026-11-18_close-the-gap/collect.py [FOLDER OF THE TRIALS]

`trials.jsonl` keeps every fifth training step and the last validation of each trial that has
ended; what it has of trials that are no longer in the folder (other machines) stays.
"""

import json
import sys
from pathlib import Path

KEPT = Path(__file__).parent / "trials.jsonl"
SHOWN = (None, 8, 16, 32, 64, 128)


def main(folder: str = "build/trials") -> None:
    """Gather what has ended, then print what is kept."""
    kept = [json.loads(line) for line in KEPT.read_text().splitlines()] if KEPT.exists() else []
    for log in sorted(Path(folder).glob("*/metrics.jsonl")):
        rows = [json.loads(line) for line in log.read_text().splitlines()]
        last = max((row["step"] for row in rows if row["kind"] == "validation"), default=0)
        if not last:
            continue
        name = log.parent.name
        kept = [row for row in kept if row["trial"] != name]
        kept += [
            {"trial": name, **row}
            for row in rows
            if row["kind"] == "baseline"
            or (row["kind"] == "validation" and row["step"] == last)
            or (row["kind"] == "train" and row["step"] % 5 == 0)
        ]
    KEPT.write_text("".join(json.dumps(row) + "\n" for row in kept))
    print("| trial | cores | loss | of the image | of patches, cosine |")
    print("| --- | --: | --: | --: | --: |")
    for row in kept:
        if row["kind"] == "validation" and row["budget"] in SHOWN and row["ffn"] == 1:
            print(
                f"| `{row['trial']}` | {row['budget'] or ''} | {row['loss']:.3f} | "
                f"{row['loss_image']:.3f} | {row['loss_patch_cosine']:.3f} |"
            )


if __name__ == "__main__":
    main(*sys.argv[1:])
