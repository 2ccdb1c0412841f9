"""Progress shows count, speed and time left, as a bar or as lines; messages go to the console."""

import io
import logging

import pytest
from rich.console import Console

from veca.runtime.logging import SPEED_SECONDS, duration, log_to_console, logger, progress


class Clock:
    """Time that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def lines_of(steps: list[tuple[float, int]], total: int, done: int = 0) -> list[str]:
    """What a log gets while work advances after each number of seconds by a count."""
    clock, text = Clock(), io.StringIO()
    console = Console(file=text, width=40)
    with progress(total, "images", done=done, console=console, clock=clock) as tracker:
        for seconds, count in steps:
            clock.now += seconds
            tracker.advance(count)
    return text.getvalue().splitlines()


def test_a_log_gets_a_line_every_ten_seconds_and_one_at_the_end() -> None:
    assert lines_of([(1.0, 10)] * 25, total=1250) == [
        "100 of 1,250 images, 10.0 images/s, 1 min 55 s left",
        "200 of 1,250 images, 10.0 images/s, 1 min 45 s left",
        "250 of 1,250 images, 10.0 images/s, 1 min 40 s left",
    ]


def test_messages_cannot_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with log_to_console():
        logger.warning("%s cannot be read.\n\ttwo", "a\x1b[2J\udce9 \u3000\u00fc.jpg")
    assert capsys.readouterr().err == "a?[2J? \u3000\u00fc.jpg cannot be read.\n?two\n"


def test_the_last_line_has_no_time_left() -> None:
    assert lines_of([(1.0, 5), (2.0, 5)], total=10) == ["10 of 10 images, 2.5 images/s"]


def test_earlier_work_counts_but_not_for_the_speed() -> None:
    steps = [(2.0, 10), (5.0, 10)]
    assert lines_of(steps, total=60, done=20) == ["40 of 60 images, 2.0 images/s, 10 s left"]


def test_nothing_is_written_if_nothing_was_done() -> None:
    assert lines_of([], total=5) == []


def test_the_speed_is_that_of_the_last_seconds() -> None:
    slow = int(SPEED_SECONDS) + 2
    last = lines_of([(1.0, 100)] * 100 + [(1.0, 1)] * slow, total=10_000 + slow)[-1]
    assert last.endswith("images, 1.0 images/s")


def test_a_terminal_gets_a_bar() -> None:
    clock, text = Clock(), io.StringIO()
    console = Console(file=text, force_terminal=True, width=100, color_system=None)
    with progress(40, "images", console=console, clock=clock) as tracker:
        for _ in range(4):
            clock.now += 2
            tracker.advance(10)
    drawn = text.getvalue()
    assert "10 of 40 images" in drawn
    assert "40 of 40 images" in drawn
    assert "5.0 images/s, 4 s left" in drawn


def test_a_note_follows_the_count() -> None:
    text = io.StringIO()
    with progress(3, "steps", console=Console(file=text, width=40)) as tracker:
        tracker.advance(note="loss 0.5")
        tracker.advance(note="skipped")
    assert text.getvalue().startswith("2 of 3 steps, skipped")


def test_progress_can_be_silent(capsys: pytest.CaptureFixture[str]) -> None:
    with progress(5, "images", shown=False) as tracker:
        tracker.advance(5)
    assert capsys.readouterr() == ("", "")


def test_lines_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    with progress(5, "images") as tracker:
        tracker.advance()
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("1 of 5 images")


def test_messages_go_to_stderr_within_the_block_only(capsys: pytest.CaptureFixture[str]) -> None:
    handlers = list(logger.handlers)
    with log_to_console():
        logging.getLogger("veca").info("step %d [of] 2", 1)
    assert logger.handlers == handlers
    with log_to_console(shown=False):
        logger.warning("from another rank")
    assert capsys.readouterr() == ("", "step 1 [of] 2\n")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.2, "0 s"), (59.4, "59 s"), (59.6, "1 min 00 s"), (222.0, "3 min 42 s"),
        (3599.7, "1 h 00 min"), (7500.0, "2 h 05 min"), (86_400.0 * 2 + 3600 * 3, "2 days 3 h"),
    ],
)  # fmt: skip
def test_durations_have_two_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text
