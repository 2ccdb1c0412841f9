"""Whatever fails while a state is saved, a whole checkpoint is found: the old or the new one."""

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.runtime.faulty_disk import FaultyDisk
from tests.runtime.states import is_state, never, state
from veca.runtime.snapshots import FACTS, MANIFEST, TENSORS, SnapshotError, Snapshots


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FaultyDisk:
    """The disk under watch."""
    return FaultyDisk(monkeypatch)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="reads descriptors from /proc")
def test_files_reach_the_disk_before_the_manifest_and_the_manifest_before_the_name(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    Snapshots(tmp_path / "run").save(1, state(1), {})
    order = [call for call in disk.calls if call.split()[0] in ("fsync", "rename")]
    hidden = next(call.split()[1] for call in disk.calls if call.startswith("mkdir .step"))
    assert order == [
        f"fsync {tmp_path.name}",  # the new folder of the run
        f"fsync {TENSORS}",
        f"fsync {FACTS}",
        f"fsync {MANIFEST}",
        f"fsync {hidden}",
        f"rename {hidden}",
        "fsync run",
    ]
    last_data, manifest = disk.calls.index(f"fsync {FACTS}"), disk.calls.index(f"open {MANIFEST}")
    assert last_data < manifest
    assert hidden.startswith(".step-000000001.")


@pytest.mark.parametrize("dies", [False, True], ids=["fails", "dies"])
@pytest.mark.parametrize("step", [3, 2], ids=["a new step", "the same step"])
@pytest.mark.parametrize("others", [True, False], ids=["third", "second"])
def test_after_a_failure_at_any_call_the_old_or_the_new_state_is_found(
    others: bool, step: int, dies: bool, tmp_path: Path, disk: FaultyDisk
) -> None:
    def prepared(folder: Path) -> Snapshots:
        snapshots = Snapshots(folder)
        if others:
            snapshots.save(1, state(1), {"old": 1})
        snapshots.save(2, state(2), {"old": 1})
        return snapshots

    snapshots = prepared(tmp_path / "whole")
    disk.fail(at=None)
    snapshots.save(step, state(step), {"new": 1})
    calls, outcomes = len(disk.calls), []
    assert calls > 10

    for at in range(calls):
        folder = tmp_path / str(at)
        snapshots = prepared(folder)
        disk.fail(at, dies=dies)
        try:
            snapshots.save(step, state(step), {"new": 1})
            saved = True
        except SnapshotError:
            saved = False
        disk.fail(at=None)
        found = Snapshots(folder).newest(never)
        new = is_state(found, step, {"new": 1})
        assert new or is_state(found, 2, {"old": 1})
        assert new or not saved  # what was promised is there
        outcomes.append((saved, new))
        if not dies and not saved:
            assert not list(folder.glob(".*"))  # it cleans up after itself
        after = Snapshots(folder)
        after.newest(never)
        after.save(9, state(9), {"later": 1})  # and the run goes on
        assert is_state(Snapshots(folder).newest(never), 9, {"later": 1})
        assert not list(folder.glob(".*"))
    outcomes = outcomes[1:]  # the first call makes the run's folder, which is there already
    # In this order: not saved, saved but not surely on the disk, saved though not all was deleted.
    kinds = [(False, False), (False, True), (True, True)]
    assert outcomes == sorted(outcomes, key=kinds.index)
    assert set(outcomes) == set(kinds if others or step == 2 else kinds[:2])


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EDQUOT])
def test_a_disk_that_refuses_is_told_in_words(code: int, tmp_path: Path, disk: FaultyDisk) -> None:
    snapshots = Snapshots(tmp_path)
    snapshots.save(1, state(1), {})
    disk.error = OSError(code, os.strerror(code))
    disk.fail(at=4)
    with pytest.raises(SnapshotError, match=rf"step 2 could not be saved in .*{os.strerror(code)}"):
        snapshots.save(2, state(2), {})
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000001"]


def test_an_interrupt_leaves_nothing_behind_and_is_passed_on(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    disk.error = KeyboardInterrupt()
    disk.fail(at=4)
    with pytest.raises(KeyboardInterrupt):
        Snapshots(tmp_path).save(1, state(1), {})
    assert not list(tmp_path.iterdir())


def test_old_checkpoints_that_cannot_be_deleted_stop_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EACCES, "Permission denied")

    snapshots = Snapshots(tmp_path)
    for name in ("unlink", "rmdir"):
        monkeypatch.setattr(os, name, refuse)
    for step in range(4):
        snapshots.save(step, state(step), {})
    assert is_state(Snapshots(tmp_path).newest(never), 3, {})
    assert sorted(path.name for path in tmp_path.glob("step-*")) == [
        "step-000000002",  # the others have at least lost their names
        "step-000000003",
    ]


