"""A log of rows, one JSON object a line, that a killed writer cannot spoil.

A line reaches the system in one call and counts once its end is there: readers leave a last line
without an end alone, and the next writer cuts it off.
"""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from veca.runtime.plain_json import plain_json

BLOCK = 1 << 16
"""Bytes that are looked through at a time for the end of the last whole line."""


class JsonLinesError(ValueError):
    """A log that is damaged before its end."""


class JsonLines:
    """A log that grows; one process at a time may write it, and must close it."""

    def __init__(self, path: Path) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)
        self.path = path
        self._file = os.open(path, flags, 0o666)  # less what the user's umask takes away
        os.ftruncate(self._file, _end_of_whole_lines(path))

    def write(self, row: Mapping[str, Any]) -> None:
        """Add a row; if the disk takes only a part of it, nothing of it stays."""
        line = f"{plain_json(dict(row), 'row')}\n".encode()
        written = 0
        try:
            while written < len(line):  # once, unless the disk is full
                written += os.write(self._file, line[written:])
        except OSError:
            os.ftruncate(self._file, os.fstat(self._file).st_size - written)
            raise

    def sync(self) -> None:
        """Bring every row to the disk."""
        os.fsync(self._file)

    def close(self) -> None:
        """Bring every row to the disk and write no more."""
        if self._file >= 0:
            descriptor, self._file = self._file, -1
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def read_json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The whole rows of a log, also while it is written."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):  # it is being written, or its writer was killed
                return
            row = _row(line)
            if row is None:
                raise JsonLinesError(
                    f"line {number} of {path} is no JSON object; the file was damaged or changed: "
                    "remove that line to read the others."
                )
            yield row


def _row(line: bytes) -> dict[str, Any] | None:
    """The row of a line, if it is one."""
    try:
        row = json.loads(line)
    except ValueError:  # also where it is not UTF-8
        return None
    return row if isinstance(row, dict) else None


def _end_of_whole_lines(path: Path) -> int:
    """How many bytes of a file are whole lines."""
    with path.open("rb") as file:
        start = file.seek(0, os.SEEK_END)
        while start > 0:
            end, start = start, max(0, start - BLOCK)
            file.seek(start)
            found = file.read(end - start).rfind(b"\n")
            if found >= 0:
                return start + found + 1
    return 0
