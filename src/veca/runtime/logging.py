"""The package's logger, and progress on a terminal and in a log."""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

logger = logging.getLogger("veca")
"""What the package reports; commands show it on stderr (`log_to_console`)."""

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
"""Seconds that only ever rise."""

PACE_SECONDS = 30.0
"""How far back the pace looks."""

BAR_SECONDS = 0.1
"""Least time between two drawings of the bar."""

LINE_SECONDS = 10.0
"""Least time between two plain lines."""


class Pace:
    """Things per second, lately."""

    def __init__(self, done: int, clock: Clock) -> None:
        self.done = done
        self._clock = clock
        self._points = deque([(clock(), done)])

    def advance(self, count: int) -> None:
        """Note that more are done."""
        self.done += count
        now = self._clock()
        if now - self._points[-1][0] >= BAR_SECONDS:  # so that their number is bounded
            self._points.append((now, self.done))
        while len(self._points) > 2 and now - self._points[1][0] >= PACE_SECONDS:
            self._points.popleft()

    @property
    def rate(self) -> float:
        """Things per second; 0 before anything is done."""
        start, before = self._points[0]
        elapsed = self._clock() - start
        return (self.done - before) / elapsed if elapsed > 0 else 0.0


class Tracker:
    """What the work tells its progress to."""

    def __init__(self, total: int, unit: str, done: int, clock: Clock) -> None:
        self.total = total
        self.unit = unit
        self.pace = Pace(done, clock)

    def advance(self, count: int = 1) -> None:
        """Tell that more are done."""
        self.pace.advance(count)
        self.show()

    def show(self) -> None:
        """Nothing: this one is silent."""

    def close(self) -> None:
        """Say the last word."""

    def speed(self) -> str:
        """Such as '85.3 images/s, 3 min 42 s left'."""
        rate = self.pace.rate
        words = f"{rate:,.1f} {self.unit}/s"
        left = self.total - self.pace.done
        return f"{words}, {duration(left / rate)} left" if left > 0 and rate > 0 else words


class Lines(Tracker):
    """Plain lines, for logs and pipes: one at times, one at the end."""

    def __init__(self, total: int, unit: str, done: int, clock: Clock, console: Console) -> None:
        super().__init__(total, unit, done, clock)
        self._console = console
        self._clock = clock
        self._shown_at = clock()
        self._shown = done

    def show(self) -> None:
        """Write a line if the last one is old."""
        if self._clock() - self._shown_at >= LINE_SECONDS:
            self._write()

    def close(self) -> None:
        """Write how far it came, unless that was just written."""
        if self._shown != self.pace.done:
            self._write()

    def _write(self) -> None:
        """One line."""
        self._shown_at, self._shown = self._clock(), self.pace.done
        line = f"{self.pace.done:,} of {self.total:,} {self.unit}, {self.speed()}"
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)


class Bar(Tracker):
    """A bar that is drawn over itself, for people."""

    def __init__(self, total: int, unit: str, done: int, clock: Clock, console: Console) -> None:
        super().__init__(total, unit, done, clock)
        self._clock = clock
        self._bar = Progress(
            TextColumn(f"{{task.completed:,.0f}} of {{task.total:,.0f}} {unit}"),
            BarColumn(),
            TextColumn("{task.fields[speed]}"),
            console=console,
            auto_refresh=False,
        )
        self._task = self._bar.add_task("", total=total, completed=done, speed="")
        self._shown_at = clock()
        self._bar.start()

    def show(self) -> None:
        """Draw the bar if the last drawing is old."""
        if self._clock() - self._shown_at >= BAR_SECONDS:
            self._draw()

    def close(self) -> None:
        """Leave the bar as it stands."""
        self._draw()
        self._bar.stop()

    def _draw(self) -> None:
        """Draw the bar now."""
        self._shown_at = self._clock()
        self._bar.update(self._task, completed=self.pace.done, speed=self.speed(), refresh=True)


@contextmanager
def progress(  # noqa: PLR0913 - the last two are for tests
    total: int,
    unit: str,
    *,
    done: int = 0,
    shown: bool = True,
    console: Console | None = None,
    clock: Clock = time.monotonic,
) -> Iterator[Tracker]:
    """Show how far work has come, of which `done` was done before; in silence if not `shown`."""
    tracker = Tracker(total, unit, done, clock)
    if shown:
        console = console or Console(stderr=True)
        kind = Bar if console.is_terminal else Lines
        tracker = kind(total, unit, done, clock, console)
    try:
        yield tracker
    finally:
        tracker.close()


def duration(seconds: float) -> str:
    """A time as people say it, such as '3 min 42 s'."""
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
