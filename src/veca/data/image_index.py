"""The images to train on, numbered once and for all in a few flat arrays.

Finding a million images takes minutes on a slow disk, so what was found is kept in a file, which is
used again while every folder, shard and list that was read keeps its time and size. The file
carries a hash of its content: one that is damaged, or of something else, is made anew.
"""

import contextlib
import glob
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from veca.data.images import DataError
from veca.data.listing import (
    MEMBER_MARK,
    SHARDS,
    ImageEntry,
    ImageTable,
    absolute,
    key,
    list_images,
    split_member,
)
from veca.data.stamps import Stamps
from veca.runtime.files import make_folder, write_atomic
from veca.runtime.tensors import tensor_pieces

FORMAT = 1
"""Rises when the content of the file changes its meaning."""

METADATA_KEY = "veca-image-index"

LARGEST_SHARE = 10
"""Images are held out up to one in so many."""

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class ImageIndex:
    """N images, numbered from 0 in the order in which they were found."""

    table: ImageTable
    """Every input that was found, images or not."""

    rows: NDArray[np.int64]
    """The row of each image in the table (N)."""

    keys: NDArray[np.uint64]
    """A hash of each image's name below what was given, the same wherever that lies (N)."""

    problems: tuple[str, ...] = ()
    """Sentences about what holds no images for us: damaged shards, folders that are closed."""

    others: int = 0
    """Files that were left out for their names."""

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> ImageEntry:
        return self.table[int(self.rows[index])]

    def fingerprint(self) -> str:
        """SHA-256 over the names in their order, as they are below what was given."""
        return hashlib.sha256(self.keys.tobytes()).hexdigest()


def image_index(
    images: str | os.PathLike[str], cache: Path | None = None, exclude: Path | None = None
) -> ImageIndex:
    """Find the images that a folder, a shard, a list or a pattern means.

    Args:
        images: a folder, looked through to its depth, with images or .tar shards or both; one .tar
            shard; a .txt or .lst file with a path a line; a pattern.
        cache: the file in which the index is kept and looked for; None keeps nothing.
        exclude: a folder below `images` that is none of them, such as that of a run.
    """
    word = os.fspath(images)
    source = {
        "format": FORMAT,
        "images": absolute(word),
        "exclude": None if exclude is None else absolute(exclude),
    }
    if cache is not None and (kept := _read(cache, source)):
        return kept
    found = list_images([images], exclude)
    problems = tuple(f"{found.table[row].name}: {text}" for row, text in found.problems.items())
    rows = np.setdiff1d(found.rows, np.fromiter(found.problems, np.int64))
    if not len(rows):
        raise DataError(f"no image was found in {word}: {problems[0]}")
    index = ImageIndex(
        found.table, rows, _keys_below(found.table, rows, _root(word)), problems, found.others
    )
    if cache is not None:
        with contextlib.suppress(OSError):  # costs the next run some time, and this one nothing
            _write(cache, index, found.stamps, source)
    return index


def held_out(index: ImageIndex, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Split the numbers of the images into those to train on and those to validate with.

    Names decide, not places: an image stays on its side when the folder moves, is listed in another
    order or, nearly always, grows. At most a tenth is held out, and at least one of two or more.

    Returns:
        Training images, rising; validation images in an order of chance, so that the first few
        stand for all of them.
    """
    if count < 0:
        raise DataError(f"{count} images cannot be held out; use 0 or more.")
    held = min(count, max(len(index) // LARGEST_SHARE, 1)) if len(index) > 1 else 0
    order = np.argsort(index.keys, kind="stable")
    return np.sort(order[held:]), order[:held]


def _root(word: str) -> str:
    """The beginning of names that only says where the images lie."""
    path = absolute(word)
    if os.path.isdir(path):  # noqa: PTH112
        folder = path
    elif os.path.lexists(path):
        if path.lower().endswith(SHARDS):
            return path + MEMBER_MARK
        folder = os.path.dirname(path)  # noqa: PTH120
    elif parts := split_member(word):
        return parts[0] + MEMBER_MARK
    else:
        folder = os.path.dirname(word)  # noqa: PTH120
        while glob.has_magic(folder):
            folder = os.path.dirname(folder)  # noqa: PTH120
    return os.path.join(absolute(folder), "")  # noqa: PTH118


def _keys_below(table: ImageTable, rows: NDArray[np.int64], root: str) -> NDArray[np.uint64]:
    """The `key` of each name without the root."""
    names, start = table.names.tobytes(), os.fsencode(root)
    begins = np.concatenate(([0], table.ends[:-1]))[rows]
    keys = (
        key(names[begin:end].removeprefix(start))
        for begin, end in zip(begins.tolist(), table.ends[rows].tolist(), strict=True)
    )
    return np.fromiter(keys, np.uint64, count=len(rows))


def _write(path: Path, index: ImageIndex, stamps: Stamps, source: Mapping[str, Any]) -> None:
    """Keep an index in a file."""
    arrays: Arrays = {"rows": index.rows, "keys": index.keys}
    for prefix, holder in (("table", index.table), ("stamps", stamps)):
        arrays |= {
            f"{prefix}/{part.name}": getattr(holder, part.name)
            for part in fields(holder)
            if part.name != "patterns"
        }
    facts = {
        "source": source,
        "problems": index.problems,
        "others": index.others,
        "patterns": stamps.patterns,
    }
    text = json.dumps(facts, sort_keys=True)
    about = json.dumps({"facts": text, "sha256": _digest(text, arrays)}, sort_keys=True)
    make_folder(path.parent)
    write_atomic(path, tensor_pieces(arrays, {METADATA_KEY: about}))


def _read(path: Path, source: Mapping[str, Any]) -> ImageIndex | None:
    """The index in a file, if it is whole and what it was made of is still the same."""
    try:
        with safe_open(path, framework="np") as file:
            about = json.loads((file.metadata() or {})[METADATA_KEY])
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        text, digest = str(about["facts"]), about["sha256"]
    except (OSError, SafetensorError, KeyError, ValueError, TypeError):
        return None
    if digest != _digest(text, arrays):
        return None
    facts = json.loads(text)
    if facts["source"] != source:
        return None
    stamps = Stamps(**_part("stamps", arrays), patterns=facts["patterns"])
    if not stamps.unchanged():
        return None
    table = ImageTable(**_part("table", arrays))
    return ImageIndex(
        table, arrays["rows"], arrays["keys"], tuple(facts["problems"]), facts["others"]
    )


def _part(prefix: str, arrays: Arrays) -> Arrays:
    """The arrays of one holder."""
    start = f"{prefix}/"
    return {name[len(start) :]: array for name, array in arrays.items() if name.startswith(start)}


def _digest(text: str, arrays: Arrays) -> str:
    """A hash over all that a file says."""
    found = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        array = arrays[name]
        found.update(f"\n{name} {array.dtype} {array.shape}\n".encode())
        found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()
