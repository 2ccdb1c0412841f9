"""What a run tells, and where."""

import errno
import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.distill.clock import Clock
from veca.distill.journal import SPEED_EVERY, Journal
from veca.distill.live import Live, SilentLive
from veca.distill.meter import Meter
from veca.distill.run_folder import RunFolder
from veca.distill.tensorboard import Board
from veca.distill.training import StepReport
from veca.runtime.files import JsonlWriter, read_jsonl

FACTS = {"recipe": "test", "seed": "3"}


class Scalars:
    """What TensorBoard would get."""

    def __init__(self) -> None:
        self.found: list[tuple[str, int]] = []
        self.closed = False

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        self.found.append((tag, global_step))

    def close(self) -> None:
        self.closed = True


def journal_of(folder: Path | None, board: Board | None = None) -> tuple[Journal, io.StringIO]:
    """A journal, and what people get to read of it."""
    text, clock = io.StringIO(), Clock()
    live = Live(100, console=Console(file=text, width=200), clock=clock)
    where = None if folder is None else RunFolder(folder)
    return Journal(where, live, Meter(clock), FACTS, board), text


def report(step: int, **more: Any) -> StepReport:
    """What a step did."""
    row = {"kind": "train", "step": step, "loss": 0.5, "budget": 2, "ffn": 1.0, "resolution": 32}
    return StepReport({**row, **more}, 4, False)


def validation(
    step: int, budget: int | None, loss: float | None, ffn: float = 1.0
) -> dict[str, Any]:
    """A row of a validation."""
    return {"kind": "validation", "step": step, "budget": budget, "ffn": ffn, "resolution": 32,
            "loss": loss}  # fmt: skip


def rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a log."""
    return list(read_jsonl(path))


def fill_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no row be written any more."""

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(JsonlWriter, "write", full)


def test_every_step_is_a_row_and_some_tell_the_speed(tmp_path: Path) -> None:
    journal, text = journal_of(tmp_path)
    for step in range(2 * SPEED_EVERY + 1):
        journal.step(report(step))
    journal.close()
    assert rows(tmp_path / "metrics.jsonl") == [
        report(step).row for step in range(2 * SPEED_EVERY + 1)
    ]
    speed = rows(tmp_path / "speed.jsonl")
    assert [row["step"] for row in speed] == [0, SPEED_EVERY, 2 * SPEED_EVERY]
    assert speed[0].keys() == {"step", "images_per_second", "data_wait", "memory_mb"}
    assert "step 1 of 100, loss 0.5000, 2 cores" in text.getvalue()


def test_nothing_in_the_log_of_losses_depends_on_the_clock(tmp_path: Path) -> None:
    journal, _ = journal_of(tmp_path)
    journal.step(report(0))
    journal.close()
    assert rows(tmp_path / "metrics.jsonl")[0].keys() == report(0).row.keys()


def test_a_journal_goes_on_where_the_one_before_it_ended(tmp_path: Path) -> None:
    for step in (0, 1):
        journal, _ = journal_of(tmp_path)
        journal.step(report(step))
        journal.close()
    assert [row["step"] for row in rows(tmp_path / "metrics.jsonl")] == [0, 1]


def test_a_skipped_step_is_told(tmp_path: Path) -> None:
    journal, text = journal_of(tmp_path)
    journal.step(report(1234, loss=None, skipped=True))
    journal.close()
    assert "Step 1,234 was skipped: not all of its numbers are finite." in text.getvalue()


def test_a_validation_is_logged_told_and_drawn(tmp_path: Path) -> None:
    journal, text = journal_of(tmp_path)
    found = [
        validation(1000, 2, 0.71239),
        validation(1000, 4, None),
        validation(1000, 4, 0.5, ffn=0.25),
    ]
    journal.validation(found)
    journal.close()
    assert rows(tmp_path / "metrics.jsonl") == found
    assert (
        "Validation before step 1,000 at 32 px: 2 cores 0.7124, 4 cores not finite, "
        "4 cores at FFN 0.25 0.5000" in text.getvalue()
    )
    assert "0.7124" in (tmp_path / "summary.html").read_text("utf-8")


def test_a_baseline_is_told_without_cores(tmp_path: Path) -> None:
    journal, text = journal_of(tmp_path)
    journal.validation([validation(0, None, 0.9)])
    journal.close()
    assert "full attention 0.9000" in text.getvalue()


def test_a_validation_without_rows_still_draws_the_curves(tmp_path: Path) -> None:
    journal, text = journal_of(tmp_path)
    journal.validation([])
    journal.close()
    assert (tmp_path / "summary.html").is_file()
    assert text.getvalue() == ""


def test_the_journal_of_other_processes_writes_and_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    journal = Journal(None, SilentLive(0), Meter(Clock()), FACTS, None)
    journal.step(report(0, skipped=True))
    journal.validation([validation(0, 2, 0.5)])
    journal.sync()
    journal.close()
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")


def test_tensorboard_gets_every_row_and_is_closed(tmp_path: Path) -> None:
    scalars = Scalars()
    journal, _ = journal_of(tmp_path, Board(scalars))
    journal.step(report(7))
    journal.validation([validation(8, 2, 0.5)])
    journal.close()
    assert ("train/loss", 7) in scalars.found
    assert any(tag.startswith("validation/loss") and step == 8 for tag, step in scalars.found)
    assert scalars.closed


def test_rows_wait_in_order_while_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, text = journal_of(tmp_path)
    journal.step(report(0))
    with monkeypatch.context() as patch:
        fill_disk(patch)
        journal.step(report(1))
        journal.validation([validation(2, 2, 0.5)])
        journal.step(report(2))
        with pytest.raises(OSError, match="No space left"):
            journal.sync()  # so that a checkpoint is not saved ahead of its log
    assert rows(tmp_path / "metrics.jsonl") == [report(0).row]
    journal.step(report(3))
    assert [row["step"] for row in rows(tmp_path / "metrics.jsonl")] == [0, 1, 2, 2, 3]
    journal.close()
    said = text.getvalue()
    assert said.count("metrics.jsonl cannot be written ([Errno 28] No space left on device)") == 1
    assert "The summary could not be written" in said


def test_a_board_that_cannot_be_written_is_left_out(tmp_path: Path) -> None:
    class FullBoard(Scalars):
        def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    scalars = FullBoard()
    journal, text = journal_of(tmp_path, Board(scalars))
    for step in range(2):
        journal.step(report(step))
    journal.close()
    assert text.getvalue().count("TensorBoard's files cannot be written") == 1
    assert len(rows(tmp_path / "metrics.jsonl")) == 2


def test_closing_a_journal_writes_what_waits_or_says_that_it_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, _ = journal_of(tmp_path)
    with monkeypatch.context() as patch:
        fill_disk(patch)
        journal.row({"kind": "resume", "step": 5})
    journal.close()
    assert rows(tmp_path / "metrics.jsonl") == [{"kind": "resume", "step": 5}]
    journal, text = journal_of(tmp_path)
    fill_disk(monkeypatch)
    journal.row({"kind": "resume", "step": 6})
    journal.close()
    assert "A log could not be written to its end ([Errno 28] No space left" in text.getvalue()
