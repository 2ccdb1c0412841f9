"""One student over many processes: torch's DDP, or `fully_shard` where it outgrows a device.

Either way gradients are means over the processes, so equal parts of one global batch teach what the
whole batch would in one process.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

from veca.distill.config import Efficiency
from veca.distill.sharding import sharded_like
from veca.distill.student import Student
from veca.runtime.workers import Workers


def spread(student: Student, workers: Workers, shard: bool) -> nn.Module:
    """What is called in training instead of the student itself."""
    if shard:
        _shard(student, workers)
        return student
    if workers.count == 1:
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
def gradients_synchronised(model: nn.Module, now: bool) -> Iterator[None]:
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


def _shard(student: Student, workers: Workers) -> None:
    """Split each block, and the rest, over the processes."""
    if workers.count == 1:
        raise ValueError(
            "shard=True splits the student over several processes, but there is one; start with "
            "torchrun --nproc-per-node K -m -- veca distill ..., or leave it out."
        )
    mesh = init_device_mesh(workers.device.type, (workers.count,))
    for block in student.backbone.blocks:
        fully_shard(block, mesh=mesh)
    # Torch would keep the outermost part whole after a forward pass, as in validation.
    fully_shard(student, mesh=mesh, reshard_after_forward=True)
