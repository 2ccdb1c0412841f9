"""One process at a time has a folder, and a dead one has none."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from veca.runtime.files import LockedError, lock_folder

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has no such locks")

HOLDER = """
import sys, time
from pathlib import Path
from veca.runtime.lock import lock_folder
with lock_folder(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_another_process_is_kept_out_until_the_first_is_killed(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], env=environment, stdout=subprocess.PIPE
    )
    with holder:
        if holder.stdout is None or holder.stdout.readline() != b"held\n":
            pytest.fail("the other process did not get the folder")
        with (
            pytest.raises(LockedError, match="another process is writing into"),
            lock_folder(tmp_path),
        ):
            pass
        holder.send_signal(signal.SIGKILL)
    with lock_folder(tmp_path):
        pass


def test_a_process_that_was_forked_does_not_hold_the_folder(tmp_path: Path) -> None:
    release = os.pipe()
    with lock_folder(tmp_path):
        child = os.fork()
        if not child:
            os.read(release[0], 1)  # outlives the lock of its parent
            os._exit(0)
    second = os.fork()
    if not second:
        try:
            with lock_folder(tmp_path):
                os._exit(0)
        except LockedError:
            os._exit(1)
    assert os.waitpid(second, 0)[1] == 0
    os.write(release[1], b"x")
    os.waitpid(child, 0)


def test_a_file_system_without_locks_is_used_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl  # noqa: PLC0415 - not on Windows

    def lockf(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", lockf)
    with lock_folder(tmp_path):
        pass


def test_the_folder_is_free_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(KeyError), lock_folder(tmp_path):
        raise KeyError
    with lock_folder(tmp_path):
        pass
