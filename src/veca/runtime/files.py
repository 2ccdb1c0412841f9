"""Files that are either the old one or the new one, whatever happens while they are written.

The new content goes into a file beside the target and reaches the disk; only then does it take the
target's name, and the folder's entry reaches the disk last. After a crash, on a full disk or
without power, the target is whole.
"""

import os
import secrets
from collections.abc import Iterable
from pathlib import Path

TEMPORARY_SUFFIX = ".tmp"
"""How the name of a file ends that was not finished."""


def replace_file(path: Path, pieces: Iterable[bytes | memoryview]) -> None:
    """Write a file in one step: nobody ever sees a part of it."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}{TEMPORARY_SUFFIX}")
    try:
        write_file(temporary, pieces)
        os.replace(temporary, path)  # noqa: PTH105 - one name for every step, so tests can fail it
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


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
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Bring the entries of a folder to the disk, where the system can."""
    if os.name == "nt":  # Windows opens no folders
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
