"""SIGTERM and Ctrl-C set a flag, a later signal exits, and handlers are restored."""

import os
import signal
import threading
import time

import pytest

from veca.runtime import signals
from veca.runtime.signals import StopFlag, exit_code, stop_requests


@pytest.mark.parametrize("number", signals.SIGNALS)
def test_a_signal_sets_the_flag_and_the_process_continues(number: int) -> None:
    with stop_requests() as stop:
        assert not stop.requested()
        os.kill(os.getpid(), number)
        assert (stop.signal, stop.requested()) == (number, True)


def test_the_same_request_may_arrive_twice() -> None:
    with stop_requests() as stop:
        os.kill(os.getpid(), signal.SIGTERM)  # from the scheduler, to every process of the job
        os.kill(os.getpid(), signal.SIGINT)  # passed on by torchrun
        assert stop.signal == signal.SIGTERM


@pytest.mark.parametrize("number", signals.SIGNALS)
def test_a_later_signal_ends_the_process_at_once(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signals, "ECHO_SECONDS", 0.0)
    left: list[int] = []
    monkeypatch.setattr(os, "_exit", left.append)
    with stop_requests():
        os.kill(os.getpid(), signal.SIGTERM)
        assert left == []
        os.kill(os.getpid(), number)
        assert left == [128 + number] == [exit_code(number)]


def test_a_second_signal_ends_a_process_that_ignores_the_first() -> None:
    ready, said = os.pipe()
    child = os.fork()
    if not child:
        with stop_requests() as stop:
            os.write(said, b"r")
            while not stop.requested():
                time.sleep(0.001)
            os.write(said, b"s")
            time.sleep(60)
        os._exit(0)
    assert os.read(ready, 1) == b"r"
    os.kill(child, signal.SIGTERM)
    assert os.read(ready, 1) == b"s"
    time.sleep(signals.ECHO_SECONDS + 0.1)
    assert os.waitpid(child, os.WNOHANG) == (0, 0)
    os.kill(child, signal.SIGINT)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 128 + signal.SIGINT


def test_handlers_are_restored_also_after_an_error() -> None:
    before = [signal.getsignal(number) for number in signals.SIGNALS]
    with stop_requests():
        assert [signal.getsignal(number) for number in signals.SIGNALS] != before
    with pytest.raises(KeyError), stop_requests():
        raise KeyError
    assert [signal.getsignal(number) for number in signals.SIGNALS] == before


def test_a_handler_that_python_did_not_install_is_replaced_by_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    installed: list[tuple[int, object]] = []
    monkeypatch.setattr(signal, "signal", lambda *given: installed.append(given))
    with stop_requests():
        installed.clear()
    assert installed == [(number, signal.SIG_DFL) for number in signals.SIGNALS]


def test_a_thread_gets_a_flag_that_is_never_set() -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen: list[StopFlag] = []

    def work() -> None:
        with stop_requests() as stop:
            assert signal.getsignal(signal.SIGTERM) is before
            seen.append(stop)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert [stop.signal for stop in seen] == [None]
