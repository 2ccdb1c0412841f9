"""Device, precision, threads and seeds.

Where to compute, by name.

Which numbers a network computes with.

bf16 is autocast: weights, the residual stream and everything that adds up stay fp32, matrix
products take and give bfloat16. It has the range of fp32, so no loss needs scaling.

How many threads torch computes with, where other processes need processors too.

Threads that work on one product wait for the slowest of them at every step. If a decoding process
holds one of their processors, all of them wait for its time slice to end: on two busy cores, two
threads were measured to be six to ten times slower than one.

Seeds of one purpose at one step, unrelated to all others.
"""

import hashlib
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Literal, get_args

import torch


def pick_device(name: str) -> torch.device:
    """The device of this name; 'auto' is the first graphics processor, or else the CPU."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (
        RuntimeError,
        AssertionError,
        NotImplementedError,
    ) as error:  # as builds of torch differ
        raise ValueError(
            f"the device {name!r} cannot be used here; use 'auto', 'cpu', or 'cuda' where there is "
            "a graphics processor."
        ) from error
    if device.type == "meta":
        raise ValueError("the device 'meta' holds no numbers; use 'auto' or 'cpu'.")
    return device


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


def usable_processors() -> int:
    """Processors that this process may run on, which containers and schedulers can restrict."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def cpu_threads(num_processes: int) -> Iterator[None]:
    """Compute with the threads that so many busy processes leave room for, at least one."""
    before = torch.get_num_threads()
    torch.set_num_threads(max(1, min(before, usable_processors() - num_processes)))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def seed_for(seed: int, step: int, purpose: str) -> int:
    """A seed for one purpose at one step, from 0 to 2**63 - 1, unrelated to all others."""
    digest = hashlib.sha256(f"{purpose}/{seed}/{step}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
