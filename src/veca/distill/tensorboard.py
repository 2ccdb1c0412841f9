"""The rows of a run as scalars for TensorBoard, where it is installed.

It is never needed: everything stands in metrics.jsonl. Nothing leaves the machine.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

PLACES = ("kind", "step", "budget", "ffn", "resolution")
"""Fields that say which row it is; the others are its numbers."""


@runtime_checkable
class Writer(Protocol):
    """What of TensorBoard's writer is used."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        """Write one number."""

    def close(self) -> None:
        """Bring everything to the disk."""


class Board:
    """Writes rows of the log as scalars."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    def write(self, row: Mapping[str, Any]) -> None:
        """One scalar for each number of a row, `train/loss` or `validation/loss/128px/8_cores`."""
        for name, value in scalars(row).items():
            self._writer.add_scalar(name, value, row.get("step", 0))

    def close(self) -> None:
        """Bring everything to the disk."""
        self._writer.close()


def open_tensorboard(folder: Path, step: int | None = None) -> Board | None:
    """A board whose files lie in `folder`; None where TensorBoard is not installed.

    `step` is where a resumed run continues: what was written from there on is not shown twice. The
    writer starts a thread, so processes that are forked should be forked before.
    """
    try:
        # Here, since it takes a second and is an option.
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415
    except ImportError:
        return None
    return Board(SummaryWriter(str(folder), purge_step=step))


def scalars(row: Mapping[str, Any]) -> dict[str, float]:
    """Names and values of a row's numbers; a step that was skipped has few.

    Training steps differ in budget and resolution, and these are scalars of their own. Validation
    repeats over them, so there they are part of the name.
    """
    kind = row["kind"]
    numbers = {
        name: float(value)
        for name, value in row.items()
        if name not in PLACES and isinstance(value, int | float)
    }
    if kind == "train":
        drawn = {name: row[name] for name in PLACES[2:] if row.get(name) is not None}
        return {f"{kind}/{name}": value for name, value in {**numbers, **drawn}.items()}
    return {f"{kind}/{name}{_place(row)}": value for name, value in numbers.items()}


def _place(row: Mapping[str, Any]) -> str:
    """What a validation row is about, as the end of a name."""
    words = {"resolution": "{}px", "ffn": "ffn_{:g}", "budget": "{}_cores"}
    told = [form.format(row[name]) for name, form in words.items() if row.get(name) is not None]
    return "".join(f"/{word}" for word in told)
