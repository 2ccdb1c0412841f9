"""Atomic writes, folder locks, strict JSON and JSON lines."""

import errno
import json
import math
import os
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.runtime.faults import FaultyDisk, held
from veca.runtime.files import (
    FileError,
    JsonlWriter,
    LockedError,
    dumps_strict,
    lock_folder,
    read_jsonl,
    write_atomic,
)
from veca.runtime.tensors import remove_temporary_files

posix = pytest.mark.skipif(os.name == "nt", reason="Windows has no such locks")

ROWS: list[dict[str, object]] = [
    {"kind": "train", "step": step, "loss": step / 7, "budget": None} for step in range(5)
]

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def test_a_file_is_replaced_by_the_pieces_given(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    write_atomic(path, [b"n", memoryview(b"e"), b"", b"w"])
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["file"]  # noqa: PTH208


def test_a_system_that_writes_a_few_bytes_at_a_time_gets_all_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda file, data: real(file, data[:3]))
    write_atomic(tmp_path / "file", [bytes(range(100))])
    assert (tmp_path / "file").read_bytes() == bytes(range(100))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="reads descriptors from /proc")
def test_the_content_is_durable_before_the_name_and_the_name_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FaultyDisk(monkeypatch)
    write_atomic(tmp_path / "file", [b"a", b"b"])
    hidden = disk.calls[0].split()[1]
    assert hidden.startswith(".file.")
    assert disk.calls == [
        f"open {hidden}", f"write {hidden}", f"write {hidden}", f"fsync {hidden}",
        f"replace {hidden}", f"open {tmp_path.name}", f"fsync {tmp_path.name}",
    ]  # fmt: skip


