"""DDP, fully_shard and the moving average.

One student over many processes: torch's DDP, or `fully_shard` where it outgrows a device.

Either way gradients are means over the processes, so equal parts of one global batch teach what the
whole batch would in one process.

A moving average of the student's weights: smoother than the weights, and what is published.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

from veca.distill.config import Efficiency
from veca.distill.student import Student
from veca.runtime.distributed import Ranks
from veca.train.parallel import sharded_like, whole


def spread(student: Student, workers: Ranks, shard: bool) -> nn.Module:
    """What is called in training instead of the student itself."""
    if shard:
        _shard(student, workers)
        return student
    if workers.world_size == 1:
        return student
    # Cores beyond the budget get no gradient, on all processes alike.
    devices = [workers.device] if workers.device.type == "cuda" else None
    return DistributedDataParallel(student, device_ids=devices, find_unused_parameters=True)


def compile_blocks(student: Student, efficiency: Efficiency, graphs: int) -> None:
    """Let torch compile each block; `graphs` is how many budgets, shares and sizes there are."""
    if not efficiency.compile:
        return
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, graphs)
    torch._dynamo.config.accumulated_recompile_limit = max(
        torch._dynamo.config.accumulated_recompile_limit,
        graphs * student.backbone.config.layers,
    )
    for block in student.backbone.blocks:
        block.compile(backend=efficiency.compile_backend)


@contextmanager
def gradients_synchronized(model: nn.Module, now: bool) -> Iterator[None]:
    """Exchange gradients in this backward pass, or (`now` is False) only add them up here."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(now)
        yield
    elif isinstance(model, DistributedDataParallel) and not now:
        with model.no_sync():
            yield
    else:
        yield


def copy_whole(target: Tensor, source: Tensor) -> None:
    """Fill a tensor, or the part of it that this process holds, from a whole one."""
    source = source.to(target.device, target.dtype)
    with torch.no_grad():
        target.copy_(sharded_like(source, target))


def _shard(student: Student, workers: Ranks) -> None:
    """Split each block, and the rest, over the processes."""
    if workers.world_size == 1:
        raise ValueError(
            "shard=True splits the student over several processes, but there is one; start with "
            "torchrun --nproc-per-node K -m -- veca distill ..., or leave it out."
        )
    mesh = init_device_mesh(workers.device.type, (workers.world_size,))
    for block in student.backbone.blocks:
        fully_shard(block, mesh=mesh)
    # Torch would keep the outermost part whole after a forward pass, as in validation.
    fully_shard(student, mesh=mesh, reshard_after_forward=True)


class EMA:
    """Exponential average over steps; a young one forgets faster, so the start does not linger."""

    def __init__(self, student: Student, decay: float) -> None:
        self.decay = decay
        self.updates = 0
        self._student = student
        self._values = {
            name: parameter.detach().clone() for name, parameter in student.named_parameters()
        }

    @torch.no_grad()
    def update(self) -> None:
        """Take in the weights after a step."""
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        for name, parameter in self._student.named_parameters():
            self._values[name].lerp_(parameter, 1 - decay)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The student with the averaged weights; its own come back."""
        kept = {name: value.detach().clone() for name, value in self._student.named_parameters()}
        try:
            self._put(self._values)
            yield
        finally:
            self._put(kept)

    def tensors(self) -> dict[str, Tensor]:
        """The average, whole; every process must ask."""
        return {name: whole(value).cpu() for name, value in self._values.items()}

    def load(self, tensors: Mapping[str, Tensor], updates: int) -> None:
        """Continue a stored average."""
        self.updates = updates
        for name, value in self._values.items():
            copy_whole(value, tensors[name])

    @torch.no_grad()
    def _put(self, values: Mapping[str, Tensor]) -> None:
        """Give the student these weights."""
        for name, parameter in self._student.named_parameters():
            parameter.copy_(values[name])
