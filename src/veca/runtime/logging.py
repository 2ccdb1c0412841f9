"""The package's logger, and progress on a terminal and in a log."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

logger = logging.getLogger("veca")
"""The package's logger; commands show it on stderr (`log_to_console`)."""

CONSOLE = Console(stderr=True)
"""Where messages and progress bars are drawn: one console, so that neither overwrites the other."""


class _ConsoleHandler(logging.Handler):
    """Prints messages above a progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        CONSOLE.print(text, highlight=False, markup=False, soft_wrap=True)


@contextmanager
def log_to_console(shown: bool = True) -> Iterator[None]:
    """Show the package's messages on stderr within the block; give rank 0 alone `shown`."""
    handler = _ConsoleHandler() if shown else logging.NullHandler()
    level, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate


Clock = Callable[[], float]
"""Monotonic seconds."""

SPEED_SECONDS = 30.0
"""The speed is the mean over this time."""

BAR_SECONDS = 0.1
"""Minimum time between two drawings of the bar."""

LINE_SECONDS = 10.0
"""Minimum time between two lines in a log."""


class Tracker:
    """Counts finished items: a bar on a terminal, a line every few seconds in a log.

    No thread draws it, since data loaders may fork meanwhile.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - made by `progress` alone
        self, total: int, unit: str, done: int, shown: bool, console: Console, clock: Clock
    ) -> None:
        self._bar = Progress(
            TextColumn(f"{{task.completed:,.0f}} of {{task.total:,.0f}} {unit}"),
            BarColumn(),
            TextColumn("{task.fields[speed]}"),
            console=console,
            auto_refresh=False,
            redirect_stdout=False,
            disable=not shown,
            get_time=clock,
            speed_estimate_period=SPEED_SECONDS,
        )
        self._task_id = self._bar.add_task("", total=total, completed=done, speed="")
        self._task = self._bar.tasks[0]
        self._unit, self._shown, self._console, self._clock = unit, shown, console, clock
        self._shown_at, self._shown_done = clock(), done
        if console.is_terminal:
            self._bar.start()

    @property
    def done(self) -> int:
        """Items finished so far."""
        return int(self._task.completed)

    def advance(self, count: int = 1) -> None:
        """Count items, and show them unless something was shown a moment ago."""
        self._bar.update(self._task_id, advance=count)
        pause = BAR_SECONDS if self._console.is_terminal else LINE_SECONDS
        if self._clock() - self._shown_at >= pause:
            self._show()

    def close(self) -> None:
        """Show the final count."""
        if self._shown_done != self.done:
            self._show()
        if self._console.is_terminal:  # elsewhere it would print an empty line
            self._bar.stop()

    def _show(self) -> None:
        self._shown_at, self._shown_done = self._clock(), self.done
        if self._console.is_terminal:
            self._bar.update(self._task_id, speed=self._speed(), refresh=True)
        elif self._shown:
            total = int(self._task.total or 0)
            parts = [f"{self.done:,} of {total:,} {self._unit}", self._speed()]
            line = ", ".join(part for part in parts if part)
            self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    def _speed(self) -> str:
        """Such as '85.3 images/s, 3 min 42 s left'; empty before it is known."""
        speed, left = self._task.speed, self._task.remaining
        if not speed:
            return ""
        text = f"{speed:,.1f} {self._unit}/s"
        return f"{text}, {duration(left / speed)} left" if left else text


@contextmanager
def progress(  # noqa: PLR0913 - the last two are for tests
    total: int,
    unit: str,
    *,
    done: int = 0,
    shown: bool = True,
    console: Console = CONSOLE,
    clock: Clock = time.monotonic,
) -> Iterator[Tracker]:
    """Show the progress of work of which `done` items were finished before."""
    tracker = Tracker(total, unit, done, shown, console, clock)
    try:
        yield tracker
    finally:
        tracker.close()


def duration(seconds: float) -> str:
    """A time such as '3 min 42 s'."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    minutes = round(seconds / 60)
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60:02} min"
    hours = round(seconds / 3600)
    return f"{hours // 24} days {hours % 24} h"
