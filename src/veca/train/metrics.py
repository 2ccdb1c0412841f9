"""The logs of a run: metrics.jsonl, speed.jsonl, a progress line, and TensorBoard if installed.

A full disk does not end a run at a row of its log: rows wait in memory until there is room, and no
checkpoint is saved before they are on disk.
"""

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from veca.runtime.device import peak_memory
from veca.runtime.files import JsonlWriter, read_jsonl
from veca.runtime.logging import Tracker, logger, progress

SPEED_EVERY = 10
"""Steps between two rows of the speed log, and steps that a speed is measured over."""

KEYS = ("kind", "step", "resolution", "ffn", "budget")
"""Fields that identify a row; the others are its values."""

Row = Mapping[str, Any]


class Speed(NamedTuple):
    """Speed over the last steps."""

    images_per_second: float
    data_wait: float
    """Share of the time in which training waited for images, 0 to 1."""
    memory_mb: float
    """Peak memory of the GPU, or of this process."""


class Meter:
    """Measures the training speed of one rank, validation and saving aside."""

    def __init__(self, device: torch.device | None = None) -> None:
        self._device = device or torch.device("cpu")
        self._images = 0
        self._waited = self._paused = 0.0
        self._marks = deque([(self._now(), 0, 0.0)], maxlen=SPEED_EVERY + 1)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time within as waiting for data."""
        start = self._now()
        try:
            yield
        finally:
            self._waited += self._now() - start

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Do not count the time within."""
        start = self._now()
        try:
            yield
        finally:
            self._paused += self._now() - start

    def step(self, images: int) -> Speed:
        """Count a step, and return the speed over the last ones."""
        self._images += images
        self._marks.append((self._now(), self._images, self._waited))
        seconds, count, waited = (
            last - first for first, last in zip(self._marks[0], self._marks[-1], strict=True)
        )
        memory = peak_memory(self._device) / 1e6
        if seconds <= 0:
            return Speed(0.0, 0.0, memory)
        return Speed(count / seconds, min(waited / seconds, 1.0), memory)

    def _now(self) -> float:
        return time.monotonic() - self._paused


class MetricLogger:
    """Writes the rows of a run and shows its progress; on ranks other than 0 it does nothing."""

    def __init__(
        self, folder: Path | None, meter: Meter, *, total: int, done: int = 0, shown: bool = True
    ) -> None:
        """Continue the logs of a folder; None logs nothing."""
        self._meter = meter
        self._files: dict[str, _BufferedLog] = {}
        self._board: Any = None
        self._progress = ExitStack()
        self._tracker: Tracker | None = None
        if folder is not None:
            self._files = {
                name: _BufferedLog(folder / f"{name}.jsonl") for name in ("metrics", "speed")
            }
            self._board = _tensorboard(folder / "tensorboard", done)
            if shown:
                tracker = progress(total, "steps", done=done)
                self._tracker = self._progress.enter_context(tracker)

    def log(self, row: Row) -> None:
        """Log a row."""
        if not self._files:
            return
        self._files["metrics"].write(row)
        if self._board is not None:
            try:
                for name, value in scalars(row).items():
                    self._board.add_scalar(name, value, row.get("step", 0))
            except OSError as error:  # raised by the writer's thread from then on
                self._board = None
                logger.warning("TensorBoard files cannot be written (%s); continuing.", error)

    def step(self, row: Row, images: int) -> Speed:
        """Log a training step of so many images, show it, and return the speed."""
        speed = self._meter.step(images)
        self.log(row)
        if self._tracker is not None:
            loss = "skipped" if row.get("loss") is None else f"loss {row['loss']:.4f}"
            self._tracker.advance(note=f"{loss}, {speed.images_per_second:,.1f} images/s")
        if self._files and row["step"] % SPEED_EVERY == 0:
            self._files["speed"].write({"step": row["step"], **speed._asdict()})
        if row.get("skipped"):
            logger.warning("Step %s was skipped: its loss or gradient is not finite.", row["step"])
        return speed

    def sync(self) -> None:
        """Bring all rows to the disk, or raise an OSError."""
        for log in self._files.values():
            log.sync()

    def close(self) -> None:
        """Close the files; what cannot be written is reported, since training is over."""
        self._progress.close()
        for log in (*self._files.values(), self._board):
            try:
                if log is not None:
                    log.close()
            except OSError as error:
                logger.warning("A log could not be written completely (%s).", error)


