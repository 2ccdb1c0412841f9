"""Which numbers a network computes with."""

from contextlib import AbstractContextManager, nullcontext

import torch


def autocast(
    device: torch.device, enabled: bool | None = None
) -> AbstractContextManager[object, bool | None]:
    """Matrix products in bfloat16; None: where that is fast, on graphics processors that have it.

    bfloat16 has the range of float32, so no loss needs scaling. A CPU computes with it more slowly
    than with float32 unless it has instructions for it, so there it must be asked for.
    """
    if enabled is None:
        enabled = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.autocast(device.type, torch.bfloat16) if enabled else nullcontext()
