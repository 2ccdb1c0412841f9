"""One process or many behind one object.

The processes of one run: who this one is, and the few things they tell each other.

`torchrun --nproc-per-node K -m -- veca ...` starts K workers; without it there is one worker, which
talks to nobody and for which every method here does nothing. All workers must call the same methods
in the same order, else they wait for each other.

What the first process does for all: where it fails, it fails in all of them, in one sentence.
"""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from veca.runtime.device import pick_device
from veca.runtime.files import LockedError, lock_folder, make_folder, plain_json

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
"""What torchrun tells each process through its environment."""

TIMEOUT = timedelta(hours=1)
"""How long a worker waits for the others, such as for the first one to list millions of images. A
worker that dies is noticed at once; this only ends a run that hangs."""


FIRST_WORKS = 4
"""Of each kind, enough at once to keep all threads of a group busy."""


class RanksError(ValueError):
    """Ranks that cannot be started as asked, or have lost each other."""


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """This process among those of the run."""

    rank: int = 0
    """Its number, from 0."""
    world_size: int = 1
    device: torch.device
    """Where it computes, alone."""
    cpu_group: Any = None
    """The group in which tensors of the CPU travel; None where there is nobody to talk to."""

    @property
    def is_main(self) -> bool:
        """Whether this is the one that writes files and speaks to people."""
        return self.rank == 0

    def any(self, flag: bool) -> bool:
        """Whether at least one worker raises the flag."""
        if self.cpu_group is None:
            return flag
        raised = torch.tensor([flag], dtype=torch.int32)
        with _speaking():
            dist.all_reduce(raised, dist.ReduceOp.MAX, group=self.cpu_group)
        return bool(raised.item())

    def sum(self, values: Tensor) -> Tensor:
        """The sum over the workers, the same bits on each of them; `values` stays as it is."""
        if self.cpu_group is None:
            return values
        total = values.detach().clone(memory_format=torch.contiguous_format)
        with _speaking():
            dist.all_reduce(total, group=self._group(total))
        return total

    def mean(self, values: Tensor) -> Tensor:
        """The mean over the workers, the same bits on each of them; `values` stays as it is."""
        return values if self.cpu_group is None else self.sum(values) / self.world_size

    def broadcast(self, tensor: Tensor) -> Tensor:
        """Overwrite the tensor with the first worker's, of any type, and return it."""
        if self.cpu_group is not None:
            whole = tensor.detach().contiguous()
            with _speaking():
                # As bytes: not every backend knows every type.
                dist.broadcast(whole.reshape(-1).view(torch.uint8), 0, group=self._group(tensor))
            if whole.data_ptr() != tensor.data_ptr():
                with torch.no_grad():
                    tensor.copy_(whole)
        return tensor

    def share(self, value: Any) -> Any:  # noqa: ANN401 - whatever JSON can hold
        """The first worker's value on every worker; what the others give is not looked at."""
        if self.cpu_group is None:
            return value
        text = plain_json(value, "the shared value").encode() if self.is_main else b""
        size = int(self.broadcast(torch.tensor([len(text)])))
        content = bytearray(text) if self.is_main else bytearray(size)
        self.broadcast(torch.frombuffer(content, dtype=torch.uint8))
        return json.loads(content)

    def barrier(self) -> None:
        """Wait until every worker has come here."""
        if self.cpu_group is not None:
            with _speaking():
                dist.barrier(group=self.cpu_group)

    def split(self, count: int) -> slice:
        """The part of a batch of `count` that is this worker's."""
        if count % self.world_size:
            raise ValueError(
                f"a batch of {count} does not split evenly among {self.world_size} workers; use a "
                f"multiple of {self.world_size}, such as {-(-count // self.world_size) * self.world_size}."
            )
        size = count // self.world_size
        return slice(self.rank * size, (self.rank + 1) * size)

    def _group(self, tensor: Tensor) -> Any:  # noqa: ANN401 - torch names no type for both
        """The group that carries a tensor; None is the one of the graphics processors."""
        return self.cpu_group if tensor.device.type == "cpu" else None


