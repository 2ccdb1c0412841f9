"""Runs as processes: killed, asked to stop, started several at once by torchrun."""

import importlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, Protocol

import pytest
import torch

from tests.distill.runs import FLAGS, pictures, rows
from tests.distill.test_run import lasting_rows
from tests.runtime.ranks import free_port
from veca.cli.main import main
from veca.train.checkpoint import load_checkpoint

ROOT = Path(__file__).parents[2]


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
        """Its output, once it has ended."""


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
    """The same command in forks of this process, of which none has to import libraries again."""

    def __init__(self, words: Sequence[str], ranks: int = 1) -> None:
        for library in (
            "torch._dynamo",
            "torch.utils.tensorboard",
            "veca.analysis.training_curves",
        ):
            importlib.import_module(library)  # most of the time of a short run
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
        """Its output, once it has ended."""
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
    """The output of a run until its end; another exit code than `code` fails."""
    try:
        said, _ = run.communicate(timeout=600)  # thousands of steps
    except subprocess.TimeoutExpired:
        for pid in started_by(run.pid):
            os.kill(pid, signal.SIGABRT)  # it prints its stack, and ends
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


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two dozen pictures."""
    return pictures(tmp_path_factory.mktemp("images"))


def lines_of(out: Path, kind: str) -> list[dict[str, Any]]:
    """Rows of a log that may be written at this moment, all but the last."""
    if not (out / "metrics.jsonl").exists():
        return []
    lines = (out / "metrics.jsonl").read_text("utf-8").splitlines()[:-1]
    return [row for row in map(json.loads, lines) if row["kind"] == kind]


def wait_for_steps(out: Path, count: int, seconds: float = 60.0) -> None:
    """Wait until a run has logged so many steps."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if len(lines_of(out, "train")) >= count:
            return
        time.sleep(0.05)
    raise AssertionError(f"{out} did not take {count} steps in {seconds} s")


Start = Callable[..., Run]
"""Starts a run with these flags in a folder."""


class Kill(NamedTuple):
    """One end of a run by kill -9."""

    seconds: float
    """From its first new step to the kill."""

    step: int
    """The last step that it had logged."""


