"""A folder that one process at a time may write into."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK_NAME = ".lock"
"""An empty file that stays in the folder; only the lock on it means anything."""


class OccupiedError(ValueError):
    """A folder that another process writes into."""


@contextmanager
def occupy(folder: Path) -> Iterator[None]:
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
                raise OccupiedError(
                    f"another process is writing into {folder}; wait until it ends, or choose "
                    "another folder."
                ) from error
        yield
    finally:
        os.close(descriptor)
