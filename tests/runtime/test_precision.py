"""bfloat16 where it is fast or asked for, float32 elsewhere."""

import warnings

import pytest
import torch

from veca.runtime.precision import autocast

CPU = torch.device("cpu")


def product_type(enabled: bool | None, device: torch.device = CPU) -> torch.dtype:
    """The type of a matrix product."""
    with autocast(device, enabled):
        rows = torch.ones(2, 2, device=device)
        return (rows @ rows).dtype


@pytest.mark.parametrize("enabled", [None, False])
def test_a_cpu_computes_in_float32(enabled: bool | None) -> None:
    assert product_type(enabled) == torch.float32


def test_a_cpu_computes_in_bfloat16_if_asked() -> None:
    assert product_type(enabled=True) == torch.bfloat16
    assert product_type(enabled=None) == torch.float32  # and only then


@pytest.mark.parametrize("supported", [True, False])
def test_a_graphics_processor_computes_in_bfloat16_if_it_can(
    supported: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: supported)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch misses the graphics processor
        assert isinstance(autocast(torch.device("cuda")), torch.autocast) == supported


@pytest.mark.gpu
def test_a_real_graphics_processor_computes_in_float32_if_asked() -> None:
    assert product_type(enabled=False, device=torch.device("cuda")) == torch.float32