class _BufferedLog(JsonlWriter):
    """A JSONL file whose rows wait in memory while the disk is full."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._waiting: deque[Row] = deque()

    def write(self, row: Row) -> None:
        """Write a row now, or later if that fails."""
        self._waiting.append(dict(row))
        try:
            self._flush()
        except OSError as error:
            if len(self._waiting) == 1:
                logger.warning(
                    "%s cannot be written (%s); its rows wait for room.", self.path.name, error
                )

    def sync(self) -> None:
        """Sync every row to the disk, or raise an OSError."""
        self._flush()
        super().sync()

    def close(self) -> None:
        """Write waiting rows and close the file."""
        try:
            self._flush()
        finally:
            super().close()

    def _flush(self) -> None:
        while self._waiting:
            super().write(self._waiting[0])
            self._waiting.popleft()


def validation_table(rows: Sequence[Row]) -> Iterator[str]:
    """The losses of a validation: a line for each resolution, a column for each budget or share."""
    sizes = sorted({row["resolution"] for row in rows})
    for title, key, own in (
        ("cores", "budget", [row for row in rows if row["ffn"] == 1]),
        ("FFN share", "ffn", [row for row in rows if row["ffn"] != 1]),
    ):
        columns = list(dict.fromkeys(row[key] for row in own))
        if columns:
            names = ("all" if column is None else f"{column:g}" for column in columns)
            yield f"  {title:<9}{''.join(f'{name:>8}' for name in names)}"
            losses = {(row["resolution"], row[key]): row["loss"] for row in own}
            for size in sizes:
                found = (losses.get((size, column)) for column in columns)
                cells = ("NaN" if loss is None else f"{loss:.4f}" for loss in found)
                yield f"  {f'{size} px':<9}{''.join(f'{cell:>8}' for cell in cells)}"


def _tensorboard(folder: Path, step: int) -> Any:  # noqa: ANN401 - a type that may be absent
    """A TensorBoard writer that hides what an earlier run wrote from `step` on; None without it."""
    try:
        # Here, since importing it takes a second.
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415
    except ImportError:
        return None
    try:
        return SummaryWriter(str(folder), purge_step=step)
    except (OSError, UnicodeEncodeError) as error:  # it takes only names in UTF-8
        logger.warning("TensorBoard files cannot be written (%s); continuing.", error)
        return None


def scalars(row: Row) -> dict[str, float]:
    """TensorBoard tags and values of a row: `train/loss`, `validation/loss/128px/8_cores`.

    What was drawn for a training step is a scalar of its own; validation repeats over it, so there
    it is part of the tag.
    """
    kind = row["kind"]
    values = {
        name: float(value)
        for name, value in row.items()
        if isinstance(value, int | float) and (kind == "train" or name not in KEYS)
    }
    if kind == "train":
        return {f"{kind}/{name}": value for name, value in values.items() if name != "step"}
    formats = {"resolution": "/{}px", "ffn": "/ffn_{:g}", "budget": "/{}_cores"}
    suffix = "".join(
        text.format(row[name]) for name, text in formats.items() if row.get(name) is not None
    )
    return {f"{kind}/{name}{suffix}": value for name, value in values.items()}


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The rows of a log; of rows about the same thing, as a resumed run writes, the last one."""
    latest = {tuple(map(row.get, KEYS)): row for row in read_jsonl(path)}
    return list(latest.values())
