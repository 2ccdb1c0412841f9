"""A folder that another process has locked, for tests of who may write where."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

HOLD = """
import fcntl, os, sys
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Another process that has a folder."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder / ".lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        if other.stdout is None or other.stdout.readline() != "held\n":
            pytest.fail("the other process did not get the folder")
        yield
        other.communicate("")
