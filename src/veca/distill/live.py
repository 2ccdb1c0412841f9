"""The live line: where training stands, for who is watching.

On a terminal one line is drawn over itself; in a log it is a plain line at times. Both go to
stderr. No thread draws it: processes can be forked meanwhile.
"""

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.live import Live as Redrawn
from rich.text import Text

from veca.distill.losses import NAMES, PARTS
from veca.runtime.logging import BAR_SECONDS, LINE_SECONDS, Clock, Pace, duration

PART_NAMES = {part: part.removeprefix("loss_").replace("_", " ") for part in (*PARTS, *NAMES)}
"""Field of a row and what it is called in the line."""


class Live:
    """The line of the process that speaks."""

    def __init__(
        self, total: int, console: Console | None = None, clock: Clock = time.monotonic
    ) -> None:
        self.total = total
        self._console = console or Console(stderr=True)
        self._clock = clock
        self._pace: Pace | None = None
        self._shown_at: float | None = None
        self._latest = ""
        self._shown = ""
        self._redrawn: Redrawn | None = None

    def __enter__(self) -> "Live":
        """Begin to draw."""
        if self._console.is_terminal:
            # stdout stays as it is: it may lead elsewhere.
            self._redrawn = Redrawn(
                Text(), console=self._console, auto_refresh=False, redirect_stdout=False
            )
            self._redrawn.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave the last line as it stands."""
        if self._latest != self._shown:
            self._show()
        if self._redrawn is not None:
            self._redrawn.stop()
            self._redrawn = None

    def step(
        self,
        row: Mapping[str, Any],
        *,
        images_per_second: int | float,
        data_wait: int | float,
        memory_mb: int | float,
        done: int,
    ) -> None:
        """Tell of a step, a row of the log, after which `done` steps are done."""
        if self._pace is None:  # what was done before a resume was not fast
            self._pace = Pace(done, self._clock)
        self._pace.advance(done - self._pace.done)
        speed = f"{images_per_second:,.1f} images/s, {data_wait:.0%} waiting, {memory_mb:,.0f} MB"
        self._latest = f"step {done:,} of {self.total:,}, {words(row)}, {speed}{self._left()}"
        if self._due():
            self._show()

    def say(self, text: str) -> None:
        """Write a sentence that stays, above the line."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def _left(self) -> str:
        """How long the rest will take, if that can be told."""
        rate = self._pace.rate if self._pace else 0.0
        left = self.total - (self._pace.done if self._pace else 0)
        return f", {duration(left / rate)} left" if left > 0 and rate > 0 else ""

    def _due(self) -> bool:
        """Whether the last line is old."""
        least = BAR_SECONDS if self._redrawn else LINE_SECONDS
        return self._shown_at is None or self._clock() - self._shown_at >= least

    def _show(self) -> None:
        """Draw or write the line of now."""
        self._shown_at, self._shown = self._clock(), self._latest
        if self._redrawn is not None:
            self._redrawn.update(Text(self._latest), refresh=True)
        else:
            self.say(self._latest)


class SilentLive(Live):
    """The line of a process that has nothing to say: every one but the first."""

    def __enter__(self) -> "Live":
        """Draw nothing."""
        return self

    def say(self, text: str) -> None:
        """Nothing."""


def words(row: Mapping[str, Any]) -> str:
    """Loss, its parts and what was drawn for a step, as in 'loss 0.8123 (image 0.31...), 8 cores'.

    A row tells only what it holds: a step that was skipped has no loss.
    """
    said = []
    if row.get("loss") is None:
        said.append("skipped")
    else:
        parts = [
            f"{name} {row[key]:.4f}" for key, name in PART_NAMES.items() if row.get(key) is not None
        ]
        said.append(f"loss {row['loss']:.4f}" + (f" ({', '.join(parts)})" if parts else ""))
    if row.get("budget") is not None:
        said.append(f"{row['budget']} cores")
    if row.get("ffn") is not None:
        said.append(f"ffn {row['ffn']:g}")
    if row.get("resolution") is not None:
        said.append(f"{row['resolution']} px")
    return ", ".join(said)
