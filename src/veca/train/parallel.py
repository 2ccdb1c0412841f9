"""A model on several processes (DDP or fully_shard), its weight average, and torch.compile.

Gradients are means over the ranks, so equal parts of one global batch give the gradient of the
whole batch.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from veca.runtime.distributed import Ranks


def full_tensor(tensor: Tensor) -> Tensor:
    """The whole tensor; a collective if it is sharded, so every rank must call this."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def local_tensor(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor; it shares the tensor's memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def shard_like(tensor: Tensor, like: Tensor) -> Tensor:
    """Shard a tensor that every rank holds in the way `like` is sharded; nothing is sent."""
    if not isinstance(like, DTensor):
        return tensor
    return distribute_tensor(tensor, like.device_mesh, like.placements, src_data_rank=None)


@torch.no_grad()
def load_full(target: Tensor, source: Tensor) -> None:
    """Fill a tensor, or this rank's part of it, from a whole one."""
    target.copy_(shard_like(source.to(target.device, target.dtype), target))


def full_parameters(model: nn.Module) -> dict[str, Tensor]:
    """All parameters, whole and on the CPU; every rank must call this."""
    return {
        name: full_tensor(parameter.detach()).cpu() for name, parameter in model.named_parameters()
    }


def wrap_student(
    student: nn.Module, blocks: Sequence[nn.Module], ranks: Ranks, shard: bool
) -> nn.Module:
    """The module to call in training: the student itself, or its DDP wrapper."""
    if shard and ranks.world_size == 1:
        raise ValueError(
            "shard=True needs several processes, got one; start with "
            "torchrun --nproc-per-node K -m -- veca distill ..., or leave it out."
        )
    if shard:
        mesh = init_device_mesh(ranks.device.type, (ranks.world_size,))
        for block in blocks:
            fully_shard(block, mesh=mesh)
        # By default torch keeps the root module whole after a forward pass, as in validation.
        fully_shard(student, mesh=mesh, reshard_after_forward=True)
    if shard or ranks.world_size == 1:
        return student
    # Cores beyond the budget get no gradient, on all ranks alike.
    devices = [ranks.device] if ranks.device.type == "cuda" else None
    return DistributedDataParallel(student, device_ids=devices, find_unused_parameters=True)


@contextmanager
def gradients_synchronized(model: nn.Module, now: bool) -> Iterator[None]:
    """Reduce gradients in this backward pass, or (`now` is False) only accumulate them."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(now)
        yield
    elif isinstance(model, DistributedDataParallel) and not now:
        with model.no_sync():
            yield
    else:
        yield


def compile_blocks(blocks: Sequence[nn.Module], backend: str, graphs: int) -> None:
    """Compile each block; `graphs` is the number of combinations of budget, share and size."""
    limits = torch._dynamo.config
    limits.recompile_limit = max(limits.recompile_limit, graphs)
    total = graphs * len(blocks)
    limits.accumulated_recompile_limit = max(limits.accumulated_recompile_limit, total)
    for block in blocks:
        block.compile(backend=backend)


class EMA:
    """Exponential moving average of a model's weights, with a faster decay in the first steps."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.updates = 0
        self._model = model
        self._values = {
            name: parameter.detach().clone() for name, parameter in model.named_parameters()
        }

    @torch.no_grad()
    def update(self) -> None:
        """Add the weights after a step."""
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        for name, parameter in self._model.named_parameters():
            self._values[name].lerp_(parameter, 1 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Give the model the averaged weights within the block."""
        own = {name: value.detach().clone() for name, value in self._model.named_parameters()}
        try:
            self._set(self._values)
            yield
        finally:
            self._set(own)

    def state_dict(self) -> dict[str, Tensor]:
        """The averaged weights, whole and on the CPU; every rank must call this."""
        return {name: full_tensor(value).cpu() for name, value in self._values.items()}

    def load_state_dict(self, state: Mapping[str, Tensor], updates: int) -> None:
        """Continue a stored average."""
        self.updates = updates
        for name, value in self._values.items():
            load_full(value, state[name])

    @torch.no_grad()
    def _set(self, values: Mapping[str, Tensor]) -> None:
        for name, parameter in self._model.named_parameters():
            parameter.copy_(values[name])
