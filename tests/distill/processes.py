"""Small runs of `veca distill` in processes of their own, so that they can be killed."""

import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn, Protocol

import torch

from tests.runtime.ranks import free_port
from veca.cli.main import main

ROOT = Path(__file__).parents[2]

FLAGS = shlex.split(
    "--backbone.layers 2 --backbone.width 32 --backbone.heads 2 --backbone.patch-size 8 "
    "--backbone.budgets 2,4 --backbone.ffn-shares 0.5,1 --teacher tests.distill.runs:PixelTeacher "
    "--resolution 32 --batch 4 --validation-images 2 --statistics-images 8 --device cpu "
    "--precision fp32 --schedule.warmup-steps 2 --seed 3"
)
"""The small run of `runs.py` as flags of the recipe tiny."""


def words_of(images: Path, out: Path, *flags: str) -> list[str]:
    """The words of a run."""
    return ["distill", "tiny", "--images", str(images), "--out", str(out), *FLAGS, *flags]


class Run(Protocol):
    """A run that was started, as of `subprocess.Popen`."""

    pid: int
    returncode: int | None

    def send_signal(self, sig: int, /) -> None:
        """Signal its first process."""

    def communicate(self, *, timeout: float | None = None) -> tuple[str, object]:
        """What it said, when it has ended."""


def launch(words: Sequence[str], ranks: int = 1) -> "subprocess.Popen[str]":
    """Start the real command in a group of processes of its own; several ranks by torchrun."""
    start = [sys.executable]
    if ranks > 1:
        start += ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks),
                  "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]  # fmt: skip
    return subprocess.Popen(
        [*start, "-m", "veca", *words],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


class Forked:
    """The same command in forks of this process, of which none has to import torch again."""

    def __init__(self, words: Sequence[str], ranks: int = 1) -> None:
        self.output = tempfile.TemporaryFile("w+")  # noqa: SIM115 - until it has ended
        self.returncode: int | None = None
        port = free_port()
        self.pids = []
        for rank in range(ranks):
            names = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank, "MASTER_PORT": port,
                     "MASTER_ADDR": "127.0.0.1"}  # fmt: skip
            pid = os.fork()
            if not pid:
                self._run(words, names if ranks > 1 else {})
            self.pids.append(pid)
        self.pid = self.pids[0]

    def _run(self, words: Sequence[str], names: dict[str, object]) -> NoReturn:
        """Be a rank, in a group of processes of its own, and end without returning."""
        code = 1
        try:
            os.setpgid(0, 0)
            for stream in (1, 2):
                os.dup2(self.output.fileno(), stream)
            sys.stdout, sys.stderr = open(1, "w"), open(2, "w")  # noqa: SIM115
            os.environ.update({name: str(value) for name, value in names.items()})
            torch.set_num_threads(1)  # the threads of the parent do not exist here
            sys.settrace(None)  # coverage is not collected from here
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            with warnings.catch_warnings():
                warnings.simplefilter("default")
                code = main(words)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def send_signal(self, sig: int, /) -> None:
        """Signal the first rank."""
        os.kill(self.pid, sig)

    def communicate(self, *, timeout: float | None = None) -> tuple[str, object]:
        """What it said, when it has ended."""
        until = time.monotonic() + (timeout or float("inf"))
        codes = []
        for pid in self.pids:
            while (status := os.waitpid(pid, os.WNOHANG)) == (0, 0):
                if time.monotonic() > until:
                    raise subprocess.TimeoutExpired(f"rank with PID {pid}", timeout or 0)
                time.sleep(0.005)
            codes.append(os.waitstatus_to_exitcode(status[1]))
        self.pids, self.returncode = [], next(filter(None, codes), 0)
        with self.output:
            self.output.seek(0)
            return self.output.read(), None


def finish(run: Run, code: int = 0) -> str:
    """What a run said until its end; another exit code than `code` fails."""
    try:
        said, _ = run.communicate(timeout=600)  # thousands of steps
    except subprocess.TimeoutExpired:
        for pid in started_by(run.pid):
            os.kill(pid, signal.SIGABRT)  # it tells where it stands, and ends
        said, _ = run.communicate()
        raise AssertionError(f"it hangs: {said}") from None
    assert run.returncode == code, said
    return said


def kill_group(run: Run) -> None:
    """End a run and all that it started at once, as a power cut would."""
    os.killpg(run.pid, signal.SIGKILL)
    run.communicate()


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
