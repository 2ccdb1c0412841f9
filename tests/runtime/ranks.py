"""Ranks that talk through gloo, forked from the test: no process has to import torch again."""

import os
import signal
import socket
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch._dynamo  # optimizers import it, and every rank would

from veca.runtime.distributed import Ranks, init_distributed

SECONDS = 60.0


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_ranks(work: Callable[[Ranks], None], folder: Path, world_size: int = 2) -> None:
    """Let every rank do the same work; the test fails with the traceback of one that fails."""
    port = free_port()
    reports = [folder / f"rank{rank}.txt" for rank in range(world_size)]
    children = []
    for rank, report in enumerate(reports):
        child = os.fork()
        if not child:
            _work_as(rank, world_size, port, work, report)
        children.append(child)
    try:
        until = time.monotonic() + SECONDS
        codes = [_ended(child, until) for child in children]
    finally:
        for child in children:
            _kill(child)
    failures = [report.read_text() for report in reports if report.exists()]
    if any(codes) or failures:
        pytest.fail("\n".join([f"exit codes {codes}", *failures]))


def _work_as(
    rank: int, world_size: int, port: int, work: Callable[[Ranks], None], report: Path
) -> None:
    """Be a rank, and end without returning."""
    names = {"RANK": rank, "WORLD_SIZE": world_size, "LOCAL_RANK": rank, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in names.items()})
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    torch.set_num_threads(1)  # the threads of the parent do not exist here
    code = 1
    try:
        with init_distributed("cpu") as ranks:
            work(ranks)
        code = 0
    except BaseException:
        report.write_text(traceback.format_exc())
    finally:
        os._exit(code)


def _ended(child: int, until: float) -> int | None:
    """The exit code of a child; None where it hangs."""
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    return None


def _kill(child: int) -> None:
    """End a child that may have ended."""
    try:
        if os.waitpid(child, os.WNOHANG) == (0, 0):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    except ChildProcessError:
        pass
