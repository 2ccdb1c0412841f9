"""Measures the memory of `veca embed` over a large collection, process by process.

Run: python -m tests.embed.memory FOLDER [IMAGES] [FLAGS OF veca embed ...]

It makes the pictures (PNG, 32 to 64 pixels, in tar shards and in folders by turns) and a very small
model in a temporary folder, runs the command in a process of its own, reads /proc while it works,
and writes `samples.csv` and `summary.json` into FOLDER.
"""

import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

import veca
from tests.data.pictures import encoded, write_pictures, write_shard
from veca.embed.embed import SHARD_ROWS

IMAGES = 20_480
WARM_UP = 8_192
"""Images that are done when growth begins to count."""

SECONDS = 0.2
"""Time between two samples."""

FLAGS = ("--size", "32", "--budget", "4", "--workers", "2", "--batch", "16", "--patches")


class Sample(NamedTuple):
    """Memory at one moment, in megabytes."""

    seconds: float
    images: int
    """Images in finished shards."""
    main: float
    """Resident memory of the main process."""
    main_own: float
    """The part of it that is not backed by a file."""
    workers: float
    """Resident memory of all workers, of which they share most with the main process."""
    workers_own: float


def measure(folder: Path, images: int, flags: Sequence[str]) -> list[Sample]:
    """Embed generated pictures in a folder and sample the memory meanwhile."""
    for start in range(0, images, 2_500):
        count = min(2_500, images - start)
        if start % 5_000:
            write_pictures(folder / "inputs" / f"folder-{start:06}", count, start)
        else:
            numbers = range(start, start + count)
            members = ((f"{number:06}.png", encoded(number)) for number in numbers)
            (folder / "inputs").mkdir(exist_ok=True)
            write_shard(folder / "inputs" / f"shard-{start:06}.tar", members)
    torch.manual_seed(0)
    veca.save(veca.build("tiny", layers=1, width=64, heads=2, budgets=(2, 4)), folder / "model")
    command = [sys.executable, "-m", "veca", "embed", str(folder / "inputs"),
               "--model", str(folder / "model"), "--out", str(folder / "out"), *flags]  # fmt: skip
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    log = folder / "log.txt"
    samples = []
    with log.open("wb") as file:
        process = subprocess.Popen(command, env=environment, stdout=file, stderr=file)
        started = time.monotonic()
        while process.poll() is None:
            time.sleep(SECONDS)
            if sample := _sample(process.pid, time.monotonic() - started, folder / "out"):
                samples.append(sample)
    if process.returncode:
        raise RuntimeError(log.read_text())
    return samples


def summary(samples: Sequence[Sample], images: int, flags: Sequence[str]) -> dict[str, Any]:
    """The growth after the warm-up."""
    early = [sample for sample in samples if sample.images <= WARM_UP]
    late = [sample for sample in samples if sample.images > WARM_UP and sample.workers > 0]
    found: dict[str, Any] = {
        "images": images,
        "flags": " ".join(flags),
        "seconds": round(samples[-1].seconds, 1),
        "samples": len(samples),
        "torch": torch.__version__,
        "veca": veca.__version__,
    }
    for name in ("main", "main_own", "workers", "workers_own"):
        before = sorted(getattr(sample, name) for sample in early)
        after = sorted(getattr(sample, name) for sample in late)
        found[name] = {
            "largest_in_warm_up_mb": round(before[-1], 1),
            "largest_after_mb": round(after[-1], 1),
            "growth_of_largest_mb": round(after[-1] - before[-1], 1),
            "first_after_mb": round(getattr(late[0], name), 1),
            "last_mb": round(getattr(late[-1], name), 1),
        }
    return found


def _sample(process: int, seconds: float, out: Path) -> Sample | None:
    """One look at the processes; None while there is nothing to see."""
    try:
        main = _memory(process)
        workers = [_memory(child) for child in _children(process)]
        images = SHARD_ROWS * len(list(out.glob("shard-*.parquet")))
    except (OSError, KeyError):  # not begun, or just ended
        return None
    total, own = (sum(worker[kind] for worker in workers) for kind in (0, 1))
    return Sample(round(seconds, 2), images, *main, total, own)


def _memory(process: int) -> tuple[float, float]:
    """Resident memory of a process, and the part of it that is anonymous."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    sizes = dict(line.split(":", 1) for line in lines)
    megabytes = [int(sizes[name].split()[0]) / 1024 for name in ("VmRSS", "RssAnon")]
    return megabytes[0], megabytes[1]


def _children(process: int) -> list[int]:
    """The workers of a process, whichever of its threads started them."""
    files = Path(f"/proc/{process}/task").glob("*/children")
    return [int(word) for file in files for word in file.read_text().split()]


def main(words: Sequence[str]) -> None:
    """Measure, and write down what was found."""
    target = Path(words[0])
    images = int(words[1]) if len(words) > 1 else IMAGES
    flags = words[2:] or FLAGS
    with tempfile.TemporaryDirectory() as folder:
        samples = measure(Path(folder), images, flags)
    target.mkdir(parents=True, exist_ok=True)
    with (target / "samples.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(Sample._fields)
        writer.writerows([f"{value:.1f}" for value in sample] for sample in samples)
    text = json.dumps(summary(samples, images, flags), indent=2)
    (target / "summary.json").write_text(f"{text}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
