"""Peak memory of a process that does nothing else."""

import io
import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from tests.analysis.made_up import TINY, TWIN, veca
from veca.analysis import benchmark as memory
from veca.analysis.benchmark import Setup, answer, main, peak_bytes, resident_peak

SETUP = Setup(backbone=TINY, resolution=32)


def pretend(monkeypatch: pytest.MonkeyPatch, **fields: Any) -> None:
    """Let the process that measures end in this way."""
    done = subprocess.CompletedProcess([], **{"returncode": 0, "stderr": "", **fields})
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)


def test_a_large_image_needs_at_least_the_memory_of_its_tokens() -> None:
    setup = replace(SETUP, resolution=1024, backbone=replace(TINY, layers=1))
    tokens = 4 * setup.patches * TINY.width
    peak = peak_bytes(setup, veca(2))
    assert peak is not None
    assert 2 * tokens < peak < 200 * tokens


def test_what_a_process_once_used_stays_in_its_peak() -> None:
    block = bytearray(b"x") * 100_000_000
    del block
    before = resident_peak()
    block = bytearray(b"x") * 100_000_000
    assert resident_peak() >= len(block)
    del block
    assert resident_peak() >= before - 1_000_000  # the kernel counts in batches


@pytest.mark.parametrize("platform", ["darwin", "linux"])
def test_without_a_process_file_the_system_is_asked(
    platform: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(memory, "PROCESS_STATUS", tmp_path / "none")
    monkeypatch.setattr(sys, "platform", platform)
    assert resident_peak() > 10_000


def test_a_system_that_does_not_tell_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(memory, "PROCESS_STATUS", tmp_path / "none")
    monkeypatch.setattr(memory, "resource", None)
    with pytest.raises(ValueError, match="does not tell peak memory; measure without it"):
        resident_peak()


def test_a_request_is_answered_with_bytes() -> None:
    request = {"setup": asdict(SETUP), "contender": asdict(TWIN)}
    assert json.loads(answer(json.dumps(request)))["peak_bytes"] >= 0


@pytest.mark.parametrize("code", [memory.OUT_OF_MEMORY_CODE, memory.KILLED])
def test_too_little_memory_is_an_answer(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, returncode=code)
    assert peak_bytes(SETUP, TWIN) is None


def test_other_failures_are_told_with_the_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, returncode=1, stderr="Traceback\n  ...\nTypeError: oh no\n")
    with pytest.raises(ChildProcessError, match="code 1: TypeError: oh no; leave memory out"):
        peak_bytes(SETUP, TWIN)


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")]
)
def test_running_out_of_memory_ends_with_its_own_code(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: str) -> str:
        raise error

    monkeypatch.setattr(memory, "answer", fail)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    assert main() == memory.OUT_OF_MEMORY_CODE


def test_an_error_in_the_program_is_no_lack_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: str) -> str:
        raise RuntimeError("shapes differ")

    monkeypatch.setattr(memory, "answer", fail)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    with pytest.raises(RuntimeError, match="shapes differ"):
        main()
