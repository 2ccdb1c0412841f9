"""bf16 where it is asked for or native, fp32 elsewhere."""

import warnings
from typing import Any

import pytest
import torch

from veca.runtime.device import Precision, autocast, resolve_precision

CPU, CUDA, MPS = (torch.device(name) for name in ("cpu", "cuda", "mps"))


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
def test_what_is_asked_for_by_name_is_honored_everywhere(
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
    with pytest.raises(ValueError, match=r"precision='fp16' is not known; use fp32, bf16, auto\."):
        resolve_precision("fp16", CPU)  # type: ignore[arg-type]


def test_fp32_leaves_an_outer_autocast_alone() -> None:
    with autocast(CPU, "bf16"):
        assert product_type("fp32") == torch.bfloat16


@pytest.mark.gpu
def test_a_real_gpu_computes_in_fp32_if_asked() -> None:
    assert product_type("fp32", CUDA) == torch.float32
