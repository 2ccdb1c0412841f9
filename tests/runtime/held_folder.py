"""A folder that another process has locked, for tests of who may write where."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from veca.runtime.files import lock_folder


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
