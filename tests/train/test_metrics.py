"""Logs of a run: rows, speed, the progress line, TensorBoard."""

import contextlib
import errno
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from veca.runtime import device as device_module
from veca.runtime.device import peak_memory
from veca.runtime.files import JsonlWriter, read_jsonl
from veca.train import metrics as module
from veca.train.metrics import (
    SPEED_EVERY,
    Meter,
    MetricLogger,
    read_metrics,
    scalars,
    validation_table,
)

CPU = torch.device("cpu")


class Clock:
    """A clock that only tests advance."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def step_row(step: int, **more: Any) -> dict[str, Any]:
    """The row of a training step."""
    row = {"kind": "train", "step": step, "loss": 0.5, "loss_patch_cosine": 0.25, "budget": 2,
           "ffn": 1.0, "resolution": 32}  # fmt: skip
    return {**row, **more}


def rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a log."""
    return list(read_jsonl(path))


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Stop the time."""
    clock = Clock()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=clock))
    return clock


def logger_of(folder: Path | None) -> MetricLogger:
    """A logger of a run of 100 steps."""
    return MetricLogger(folder, Meter(), total=100)


def fill_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every write of a row fail."""

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(JsonlWriter, "write", full)


def test_every_step_is_a_row_and_some_are_rows_of_speed(tmp_path: Path) -> None:
    for start in (0, 10):  # the second one continues the files of the first
        logger = logger_of(tmp_path)
        for step in range(start, start + 11):
            logger.step(step_row(step), 4)
        logger.close()
    steps = [*range(11), *range(10, 21)]
    # Nothing in it depends on the clock.
    assert rows(tmp_path / "metrics.jsonl") == [step_row(step) for step in steps]
    assert [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl")] == list(range(21))
    speed = rows(tmp_path / "speed.jsonl")
    assert [row["step"] for row in speed] == [0, SPEED_EVERY, SPEED_EVERY, 2 * SPEED_EVERY]
    assert speed[0].keys() == {"step", "images_per_second", "data_wait", "memory_mb"}


def test_other_ranks_log_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    logger = logger_of(None)
    logger.step(step_row(0), 4)
    logger.log({"kind": "resume", "step": 0})
    logger.sync()
    logger.close()
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")


def test_rows_wait_in_order_while_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    logger = logger_of(tmp_path)
    logger.step(step_row(0), 4)
    with monkeypatch.context() as patch:
        fill_disk(patch)
        logger.step(step_row(1), 4)
        logger.step(step_row(2), 4)
        with pytest.raises(OSError, match="No space left"):
            logger.sync()  # so that no checkpoint is ahead of the log
    assert rows(tmp_path / "metrics.jsonl") == [step_row(0)]
    logger.step(step_row(3), 4)
    assert [row["step"] for row in rows(tmp_path / "metrics.jsonl")] == [0, 1, 2, 3]
    assert caplog.text.count("metrics.jsonl cannot be written ([Errno 28] No space left on") == 1
    with monkeypatch.context() as patch:
        fill_disk(patch)
        logger.step(step_row(4), 4)
        logger.close()
    assert "A log could not be written completely ([Errno 28] No space left" in caplog.text


def test_a_validation_is_a_table_of_budgets_and_of_shares() -> None:
    losses = {(2, 1.0): 0.71239, (4, 1.0): None, (4, 0.25): 0.5}
    found: list[dict[str, Any]] = [
        {"budget": budget, "ffn": ffn, "resolution": size, "loss": loss and loss + size / 1000}
        for size in (64, 128)
        for (budget, ffn), loss in losses.items()
    ]
    assert list(validation_table(found)) == [
        "  cores           2       4",
        "  64 px      0.7764     NaN",
        "  128 px     0.8404     NaN",
        "  FFN share    0.25",
        "  64 px      0.5640",
        "  128 px     0.6280",
    ]
    full = [{"budget": None, "ffn": 1.0, "resolution": 64, "loss": 0.9}]
    assert list(validation_table(full)) == ["  cores         all", "  64 px      0.9000"]


def events(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Step and value of every scalar in a folder."""
    name = "tensorboard.backend.event_processing.event_accumulator"
    accumulator = pytest.importorskip(name, reason="needs the package tensorboard")
    found = accumulator.EventAccumulator(str(folder)).Reload()
    return {
        tag: [(event.step, event.value) for event in found.Scalars(tag)]
        for tag in found.Tags()["scalars"]
    }


def test_tensorboard_shows_every_row_and_no_step_of_a_resumed_run_twice(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs the package tensorboard")
    for start in (0, 3):
        logger = MetricLogger(tmp_path, Meter(), total=6, done=start, shown=False)
        for step in range(start, 6):
            logger.step(step_row(step, loss=1.0 + start), 4)
        logger.log({"kind": "validation", "step": 6, "loss": 2.0, "budget": 8, "ffn": 0.5})
        logger.close()
    found = events(tmp_path / "tensorboard")
    assert found["train/loss"] == [(step, 1.0 if step < 3 else 4.0) for step in range(6)]
    assert found["train/budget"][0] == (0, 2.0)
    assert found["validation/loss/ffn_0.5/8_cores"][-1] == (6, 2.0)


def test_a_folder_that_tensorboard_cannot_name_has_the_other_logs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("tensorboard", reason="needs the package tensorboard")
    folder = tmp_path / "b\udce9"
    folder.mkdir()
    logger = MetricLogger(folder, Meter(), total=1, shown=False)
    logger.log({"kind": "train", "step": 0})
    logger.close()
    assert (folder / "metrics.jsonl").stat().st_size
    assert "TensorBoard files cannot be written" in caplog.text


def test_a_run_continues_without_tensorboard_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class FullBoard:
        """Fails at every scalar."""

        def add_scalar(self, *_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module, "_tensorboard", lambda *_: FullBoard())
    logger = logger_of(tmp_path)
    for step in range(2):
        logger.step(step_row(step), 4)
    logger.close()
    assert caplog.text.count("TensorBoard files cannot be written") == 1
    assert len(rows(tmp_path / "metrics.jsonl")) == 2


def test_each_number_of_a_row_is_a_scalar() -> None:
    drawn = {"train/budget": 2, "train/ffn": 1.0, "train/resolution": 32}
    assert scalars(step_row(7)) == {"train/loss": 0.5, "train/loss_patch_cosine": 0.25, **drawn}
    skipped = step_row(7, loss=None, loss_patch_cosine=None, budget=None, skipped=True)
    assert scalars(skipped) == {"train/ffn": 1.0, "train/resolution": 32, "train/skipped": 1.0}
    assert scalars(step_row(7, kind="validation")) == {
        "validation/loss/32px/ffn_1/2_cores": 0.5,
        "validation/loss_patch_cosine/32px/ffn_1/2_cores": 0.25,
    }
    assert scalars({"kind": "resume", "step": 5}) == {}


def test_speed_is_that_of_the_last_steps_without_pauses(clock: Clock) -> None:
    meter = Meter()
    for _ in range(100):
        clock.now += 100
        meter.step(1)
    for _ in range(SPEED_EVERY):
        with contextlib.suppress(OSError), meter.waiting():
            clock.now += 0.5
            raise OSError  # counts all the same
        clock.now += 1.5
        with meter.paused():
            clock.now += 1000
        speed = meter.step(64)
    assert speed.images_per_second == pytest.approx(32)
    assert speed.data_wait == pytest.approx(0.25)
    assert Meter().step(1)[:2] == (0, 0)  # no time has passed


def test_peak_memory_never_falls() -> None:
    block = bytearray(b"x") * 100_000_000
    before = peak_memory(CPU)
    del block
    # Linux counts pages of each thread in batches.
    assert before >= 100_000_000
    assert peak_memory(CPU) >= 0.95 * before
    assert Meter().step(1).memory_mb == pytest.approx(peak_memory(CPU) / 1e6, rel=0.05)


@pytest.mark.parametrize("platform", ["darwin", "linux"])
def test_peak_memory_of_other_systems(
    platform: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(device_module, "PROCESS_STATUS", tmp_path / "none")
    monkeypatch.setattr(sys, "platform", platform)
    assert peak_memory(CPU) > 10_000
    monkeypatch.setattr(device_module, "resource", None)  # Windows
    assert peak_memory(CPU) == 0


@pytest.mark.gpu
def test_on_a_gpu_memory_is_what_torch_allocates() -> None:
    device = torch.device("cuda")
    before = peak_memory(device)
    block = torch.zeros(before + 10_000_000, dtype=torch.uint8, device=device)
    assert peak_memory(device) >= len(block)
