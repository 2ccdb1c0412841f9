"""A disk on which a chosen call fails, and a folder that another process has locked."""

import errno
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from veca.runtime.files import lock_folder

CALLS = ("open", "mkdir", "write", "fsync", "rename", "replace", "unlink", "rmdir")


class FaultyDisk:
    """The calls that change the disk, noted, one of which can fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        """Name and target of each call so far."""
        self.fails_at: int | None = None
        """The number of the call that fails."""
        self.dies = False
        """Whether every later call fails too, so that what a killed process leaves stays there."""
        self.error: BaseException = OSError(errno.EIO, "injected")
        for name in CALLS:
            # Waiting for the real disk would show nothing and take most of the time.
            real = _nothing if name == "fsync" else getattr(os, name)
            monkeypatch.setattr(os, name, self._watched(name, real))

    def fail(self, at: int | None, *, dies: bool = False) -> None:
        """Count from here, and let this call fail."""
        self.calls, self.fails_at, self.dies = [], at, dies

    def _watched(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **options: Any) -> Any:
            number = len(self.calls)
            self.calls.append(f"{name} {_target(given[0])}")
            if self.fails_at is not None and (
                number == self.fails_at or (self.dies and number > self.fails_at)
            ):
                raise self.error
            return real(*given, **options)

        return call


def _nothing(_file: int) -> None:
    """Reach no disk."""


def _target(given: object) -> str:
    """The last part of a path, or that of an open file."""
    link = Path(f"/proc/self/fd/{given}")
    if isinstance(given, int):
        return link.readlink().name if link.exists() else "?"
    return Path(str(given)).name


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Another process that has a folder, and is killed in the end."""
    ready, said = os.pipe()
    child = os.fork()
    if not child:
        with lock_folder(folder):
            os.write(said, b"x")
            signal.pause()
    os.read(ready, 1)
    try:
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(ready)
        os.close(said)
