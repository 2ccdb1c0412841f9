"""The ranks of a run: one process, or those that torchrun started, behind one object.

`torchrun --nproc-per-node K -m -- veca ...` starts K ranks. Without torchrun there is one rank, and
every collective is a no-op. All ranks must call the same collectives in the same order.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from veca.runtime import VecaError
from veca.runtime.device import pick_device
from veca.runtime.files import lock_folder, make_folder

Result = TypeVar("Result")

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
"""Environment variables that torchrun sets."""

TIMEOUT = timedelta(hours=1)
"""How long a rank waits for the others, such as for rank 0 to list millions of images; a rank that
dies is noticed at once."""

WARM_UP_CALLS = 4
"""Concurrent calls of each kind, enough to reach all threads of a process group."""


class RanksError(VecaError, ValueError):
    """Ranks that cannot be started as requested, or that lost contact with each other."""


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """This process among the processes of the run."""

    rank: int = 0
    world_size: int = 1
    device: torch.device
    """The device of this rank alone."""
    cpu_group: Any = None
    """Process group for CPU tensors and objects; None for a single process."""

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which writes and logs."""
        return self.rank == 0

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on at least one rank."""
        return bool(self.all_reduce(torch.tensor(int(flag), dtype=torch.int32)) > 0)

    def all_reduce(self, values: Tensor) -> Tensor:
        """The sum over ranks, the same bits on each of them; `values` is not modified."""
        if self.cpu_group is None:
            return values
        total = values.detach().clone(memory_format=torch.contiguous_format)
        with _lost_contact():
            dist.all_reduce(total, group=self._group(total))
        return total

    def broadcast(self, tensor: Tensor) -> Tensor:
        """Overwrite a tensor of any type with that of rank 0, and return it."""
        if self.cpu_group is not None:
            whole = tensor.detach().contiguous()
            with _lost_contact():
                # As bytes: not every backend knows every type.
                dist.broadcast(whole.reshape(-1).view(torch.uint8), 0, group=self._group(tensor))
            if whole.data_ptr() != tensor.data_ptr():
                with torch.no_grad():
                    tensor.copy_(whole)
        return tensor

    def broadcast_object(self, value: Any) -> Any:  # noqa: ANN401 - any picklable object
        """The value of rank 0 on every rank; the argument of the others is ignored."""
        if self.cpu_group is None:
            return value
        objects = [value]
        with _lost_contact():
            dist.broadcast_object_list(objects, 0, group=self.cpu_group)
        return objects[0]

    def on_main(self, work: Callable[[], Result]) -> Result:
        """Run a function on rank 0; every rank returns its result or raises its error."""
        result: Any = None
        error: Exception | None = None
        if self.is_main:
            try:
                result = work()
            except Exception as caught:  # every rank raises it below
                error = caught
        result, error = self.broadcast_object((result, error))
        if error is not None:
            raise error
        return result

    @contextmanager
    def locked(self, folder: Path) -> Iterator[None]:
        """Create a folder and lock it for this run; rank 0 holds the lock."""
        with ExitStack() as stack:

            def enter() -> None:
                make_folder(folder)
                stack.enter_context(lock_folder(folder))

            self.on_main(enter)
            yield

    def barrier(self) -> None:
        """Wait until every rank is here."""
        if self.cpu_group is not None:
            with _lost_contact():
                dist.barrier(group=self.cpu_group)

    def split(self, count: int) -> slice:
        """The part of a batch of `count` that belongs to this rank."""
        if count % self.world_size:
            raise ValueError(
                f"a batch of {count} does not split evenly over {self.world_size} ranks; use a "
                f"multiple of {self.world_size}, such as "
                f"{-(-count // self.world_size) * self.world_size}."
            )
        size = count // self.world_size
        return slice(self.rank * size, (self.rank + 1) * size)

    def _group(self, tensor: Tensor) -> Any:  # noqa: ANN401 - torch has no type for both
        """The group that carries a tensor; None is the default group (NCCL on GPUs)."""
        return self.cpu_group if tensor.device.type == "cpu" else None


def is_main_process() -> bool:
    """Whether this is rank 0, also before `init_distributed` and after it."""
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def init_distributed(device: str = "auto") -> Iterator[Ranks]:
    """Join the ranks that torchrun started, or be the only one; leave them at the end.

    Under torchrun on GPUs each rank gets its own. Torchrun sets OMP_NUM_THREADS=1 unless it is
    set already, which is respected.
    """
    if not any(name in os.environ for name in VARIABLES[:3]):
        yield Ranks(device=pick_device(device))
        return
    try:
        rank, world_size, local_rank = (int(os.environ[name]) for name in VARIABLES[:3])
        address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        if not (0 <= rank < world_size and 0 <= local_rank < world_size):
            raise ValueError(f"{rank=}, {local_rank=}, {world_size=}")
    except (KeyError, ValueError) as error:
        raise RanksError(
            f"the environment variables {', '.join(VARIABLES)} are incomplete or invalid "
            f"({error}); start with torchrun, which sets them, or unset them to use one process."
        ) from error
    chosen = _rank_device(device, local_rank)
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    try:
        dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo", timeout=TIMEOUT)
    except RuntimeError as error:
        raise RanksError(
            f"the {world_size} ranks could not connect at {address} ({error}); check that the "
            "address is free and reachable from every machine."
        ) from error
    try:
        cpu = chosen.type == "cpu"
        group = dist.group.WORLD if cpu else dist.new_group(timeout=TIMEOUT, backend="gloo")
        _warm_up(group)
        yield Ranks(rank=rank, world_size=world_size, device=chosen, cpu_group=group)
    finally:
        dist.destroy_process_group()


def _warm_up(group: Any) -> None:  # noqa: ANN401 - torch has no type for it
    """Let every thread of a group work once before this process is ever forked.

    On first use a thread initializes under locks of the C library. A process forked at that
    moment, such as a data-loading worker, inherits a lock that never opens, and hangs.
    """
    with _lost_contact():
        calls = [
            call(torch.zeros(1, dtype=dtype), group=group, async_op=True)
            for _ in range(WARM_UP_CALLS)
            for dtype in (torch.int32, torch.float32, torch.uint8)
            for call in (dist.all_reduce, partial(dist.broadcast, src=0))
        ]
        for call in calls:
            call.wait()


def _rank_device(name: str, local_rank: int) -> torch.device:
    """The device of one rank among those of a machine."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name not in {"cpu", "cuda"}:
        raise RanksError(
            f"device={name!r} cannot be used with torchrun; use 'cpu', or 'cuda', which gives each "
            "rank its own GPU."
        )
    if name == "cuda" and local_rank >= torch.cuda.device_count():
        raise RanksError(
            f"local rank {local_rank} has no GPU: this machine has {torch.cuda.device_count()}; "
            "lower --nproc-per-node, or use the CPU."
        )
    return torch.device("cuda", local_rank) if name == "cuda" else torch.device("cpu")


@contextmanager
def _lost_contact() -> Iterator[None]:
    """Turn a failed collective into one sentence."""
    try:
        yield
    except RuntimeError as error:
        raise RanksError(
            f"lost contact with another rank ({error}); check its log, then restart with --resume."
        ) from error
