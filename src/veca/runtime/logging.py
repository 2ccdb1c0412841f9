"""The package's logger, and progress on a terminal and in a log."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from veca.runtime.files import printable

logger = logging.getLogger("veca")
"""The package's logger; commands show it on stderr (`log_to_console`)."""

CONSOLE = Console(stderr=True)
"""Where messages and progress bars are drawn: one console, so that neither overwrites the other."""


class _ConsoleHandler(logging.Handler):
    """Prints messages above a progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        text = "\n".join(map(printable, self.format(record).splitlines()))
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

    def __init__(self, bar: Progress, unit: str, shown: bool) -> None:
        self._bar, self._task = bar, bar.tasks[0]
        self._unit, self._shown = unit, shown
        self._drawn_at, self._drawn = bar.get_time(), self._task.completed
        self._note = ""

    def advance(self, count: int = 1, note: str = "") -> None:
        """Count items, and show them with a note unless something was shown a moment ago."""
        self._note = note
        self._bar.update(self._task.id, advance=count)
        pause = BAR_SECONDS if self._bar.console.is_terminal else LINE_SECONDS
        if self._bar.get_time() - self._drawn_at >= pause:
            self.draw()

    def draw(self) -> None:
        """Show the count, speed and time left, unless that was done for this count."""
        task = self._task
        if self._drawn == task.completed:
            return
        self._drawn_at, self._drawn = self._bar.get_time(), task.completed
        text = f"{task.completed:,.0f} of {task.total:,.0f} {self._unit}"
        text += f", {self._note}" if self._note else ""
        if task.speed and not self._note:
            text += f", {task.speed:,.1f} {self._unit}/s"
        if task.speed and task.remaining:
            text += f", {duration(task.remaining / task.speed)} left"
        if self._bar.console.is_terminal:
            self._bar.update(task.id, description=text, refresh=True)
        elif self._shown:
            self._bar.console.print(text, highlight=False, markup=False, soft_wrap=True)


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
    bar = Progress(
        BarColumn(),
        TextColumn("{task.description}"),
        console=console,
        auto_refresh=False,
        redirect_stdout=False,
        disable=not shown,
        get_time=clock,
        speed_estimate_period=SPEED_SECONDS,
    )
    bar.add_task(f"{done:,} of {total:,} {unit}", total=total, completed=done)
    tracker = Tracker(bar, unit, shown)
    if console.is_terminal:
        bar.start()
    try:
        yield tracker
    finally:
        tracker.draw()
        if console.is_terminal:  # elsewhere it would print an empty line
            bar.stop()


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
