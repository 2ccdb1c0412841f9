"""How many threads torch computes with, where other processes need processors too.

Threads that work on one product wait for the slowest of them at every step. If a decoding process
holds one of their processors, all of them wait for its time slice to end: on two busy cores, two
threads were measured to be six to ten times slower than one.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def usable_processors() -> int:
    """Processors that this process may run on, which containers and schedulers can restrict."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def threads_beside(num_processes: int) -> Iterator[None]:
    """Compute with the threads that so many busy processes leave room for, at least one."""
    before = torch.get_num_threads()
    torch.set_num_threads(max(1, min(before, usable_processors() - num_processes)))
    try:
        yield
    finally:
        torch.set_num_threads(before)
