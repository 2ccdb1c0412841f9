"""Devices, precision, memory, threads and seeds."""

import hashlib
import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Literal, get_args

import torch

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

PROCESS_STATUS = Path("/proc/self/status")
"""Linux reports the memory of this process here; `ru_maxrss` may be that of its parent."""


def pick_device(name: str) -> torch.device:
    """The device of this name; 'auto' is the first GPU, or else the CPU."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device).cpu()  # the device "meta" has no memory
    except (RuntimeError, AssertionError) as error:  # as builds of torch differ
        raise ValueError(
            f"the device {name!r} is not available; use 'auto', 'cpu', or 'cuda' on a GPU."
        ) from error
    return device


Precision = Literal["fp32", "bf16", "auto"]
"""A requested precision; 'auto' is bf16 where the hardware supports it natively, else fp32."""

ResolvedPrecision = Literal["fp32", "bf16"]
"""The precision of a computation, as recorded with its results."""


def resolve_precision(precision: str, device: torch.device | str) -> ResolvedPrecision:
    """The precision on a device; one requested by name is always used."""
    if precision not in get_args(Precision):
        raise ValueError(
            f"precision={precision!r} is unknown; use {', '.join(get_args(Precision))}."
        )
    if precision == "auto":
        precision = "bf16" if computes_bf16(torch.device(device)) else "fp32"
    return "bf16" if precision == "bf16" else "fp32"


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
    """Matrix products in this precision; fp32 leaves an outer autocast alone.

    Weights, the residual stream and accumulations stay fp32. bfloat16 has the range of fp32, so
    losses need no scaling.
    """
    half = resolve_precision(precision, device) == "bf16"
    return torch.autocast(device.type, torch.bfloat16) if half else nullcontext()


def peak_memory(device: torch.device) -> int:
    """Peak memory in bytes: what torch allocated on a GPU, or resident memory of this process.

    0 where the system does not report it.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    with suppress(OSError):
        for line in PROCESS_STATUS.read_text("utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss if resource else 0


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that there was not enough memory."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def usable_processors() -> int:
    """Processors that this process may use, which containers and schedulers can restrict."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def cpu_threads(num_processes: int) -> Iterator[None]:
    """Leave processors to other busy processes; torch keeps at least one thread.

    Threads of one product wait for the slowest of them. If a decoding process takes one of their
    processors, all wait for its time slice: on two busy cores, two threads were measured to be six
    to ten times slower than one.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(max(1, min(before, usable_processors() - num_processes)))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def seed_for(seed: int, step: int, purpose: str) -> int:
    """A seed for one purpose at one step, from 0 to 2**63 - 1, independent of all others."""
    digest = hashlib.sha256(f"{purpose}/{seed}/{step}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
