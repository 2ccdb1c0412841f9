"""Small states of made-up runs."""

import pytest
import torch
from torch import Tensor

from veca.runtime.snapshots import Snapshot


def state(step: int) -> dict[str, Tensor]:
    """Some tensors of which every step has its own."""
    return {"weight": torch.full((50, 40), float(step)), "count": torch.tensor(step)}


def is_state(found: Snapshot | None, step: int, facts: dict[str, int]) -> bool:
    """Whether a checkpoint holds the state of this step."""
    if found is None or found.step != step or found.facts != facts:
        return False
    tensors = found.tensors()
    return all(torch.equal(tensors[name], tensor) for name, tensor in state(step).items())


def never(sentence: str) -> None:
    """For `tell` where nothing may be passed over."""
    pytest.fail(sentence)
