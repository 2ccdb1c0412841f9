"""The description of the machine."""

import os
from pathlib import Path

import pytest
import torch

from tests.analysis.made_up import MACHINE
from veca.analysis import machine
from veca.analysis.machine import load_average, this_machine


def test_a_machine_in_words_names_processor_cores_threads_and_torch() -> None:
    words = str(MACHINE)
    for part in ("Made-up 3000", "2 cores", "2 threads", "AVX2", "torch 2.13.0"):
        assert part in words


def test_the_processor_is_named_as_the_system_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cpuinfo"
    monkeypatch.setattr(machine, "CPU_INFO", path)
    assert this_machine().processor
    path.write_text("vendor_id : X\nmodel name\t: Great CPU @ 3 GHz\n")
    assert this_machine().processor == "Great CPU @ 3 GHz"


def test_what_the_system_does_not_report_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> float:
        raise OSError

    monkeypatch.setattr(os, "getloadavg", refuse, raising=False)
    monkeypatch.setattr(os, "sysconf", refuse, raising=False)
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert load_average() is None
    found = this_machine()
    assert (found.memory_gb, found.accelerator) == (None, None)
    assert found.cores >= 1
    assert found.threads == torch.get_num_threads()
