"""SIGTERM and Ctrl-C as a flag that a run checks where it is safe to stop.

An exception could be raised anywhere, also where Python ignores it, such as in a destructor.
"""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT)
"""Signals of schedulers and of Ctrl-C."""

ECHO_SECONDS = 1.0
"""A signal that follows another within this time is the same request: Slurm and systemd signal
every process of a job, and torchrun, one of them, forwards it to the others."""

MESSAGE = b"\nStopping; a second signal exits at once without saving.\n"


class StoppedError(Exception):
    """The stop flag was raised on some rank."""


@dataclass
class StopFlag:
    """Whether this process was asked to stop."""

    signal: int | None = None
    """The first signal received."""

    def requested(self) -> bool:
        """Whether a signal has arrived."""
        return self.signal is not None


@contextmanager
def stop_requests() -> Iterator[StopFlag]:
    """Set a flag on SIGTERM and SIGINT; a second signal, later, ends the process at once.

    Only the main thread receives signals: in another thread the flag is never set. A call that
    does not return to Python, such as a hanging collective, delays both.
    """
    flag, first_at = StopFlag(), 0.0

    def note(number: int, _frame: FrameType | None) -> None:
        nonlocal first_at
        if flag.signal is None:
            flag.signal, first_at = number, time.monotonic()
            if os.environ.get("RANK", "0") == "0":  # once, not once per rank
                os.write(2, MESSAGE)
        elif time.monotonic() - first_at >= ECHO_SECONDS:
            os._exit(exit_code(number))

    if threading.current_thread() is not threading.main_thread():
        yield flag
        return
    before = {number: signal.signal(number, note) for number in SIGNALS}
    try:
        yield flag
    finally:
        for number, handler in before.items():
            # None: a handler installed outside Python, which cannot be restored.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def exit_code(number: int) -> int:
    """Exit code of a process that a signal ended, as shells report it."""
    return 128 + number
