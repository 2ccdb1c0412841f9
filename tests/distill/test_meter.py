"""The meter tells the pace of the last seconds, waiting, and memory."""

import contextlib
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.distill.clock import Clock
from veca.distill import meter as module
from veca.distill.meter import Meter, current_memory, peak_memory
from veca.runtime.logging import PACE_SECONDS

CPU = torch.device("cpu")


def test_images_and_waiting_are_those_of_the_time_that_passed() -> None:
    clock = Clock()
    meter = Meter(clock)
    for _ in range(5):
        with meter.waiting():
            clock.now += 0.5
        clock.now += 1.5
        meter.count(64)
    assert meter.reading().images_per_second == pytest.approx(32)
    assert meter.reading().data_wait == pytest.approx(0.25)


def test_a_new_meter_shows_nothing_yet() -> None:
    assert Meter(Clock()).reading()[:2] == (0, 0)


def test_only_the_last_seconds_count() -> None:
    clock = Clock()
    meter = Meter(clock)
    for _ in range(100):
        clock.now += 1
        meter.count(100)
    for _ in range(int(PACE_SECONDS) + 1):
        with meter.waiting():
            clock.now += 1
        meter.count(1)
    assert meter.reading().images_per_second == pytest.approx(1)
    assert meter.reading().data_wait == pytest.approx(1)


def test_time_set_aside_slows_nothing() -> None:
    clock = Clock()
    meter = Meter(clock)
    clock.now += 2
    meter.count(20)
    with meter.aside():
        clock.now += 1000
    assert meter.reading().images_per_second == pytest.approx(10)


def test_waiting_that_ends_in_an_error_is_still_waiting() -> None:
    clock = Clock()
    meter = Meter(clock)
    with contextlib.suppress(OSError), meter.waiting():
        clock.now += 3
        raise OSError
    clock.now += 1
    assert meter.reading().data_wait == pytest.approx(0.75)


@given(
    st.lists(
        st.tuples(st.floats(0, 5), st.floats(0, 5), st.floats(0, 50), st.integers(0, 99)),
        max_size=40,
    )
)
def test_whatever_happens_the_share_is_a_share_and_marks_are_few(
    steps: list[tuple[float, float, float, int]],
) -> None:
    clock = Clock()
    meter = Meter(clock)
    for waiting, working, aside, images in steps:
        with meter.waiting():
            clock.now += waiting
        clock.now += working
        with meter.aside():
            clock.now += aside
        meter.count(images)
    reading = meter.reading()
    assert 0 <= reading.data_wait <= 1
    assert reading.images_per_second >= 0
    assert len(meter._marks) <= 10 * PACE_SECONDS + 2


def test_memory_that_was_used_stays_in_the_peak() -> None:
    before = current_memory(CPU)
    block = bytearray(b"x") * 100_000_000
    assert current_memory(CPU) >= before + 90_000_000
    del block
    assert peak_memory(CPU) >= before + 90_000_000
    assert Meter().reading().memory_mb == pytest.approx(peak_memory(CPU) / 1e6, rel=0.05)


@pytest.mark.parametrize("platform", ["darwin", "linux"])
def test_without_a_process_file_the_system_is_asked(
    platform: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "PROCESS_STATUS", tmp_path / "none")
    monkeypatch.setattr(sys, "platform", platform)
    assert peak_memory(CPU) > 10_000


def test_a_system_that_does_not_tell_gives_zero_and_training_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "PROCESS_STATUS", tmp_path / "none")
    monkeypatch.setattr(module, "resource", None)
    assert peak_memory(CPU) == 0


@pytest.mark.gpu
def test_on_a_gpu_memory_is_what_torch_allocates() -> None:
    device = torch.device("cuda")
    before = peak_memory(device)
    block = torch.zeros(before + 10_000_000, dtype=torch.uint8, device=device)
    assert peak_memory(device) >= current_memory(device) >= len(block)