@pytest.mark.parametrize("error", [OSError(errno.EIO, "injected"), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("dies", [False, True])
def test_a_fault_at_any_call_leaves_the_old_file_or_the_new_one(
    dies: bool, error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    disk = FaultyDisk(monkeypatch)
    disk.error = error
    write_atomic(path, [b"old"])
    disk.fail(None)
    write_atomic(path, [b"old"])
    outcomes = []
    for call in range(len(disk.calls)):
        disk.fail(call, dies=dies)
        with pytest.raises(type(error)):
            write_atomic(path, [b"new ", b"content"])
        disk.fail(None)
        outcomes.append(path.read_bytes())
        if not dies:
            assert list(tmp_path.iterdir()) == [path]
        remove_temporary_files(tmp_path)
        assert list(tmp_path.iterdir()) == [path]
        write_atomic(path, [b"old"])
    assert sorted(set(outcomes), reverse=True) == [b"old", b"new content"]
    assert outcomes == sorted(outcomes, reverse=True)  # renamed, but the folder was not synced yet


@posix
def test_another_process_is_kept_out_until_the_first_ends(tmp_path: Path) -> None:
    with (
        held(tmp_path),
        pytest.raises(LockedError, match="another process is writing into"),
        lock_folder(tmp_path),
    ):
        pass
    with lock_folder(tmp_path):
        pass


@posix
def test_a_forked_process_does_not_hold_the_lock(tmp_path: Path) -> None:
    release = os.pipe()
    with lock_folder(tmp_path):
        child = os.fork()
        if not child:
            os.read(release[0], 1)  # outlives the lock of its parent
            os._exit(0)
    second = os.fork()
    if not second:
        try:
            with lock_folder(tmp_path):
                os._exit(0)
        except LockedError:
            os._exit(1)
    assert os.waitpid(second, 0)[1] == 0
    os.write(release[1], b"x")
    os.waitpid(child, 0)


@posix
def test_a_file_system_without_locks_is_usable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl  # noqa: PLC0415 - not on Windows

    def lockf(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", lockf)
    with lock_folder(tmp_path):
        pass


@given(VALUES)
def test_strict_json_reads_back_with_types_and_order(value: object) -> None:
    text = dumps_strict(value, "value")
    assert "\n" not in text
    assert repr(json.loads(text)) == repr(value)  # which distinguishes 1 from 1.0 and 0.0 from -0.0


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (math.nan, "row cannot be stored as JSON: Out of range"),
        ({"a": [-math.inf]}, "row cannot be stored as JSON: Out of range"),
        ([b"x"], "row cannot be stored as JSON: .*bytes"),
        ({"a": {1, 2}}, "row cannot be stored as JSON: .*set"),
        ({"a": (1, 2)}, "row does not survive .* use lists"),
        ({"a": {1: 2}}, "row does not survive .* text as keys"),
    ],
)
def test_values_that_json_would_change_are_refused(value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dumps_strict(value, "row")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file that does not exist yet."""
    return tmp_path / "metrics.jsonl"


def write(path: Path, rows: list[dict[str, object]]) -> None:
    with closing(JsonlWriter(path)) as log:
        for row in rows:
            log.write(row)


def test_rows_come_back_and_more_can_be_added_later(path: Path) -> None:
    write(path, ROWS[:2])
    assert list(read_jsonl(path)) == ROWS[:2]
    write(path, ROWS[2:])
    assert list(read_jsonl(path)) == ROWS
    assert path.read_bytes().count(b"\n") == len(ROWS)


@pytest.mark.parametrize("length", [1, 30, 100_000])
def test_a_line_cut_by_a_kill_is_skipped_and_then_removed(length: int, path: Path) -> None:
    write(path, ROWS[:2])
    with path.open("ab") as file:
        file.write(b"\0" * length)  # also what a power cut leaves
    assert list(read_jsonl(path)) == ROWS[:2]
    write(path, ROWS[2:])
    assert list(read_jsonl(path)) == ROWS


def test_every_cut_of_a_log_reads_as_the_rows_before_it(path: Path) -> None:
    write(path, ROWS)
    whole = path.read_bytes()
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        rows = ROWS[: whole[:size].count(b"\n")]
        assert list(read_jsonl(path)) == rows
        JsonlWriter(path).close()
        assert path.read_bytes() == b"".join(whole.splitlines(keepends=True)[: len(rows)])


def test_a_row_is_one_write_and_sync_reaches_the_disk(
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
    with closing(JsonlWriter(path)) as log:
        log.write(ROWS[0])
        assert list(read_jsonl(path)) == ROWS[:1]  # at once, for readers
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

    with closing(JsonlWriter(path)) as log:
        log.write(ROWS[0])
        size = path.stat().st_size
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", short)
            with pytest.raises(OSError, match="No space left"):
                log.write(ROWS[1])
        assert list(read_jsonl(path)) == ROWS[:1]
        log.write(ROWS[2])
    assert list(read_jsonl(path)) == [ROWS[0], ROWS[2]]


def test_readers_see_complete_rows_while_others_are_written(path: Path) -> None:
    count, long = 300, "ä" * 3000
    JsonlWriter(path).close()

    def write_all() -> None:
        with closing(JsonlWriter(path)) as log:
            for step in range(count):
                log.write({"step": step, "text": long})

    writer = threading.Thread(target=write_all)
    writer.start()
    while writer.is_alive():
        rows = list(read_jsonl(path))
        assert [row["step"] for row in rows] == list(range(len(rows)))
        assert all(row["text"] == long for row in rows)
    writer.join()
    assert len(list(read_jsonl(path))) == count


@pytest.mark.parametrize("damage", [b"{]\n", b"[1]\n", b"\xff\n", b"\n"])
def test_damage_before_the_end_is_reported_with_its_line(damage: bytes, path: Path) -> None:
    path.write_bytes(b'{"step":0}\n' + damage + b'{"step":1}\n')
    rows = read_jsonl(path)
    assert next(rows) == {"step": 0}
    with pytest.raises(FileError, match=r"line 2 of .* is not a JSON object"):
        next(rows)
