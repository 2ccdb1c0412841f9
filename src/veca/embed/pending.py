"""What is left to do: the inputs of this run against those that the collection has dealt with."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from veca.data.listing import UNKNOWN, ImageList, ImageTable, KeyedRows, exists, key
from veca.embed.errors import CollectionError
from veca.embed.layout import Entry
from veca.embed.store import CollectionWriter, Known


class Pending(NamedTuple):
    """What a run has to do."""

    rows: NDArray[np.int64]
    """Rows of the table of inputs, in order."""

    again: NDArray[np.uint64]
    """Keys of those that were skipped before and have changed since."""

    changed: int
    """ImageList that were embedded and have changed since: their features stay as they are."""


def find_pending(inputs: ImageList, writer: CollectionWriter) -> Pending:
    """Leave out what is in the collection, and what was skipped and is still the same."""
    keys = inputs.table.keys[inputs.rows]
    sizes = inputs.table.sizes[inputs.rows]
    embedded, skipped = writer.embedded(), writer.skipped()
    _check_same_inputs(inputs, keys, embedded, writer)

    done = KeyedRows(embedded.keys).find(keys)
    failed = KeyedRows(skipped.keys).find(keys)
    changed = _changed(sizes, done, embedded.sizes)
    repaired = _changed(sizes, failed, skipped.sizes)
    waiting = (done < 0) & ((failed < 0) | repaired)
    return Pending(inputs.rows[waiting], keys[waiting & repaired], int(changed.sum()))


def _changed(
    sizes: NDArray[np.int64], found: NDArray[np.int64], known: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Which inputs were found with another size; one whose size is not known has not changed."""
    changed = np.zeros(len(sizes), bool)
    there = found >= 0
    changed[there] = sizes[there] != known[found[there]]
    return changed & (sizes != UNKNOWN)


def _check_same_inputs(
    inputs: ImageList, keys: NDArray[np.uint64], embedded: Known, writer: CollectionWriter
) -> None:
    """Refuse inputs that are not those of the collection: they may grow, and files may vanish."""
    absent = embedded.keys[KeyedRows(keys).find(embedded.keys) < 0]
    if not len(absent):
        return
    gone = set(absent.tolist())
    shards = _shards(inputs.table, inputs.rows)
    for entry in writer.entries():
        if key(entry.path) in gone and _is_elsewhere(entry, shards):
            raise CollectionError(
                f"{writer.folder} holds the features of other inputs, such as {entry.path}, which "
                "was not given now; give all of them, with new ones if you like, or choose "
                "another folder."
            )


def _shards(table: ImageTable, rows: NDArray[np.int64]) -> set[str]:
    """Paths of the tar shards among the inputs."""
    return {shard for row in rows if (shard := table[int(row)].shard) is not None}


def _is_elsewhere(entry: Entry, shards: set[str]) -> bool:
    """Whether a picture still exists, and not in a shard that was given, which it has left."""
    return exists(entry.source) and entry.source.shard not in shards
