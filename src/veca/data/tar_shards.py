"""Pictures in tar shards, read where they lie: nothing is unpacked."""

import io
import tarfile
from collections.abc import Iterator
from typing import NamedTuple

from veca.data.errors import InputError

BLOCK = 512
"""A tar file is made of blocks of so many bytes."""


class Member(NamedTuple):
    """A regular file in a tar shard."""

    name: str
    start: int
    """Its first byte, counted from the start of the shard."""
    num_bytes: int


def members(path: str) -> Iterator[Member]:
    """The files in a shard in their order; a shard that is damaged raises where that is found."""
    try:
        with tarfile.open(path, "r:") as shard:
            while (found := shard.next()) is not None:
                shard.members.clear()  # type: ignore[attr-defined] # else all would be kept
                if found.isreg() and not found.issparse():
                    yield Member(found.name, found.offset_data, found.size)
            _check_end(path, shard.offset)
    except (tarfile.TarError, OSError, EOFError, ValueError) as error:
        raise InputError(
            f"the tar shard cannot be read to its end ({error}); what lies before the damage was "
            "taken: get the shard again, or make it anew, without compression."
        ) from error


def _check_end(path: str, end: int) -> None:
    """Refuse a shard whose list of files stops at something else than its end.

    The library takes a damaged header in the middle for the end and says nothing.
    """
    with io.FileIO(path) as file:
        file.seek(end)
        rest = file.read(BLOCK)
    if rest.strip(b"\0"):
        raise tarfile.ReadError(f"at byte {end} there is neither a file nor the end")


def open_member(path: str, start: int, num_bytes: int) -> io.BufferedReader:
    """A member as an open binary file."""
    return io.BufferedReader(_Section(io.FileIO(path), start, num_bytes))


class _Section(io.RawIOBase):
    """A part of a file as a file of its own."""

    def __init__(self, file: io.FileIO, start: int, num_bytes: int) -> None:
        self._file = file
        self._start = start
        self._num_bytes = num_bytes
        self._place = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        """Read at the current place and not beyond the end of the part."""
        length = max(0, min(len(buffer), self._num_bytes - self._place))
        self._file.seek(self._start + self._place)
        read = self._file.readinto(memoryview(buffer)[:length]) or 0
        self._place += read
        return read

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to any place that is not before the start."""
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._num_bytes}[whence]
        if origin + offset < 0:
            raise ValueError(f"place {origin + offset} lies before the start of the file")
        self._place = origin + offset
        return self._place

    def close(self) -> None:
        """Close the file underneath too."""
        if not self.closed:
            self._file.close()
        super().close()
