"""The description of the machine."""

import os
from pathlib import Path

import pytest
import torch

from tests.analysis.made_up import MACHINE
from veca.analysis import machine
from veca.analysis.machine import load_average, this_machine


def test_this_machine_has_cores_threads_and_versions() -> None:
    found = this_machine()
    assert found.cores >= 1
    assert found.threads == torch.get_num_threads()
    assert found.torch == torch.__version__
    assert found.processor
    assert found.accelerator is None


def test_a_machine_in_words_names_processor_cores_threads_and_torch() -> None:
    words = str(MACHINE)
    for part in ("Made-up 3000", "2 cores", "2 threads", "AVX2", "torch 2.13.0"):
        assert part in words


def test_the_processor_is_named_as_the_system_names_it(tmp_path: Path) -> None:
    facts = tmp_path / "cpuinfo"
    facts.write_text("vendor_id : X\nmodel name\t: Great CPU @ 3 GHz\n")
    assert machine._processor(facts) == "Great CPU @ 3 GHz"
    assert machine._processor(tmp_path / "none")


def test_what_the_system_does_not_tell_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> float:
        raise OSError

    monkeypatch.setattr(os, "getloadavg", refuse, raising=False)
    monkeypatch.setattr(os, "sysconf", refuse, raising=False)
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert load_average() is None
    found = this_machine()
    assert found.memory_gb is None
    assert found.cores >= 1
