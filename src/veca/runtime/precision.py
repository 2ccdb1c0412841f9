"""Which numbers a network computes with.

bf16 is autocast: weights, the residual stream and everything that adds up stay fp32, matrix
products take and give bfloat16. It has the range of fp32, so no loss needs scaling.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Literal, get_args

import torch

Precision = Literal["fp32", "bf16", "auto"]
"""What can be asked for; 'auto' is bf16 where the hardware computes it natively, else fp32."""

ResolvedPrecision = Literal["fp32", "bf16"]
"""What is computed with, and written down beside results."""


def resolve_precision(precision: Precision, device: torch.device | str) -> ResolvedPrecision:
    """The precision that is meant on a device; what is asked for by name is always honored."""
    if precision not in get_args(Precision):
        raise ValueError(
            f"precision={precision!r} is not known; use {', '.join(get_args(Precision))}."
        )
    if precision != "auto":
        return precision
    return "bf16" if computes_bf16(torch.device(device)) else "fp32"


def computes_bf16(device: torch.device) -> bool:
    """Whether a device multiplies bfloat16 natively; emulated, it is slower than fp32."""
    if device.type == "cpu":
        return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    if device.type == "cuda":
        return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    return False


def autocast(
    device: torch.device, precision: Precision
) -> AbstractContextManager[object, bool | None]:
    """Matrix products in this precision; fp32 leaves things as they are."""
    half = resolve_precision(precision, device) == "bf16"
    return torch.autocast(device.type, torch.bfloat16) if half else nullcontext()
