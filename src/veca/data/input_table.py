"""The inputs of a run as a few flat arrays.

A Python list of a million paths costs hundreds of megabytes, and once more in every worker: reading
an object writes its reference count, which copies the page. Arrays are read without a write, so
workers share them with the main process.
"""

import os
from array import array
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from veca.data.names import key, member_name

UNKNOWN = -1
"""Bytes of a file that could not be asked, and the start of one that is not in a tar shard."""


class Input(NamedTuple):
    """One picture of the table."""

    name: str
    """Absolute path; of a picture in a tar shard `<path of the shard>#<name in it>`."""

    num_bytes: int
    """Size of the encoded picture, by which a file that changed is noticed."""

    shard: str | None
    """Path of the tar shard."""

    start: int
    """First byte in the tar shard."""

    @property
    def member(self) -> str | None:
        """Name in the tar shard."""
        return None if self.shard is None else self.name[len(self.shard) + 1 :]


@dataclass(frozen=True)
class InputTable:
    """N inputs in their order."""

    names: NDArray[np.uint8]
    """All names, end to end."""

    ends: NDArray[np.int64]
    """Where each name ends (N)."""

    sizes: NDArray[np.int64]
    """Bytes of each encoded picture (N)."""

    starts: NDArray[np.int64]
    """First byte of each picture in its tar shard (N)."""

    shard_lengths: NDArray[np.int64]
    """How many bytes of each name are the path of a tar shard; 0 for a file (N)."""

    keys: NDArray[np.uint64]
    """`key` of each name (N)."""

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, row: int) -> Input:
        begin = int(self.ends[row - 1]) if row else 0
        name = self.names[begin : int(self.ends[row])].tobytes()
        length = int(self.shard_lengths[row])
        shard = os.fsdecode(name[:length]) if length else None
        return Input(os.fsdecode(name), int(self.sizes[row]), shard, int(self.starts[row]))

    def first_of_each(self) -> NDArray[np.int64]:
        """Rows without those whose name stands in an earlier one."""
        return np.sort(np.unique(self.keys, return_index=True)[1])


class KeyedRows:
    """Finds many names at once, without a dictionary of them."""

    def __init__(self, keys: NDArray[np.uint64]) -> None:
        self._order = np.argsort(keys, kind="stable")
        self._keys = keys[self._order]

    def find(self, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The first row of each key, -1 where there is none."""
        if not len(self._keys):
            return np.full(len(keys), -1, np.int64)
        places = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        return np.where(self._keys[places] == keys, self._order[places], -1)


class TableBuilder:
    """Collects inputs one by one."""

    def __init__(self) -> None:
        self._names = bytearray()
        self._ends = array("q")
        self._sizes = array("q")
        self._starts = array("q")
        self._shard_lengths = array("q")
        self._keys = array("Q")

    def __len__(self) -> int:
        return len(self._ends)

    def add_file(self, path: str, num_bytes: int = UNKNOWN) -> None:
        """Add a picture that is a file."""
        self._add(os.fsencode(path), num_bytes, UNKNOWN, 0)

    def add_member(self, shard: str, member: str, num_bytes: int, start: int) -> None:
        """Add a picture that lies in a tar shard."""
        name = os.fsencode(member_name(shard, member))
        self._add(name, num_bytes, start, len(os.fsencode(shard)))

    def table(self) -> InputTable:
        """The table; it shares memory with the builder, to which nothing can be added any more."""
        return InputTable(
            names=np.frombuffer(self._names, np.uint8),
            ends=np.frombuffer(self._ends, np.int64),
            sizes=np.frombuffer(self._sizes, np.int64),
            starts=np.frombuffer(self._starts, np.int64),
            shard_lengths=np.frombuffer(self._shard_lengths, np.int64),
            keys=np.frombuffer(self._keys, np.uint64),
        )

    def _add(self, name: bytes, num_bytes: int, start: int, shard_length: int) -> None:
        """Add a row."""
        self._names += name
        self._ends.append(len(self._names))
        self._sizes.append(num_bytes)
        self._starts.append(start)
        self._shard_lengths.append(shard_length)
        self._keys.append(key(name))