def killed_and_resumed(start: Start, out: Path, steps: int, kills: int) -> list[Kill]:
    """Kill a run at random moments after it began to train, resuming it each time, then end it."""
    draw = random.Random(0)
    flags = ("--steps", str(steps), "--save-every", "5", "--validate-every", "40", "--resume",
             "--workers", "1")  # fmt: skip
    found = []
    for _ in range(kills):
        before = len(lines_of(out, "train"))
        process = start(out, *flags)
        wait_for_steps(out, before + 1)
        began = time.monotonic()
        # By steps, since a fast machine takes all of them within a second.
        wait_for_steps(out, before + draw.randint(1, steps // (3 * kills)))
        time.sleep(draw.uniform(0.0, 0.1))  # between two steps, or while a checkpoint is written
        kill_group(process)
        found.append(Kill(time.monotonic() - began, lines_of(out, "train")[-1]["step"]))
    finish(start(out, *flags))
    return found


def compared(start: Start, folder: Path, steps: int, kills: int) -> list[Kill]:
    """Kill and resume one run, leave another alone, and compare their logs and weights."""
    alone = ("--steps", str(steps), "--save-every", "5", "--validate-every", "40")
    finish(start(folder / "whole", *alone))
    found = killed_and_resumed(start, folder / "killed", steps, kills)
    assert lasting_rows(folder / "killed") == lasting_rows(folder / "whole")
    for name in ("best", "last"):
        files = [folder / run / name / "model.safetensors" for run in ("whole", "killed")]
        assert files[0].read_bytes() == files[1].read_bytes()
    return found


@pytest.mark.workers
def test_a_killed_run_ends_with_the_log_and_weights_of_one_that_was_not(
    images: Path, tmp_path: Path
) -> None:
    def start(out: Path, *flags: str) -> Run:
        return Forked(words_of(images, out, *flags))

    compared(start, tmp_path, steps=80, kills=2)
    assert rows(tmp_path / "killed", "resume")  # a kill before the first save begins anew


@pytest.mark.workers
def test_a_running_run_is_locked_and_sigterm_saves_its_step_and_leaves_no_process(
    images: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    process = Forked(words_of(images, out, "--steps", "100000", "--workers", "2"))
    wait_for_steps(out, 5)
    said = finish(Forked(words_of(images, out, "--steps", "100000", "--resume")), code=2)
    assert "another process is writing" in said
    asked = time.monotonic()
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=60)
    assert time.monotonic() - asked < 20
    assert process.returncode == 128 + signal.SIGTERM, said
    assert f"--resume continues it, {out / 'last'} is the model of this step." in said
    assert processes_of_group(process.pid) == []
    path = max((out / "checkpoints").iterdir())
    steps = [row["step"] for row in rows(out, "train")]
    assert load_checkpoint(path).step == steps[-1] + 1 == len(steps)


@pytest.mark.workers
@pytest.mark.parametrize(
    ("flags", "both", "steps"),
    [
        ((), ("--backbone.local-kernel", "3", "--backbone.core-motion", "attention"), 20),
        (("--shard",), (), 10),
    ],
    ids=["copied", "sharded"],
)
def test_two_workers_learn_what_one_worker_learns_with_the_whole_batch(
    images: Path, tmp_path: Path, flags: tuple[str, ...], both: tuple[str, ...], steps: int
) -> None:
    common = ("--steps", f"{steps}", "--validate-every", "10", "--save-every", "10",
              "--workers", "0", *both)  # fmt: skip
    finish(Forked(words_of(images, tmp_path / "one", *common)))
    finish(Forked(words_of(images, tmp_path / "two", *common, *flags), ranks=2))
    for kind in ("baseline", "train", "validation"):
        pairs = zip(rows(tmp_path / "one", kind), rows(tmp_path / "two", kind), strict=True)
        for one, two in pairs:
            assert two["loss"] == pytest.approx(one["loss"], rel=1e-5)
            assert {**two, "loss": 0}.keys() == {**one, "loss": 0}.keys()
            assert two.get("budget") == one.get("budget")
    # One process continues what two have begun, as if it had been alone.
    longer = ("--steps", f"{steps + 2}", *common[2:], "--resume")
    finish(Forked(words_of(images, tmp_path / "two", *longer)))
    assert [row["step"] for row in rows(tmp_path / "two", "resume")] == [steps]


@pytest.mark.workers
def test_two_workers_keep_outputs_with_which_one_then_trains(images: Path, tmp_path: Path) -> None:
    kept = ("--cache-teacher", str(tmp_path / "kept"), "--cache.crops", "1")
    only = ("--workers", "0", "--cache-only")
    said = finish(Forked(words_of(images, tmp_path / "run", *kept, *only), ranks=2))
    assert "22 of 22 views" in said
    assert said.count("The teacher outputs are cached") == 1
    steps = ("--steps", "2", "--schedule.warmup-steps", "1", "--schedule.decay-steps", "0")
    said = finish(Forked(words_of(images, tmp_path / "run", *kept, *steps)))
    assert "views/s" not in said
    assert "Finished at step 2" in said


@pytest.mark.workers
def test_a_loss_that_is_not_finite_on_one_worker_skips_the_step_on_all(
    images: Path, tmp_path: Path
) -> None:
    teacher = ("--teacher", "tests.distill.runs:PoisonedTeacher")
    flags = ("--steps", "8", "--validate-every", "8", "--workers", "0", *teacher)
    finish(Forked(words_of(images, tmp_path / "run", *flags), ranks=2))
    losses = [row["loss"] for row in rows(tmp_path / "run", "train")]
    assert losses.count(None) == 1
    assert losses.index(None) > 0
    assert all(row["loss"] is not None for row in rows(tmp_path / "run", "validation"))


@pytest.mark.workers
def test_sigterm_to_torchrun_saves_once_and_leaves_no_process_behind(
    images: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    process = launch(words_of(images, out, "--steps", "100000", "--workers", "1"), ranks=2)
    wait_for_steps(out, 3)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=60)
    assert process.returncode != 0, said
    assert processes_of_group(process.pid) == []
    (path,) = (out / "checkpoints").iterdir()
    assert load_checkpoint(path).step == len(rows(out, "train"))


@pytest.mark.slow
@pytest.mark.workers
def test_twenty_kills_change_nothing(images: Path, tmp_path: Path) -> None:
    def start(out: Path, *flags: str) -> Run:
        return launch(words_of(images, out, *flags))

    found = compared(start, tmp_path, steps=2000, kills=20)
    resumed = [row["step"] for row in rows(tmp_path / "killed", "resume")]
    for number, kill in enumerate(found, start=1):
        print(f"kill {number}: {kill.seconds:.2f} s after its first new step, at step {kill.step}")
    print(f"resumed at steps {resumed}; logs and weights are equal, byte for byte")
    assert len(set(resumed)) > 10
