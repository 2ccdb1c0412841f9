"""Files that survive a kill, and their names: atomic writes, locks, strict JSON and JSON lines."""

import errno
import json
import os
import secrets
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from veca.runtime import VecaError

TEMPORARY_SUFFIX = ".tmp"
"""Suffix of a file that was not finished."""

LOCK_NAME = ".lock"
"""An empty file that stays in the folder; only the lock on it means anything."""


class FileError(VecaError, OSError):
    """A file that is damaged, or that cannot be written or used."""


class LockedError(VecaError, OSError):
    """A folder that another process is writing into."""


def write_atomic(path: Path, pieces: Iterable[bytes | memoryview]) -> None:
    """Write a file in one step: after a crash the path holds the old content or the new one.

    The content goes to a temporary file beside the target and is synced, then takes the target's
    name, then the folder is synced.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}{TEMPORARY_SUFFIX}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    try:
        descriptor = os.open(temporary, flags, 0o666)  # the umask applies
        try:
            for piece in pieces:
                rest = memoryview(piece).cast("B")
                while len(rest):  # the system may write less than it is given
                    rest = rest[os.write(descriptor, rest) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temporary, path)  # noqa: PTH105 - so that tests can make it fail
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    fsync_dir(path.parent)


def make_folder(folder: Path) -> None:
    """Create a folder and its parents, and sync the entries."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in reversed(missing):
        fsync_dir(path.parent)


def fsync_dir(folder: Path) -> None:
    """Sync the entries of a folder, where the system can."""
    if os.name == "nt":  # Windows cannot open folders
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock a folder against other processes; the lock of a killed process is released.

    Child processes do not inherit it. On file systems without locks this does nothing.
    """
    if os.name == "nt":  # no fcntl on Windows
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
                    f"another process is writing into {folder}; wait until it ends, or use another "
                    "folder."
                ) from error
        yield
    finally:
        os.close(descriptor)


def dumps_strict(value: Any, name: str) -> str:  # noqa: ANN401 - anything may be refused
    """One line of JSON that reads back as the same value; errors mention `name`.

    Plain `json.dumps` turns tuples into lists and the key 1 into "1", and writes NaN.
    """
    try:
        text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} cannot be stored as JSON: {error}.") from error
    if json.loads(text) != value:
        raise ValueError(
            f"{name} does not survive a round trip through JSON; use lists instead of tuples and "
            "text as keys."
        )
    return text


class JsonlWriter:
    """Appends rows to a JSON lines file; one process writes it and must close it.

    A last line without a newline is the rest of a killed writer: readers skip it, and the next
    writer removes it.
    """

    def __init__(self, path: Path) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)
        self.path = path
        self._file = os.open(path, flags, 0o666)  # the umask applies
        os.ftruncate(self._file, path.read_bytes().rfind(b"\n") + 1)  # complete lines

    def write(self, row: Mapping[str, Any]) -> None:
        """Append a row; if it cannot be written whole, nothing of it stays."""
        line = f"{dumps_strict(dict(row), 'row')}\n".encode()
        written = 0
        try:
            while written < len(line):  # once, unless the disk is full
                written += os.write(self._file, line[written:])
        except OSError:
            os.ftruncate(self._file, os.fstat(self._file).st_size - written)
            raise

    def sync(self) -> None:
        """Sync every row to the disk."""
        os.fsync(self._file)

    def close(self) -> None:
        """Sync every row and close the file."""
        if self._file >= 0:
            descriptor, self._file = self._file, -1
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """The complete rows of a JSON lines file, also while it is written."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):  # being written, or its writer was killed
                return
            try:
                row = json.loads(line)
            except ValueError:  # also invalid UTF-8
                row = None
            if not isinstance(row, dict):
                raise FileError(
                    f"line {number} of {path} is not a JSON object: the file is damaged; remove "
                    "that line to read the others."
                )
            yield row


def printable(text: str) -> str:
    """Text without what a terminal would obey, a font cannot draw or UTF-8 cannot encode.

    Names of files, and texts in them, may hold anything.
    """
    return "".join(
        letter if letter.isprintable() or unicodedata.category(letter) == "Zs" else "?"
        for letter in text
    )


def in_markdown(text: str) -> str:
    """Text on one line of Markdown, with tags and links of its own as text."""
    return printable(" ".join(text.split())).replace("<", "&lt;").replace("](", "]\\(")
