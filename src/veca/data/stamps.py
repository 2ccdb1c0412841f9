"""Whether what was read from a disk is still the same, told without reading it again.

A folder's time changes when an entry comes, goes or is renamed, a file's when it is written. Clocks
of disks are coarse, so what changed just before it was read could change once more within the same
tick: such a time is not trusted.
"""

import glob
import hashlib
import os
import time
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

COARSEST_CLOCK = 2_000_000_000
"""Nanoseconds between two ticks of the coarsest clock that disks have, that of FAT."""


class Stamp(NamedTuple):
    """When something changed last, and how large it is."""

    time: int
    """In nanoseconds."""

    num_bytes: int


MISSING = Stamp(-1, -1)
UNSETTLED = Stamp(-2, -2)
"""Of what may change, or be repaired, without a trace; it equals no stamp that is taken later."""


def stamp_of(path: str) -> Stamp:
    """The stamp of a file or folder."""
    try:
        status = os.stat(path)  # noqa: PTH116 - names need not be text
    except (OSError, ValueError):
        return MISSING
    return Stamp(status.st_mtime_ns, status.st_size)


def whole_pattern(pattern: str) -> str:
    """A pattern that means the same in any current folder."""
    here = glob.escape(os.getcwd())  # noqa: PTH109
    return os.path.join(here, os.path.expanduser(pattern))  # noqa: PTH111, PTH118


def matches(pattern: str) -> list[str]:
    """What a whole pattern matches now, by name."""
    return sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207


@dataclass(frozen=True)
class Stamps:
    """N paths that were read, with their stamps, and the patterns that were tried."""

    names: NDArray[np.uint8]
    """All paths, end to end."""

    ends: NDArray[np.int64]
    """Where each path ends (N)."""

    times: NDArray[np.int64]
    """In nanoseconds (N)."""

    sizes: NDArray[np.int64]
    """In bytes (N)."""

    patterns: dict[str, str] = field(default_factory=dict)
    """The hash of what each pattern matched."""

    def unchanged(self) -> bool:
        """Whether reading everything again would find the same."""
        names, begin = self.names.tobytes(), 0
        for end, *stamp in np.stack((self.ends, self.times, self.sizes), axis=1).tolist():
            if stamp_of(os.fsdecode(names[begin:end])) != Stamp(*stamp):
                return False
            begin = end
        return all(_digest(matches(word)) == found for word, found in self.patterns.items())


class StampBuilder:
    """Collects stamps; each is taken before its file or folder is read."""

    def __init__(self) -> None:
        self._names = bytearray()
        self._ends = array("q")
        self._times = array("q")
        self._sizes = array("q")
        self._patterns: dict[str, str] = {}

    def add(self, path: str, settled: bool = True) -> None:
        """Add a path that is about to be read, or one that could not be: then it is unsettled."""
        stamp = stamp_of(path) if settled else UNSETTLED
        if time.time_ns() - stamp.time < COARSEST_CLOCK:
            stamp = UNSETTLED
        self._names += os.fsencode(path)
        self._ends.append(len(self._names))
        self._times.append(stamp.time)
        self._sizes.append(stamp.num_bytes)

    def add_pattern(self, pattern: str, found: Iterable[str]) -> None:
        """Add a whole pattern with what it matched."""
        self._patterns[pattern] = _digest(found)

    def stamps(self) -> Stamps:
        """The stamps; they share memory with the builder, which is closed with this."""
        return Stamps(
            names=np.frombuffer(self._names, np.uint8),
            ends=np.frombuffer(self._ends, np.int64),
            times=np.frombuffer(self._times, np.int64),
            sizes=np.frombuffer(self._sizes, np.int64),
            patterns=self._patterns,
        )


def _digest(paths: Iterable[str]) -> str:
    """A hash of paths in their order."""
    return hashlib.sha256(b"\0".join(os.fsencode(path) for path in paths)).hexdigest()
