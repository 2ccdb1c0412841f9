"""One file with tensors of some items: it tells of damage, and any item can be read alone.

A safetensors file. Of each name it has the numbers of all items end to end, and as `NAME/shape` the
shape of each (items, axes), which may so differ from item to item. The header holds a SHA-256 over
all tensors and a `seal`, a text that stands for what the block is a part of: a block of something
else, or under another number, does not verify.
"""

import hashlib
import io
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from veca.runtime.files import replace_file
from veca.runtime.tensor_files import DTYPES, METADATA, read_tensors, tensor_pieces

SHAPE = "/shape"
"""What is added to a name for the shapes of its items."""

DIGEST = "sha256"
"""The field of the header with the hash."""


class StoreError(ValueError):
    """Stored items that cannot be written or read: what was got, what is allowed, what to do."""


def write_block(path: Path, seal: str, content: Mapping[str, Sequence[Tensor]]) -> None:
    """Write the tensors of some items in one step; equal tensors give equal files."""
    counts = {name: len(items) for name, items in content.items()}
    if len(set(counts.values())) != 1 or 0 in counts.values():
        raise StoreError(f"{counts} are no tensors of some items; give each name one for each.")
    tensors: dict[str, Tensor] = {}
    for name in sorted(content):
        tensors[name], tensors[name + SHAPE] = _end_to_end(name, content[name])
    digest = _digest(seal, tensors)
    try:
        replace_file(path, tensor_pieces(tensors, {DIGEST: digest}))
    except OSError as error:
        raise StoreError(
            f"{path} cannot be written ({error.strerror}); what was finished is kept: make room or "
            "repair the disk, and start again."
        ) from error


def block_problem(path: Path, seal: str) -> str | None:
    """What is wrong with a block; None if it is as it was written."""
    try:
        with safe_open(path, framework="pt") as file:
            told = (file.metadata() or {}).get(DIGEST)
        tensors = read_tensors(path)
    except FileNotFoundError:
        return "is missing"
    except (OSError, SafetensorError) as error:
        return f"cannot be read ({error})"
    return None if told == _digest(seal, tensors) else "was changed after it was written"


def read_items(
    path: Path, places: Sequence[int], names: Sequence[str] | None = None
) -> list[dict[str, Tensor]]:
    """The tensors of some items of a block, by their places in it; by default those of all names.

    Files are read, not mapped: one that is cut off meanwhile is then an error and not a crash, and
    what the system keeps in memory of them does not count as this process's.
    """
    with _opened(path) as reader:
        parts = {name: reader.part(name) for name in names or reader.names()}
        return [
            {name: reader.item(part, place) for name, part in parts.items()} for place in places
        ]


def read_stacked(path: Path, name: str) -> Tensor:
    """The tensors of one name of all items of a block, which must have one shape."""
    with _opened(path) as reader:
        part = reader.part(name)
        check_one_shape(name, part.shapes)
        return reader.numbers(part, 0, part.ends[-1]).reshape(len(part.shapes), *part.shapes[0])


def check_one_shape(name: str, shapes: Iterable[tuple[int, ...]]) -> None:
    """Refuse to stack tensors of several shapes."""
    found = sorted({tuple(shape) for shape in shapes})
    if len(found) > 1:
        raise StoreError(
            f"the tensors {name!r} have several shapes, such as {found[0]} and {found[1]}, and "
            "cannot be stacked; take them one by one."
        )


class _Part(NamedTuple):
    """Where the tensors of one name lie."""

    dtype: torch.dtype
    start: int
    """First byte in the file."""
    shapes: list[tuple[int, ...]]
    """Of each item."""
    ends: list[int]
    """Where each item ends, counted in numbers."""


@contextmanager
def _opened(path: Path) -> Iterator["_Reader"]:
    """An open block; that it is not any more what was verified is told with its path."""
    try:
        with path.open("rb") as file:
            yield _Reader(path, file)
    except StoreError:
        raise
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise StoreError(
            f"{path} cannot be read any more ({error}); start again, which computes what is "
            "missing."
        ) from error


class _Reader:
    """Finds tensors in an open block."""

    def __init__(self, path: Path, file: io.BufferedReader) -> None:
        self._path, self._file = path, file
        length = int.from_bytes(file.read(8), "little")
        if length > os.fstat(file.fileno()).st_size:
            raise OSError("it was cut off")
        self._header: dict[str, Any] = json.loads(file.read(length))
        self._header.pop(METADATA)
        self._start = 8 + length

    def names(self) -> list[str]:
        """The names of an item's tensors."""
        return sorted(name for name in self._header if not name.endswith(SHAPE))

    def part(self, name: str) -> _Part:
        """Where the tensors of a name lie."""
        if name not in self._header:
            raise StoreError(
                f"{self._path} has no tensors {name!r}; it has {', '.join(self.names())}."
            )
        about, told = self._header[name], self._header[name + SHAPE]
        items, axes = told["shape"]
        rows = self._numbers(DTYPES[told["dtype"]], self._place(told), items * axes)
        shapes = [tuple(row) for row in rows.reshape(items, axes).tolist()]
        ends, end = [], 0
        for shape in shapes:
            end += math.prod(shape)
            ends.append(end)
        return _Part(DTYPES[about["dtype"]], self._place(about), shapes, ends)

    def item(self, part: _Part, place: int) -> Tensor:
        """The tensor of one item."""
        begin = part.ends[place - 1] if place else 0
        return self.numbers(part, begin, part.ends[place]).reshape(part.shapes[place])

    def numbers(self, part: _Part, begin: int, end: int) -> Tensor:
        """Some of the numbers of a name."""
        start = part.start + begin * part.dtype.itemsize
        return self._numbers(part.dtype, start, end - begin)

    def _numbers(self, dtype: torch.dtype, start: int, count: int) -> Tensor:
        """Numbers from a place in the file on, in memory of their own."""
        found = torch.empty(count, dtype=dtype)
        self._file.seek(start)
        if self._file.readinto(found.view(torch.uint8).numpy().data) != found.nbytes:
            raise OSError("it was cut off")
        return found

    def _place(self, about: Mapping[str, Any]) -> int:
        """First byte of a tensor in the file."""
        return self._start + int(about["data_offsets"][0])


def _end_to_end(name: str, items: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """The numbers of all items, and their shapes."""
    kinds = {(item.dtype, item.ndim) for item in items}
    if "/" in name or len(kinds) != 1:
        told = ", ".join(f"{dtype} with {axes} axes" for dtype, axes in sorted(kinds, key=str))
        raise StoreError(
            f"tensors {name!r} of {told} cannot lie in one block; use one type and one number of "
            "axes for all, and a name without '/'."
        )
    flat = torch.cat([item.detach().cpu().reshape(-1) for item in items])
    rows = torch.tensor([list(item.shape) for item in items], dtype=torch.int64)
    return flat, rows.reshape(len(items), items[0].ndim)


def _digest(seal: str, tensors: Mapping[str, Tensor]) -> str:
    """A hash over the seal and over names, types, shapes and numbers of tensors."""
    found = hashlib.sha256(f"{seal}\n".encode())
    for piece in tensor_pieces({name: tensors[name] for name in sorted(tensors)}):
        found.update(piece)
    return found.hexdigest()
