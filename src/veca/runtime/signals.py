"""SIGTERM and Ctrl-C as a flag."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT)
"""What schedulers send, and what Ctrl-C sends."""

ECHO_SECONDS = 1.0
"""A signal that follows another within this time is the same request: Slurm and systemd signal
every process of a job, and torchrun, one of them, passes it on to the others."""


WORDS = b"\nStopping where it is safe; a second signal leaves at once, and nothing is saved then.\n"


@dataclass
class StopRequest:
    """Whether this process was asked to stop."""

    signal: int | None = None
    """The signal that asked; None as long as nobody did."""


@contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Note SIGTERM and SIGINT instead of ending; a second one, later, ends the process at once.

    Only the main thread of a process can receive signals: in another one nothing is ever noted. A
    call that does not come back to Python, such as a hanging collective, delays both.
    """
    request, asked_at = StopRequest(), 0.0

    def note(number: int, _frame: FrameType | None) -> None:
        nonlocal asked_at
        if request.signal is None:
            request.signal, asked_at = number, time.monotonic()
            if os.environ.get("RANK", "0") == "0":  # one of many processes speaks for all
                os.write(2, WORDS)
        elif time.monotonic() - asked_at >= ECHO_SECONDS:
            os._exit(exit_code(number))

    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.signal(number, note) for number in SIGNALS}
    try:
        yield request
    finally:
        for number, handler in before.items():
            # None: installed by other code than Python, which cannot be given back.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def exit_code(number: int) -> int:
    """What a process returns that a signal ended, as shells count."""
    return 128 + number
