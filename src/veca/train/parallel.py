"""Sharded parameters."""

from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor; a collective if it is sharded, so every process must ask."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def local(tensor: Tensor) -> Tensor:
    """This process's part of a tensor; it shares the tensor's memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def sharded_like(tensor: Tensor, pattern: Tensor) -> Tensor:
    """Spread a tensor that every process holds as `pattern` is spread; nothing is sent."""
    if not isinstance(pattern, DTensor):
        return tensor
    return distribute_tensor(tensor, pattern.device_mesh, pattern.placements, src_data_rank=None)
