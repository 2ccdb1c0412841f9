"""Torch leaves processors to the processes beside it, and gets its threads back."""

import os

import pytest
import torch

from veca.runtime import device as threads
from veca.runtime.device import cpu_threads, usable_processors


@pytest.mark.parametrize(("beside", "expected"), [(0, 4), (1, 4), (3, 3), (5, 1), (9, 1)])
def test_threads_are_what_the_processes_leave(
    beside: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = torch.get_num_threads()
    monkeypatch.setattr(threads, "usable_processors", lambda: 6)
    torch.set_num_threads(4)  # what a user has chosen is never exceeded
    try:
        with cpu_threads(beside):
            assert torch.get_num_threads() == expected
        assert torch.get_num_threads() == 4
    finally:
        torch.set_num_threads(before)


def test_usable_processors_are_those_that_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 1 <= usable_processors() <= (os.cpu_count() or 1)
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert usable_processors() == (os.cpu_count() or 1)
