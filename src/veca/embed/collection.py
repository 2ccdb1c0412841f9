"""Reading a collection: vectors, paths and patch maps, a part at a time.

A collection may be larger than memory, so nothing is read before it is asked for, and only what
`collection.json` vouches for: a run may be adding to it meanwhile.
"""

import mmap
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import overload

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from veca.data.listing import possible_names
from veca.embed.errors import CollectionError
from veca.embed.layout import (
    INDEX_NAME,
    VECTORS,
    Entry,
    entry_of,
    patches_name,
    path_in_line,
    vectors_name,
)
from veca.embed.record import Record, read_record
from veca.embed.shard_file import open_tensor

BLOCK_BYTES = 2**24
"""Vectors that are read at a time, as single precision."""

STRIDE = 2**20
"""Bytes of the index in which line ends are sought at a time."""


def open_collection(folder: str | os.PathLike[str]) -> "Collection":
    """Open what `veca embed` made, as far as it is finished."""
    path = Path(folder).expanduser()
    return Collection(path, read_record(path))


class Collection:
    """Pictures and their features, in the order of the index."""

    def __init__(self, folder: Path, record: Record) -> None:
        self.folder = folder
        self.record = record
        self.vectors = Vectors(folder, record)
        """Image vectors, like an array of shape (pictures, width)."""
        self._lines = _Lines(folder / INDEX_NAME, record.index_bytes, record.count)

    def __len__(self) -> int:
        return self.record.count

    @property
    def paths(self) -> "Paths":
        """What each picture is called."""
        return Paths(self)

    def entry(self, index: int) -> Entry:
        """What the index tells of a picture."""
        return entry_of(self._lines[_checked_index(index, len(self))])

    def entries(self) -> Iterator[Entry]:
        """What the index tells of every picture."""
        return map(self.entry, range(len(self)))

    def find(self, path: str | os.PathLike[str]) -> int | None:
        """The index of a picture by its path; None if it is not here."""
        rows = (self._lines.find(path_in_line(name)) for name in possible_names(path))
        return next((row for row in rows if row is not None), None)

    def patch_map(self, index: int) -> Float[np.ndarray, "D rows columns"]:
        """The patch map of a picture, if the collection has them."""
        if not self.record.config.patches:
            raise CollectionError(
                f"{self.folder} has no patch maps; embed the pictures with --patches into another "
                "folder."
            )
        entry = self.entry(index)
        with open_tensor(self.folder / patches_name(entry.shard), str(entry.index)) as tensor:
            return tensor[:]


class Vectors:
    """The vectors of a collection like a two-dimensional array, read where it is indexed."""

    def __init__(self, folder: Path, record: Record) -> None:
        self.shape = (record.count, record.model.config.width)
        self.dtype = np.dtype(record.config.dtype)
        self._folder = folder
        self._ends = np.cumsum(record.shards, dtype=np.int64)

    def __len__(self) -> int:
        return self.shape[0]

    @overload
    def __getitem__(self, rows: int) -> Float[np.ndarray, " D"]: ...
    @overload
    def __getitem__(self, rows: slice) -> Float[np.ndarray, "n D"]: ...
    def __getitem__(self, rows: int | slice) -> NDArray[np.floating]:
        """Read a vector, or the vectors of a slice, into memory."""
        if isinstance(rows, int | np.integer):
            row = _checked_index(int(rows), len(self))
            return self._between(row, row + 1)[0]
        wanted = range(len(self))[rows]
        if not wanted:
            return np.empty((0, self.shape[1]), self.dtype)
        low, high = min(wanted[0], wanted[-1]), max(wanted[0], wanted[-1])
        return self._between(low, high + 1)[:: abs(wanted.step)][:: 1 if wanted.step > 0 else -1]

    def __array__(self, dtype: np.dtype | None = None, copy: bool | None = None) -> np.ndarray:
        """Read all of them, as `numpy.asarray` does."""
        return self[:].astype(dtype or self.dtype, copy=False)

    def blocks(self) -> Iterator[tuple[int, Float[np.ndarray, "n D"]]]:
        """All vectors, some at a time, each time with the index of the first."""
        step = max(1, BLOCK_BYTES // (4 * self.shape[1]))
        for start in range(0, len(self), step):
            yield start, self[start : start + step]

    def _between(self, start: int, stop: int) -> Float[np.ndarray, "n D"]:
        """Vectors of neighbouring rows, from one shard or several."""
        parts = []
        shard = int(np.searchsorted(self._ends, start, side="right"))
        while start < stop:
            end = int(self._ends[shard])
            begin = int(self._ends[shard - 1]) if shard else 0
            if start < end:
                parts.append(self._read(shard, start - begin, min(stop, end) - begin, end - begin))
                start = min(stop, end)
            shard += 1
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _read(self, shard: int, start: int, stop: int, rows: int) -> Float[np.ndarray, "n D"]:
        """A part of a shard."""
        path = self._folder / vectors_name(shard)
        with open_tensor(path, VECTORS) as tensor:
            if tensor.get_shape() != [rows, self.shape[1]]:
                raise CollectionError(
                    f"{path} holds vectors of the shape {tensor.get_shape()}, but "
                    f"{[rows, self.shape[1]]} were written; restore it, or embed the pictures anew."
                )
            return tensor[start:stop]


class Paths(Sequence[str]):
    """The paths of a collection like a list, read where it is indexed."""

    def __init__(self, collection: Collection) -> None:
        self._collection = collection

    def __len__(self) -> int:
        return len(self._collection)

    @overload
    def __getitem__(self, rows: int) -> str: ...
    @overload
    def __getitem__(self, rows: slice) -> list[str]: ...
    def __getitem__(self, rows: int | slice) -> str | list[str]:
        """Read a path, or those of a slice."""
        if isinstance(rows, slice):
            return [self._collection.entry(row).path for row in range(len(self))[rows]]
        return self._collection.entry(rows).path


class _Lines:
    """The lines of a file, found by eight bytes each."""

    def __init__(self, path: Path, num_bytes: int, count: int) -> None:
        self._map: mmap.mmap | None = None
        ends = np.empty(0, np.int64)
        if num_bytes:
            with path.open("rb") as file:
                length = min(num_bytes, file.seek(0, os.SEEK_END))
                self._map = mmap.mmap(file.fileno(), length, access=mmap.ACCESS_READ)
            parts = [_line_ends(self._map, start) for start in range(0, length, STRIDE)]
            ends = np.concatenate(parts)
        if len(ends) != count or (count and ends[-1] != num_bytes):
            raise CollectionError(
                f"{path} has {len(ends)} lines, but {count} were written; restore it, or embed "
                "the pictures anew into another folder."
            )
        self._ends = ends

    def find(self, words: bytes) -> int | None:
        """The first line that has these words, none of which ends a line."""
        place = -1 if self._map is None else self._map.find(words)
        return None if place < 0 else int(np.searchsorted(self._ends, place, side="right"))

    def __getitem__(self, row: int) -> bytes:
        if self._map is None:
            raise IndexError(row)
        return self._map[int(self._ends[row - 1]) if row else 0 : int(self._ends[row])]


def _line_ends(text: mmap.mmap, start: int) -> NDArray[np.int64]:
    """Where lines end within a part of a file."""
    part = np.frombuffer(text[start : start + STRIDE], np.uint8)
    return np.flatnonzero(part == ord("\n")) + (start + 1)


def _checked_index(index: int, count: int) -> int:
    """A place in the collection; negative ones count from its end."""
    if not -count <= index < count:
        raise IndexError(f"picture {index} is outside a collection of {count}")
    return index % count
