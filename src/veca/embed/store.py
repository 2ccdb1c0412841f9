"""Writing a collection so that it is whole after every shard, whatever happens.

A shard is committed in this order: its files, each in one step; its lines, at the end of the index
and of the list of what was skipped; last `collection.json`, which says how far the other files
count. A run that is stopped at any moment leaves the collection as the last shard made it, and the
next run removes what lies beyond.
"""

import dataclasses
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from veca.data.listing import key
from veca.embed.errors import CollectionError
from veca.embed.layout import (
    INDEX_NAME,
    SKIPPED_NAME,
    VECTORS,
    Entry,
    Skipped,
    entry_of,
    patches_name,
    skipped_of,
    vectors_name,
)
from veca.embed.record import RECORD_NAME, ModelRecord, Record, read_record, write_record
from veca.embed.shard_file import shard_pieces
from veca.runtime.files import LOCK_NAME, TEMPORARY_SUFFIX, fsync_dir, write_atomic

SHARD_FILE = re.compile(r"(?:vectors|patches)-(\d{5,})\.safetensors")


class ShardContent(NamedTuple):
    """What a window of inputs became: n pictures and whatever could not be read."""

    vectors: Float[np.ndarray, "n D"]

    maps: Sequence[Float[np.ndarray, "D rows columns"]]
    """A patch map for each picture, or none at all."""

    entries: Sequence[Entry]

    skipped: Sequence[Skipped]


class Known(NamedTuple):
    """Inputs that a collection has dealt with."""

    keys: NDArray[np.uint64]
    """`key` of each name."""

    sizes: NDArray[np.int64]
    """Bytes of each encoded picture, then."""


class CollectionWriter:
    """A collection that grows shard by shard; `record` is what is on the disk."""

    def __init__(self, folder: Path, wanted: Record) -> None:
        """Open the collection of a folder, or begin one; `wanted` says what is asked for."""
        self.folder = folder
        self._wanted = wanted
        if (folder / RECORD_NAME).exists():
            self.record = read_record(folder)
            _check_same(folder, self.record, wanted)
            self._remove_leftovers()
        else:
            write_record(folder, wanted)
            self.record = wanted

    def embedded(self) -> Known:
        """The pictures that are in the collection."""
        return _known((entry.path, entry.num_bytes) for entry in self.entries())

    def skipped(self) -> Known:
        """The inputs that could not be read."""
        return _known((skipped.path, skipped.num_bytes) for skipped in self.skipped_inputs())

    def entries(self) -> Iterator[Entry]:
        """What is in the collection, line by line."""
        return map(entry_of, self._lines(INDEX_NAME))

    def skipped_inputs(self) -> Iterator[Skipped]:
        """What could not be read, line by line."""
        return map(skipped_of, self._lines(SKIPPED_NAME))

    def forget_skipped(self, keys: Iterable[int]) -> None:
        """Take inputs off the list of what was skipped, since they will be tried again."""
        forgotten = set(keys)
        if not forgotten:
            return
        kept = [
            line
            for line in self._lines(SKIPPED_NAME)
            if key(skipped_of(line).path) not in forgotten
        ]
        write_atomic(self.folder / SKIPPED_NAME, kept)
        self._write(skipped=len(kept), skipped_bytes=sum(map(len, kept)))

    def commit(self, content: ShardContent) -> None:
        """Add a shard; when this returns, it is on the disk to stay."""
        record, number = self.record, len(self.record.shards)
        if len(content.entries):
            write_atomic(
                self.folder / vectors_name(number), shard_pieces({VECTORS: content.vectors})
            )
        if content.maps:
            named = zip(content.entries, content.maps, strict=True)
            maps = {str(entry.index): patch_map for entry, patch_map in named}
            write_atomic(self.folder / patches_name(number), shard_pieces(maps))
        index = b"".join(entry.line() for entry in content.entries)
        skipped = b"".join(skipped.line() for skipped in content.skipped)
        _append(self.folder / INDEX_NAME, record.index_bytes, index)
        _append(self.folder / SKIPPED_NAME, record.skipped_bytes, skipped)
        self._write(
            shards=(*record.shards, len(content.entries)),
            skipped=record.skipped + len(content.skipped),
            index_bytes=record.index_bytes + len(index),
            skipped_bytes=record.skipped_bytes + len(skipped),
            complete=False,
        )

    def finish(self) -> None:
        """Note that a run came to its end."""
        if not self.record.complete:
            self._write(complete=True)

    def _lines(self, name: str) -> Iterator[bytes]:
        """The lines of a list, as far as they count."""
        path = self.folder / name
        if path.exists():
            with path.open("rb") as file:
                yield from file

    def _write(self, **changes: Any) -> None:  # noqa: ANN401 - fields of the record
        """Put the changed record on the disk, with the words of this run."""
        wanted = self._wanted
        record = dataclasses.replace(
            self.record,
            model=wanted.model,
            command=wanted.command,
            version=wanted.version,
            **changes,
        )
        write_record(self.folder, record)
        self.record = record

    def _remove_leftovers(self) -> None:
        """Remove what a stopped run left behind its last shard."""
        record = self.record
        for path in sorted(self.folder.iterdir()):
            shard = SHARD_FILE.fullmatch(path.name)
            if _is_temporary(path) or (shard and int(shard[1]) >= len(record.shards)):
                path.unlink()
        index = self.folder / INDEX_NAME
        if (found := _cut(index, record.index_bytes)) < record.index_bytes:
            raise CollectionError(
                f"{index} has {found} bytes, but {record.index_bytes} were written; restore it, or "
                "embed the pictures anew into another folder."
            )
        length = _cut(self.folder / SKIPPED_NAME, record.skipped_bytes)
        if length < record.skipped_bytes:  # stopped between the two steps of `forget_skipped`
            count = sum(1 for _ in self._lines(SKIPPED_NAME))
            self.record = dataclasses.replace(record, skipped=count, skipped_bytes=length)