def is_first_worker() -> bool:
    """Whether this process speaks for the run, asked before or after the workers are together."""
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def init_distributed(device: str = "auto") -> Iterator[Ranks]:
    """Join the workers that torchrun started, or be the only one; leave them at the end.

    Under torchrun on graphics processors each worker gets one of its own. Torchrun lets torch
    compute with one thread unless OMP_NUM_THREADS says otherwise, which is left as it is.
    """
    given = {name: os.environ[name] for name in VARIABLES if name in os.environ}
    if not given.keys() & {"RANK", "WORLD_SIZE", "LOCAL_RANK"}:
        yield Ranks(device=pick_device(device))
        return
    rank, count, local_rank = _numbers(given)
    chosen = _own_device(device, local_rank)
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    try:
        dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo", timeout=TIMEOUT)
    except RuntimeError as error:
        raise RanksError(
            f"the {count} workers could not meet at {given['MASTER_ADDR']}:{given['MASTER_PORT']} "
            f"({error}); check that this address is free and can be reached from every machine."
        ) from error
    try:
        cpu = chosen.type == "cpu"
        group = dist.group.WORLD if cpu else dist.new_group(timeout=TIMEOUT, backend="gloo")
        _warm_up(group)
        yield Ranks(rank=rank, world_size=count, device=chosen, cpu_group=group)
    finally:
        dist.destroy_process_group()


def _warm_up(group: Any) -> None:  # noqa: ANN401 - torch names no type for it
    """Let every thread of a group do its first work before this process is ever forked.

    At its first work a thread sets things up under locks of the C library. A process forked in
    that moment, such as one that decodes images, has the lock closed for ever, and hangs.
    """
    with _speaking():
        works = [
            speak(torch.zeros(1, dtype=dtype), group=group, async_op=True)
            for _ in range(FIRST_WORKS)
            for dtype in (torch.int32, torch.float32, torch.uint8)
            for speak in (dist.all_reduce, partial(dist.broadcast, src=0))
        ]
        for work in works:
            work.wait()


def _numbers(given: dict[str, str]) -> tuple[int, int, int]:
    """Rank, number of workers, and rank on this machine."""
    missing = [name for name in VARIABLES if name not in given]
    if missing:
        raise RanksError(
            f"of the environment variables that torchrun sets, {', '.join(given)} are there but "
            f"{', '.join(missing)} are not; start with torchrun, or unset them to use one process."
        )
    try:
        rank, count, local_rank = (int(given[name]) for name in VARIABLES[:3])
    except ValueError as error:
        raise RanksError(f"{error}: RANK, WORLD_SIZE and LOCAL_RANK are numbers.") from error
    if not (0 <= rank < count and 0 <= local_rank < count):
        raise RanksError(
            f"RANK={rank} and LOCAL_RANK={local_rank} are outside 0..{count - 1}, the ranks of "
            f"WORLD_SIZE={count}; start with torchrun, which sets them."
        )
    return rank, count, local_rank


def _own_device(name: str, local_rank: int) -> torch.device:
    """The device of one worker among those of a machine."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name not in {"cpu", "cuda"}:
        raise RanksError(
            f"device={name!r} cannot be given to several workers; use 'cpu', or 'cuda', which "
            "gives each worker a graphics processor of its own."
        )
    if name == "cuda" and local_rank >= torch.cuda.device_count():
        raise RanksError(
            f"worker {local_rank} of this machine has no graphics processor of its own, since "
            f"there are {torch.cuda.device_count()}; start at most as many with --nproc-per-node, "
            "or use the CPU."
        )
    return torch.device("cuda", local_rank) if name == "cuda" else torch.device("cpu")


@contextmanager
def _speaking() -> Iterator[None]:
    """Say what it means when the others do not answer."""
    try:
        yield
    except RuntimeError as error:
        raise RanksError(
            f"the other workers do not answer ({error}); one of them has ended or hangs, and its "
            "own last words say why: start the run again, and resume it."
        ) from error


@dataclass(frozen=True, kw_only=True)
class Company:
    """The processes of a run, which write into folders together."""

    workers: Ranks

    refusal: type[ValueError]
    """What is raised in every process; of this kind are also the mistakes that work may tell."""

    unwritable: Callable[[OSError], str]
    """The sentence for what cannot be written."""

    def first_does(self, work: Callable[[], None]) -> None:
        """Let the first process do something; if that fails, it fails in all of them."""
        reason = None
        if self.workers.is_main:
            try:
                work()
            except (self.refusal, LockedError) as error:
                reason = str(error)
            except OSError as error:
                reason = self.unwritable(error)
        reason = self.workers.share(reason)
        if reason is not None:
            raise self.refusal(reason)

    @contextmanager
    def alone_in(self, *folders: Path) -> Iterator[None]:
        """Make folders and keep other runs out of them, or be kept out by them."""
        with ExitStack() as stack:

            def enter() -> None:
                for folder in folders:
                    make_folder(folder)
                    stack.enter_context(lock_folder(folder))

            self.first_does(enter)
            yield