def test_a_disk_without_room_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshots, size = Snapshots(tmp_path), 4 * 50 * 40 + 8 + 2
    for free, fits in ((int(1.2 * size), True), (int(1.2 * size) - 1, False)):
        usage = shutil.disk_usage(tmp_path)._replace(free=free)
        monkeypatch.setattr(shutil, "disk_usage", lambda _, usage=usage: usage)
        if fits:
            snapshots.save(1, state(1), {})
            continue
        with pytest.raises(SnapshotError, match=r"needs 0\.0 MB .* 0\.0 MB are free; make room"):
            snapshots.save(2, state(2), {})
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000001"]


def test_a_disk_that_becomes_full_at_any_byte_leaves_the_old_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshots, real, draw = Snapshots(tmp_path), os.write, random.Random(0)
    snapshots.save(1, state(1), {})
    total = sum(path.stat().st_size for path in (tmp_path / "step-000000001").iterdir())
    room = 0

    def write(file: int, data: memoryview) -> int:
        nonlocal room
        if not room:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = real(file, data[:room])
        room -= taken
        return taken

    monkeypatch.setattr(os, "write", write)
    for offset in (0, total - 1, *(draw.randrange(total) for _ in range(20))):
        room = offset
        with pytest.raises(SnapshotError, match="No space left on device"):
            snapshots.save(2, state(2), {})
        assert [path.name for path in tmp_path.iterdir()] == ["step-000000001"]
        assert is_state(Snapshots(tmp_path).newest(never), 1, {})
    room = total
    snapshots.save(2, state(2), {})
    assert is_state(Snapshots(tmp_path).newest(never), 2, {})


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real disk of 256 KiB."""
    folder, command = tmp_path / "disk", shutil.which("mount")
    folder.mkdir()
    if command is None:
        pytest.skip("there is no mount command")
    options = ["-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    if subprocess.run([command, *options], capture_output=True, check=False).returncode:
        pytest.skip("this user may not mount a small disk")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_on_a_disk_that_is_really_full_the_old_states_stay_and_saving_works_again_later(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshots = Snapshots(small_disk / "run")
    snapshots.save(1, {"x": torch.ones(10_000)}, {})  # 40 kB of 262
    with pytest.raises(SnapshotError, match="make room"):
        snapshots.save(2, {"x": torch.ones(50_000)}, {})
    plenty = shutil.disk_usage(small_disk)._replace(free=10**9)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: plenty)  # as if others filled it meanwhile
        for size in (55_000, 60_000, 100_000):
            with pytest.raises(SnapshotError, match="No space left on device"):
                snapshots.save(2, {"x": torch.ones(size)}, {})
            assert [path.name for path in (small_disk / "run").iterdir()] == ["step-000000001"]
    snapshots.save(2, {"x": torch.ones(10_000)}, {})
    found = Snapshots(small_disk / "run").newest(never)
    assert found is not None
    assert found.step == 2


# One process loads torch and starts a saving one for every line it reads, as often as asked.
NURSERY = """
import itertools, os, sys
from pathlib import Path
import torch
from veca.runtime.snapshots import Snapshots

for line in sys.stdin:
    child = os.fork()
    if not child:
        snapshots = Snapshots(Path(sys.argv[1]))
        found = snapshots.newest(lambda sentence: os._exit(9))
        for step in itertools.count(found.step + 1 if found else 0):
            snapshots.save(step, {"weight": torch.full((200, 100), float(step))}, {"step": step})
            os.write(1, b"%d saved %d\\n" % (os.getpid(), step))
    os.write(1, b"%d started\\n" % child)
    os.waitpid(child, 0)
    os.write(1, b"%d ended\\n" % child)
"""


def test_after_each_of_many_kills_the_last_state_that_was_saved_is_found(tmp_path: Path) -> None:
    draw, environment = random.Random(0), os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", NURSERY, str(tmp_path)],
        env=environment | {"OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    ) as nursery:
        if nursery.stdin is None or nursery.stdout is None:
            pytest.fail("no pipes")
        last, interrupted = -1, 0
        for _ in range(8):
            nursery.stdin.write("go\n")
            words = nursery.stdout.readline().split()
            while words[1] != "started":
                words = nursery.stdout.readline().split()
            child, saves = int(words[0]), 0
            while saves < 2:
                saves += "saved" in nursery.stdout.readline()
            time.sleep(draw.uniform(0, 0.06))
            os.kill(child, signal.SIGKILL)
            while "ended" not in (line := nursery.stdout.readline()):
                last = int(line.split()[-1])
            found = Snapshots(tmp_path).newest(never)
            assert found is not None
            assert found.step >= last  # it was told to be on the disk
            assert torch.equal(found.tensors()["weight"], torch.full((200, 100), float(found.step)))
            interrupted += bool(list(tmp_path.glob(".step-*.tmp")))
        assert interrupted >= 2  # so saves were hit, and not only the time between them
        nursery.stdin.close()
        assert nursery.wait(30) == 0