def _known(inputs: Iterable[tuple[str, int]]) -> Known:
    """Names and sizes in a compact form."""
    rows = np.fromiter(
        ((key(path), num_bytes) for path, num_bytes in inputs),
        np.dtype([("key", np.uint64), ("size", np.int64)]),
    )
    return Known(rows["key"].copy(), rows["size"].copy())


def check_folder(folder: Path) -> None:
    """Refuse a folder that is none, or that has other things in it than a collection."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise CollectionError(f"{folder} is a file; give a folder for the collection.")
    names = sorted(path.name for path in folder.iterdir() if not _is_temporary(path))
    foreign = [name for name in names if name != LOCK_NAME]
    if foreign and RECORD_NAME not in names:
        raise CollectionError(
            f"{folder} holds other files ({foreign[0]}) and no collection; give a new or an empty "
            "folder."
        )


def _check_same(folder: Path, record: Record, wanted: Record) -> None:
    """Refuse to mix features that cannot be compared."""
    there: dict[str, Any] = dataclasses.asdict(record.config)
    asked: dict[str, Any] = dataclasses.asdict(wanted.config)
    names = [name for name in asked if asked[name] != there[name]]
    was = [f"{name} {_told(there[name])}" for name in names]
    now = [f"{name} {_told(asked[name])}" for name in names]
    if record.model.digest != wanted.model.digest:
        was.insert(0, _model_in_words(record.model))
        now.insert(0, _model_in_words(wanted.model))
    if was:
        raise CollectionError(
            f"{folder} holds a collection made with {', '.join(was)}, but asked for was "
            f"{', '.join(now)}; repeat the settings it was made with, or choose another folder."
        )


def _model_in_words(model: ModelRecord) -> str:
    """A model that a user can tell from another."""
    return f"model {model.name or 'in memory'} (SHA-256 {model.digest[:12]}...)"


def _told(value: object) -> str:
    """A setting in words."""
    if isinstance(value, bool):
        return "stored" if value else "not stored"
    return "all" if value is None else str(value)


def _append(path: Path, length: int, data: bytes) -> None:
    """Write data behind the first `length` bytes of a file and bring it to the disk."""
    if not data:
        return
    exists = path.exists()
    with path.open("r+b" if exists else "xb") as file:
        file.truncate(length)
        file.seek(length)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    if not exists:
        fsync_dir(path.parent)


def _cut(path: Path, length: int) -> int:
    """Cut a file to the bytes that count, and tell how many there are."""
    found = path.stat().st_size if path.exists() else 0
    if found > length:
        os.truncate(path, length)
    return min(found, length)


def _is_temporary(path: Path) -> bool:
    """Whether a file was being written when its process was stopped."""
    return path.name.startswith(".") and path.name.endswith(TEMPORARY_SUFFIX)
