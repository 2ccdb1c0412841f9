"""A log has whole rows, whoever reads it and whenever its writer is killed."""

import errno
import math
import os
import threading
from contextlib import closing
from pathlib import Path

import pytest

from veca.runtime.files import BLOCK, JsonLines, JsonLinesError, read_json_lines

ROWS: list[dict[str, object]] = [
    {"kind": "train", "step": step, "loss": step / 7, "budget": None} for step in range(5)
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A log that does not exist yet."""
    return tmp_path / "metrics.jsonl"


def write(path: Path, rows: list[dict[str, object]]) -> None:
    with closing(JsonLines(path)) as log:
        for row in rows:
            log.write(row)


def test_rows_come_back_and_more_can_be_added_later(path: Path) -> None:
    write(path, ROWS[:2])
    assert list(read_json_lines(path)) == ROWS[:2]
    write(path, ROWS[2:])
    assert list(read_json_lines(path)) == ROWS
    assert path.read_bytes().count(b"\n") == len(ROWS)


@pytest.mark.parametrize("length", [1, 30, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK])
def test_a_line_that_a_killed_writer_left_torn_is_not_read_and_then_cut_off(
    length: int, path: Path
) -> None:
    write(path, ROWS[:2])
    with path.open("ab") as file:
        file.write(b"\0" * length)  # also what a power cut leaves
    assert list(read_json_lines(path)) == ROWS[:2]
    write(path, ROWS[2:])
    assert list(read_json_lines(path)) == ROWS


@pytest.mark.parametrize("content", [b"", b'{"step":', b"\n"])
def test_a_log_without_a_whole_row_starts_anew(content: bytes, path: Path) -> None:
    path.write_bytes(content.rstrip(b"\n"))
    write(path, ROWS)
    assert list(read_json_lines(path)) == ROWS


def test_every_cut_of_a_log_reads_as_the_rows_before_it(path: Path) -> None:
    write(path, ROWS)
    whole = path.read_bytes()
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        rows = ROWS[: whole[:size].count(b"\n")]
        assert list(read_json_lines(path)) == rows
        JsonLines(path).close()
        assert path.read_bytes() == b"".join(whole.splitlines(keepends=True)[: len(rows)])


def test_a_number_that_is_not_finite_is_refused_with_its_field(path: Path) -> None:
    with closing(JsonLines(path)) as log:
        log.write(ROWS[0])
        with pytest.raises(ValueError, match=r"row\['loss'\] is nan, which JSON cannot hold"):
            log.write({"step": 1, "loss": math.nan})
        log.write(ROWS[1])
    assert list(read_json_lines(path)) == ROWS[:2]


def test_a_row_reaches_the_system_in_one_call_and_the_disk_when_asked(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def watch(name: str) -> None:
        real = getattr(os, name)

        def call(*given: object) -> object:
            calls.append(name)
            return real(*given)

        monkeypatch.setattr(os, name, call)

    watch("write")
    watch("fsync")
    with closing(JsonLines(path)) as log:
        log.write(ROWS[0])
        assert list(read_json_lines(path)) == ROWS[:1]  # at once, for readers
        log.write(ROWS[1])
        log.sync()
        assert calls == ["write", "write", "fsync"]
    log.close()  # twice is once
    assert calls == ["write", "write", "fsync", "fsync"]


@pytest.mark.parametrize("taken", [0, 1, 10])
def test_a_full_disk_keeps_nothing_of_a_row_and_all_of_the_others(
    taken: int, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.write

    def short(file: int, data: bytes) -> int:
        if path.stat().st_size > size:
            raise OSError(errno.ENOSPC, "No space left on device")
        if not taken:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(file, data[:taken])

    with closing(JsonLines(path)) as log:
        log.write(ROWS[0])
        size = path.stat().st_size
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", short)
            with pytest.raises(OSError, match="No space left"):
                log.write(ROWS[1])
        assert list(read_json_lines(path)) == ROWS[:1]
        log.write(ROWS[2])
    assert list(read_json_lines(path)) == [ROWS[0], ROWS[2]]


def test_a_disk_that_takes_a_few_bytes_at_a_time_gets_them_all(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda file, data: real(file, data[:3]))
    write(path, ROWS)
    assert list(read_json_lines(path)) == ROWS


def test_readers_see_whole_rows_while_others_are_written(path: Path) -> None:
    count, long = 300, "ä" * 3000
    JsonLines(path).close()

    def write_all() -> None:
        with closing(JsonLines(path)) as log:
            for step in range(count):
                log.write({"step": step, "text": long})

    writer = threading.Thread(target=write_all)
    writer.start()
    while writer.is_alive():
        rows = list(read_json_lines(path))
        assert [row["step"] for row in rows] == list(range(len(rows)))
        assert all(row["text"] == long for row in rows)
    writer.join()
    assert len(list(read_json_lines(path))) == count


@pytest.mark.parametrize("damage", [b"{]\n", b"[1]\n", b"\xff\n", b"\n"])
def test_damage_before_the_end_is_named_by_its_line(damage: bytes, path: Path) -> None:
    path.write_bytes(b'{"step":0}\n' + damage + b'{"step":1}\n')
    rows = read_json_lines(path)
    assert next(rows) == {"step": 0}
    with pytest.raises(JsonLinesError, match=r"line 2 of .* is no JSON object"):
        next(rows)
