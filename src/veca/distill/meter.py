"""How fast training goes, lately: images, waiting for data, memory.

The meter looks at the last seconds, so that a run that becomes slower shows it. Time that is set
aside (validation, saving) does not count: the numbers are those of training alone.
"""

import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

from veca.runtime.logging import BAR_SECONDS, PACE_SECONDS, Clock

PROCESS_STATUS = Path("/proc/self/status")
"""Where Linux tells the memory of this process alone; `ru_maxrss` may be that of its parent."""

MEGABYTE = 1_000_000


class Reading(NamedTuple):
    """What the meter shows."""

    images_per_second: float
    data_wait: float
    """Share of the time in which training waited for images, 0 to 1."""
    memory_mb: float
    """Megabytes at the peak: of the GPU, or of this process."""


class _Mark(NamedTuple):
    """How much was done up to a moment."""

    moment: float
    images: int
    waited: float


class Meter:
    """Measures the pace of one process."""

    def __init__(self, clock: Clock = time.monotonic, device: torch.device | None = None) -> None:
        self._clock = clock
        self._device = device or torch.device("cpu")
        self._images = 0
        self._waited = 0.0
        self._aside = 0.0
        self._marks = deque([_Mark(self._now(), 0, 0.0)])

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """The time within counts as waiting for data."""
        began = self._now()
        try:
            yield
        finally:
            self._waited += self._now() - began

    @contextmanager
    def aside(self) -> Iterator[None]:
        """The time within does not count at all."""
        began = self._now()
        try:
            yield
        finally:
            self._aside += self._now() - began

    def count(self, images: int) -> None:
        """Note that a step took so many images."""
        self._images += images
        now = self._now()
        if now - self._marks[-1].moment >= BAR_SECONDS:  # so that their number is bounded
            self._marks.append(_Mark(now, self._images, self._waited))
        while len(self._marks) > 2 and now - self._marks[1].moment >= PACE_SECONDS:
            self._marks.popleft()

    def reading(self) -> Reading:
        """The numbers of now."""
        first = self._marks[0]
        elapsed = self._now() - first.moment
        memory = peak_memory(self._device) / MEGABYTE
        if elapsed <= 0:
            return Reading(0.0, 0.0, memory)
        waited = min((self._waited - first.waited) / elapsed, 1.0)
        return Reading((self._images - first.images) / elapsed, waited, memory)

    def _now(self) -> float:
        """Seconds of training."""
        return self._clock() - self._aside


def peak_memory(device: torch.device) -> int:
    """The most bytes so far: what torch allocated on a GPU, or what this process had in all."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else _resident("VmHWM")


def current_memory(device: torch.device) -> int:
    """The bytes of now, where the system tells them; else the most so far."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else _resident("VmRSS")


def _resident(field: str) -> int:
    """Bytes of this process; 0 where the system does not tell."""
    if PROCESS_STATUS.exists():
        for line in PROCESS_STATUS.read_text("utf-8").splitlines():
            if line.startswith(f"{field}:"):
                return 1024 * int(line.split()[1])
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss if resource else 0
