"""Small runs in processes of their own, by the real command, so that they can be killed."""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]

FLAGS = shlex.split(
    "--backbone.layers 2 --backbone.width 32 --backbone.heads 2 --backbone.patch-size 8 "
    "--backbone.budgets 2,4 --backbone.ffn-shares 0.5,1 --teacher tests.distill.runs:PixelTeacher "
    "--resolution 32 --batch 4 --validation-images 2 --statistics-images 8 --device cpu "
    "--precision fp32 --schedule.warmup-steps 2 --seed 3"
)
"""The small run of `runs.py` as flags of the recipe tiny."""


def command(images: Path, out: Path, *flags: str, processes: int = 1) -> list[str]:
    """The words that start a run."""
    start = [sys.executable]
    if processes > 1:
        start += ["-m", "torch.distributed.run", "--nproc-per-node", str(processes),
                  "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]  # fmt: skip
    run = ["-m", "veca", "distill", "tiny", "--images", str(images), "--out", str(out)]
    return [*start, *run, *FLAGS, *flags]


def start(words: Sequence[str]) -> "subprocess.Popen[str]":
    """Start a run in a group of processes of its own."""
    return subprocess.Popen(
        words,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def finish(words: Sequence[str], code: int = 0) -> str:
    """Run to the end and give what it said; another exit code than `code` fails."""
    process = start(words)
    try:
        said, _ = process.communicate(timeout=600)  # thousands of steps
    except subprocess.TimeoutExpired:
        for pid in started_by(process.pid):
            os.kill(pid, signal.SIGABRT)  # it tells where it stands, and ends
        said, _ = process.communicate()
        raise AssertionError(f"it hangs: {said}") from None
    assert process.returncode == code, said
    return said


def kill_group(process: "subprocess.Popen[str]") -> None:
    """End a run and all that it started at once, as a power cut would."""
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def processes_of_group(group: int) -> list[int]:
    """Living processes of a group, so that orphans are found (Linux)."""
    return [one.pid for one in _living() if one.group == group]


def started_by(pid: int) -> list[int]:
    """A process and all that it started, and those that they started (Linux)."""
    children: dict[int, list[int]] = {}
    for one in _living():
        children.setdefault(one.parent, []).append(one.pid)
    found = [pid]
    for parent in found:  # grows meanwhile
        found += children.get(parent, [])
    return found


class _Living(NamedTuple):
    """A process that has not ended."""

    pid: int
    parent: int
    group: int


def _living() -> Iterator[_Living]:
    """All processes of this machine."""
    for folder in Path("/proc").iterdir():
        try:
            fields = (folder / "stat").read_text("utf-8").rpartition(")")[2].split()
        except OSError:
            continue
        if folder.name.isdigit() and fields[0] not in "ZX":
            yield _Living(int(folder.name), int(fields[1]), int(fields[2]))
