"""Random states that are saved and restored, and seeds that need neither."""

import hashlib
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

PREFIX = "random/"
"""Begins the names of the tensors, so that they can lie among others."""


def step_seed(seed: int, step: int, purpose: str) -> int:
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
