"""Devices, precision, threads and seeds."""

import os
import warnings
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from veca.runtime import device as module
from veca.runtime.device import (
    Precision,
    autocast,
    cpu_threads,
    pick_device,
    resolve_precision,
    seed_for,
    usable_processors,
)

CPU, CUDA, MPS = (torch.device(name) for name in ("cpu", "cuda", "mps"))


def test_auto_takes_a_graphics_processor_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for cuda, mps, expected in ((True, True, "cuda"), (False, True, "mps"), (False, False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda value=cuda: value)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda value=mps: value)
        assert pick_device("auto").type == expected


@pytest.mark.parametrize("name", ["", "abacus", "cuda:99", "cpu:x", "meta"])
def test_a_device_that_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"the device '{name}' is not available; use 'auto'"):
        pick_device(name)


def product_type(precision: Precision, device: torch.device = CPU) -> torch.dtype:
    """The type of a matrix product."""
    with autocast(device, precision):
        rows = torch.ones(2, 2, device=device)
        return (rows @ rows).dtype


def pretend(monkeypatch: pytest.MonkeyPatch, avx512: bool = False, amx: bool = False) -> None:
    """Let this CPU have these instructions and no others."""
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)


@pytest.mark.parametrize(("avx512", "amx"), [(True, False), (False, True), (True, True)])
def test_auto_is_bf16_on_cpus_with_either_kind_of_instructions(
    monkeypatch: pytest.MonkeyPatch, avx512: bool, amx: bool
) -> None:
    pretend(monkeypatch, avx512, amx)
    assert resolve_precision("auto", CPU) == "bf16"
    assert resolve_precision("auto", "cpu") == "bf16"
    assert product_type("auto") == torch.bfloat16


def test_auto_is_fp32_on_cpus_that_emulate_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch)
    assert resolve_precision("auto", CPU) == "fp32"
    assert product_type("auto") == torch.float32


@pytest.mark.parametrize("native", [True, False])
def test_an_explicit_precision_is_used_on_every_device(
    monkeypatch: pytest.MonkeyPatch, native: bool
) -> None:
    pretend(monkeypatch, native, native)
    assert product_type("bf16") == torch.bfloat16
    assert product_type("fp32") == torch.float32
    for device in (CUDA, MPS):
        assert resolve_precision("bf16", device) == "bf16"
        assert resolve_precision("fp32", device) == "fp32"


@pytest.mark.parametrize("native", [True, False])
def test_auto_asks_a_gpu_whether_it_computes_bf16_natively(
    native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def supported(**options: Any) -> bool:
        """The GPU can emulate it in any case."""
        return native or options.get("including_emulation", True)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", supported)
    assert resolve_precision("auto", CUDA) == ("bf16" if native else "fp32")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch misses the GPU
        assert isinstance(autocast(CUDA, "auto"), torch.autocast) == native


def test_auto_is_fp32_on_other_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, avx512=True)
    assert resolve_precision("auto", MPS) == "fp32"


@pytest.mark.compiled  # without the shape hook, which would refuse it first
def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(ValueError, match=r"precision='fp16' is unknown; use fp32, bf16, auto\."):
        resolve_precision("fp16", CPU)


def test_fp32_leaves_an_outer_autocast_alone() -> None:
    with autocast(CPU, "bf16"):
        assert product_type("fp32") == torch.bfloat16


@pytest.mark.parametrize(("beside", "expected"), [(0, 4), (1, 4), (3, 3), (5, 1), (9, 1)])
def test_threads_are_what_the_processes_leave(
    beside: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = torch.get_num_threads()
    monkeypatch.setattr(module, "usable_processors", lambda: 6)
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


@given(
    st.tuples(st.integers(0, 99), st.integers(0, 99), st.sampled_from(["mask", "drop"])),
    st.tuples(st.integers(0, 99), st.integers(0, 99), st.sampled_from(["mask", "drop"])),
)
def test_seeds_are_equal_only_where_seed_step_and_purpose_are(
    one: tuple[int, int, str], other: tuple[int, int, str]
) -> None:
    assert (seed_for(*one) == seed_for(*other)) == (one == other)
    assert 0 <= seed_for(*one) < 2**63


def test_the_seed_of_a_step_never_changes() -> None:
    assert seed_for(0, 0, "budget") == 3125091903214673623
    torch.manual_seed(seed_for(1, 2, "any"))  # in range for torch
