"""Progress tells how many, how fast and how long, as a bar or as lines."""

import io

import pytest
from rich.console import Console

from veca.runtime.logging import LINE_SECONDS, PACE_SECONDS, Pace, duration, progress


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def lines_of(steps: list[tuple[float, int]], total: int, done: int = 0) -> list[str]:
    """What is written to a log while work advances after so many seconds by so many."""
    clock, text = Clock(), io.StringIO()
    console = Console(file=text, width=40)
    with progress(total, "images", done=done, console=console, clock=clock) as told:
        for seconds, count in steps:
            clock.now += seconds
            told.advance(count)
    return text.getvalue().splitlines()


def test_a_log_gets_a_line_at_times_and_one_at_the_end() -> None:
    steps = [(1.0, 10)] * 25
    assert lines_of(steps, total=1250) == [
        "100 of 1,250 images, 10.0 images/s, 1 min 55 s left",
        "200 of 1,250 images, 10.0 images/s, 1 min 45 s left",
        "250 of 1,250 images, 10.0 images/s, 1 min 40 s left",
    ]


def test_the_last_line_has_nothing_left() -> None:
    assert lines_of([(2.0, 5)], total=5) == ["5 of 5 images, 2.5 images/s"]
    assert lines_of([(LINE_SECONDS, 5)], total=5) == ["5 of 5 images, 0.5 images/s"]


def test_work_that_was_done_before_counts_but_is_not_fast() -> None:
    assert lines_of([(10.0, 20)], total=60, done=20) == ["40 of 60 images, 2.0 images/s, 10 s left"]


def test_nothing_is_written_where_nothing_was_done() -> None:
    assert lines_of([], total=5) == []


def test_the_pace_is_that_of_the_last_seconds() -> None:
    clock = Clock()
    pace = Pace(0, clock)
    assert pace.rate == 0
    for _ in range(100):
        clock.now += 1
        pace.advance(100)
    for _ in range(int(PACE_SECONDS) + 1):
        clock.now += 1
        pace.advance(1)
    assert pace.rate == pytest.approx(1)


def test_the_memory_of_a_pace_is_bounded() -> None:
    clock = Clock()
    pace = Pace(0, clock)
    for _ in range(10_000):
        clock.now += 0.01
        pace.advance(1)
    assert len(pace._points) <= 10 * PACE_SECONDS + 2
    assert pace.rate == pytest.approx(100, rel=0.01)


def test_a_terminal_gets_a_bar() -> None:
    clock, text = Clock(), io.StringIO()
    console = Console(file=text, force_terminal=True, width=100, color_system=None)
    with progress(40, "images", console=console, clock=clock) as told:
        for _ in range(4):
            clock.now += 2
            told.advance(10)
    drawn = text.getvalue()
    assert "10 of 40 images" in drawn
    assert "40 of 40 images" in drawn
    assert "5.0 images/s, 6 s left" in drawn


def test_silence_is_possible(capsys: pytest.CaptureFixture[str]) -> None:
    with progress(5, "images", shown=False) as told:
        told.advance(5)
    assert told.pace.done == 5
    assert capsys.readouterr() == ("", "")


def test_lines_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    with progress(5, "images") as told:
        told.advance()
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("1 of 5 images")


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.2, "0 s"), (59.4, "59 s"), (59.6, "1 min 00 s"), (222.0, "3 min 42 s"),
        (3599.7, "1 h 00 min"), (7500.0, "2 h 05 min"), (86_400.0 * 2 + 3600 * 3, "2 days 3 h"),
    ],
)  # fmt: skip
def test_times_are_told_as_people_say_them(seconds: float, words: str) -> None:
    assert duration(seconds) == words
