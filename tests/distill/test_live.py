"""The live line tells where training stands, on a terminal and in a log."""

import io
import sys
import threading
from typing import Any

import pytest
from rich.console import Console

from tests.distill.clock import Clock
from veca.distill.live import Live, SilentLive, words
from veca.runtime.logging import LINE_SECONDS

ROW: dict[str, Any] = {
    "kind": "train",
    "step": 0,
    "loss": 0.8,
    "loss_image": 0.3,
    "loss_patch_cosine": 0.4,
    "loss_patch_error": 0.1,
    "budget": 8,
    "ffn": 0.5,
    "resolution": 128,
}


def train(live: Live, clock: Clock, steps: list[float], first: int = 1) -> None:
    """Take steps that last so many seconds."""
    for done, seconds in enumerate(steps, start=first):
        clock.now += seconds
        live.step(ROW, images_per_second=1085.25, data_wait=0.016, memory_mb=1234.4, done=done)


def log_of(steps: list[float], total: int, first: int = 1, width: int = 40) -> list[str]:
    """What a log gets to read."""
    clock, text = Clock(), io.StringIO()
    with Live(total, console=Console(file=text, width=width), clock=clock) as live:
        train(live, clock, steps, first)
    return text.getvalue().splitlines()


def test_a_log_gets_whole_lines_with_everything_in_them() -> None:
    assert log_of([1.0] * 11, total=100)[-1] == (
        "step 11 of 100, loss 0.8000 (image 0.3000, patch cosine 0.4000, patch error 0.1000), "
        "8 cores, ffn 0.5, 128 px, 1,085.2 images/s, 2% waiting, 1,234 MB, 1 min 29 s left"
    )


def test_a_log_gets_the_first_step_one_at_times_and_the_last() -> None:
    lines = log_of([1.0] * 25, total=100)
    assert [line.split(",")[0] for line in lines] == [
        "step 1 of 100", "step 11 of 100", "step 21 of 100", "step 25 of 100",
    ]  # fmt: skip


def test_a_line_that_was_written_is_not_repeated_at_the_end() -> None:
    assert len(log_of([LINE_SECONDS] * 3, total=3)) == 3
    assert log_of([], total=3) == []


def test_the_last_step_leaves_nothing() -> None:
    assert log_of([LINE_SECONDS] * 3, total=3)[-1].endswith("MB")


def test_steps_before_a_resume_do_not_count_as_fast() -> None:
    assert log_of([2.0] * 6, total=5000, first=4000)[-1].endswith("33 min 10 s left")


def test_sentences_stay_in_a_log_in_their_place() -> None:
    clock, text = Clock(), io.StringIO()
    with Live(9, console=Console(file=text, width=20), clock=clock) as live:
        live.say("Continuing [from] step 4, which is longer than the log is wide.")
        train(live, clock, [1.0])
    assert text.getvalue().startswith(
        "Continuing [from] step 4, which is longer than the log is wide.\nstep 1 of 9"
    )


def test_a_terminal_gets_a_line_that_is_drawn_over_itself() -> None:
    clock, text = Clock(), io.StringIO()
    console = Console(file=text, force_terminal=True, width=200, color_system=None)
    with Live(100, console=console, clock=clock) as live:
        train(live, clock, [1.0, 1.0, 0.01])
        live.say("Saved step 2.")
        train(live, clock, [1.0], first=4)
    drawn = text.getvalue()
    erase = "\x1b[2K"
    assert "step 1 of 100" in drawn
    assert "step 3 of 100" not in drawn  # too soon after the one before
    assert drawn.index("step 2 of 100") < drawn.index("Saved step 2.")
    assert drawn.count(erase) >= 3
    last = drawn.split(erase)[-1]
    assert "step 4 of 100" in last
    assert "Saved" not in last


def test_a_line_on_a_narrow_terminal_loses_nothing() -> None:
    clock, text = Clock(), io.StringIO()
    console = Console(file=text, force_terminal=True, width=40, color_system=None)
    with Live(100, console=console, clock=clock) as live:
        train(live, clock, [1.0] * 2)
    assert "1 min 38 s left" in text.getvalue().replace("\n", " ")


def test_no_thread_draws() -> None:
    console = Console(file=io.StringIO(), force_terminal=True)
    before = threading.active_count()
    with Live(100, console=console) as live:
        live.say("A sentence.")
        assert threading.active_count() == before


def test_everything_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    with Live(100) as live:
        live.say("A sentence.")
        train(live, Clock(), [1.0])
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("A sentence.\nstep 1 of 100")


def test_what_is_printed_meanwhile_goes_where_it_always_goes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Live(100, console=Console(file=io.StringIO(), force_terminal=True)):
        sys.stdout.write("a result\n")
    assert capsys.readouterr().out == "a result\n"


@pytest.mark.parametrize("terminal", [False, True])
def test_a_silent_line_says_nothing(terminal: bool) -> None:
    clock, text = Clock(), io.StringIO()
    console = Console(file=text, force_terminal=terminal)
    with SilentLive(100, console=console, clock=clock) as live:
        live.say("A sentence.")
        train(live, clock, [LINE_SECONDS] * 3)
    assert text.getvalue() == ""


def test_a_skipped_step_is_called_so() -> None:
    assert words({**ROW, "loss": None, "skipped": True}) == "skipped, 8 cores, ffn 0.5, 128 px"


def test_a_model_without_budgets_has_none_in_its_line() -> None:
    assert words({"loss": 1.25, "budget": None}) == "loss 1.2500"
