"""The files of a collection, and the lines of its two lists.

collection.json              what it is and how much of it is there (`record.py`)
index.jsonl                  a line for each picture, in order
vectors-00000.safetensors    image vectors: one tensor `vectors`, a row for each picture
patches-00000.safetensors    patch maps, on request: a tensor for each picture, named by its index
skipped.jsonl                a line for each input that could not be read, with the reason
"""

import json
from dataclasses import dataclass
from typing import Any, NamedTuple

from veca.data.listing import MEMBER_MARK, UNKNOWN, ImageEntry
from veca.embed.errors import CollectionError

INDEX_NAME = "index.jsonl"
SKIPPED_NAME = "skipped.jsonl"
VECTORS = "vectors"
"""The name of the tensor in a shard of vectors."""


def vectors_name(shard: int) -> str:
    """The file of image vectors."""
    return f"vectors-{shard:05}.safetensors"


def patches_name(shard: int) -> str:
    """The file of patch maps."""
    return f"patches-{shard:05}.safetensors"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A picture of a collection: a line of the index."""

    index: int
    """Its place in the collection, from 0."""

    path: str
    """Absolute; of a picture in a tar shard `<path of the shard>#<name in it>`."""

    shard: int
    """Number of the files that hold its features."""

    row: int
    """Its place in the shard."""

    grid: tuple[int, int]
    """Rows and columns of patches."""

    width: int
    """Of the upright original, in pixels."""

    height: int

    num_bytes: int
    """Size of the encoded picture."""

    member: str | None
    """Its name in a tar shard."""

    start: int
    """Its first byte in a tar shard; -1 for a file."""

    def line(self) -> bytes:
        """The line of the index."""
        content: dict[str, Any] = {
            "index": self.index,
            "path": self.path,
            "shard": self.shard,
            "row": self.row,
            "grid": list(self.grid),
            "width": self.width,
            "height": self.height,
            "bytes": self.num_bytes,
        }
        if self.member is not None:
            content |= {"member": self.member, "start": self.start}
        return json.dumps(content).encode() + b"\n"

    @property
    def source(self) -> ImageEntry:
        """Where the picture is."""
        inside = self.member is not None
        shard = self.path.removesuffix(f"{MEMBER_MARK}{self.member}") if inside else None
        return ImageEntry(self.path, self.num_bytes, shard, self.start)


def path_in_line(path: str) -> bytes:
    """How a path stands in its line of the index, and in no other."""
    return f'"path": {json.dumps(path)}, "shard": '.encode()


def entry_of(line: bytes) -> Entry:
    """The entry of a line of the index."""
    try:
        content = json.loads(line)
        rows, columns = content["grid"]
        return Entry(
            index=content["index"],
            path=content["path"],
            shard=content["shard"],
            row=content["row"],
            grid=(rows, columns),
            width=content["width"],
            height=content["height"],
            num_bytes=content["bytes"],
            member=content.get("member"),
            start=content.get("start", UNKNOWN),
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CollectionError(
            f"a line of {INDEX_NAME} is not as veca wrote it ({type(error).__name__}: {error}); "
            "restore the file, or embed the pictures anew into another folder."
        ) from error


class Skipped(NamedTuple):
    """An input that could not be read: a line of the list."""

    path: str
    reason: str
    num_bytes: int
    """Size of the encoded picture; one that changed since is tried again."""

    def line(self) -> bytes:
        """The line of the list."""
        content = {"path": self.path, "reason": self.reason, "bytes": self.num_bytes}
        return json.dumps(content).encode() + b"\n"


def skipped_of(line: bytes) -> Skipped:
    """The input of a line of the list."""
    try:
        content = json.loads(line)
        return Skipped(content["path"], content["reason"], content["bytes"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CollectionError(
            f"a line of {SKIPPED_NAME} is not as veca wrote it ({type(error).__name__}: {error}); "
            "restore the file, or embed the pictures anew into another folder."
        ) from error
