"""Opening an input, wherever it lies, and wording why it cannot be read."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from veca.data.input_table import Input
from veca.data.raw_records import RAW_SUFFIX, open_record
from veca.data.tar_shards import open_member


@contextmanager
def open_input(source: Input) -> Iterator[str | IO[bytes]]:
    """What the picture readers take: the path of a file, or an open part of a larger file."""
    if source.shard is None:
        yield source.name
        return
    if source.name.endswith(RAW_SUFFIX):
        yield open_record(source.shard, source.start, source.num_bytes)
        return
    with open_member(source.shard, source.start, source.num_bytes) as file:
        yield file


def failure(error: Exception) -> str:
    """Why an input was skipped, on one line."""
    words = " ".join(str(error).split()) or type(error).__name__
    return words.encode("utf-8", "replace").decode()  # names may hold what is no text


def exists(source: Input) -> bool:
    """Whether the file, or the tar shard, is still there."""
    return os.path.lexists(source.shard or source.name)
