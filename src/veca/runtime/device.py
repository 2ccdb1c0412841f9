"""Device, precision, threads and seeds.

Where to compute, by name.

Which numbers a network computes with.

bf16 is autocast: weights, the residual stream and everything that adds up stay fp32, matrix
products take and give bfloat16. It has the range of fp32, so no loss needs scaling.

How many threads torch computes with, where other processes need processors too.

Threads that work on one product wait for the slowest of them at every step. If a decoding process
holds one of their processors, all of them wait for its time slice to end: on two busy cores, two
threads were measured to be six to ten times slower than one.

Random states that are saved and restored, and seeds that need neither.
"""

import hashlib
import os
import random
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor


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


PREFIX = "random/"
"""Begins the names of the tensors, so that they can lie among others."""


def seed_for(seed: int, step: int, purpose: str) -> int:
    """A seed for one purpose at one step, from 0 to 2**63 - 1, unrelated to all others."""
    digest = hashlib.sha256(f"{purpose}/{seed}/{step}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def random_states() -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The states of the generators of torch, CUDA, numpy and Python, as tensors and JSON facts."""
    version, keys, python_normal = random.getstate()
    # The state of numpy's global generator, which libraries still draw from.
    numpy_state: dict[str, Any] = np.random.get_state(legacy=False)  # noqa: NPY002
    tensors = {
        f"{PREFIX}torch": torch.get_rng_state(),
        f"{PREFIX}numpy": torch.from_numpy(numpy_state["state"]["key"].astype(np.int64)),
        f"{PREFIX}python": torch.tensor(keys),
    }
    if torch.cuda.is_initialized():  # else nothing was drawn there
        for index, state in enumerate(torch.cuda.get_rng_state_all()):
            tensors[f"{PREFIX}cuda/{index}"] = state
    numpy_facts = {
        "generator": numpy_state["bit_generator"],
        "position": int(numpy_state["state"]["pos"]),
        "has_normal": int(numpy_state["has_gauss"]),
        "normal": float(numpy_state["gauss"]),
    }
    return tensors, {
        "numpy": numpy_facts,
        "python": {"version": version, "normal": python_normal},
    }


def restore_random_states(tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Let every generator go on as it would have; tensors of other names may be among them.

    The state of a graphics processor that is not there any more is left out.
    """
    torch.set_rng_state(tensors[f"{PREFIX}torch"].cpu())
    about = facts["numpy"]
    key = tensors[f"{PREFIX}numpy"].cpu().numpy().astype(np.uint32)
    state = {
        "bit_generator": about["generator"],
        "state": {"key": key, "pos": about["position"]},
        "has_gauss": about["has_normal"],
        "gauss": about["normal"],
    }
    np.random.set_state(state)  # noqa: NPY002 - as above
    keys = tuple(tensors[f"{PREFIX}python"].tolist())
    random.setstate((facts["python"]["version"], keys, facts["python"]["normal"]))
    for index in range(torch.cuda.device_count()):
        if (name := f"{PREFIX}cuda/{index}") in tensors:
            torch.cuda.set_rng_state(tensors[name].cpu(), index)
