"""Files that survive a kill: atomic writes, folder locks, JSON lines.

Files that are either the old one or the new one, whatever happens while they are written.

The new content goes into a file beside the target and reaches the disk; only then does it take the
target's name, and the folder's entry reaches the disk last. After a crash, on a full disk or
without power, the target is whole.

A folder that one process at a time may write into.

A log of rows, one JSON object a line, that a killed writer cannot spoil.

A line reaches the system in one call and counts once its end is there: readers leave a last line
without an end alone, and the next writer cuts it off.

JSON that comes back as it was given, or is refused with the name of the field.

Python's writer turns a tuple into a list, the key 1 into "1", and writes NaN, which no other reader
of JSON knows. What is saved to continue a run, or to be read years later, must not change so.
"""

import errno
import json
import math
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

TEMPORARY_SUFFIX = ".tmp"
"""How the name of a file ends that was not finished."""


def write_atomic(path: Path, pieces: Iterable[bytes | memoryview]) -> None:
    """Write a file in one step: nobody ever sees a part of it."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}{TEMPORARY_SUFFIX}")
    try:
        write_file(temporary, pieces)
        os.replace(temporary, path)  # noqa: PTH105 - one name for every step, so tests can fail it
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    fsync_dir(path.parent)


def write_file(path: Path, pieces: Iterable[bytes | memoryview]) -> None:
    """Write a new file and bring its content, but not yet its name, to the disk."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags, 0o666)  # less what the user's umask takes away
    try:
        for piece in pieces:
            rest = memoryview(piece).cast("B")
            while len(rest):  # the system may take less than it is given
                rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, and let the disk know."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in reversed(missing):
        fsync_dir(path.parent)


def fsync_dir(folder: Path) -> None:
    """Bring the entries of a folder to the disk, where the system can."""
    if os.name == "nt":  # Windows opens no folders
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


LOCK_NAME = ".lock"
"""An empty file that stays in the folder; only the lock on it means anything."""


class LockedError(ValueError):
    """A folder that another process writes into."""


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Keep other processes out of a folder; a killed process leaves it free.

    The lock belongs to this process and not to those that it starts, so a worker that outlives a
    killed run for a moment does not block the next one. A file system without locks has none.
    """
    if os.name == "nt":  # Windows has no such locks
        yield
        return
    import fcntl  # noqa: PLC0415 - not on Windows

    descriptor = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in {errno.EACCES, errno.EAGAIN}:
                raise LockedError(
                    f"another process is writing into {folder}; wait until it ends, or choose "
                    "another folder."
                ) from error
        yield
    finally:
        os.close(descriptor)


class PlainJsonError(ValueError):
    """A value that JSON cannot hold as it is."""


def plain_json(value: Any, name: str) -> str:  # noqa: ANN401 - anything may come, and be refused
    """The value as one line of JSON; `name` says in an error what the value is."""
    for problem in _problems(value, name):
        raise PlainJsonError(
            f"{problem}, which JSON cannot hold; allowed are finite numbers, text, true, false, "
            "null, and lists and text-keyed dictionaries of them: convert it, or leave it out."
        )
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def _problems(value: Any, name: str) -> Iterator[str]:  # noqa: ANN401 - as above
    """What is wrong with a value and with what is in it, in order."""
    if wrong := _problem(value):
        yield f"{name} {wrong}"
    elif isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _problems(item, f"{name}[{key!r}]")


def _problem(value: Any) -> str | None:  # noqa: ANN401 - as above
    """What is wrong with a value itself."""
    if isinstance(value, float):
        return None if math.isfinite(value) else f"is {value}"
    if isinstance(value, dict):
        odd = [key for key in value if not isinstance(key, str)]
        return f"has the key {odd[0]!r}" if odd else None
    known = value is None or isinstance(value, str | int | list)
    return None if known else f"is of type {type(value).__name__}"


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
