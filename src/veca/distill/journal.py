"""What a run tells: rows on disk always, a live line, curves, and TensorBoard where installed.

A disk that is full does not end a run at a row of its log: rows wait in memory until there is room,
and no checkpoint is saved ahead of them.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from veca.distill.live import Live
from veca.distill.meter import Meter
from veca.distill.run_folder import RunFolder
from veca.distill.summary import write_summary
from veca.distill.tensorboard import Board
from veca.distill.training import StepReport
from veca.runtime.files import JsonlWriter

SPEED_EVERY = 10
"""Steps between two rows of the speed log."""


class Journal:
    """The one voice of a run; that of any process but the first is silent."""

    def __init__(
        self,
        folder: RunFolder | None,
        live: Live,
        meter: Meter,
        facts: Mapping[str, str],
        board: Board | None,
    ) -> None:
        """Continue the logs in a folder; None is the silent one."""
        self._folder = folder
        self._live = live
        self._meter = meter
        self._facts = dict(facts)
        self._board = board
        self._metrics = _PatientLog(folder.metrics, self.say) if folder else None
        self._speed = _PatientLog(folder.speed, self.say) if folder else None

    def row(self, row: Mapping[str, Any]) -> None:
        """Log a row."""
        if self._metrics is not None:
            self._metrics.write(row)
        if self._board is not None:
            try:
                self._board.write(row)
            except OSError as error:  # its thread tells of a full disk from then on
                self._board = None
                self.say(f"TensorBoard's files cannot be written ({error}); it is left out.")

    def step(self, report: StepReport) -> None:
        """Log a step, and show it."""
        self._meter.count(report.images)
        self.row(report.row)
        if self._speed is None:
            return
        speed = self._meter.reading()
        self._live.step(report.row, **speed._asdict(), done=report.row["step"] + 1)
        if report.row["step"] % SPEED_EVERY == 0:
            self._speed.write({"step": report.row["step"], **speed._asdict()})
        if report.row.get("skipped"):
            self.say(f"Step {report.row['step']:,} was skipped: not all of its numbers are finite.")

    def validation(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Log a validation, and draw the curves anew."""
        for row in rows:
            self.row(row)
        if rows:
            for size in sorted({row["resolution"] for row in rows}):
                losses = ", ".join(_told(row) for row in rows if row["resolution"] == size)
                self.say(f"Validation before step {rows[0]['step']:,} at {size} px: {losses}")
        self.summarize()

    def summarize(self) -> None:
        """Draw the curves, if the disk has room for them."""
        if self._folder is None:
            return
        try:
            self.sync()
            write_summary(self._folder.path, self._facts)
        except OSError as error:
            self.say(f"The summary could not be written ({error}); training goes on.")

    def say(self, text: str) -> None:
        """Tell a sentence."""
        self._live.say(text)

    def sync(self) -> None:
        """Bring all rows to the disk, or raise an OSError."""
        for log in (self._metrics, self._speed):
            if log is not None:
                log.sync()

    def close(self) -> None:
        """Close the files; what cannot be written any more is told, since the run is over."""
        for log in (self._metrics, self._speed, self._board):
            try:
                if log is not None:
                    log.close()
            except OSError as error:
                self.say(f"A log could not be written to its end ({error}).")


class _PatientLog:
    """A log whose rows wait while the disk takes none."""

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        self._lines = JsonlWriter(path)
        self._name = path.name
        self._say = say
        self._waiting: deque[Mapping[str, Any]] = deque()

    def write(self, row: Mapping[str, Any]) -> None:
        """Write a row now or later."""
        told = bool(self._waiting)
        self._waiting.append(dict(row))
        try:
            self._write_waiting()
        except OSError as error:
            if not told:
                self._say(f"{self._name} cannot be written ({error}); its rows wait for room.")

    def sync(self) -> None:
        """Bring all rows to the disk, or raise an OSError."""
        self._write_waiting()
        self._lines.sync()

    def close(self) -> None:
        """Write what waits, and no more."""
        try:
            self._write_waiting()
        finally:
            self._lines.close()

    def _write_waiting(self) -> None:
        """Write the rows in their order."""
        while self._waiting:
            self._lines.write(self._waiting[0])
            self._waiting.popleft()


def _told(row: Mapping[str, Any]) -> str:
    """One loss in words, such as '8 cores 0.812'."""
    way = "full attention" if row["budget"] is None else f"{row['budget']} cores"
    if row["ffn"] != 1:
        way += f" at FFN {row['ffn']:g}"
    loss = "not finite" if row["loss"] is None else f"{row['loss']:.4f}"
    return f"{way} {loss}"
