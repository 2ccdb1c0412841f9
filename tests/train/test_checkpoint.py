"""Saving and finding checkpoints, also after damage, failures and kills."""

import itertools
import logging
import math
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.runtime.faults import FaultyDisk
from veca.train.checkpoint import (
    KEEP,
    Checkpoint,
    CheckpointError,
    CheckpointManager,
    load_checkpoint,
)


def state(step: int) -> dict[str, Tensor]:
    """Tensors that are different at every step."""
    return {"weight": torch.full((50, 40), float(step)), "count": torch.tensor(step)}


def is_state(found: Checkpoint | None, step: int, metadata: dict[str, Any]) -> bool:
    """Whether a checkpoint holds the state of this step."""
    return (
        found is not None
        and (found.step, found.metadata) == (step, metadata)
        and all(torch.equal(found.tensors[name], wanted) for name, wanted in state(step).items())
    )


def names_in(folder: Path) -> list[str]:
    """What is in a folder, hidden or not."""
    return sorted(path.name for path in folder.iterdir())


def name_of(step: int) -> str:
    """The file of a step."""
    return f"step-{step:09d}.safetensors"


def flip(path: Path) -> None:
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)


def test_the_latest_checkpoint_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "checkpoints"
    manager = CheckpointManager(folder)
    for step in (5, 1_234_567_890):
        assert manager.save(step, state(step), {"seed": 2**70}) == folder / name_of(step)
        assert is_state(CheckpointManager(folder).latest(), step, {"seed": 2**70})
    assert names_in(folder) == sorted(name_of(step) for step in (5, 1_234_567_890))


def test_other_files_are_ignored(tmp_path: Path) -> None:
    assert CheckpointManager(tmp_path / "none").latest() is None
    assert CheckpointManager(tmp_path).latest() is None
    CheckpointManager(tmp_path).save(3, state(3), {})
    for name in ("step-9.safetensors", "step-0000000003.safetensors", "step-000000009", "best"):
        shutil.copyfile(tmp_path / name_of(3), tmp_path / name)
    assert is_state(CheckpointManager(tmp_path).latest(), 3, {})


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path)
    manager.save(1, state(1), {})
    for attempt in range(3):
        manager.save(2, state(2), {"attempt": attempt})
        assert names_in(tmp_path) == [name_of(1), name_of(2)]
        assert is_state(CheckpointManager(tmp_path).latest(), 2, {"attempt": attempt})


def test_older_checkpoints_and_temporary_files_are_deleted(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path)
    for step in range(7):
        manager.save(step, state(step), {})
        (manager.folder / f".{name_of(step + 1)}.77.tmp").touch()
    manager.save(7, state(7), {})
    assert names_in(tmp_path) == [name_of(6), name_of(7)]


def test_only_verified_checkpoints_replace_older_ones(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        CheckpointManager(tmp_path).save(step, state(step), {})
    assert len(names_in(tmp_path)) == 3  # no process has verified the files of the others
    resumed = CheckpointManager(tmp_path)
    resumed.latest()
    resumed.save(4, state(4), {})
    assert names_in(tmp_path) == [name_of(3), name_of(4)]


def copy_of_another_step(path: Path) -> None:
    shutil.copyfile(path.with_name(name_of(1)), path)


def folder_instead(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("damage", [flip, copy_of_another_step, folder_instead])
def test_a_damaged_checkpoint_is_skipped_with_a_warning(
    damage: Callable[[Path], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    manager = CheckpointManager(tmp_path)
    manager.save(1, state(1), {"old": 1})
    path = manager.save(2, state(2), {"new": 1})
    damage(path)
    with caplog.at_level(logging.WARNING, "veca"):
        assert is_state(CheckpointManager(tmp_path).latest(), 1, {"old": 1})
    assert len(caplog.messages) == 1
    assert str(path) in caplog.messages[0]


def test_it_is_an_error_if_all_are_damaged(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path)
    for step in (1, 2):
        flip(manager.save(step, state(step), {}))
    with pytest.raises(CheckpointError, match=r"none of the 2 checkpoints in .* can be used"):
        CheckpointManager(tmp_path).latest()


def test_a_checkpoint_loaded_by_its_path_is_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = CheckpointManager(tmp_path).save(5, state(5), {"x": 1})
    moved = path.rename(tmp_path / "kept.safetensors")
    assert is_state(load_checkpoint(moved), 5, {"x": 1})
    with monkeypatch.context() as patch:
        patch.setattr("veca.train.checkpoint.FORMAT", 3)
        with pytest.raises(CheckpointError, match="format 2, and this version of veca reads 3"):
            load_checkpoint(moved)
    flip(moved)
    with pytest.raises(CheckpointError, match=r"kept\.safetensors is damaged"):
        load_checkpoint(moved)
    with pytest.raises(CheckpointError, match="No such file"):
        load_checkpoint(path)


@pytest.fixture(scope="module")
def quick_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder whose content need not reach the disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda _: None)
        yield tmp_path_factory.mktemp("quick")


def whole_steps(folder: Path) -> list[int]:
    """Steps that can be loaded, newest first."""
    found = []
    for path in sorted(folder.glob("step-*"), reverse=True):
        try:
            found.append(load_checkpoint(path).step)
        except CheckpointError:
            continue
    return found


@given(
    actions=st.lists(
        st.tuples(st.sampled_from(["save", "again", "back", "damage"]), st.integers(0, 3)),
        min_size=4,
        max_size=14,
    ),
)
@settings(max_examples=30)
def test_pruning_never_deletes_the_newest_verified_ones(
    quick_folder: Path, actions: list[tuple[str, int]]
) -> None:
    shutil.rmtree(quick_folder)
    manager, step = CheckpointManager(quick_folder), 0
    for action, number in actions:
        before = whole_steps(quick_folder)
        if action == "damage":  # while no process runs; then one resumes
            for path in sorted(quick_folder.glob("step-*"), reverse=True)[number : number + 1]:
                path.write_bytes(b"")
            manager = CheckpointManager(quick_folder)
            if left := whole_steps(quick_folder):
                found = manager.latest()
                assert found is not None
                assert found.step == left[0]
        else:
            step = max(0, step + {"save": 1, "again": 0, "back": -2}[action])
            manager.save(step, {}, {})
            newest = sorted({step, *before}, reverse=True)[:KEEP]
            assert {step, *newest} <= set(whole_steps(quick_folder))
    for _ in range(KEEP):  # without further damage exactly the newest stay
        step = max([step, *whole_steps(quick_folder)]) + 10
        manager.save(step, {}, {})
    assert len(names_in(quick_folder)) == KEEP


@pytest.mark.parametrize(
    ("bad", "dtype"),
    [(math.nan, torch.float64), (math.inf, torch.float32), (-math.inf, torch.bfloat16)],
)
def test_a_non_finite_state_is_refused(bad: float, dtype: torch.dtype, tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path)
    manager.save(1, state(1), {})
    tensors = state(2) | {"momentum": torch.zeros(9, 9, dtype=dtype), "none": torch.zeros(0)}
    tensors["momentum"][4, 7] = bad
    with pytest.raises(CheckpointError, match="'momentum' has non-finite values"):
        manager.save(2, tensors, {})
    assert names_in(tmp_path) == [name_of(1)]


def test_a_save_that_does_not_fit_on_the_disk_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager, size = CheckpointManager(tmp_path), 4 * 50 * 40 + 8
    for free, fits in ((int(1.2 * size), True), (int(1.2 * size) - 1, False)):
        usage = shutil.disk_usage(tmp_path)._replace(free=free)
        monkeypatch.setattr(shutil, "disk_usage", lambda _, usage=usage: usage)
        if fits:
            manager.save(1, state(1), {})
        else:
            with pytest.raises(CheckpointError, match=r"needs 0\.0 MB, 0\.0 MB are free"):
                manager.save(2, state(2), {})
    assert names_in(tmp_path) == [name_of(1)]


@pytest.mark.parametrize(("step", "dies"), [(3, False), (2, True)])
def test_a_fault_at_any_call_leaves_the_old_or_the_new_state(
    step: int, dies: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FaultyDisk(monkeypatch)

    def prepared(folder: Path) -> CheckpointManager:
        manager = CheckpointManager(folder)
        for old in (1, 2):
            manager.save(old, state(old), {"old": 1})
        return manager

    manager = prepared(tmp_path / "whole")
    disk.fail(at=None)
    manager.save(step, state(step), {"new": 1})
    for at in range(len(disk.calls)):
        manager = prepared(tmp_path / str(at))
        disk.fail(at, dies=dies)
        try:
            manager.save(step, state(step), {"new": 1})
            saved = True
        except CheckpointError:
            saved = False
        disk.fail(at=None)
        found = CheckpointManager(manager.folder).latest()
        new = is_state(found, step, {"new": 1})
        assert new or (not saved and is_state(found, 2, {"old": 1}))
        later = CheckpointManager(manager.folder)
        later.latest()
        later.save(9, state(9), {})  # the run continues
        assert is_state(CheckpointManager(manager.folder).latest(), 9, {})
        assert not list(manager.folder.glob(".*"))


def test_a_run_continues_if_old_checkpoints_cannot_be_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError

    manager = CheckpointManager(tmp_path)
    monkeypatch.setattr(os, "unlink", refuse)
    for step in range(4):
        manager.save(step, state(step), {})
    assert is_state(CheckpointManager(tmp_path).latest(), 3, {})


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_after_kills_the_last_saved_state_is_found(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    draw, last, interrupted = random.Random(0), -1, 0
    for attempt in range(100):
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            manager = CheckpointManager(tmp_path)
            found = manager.latest()
            for step in itertools.count(found.step + 1 if found else 0):
                manager.save(step, {"weight": torch.full((400, 500), float(step))}, {"step": step})
                os.write(writing, b"%d\n" % step)
        os.close(writing)
        with os.fdopen(reading) as saves:
            last = int(saves.readline())
            time.sleep(draw.uniform(0, 0.02))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            last = max([last, *map(int, saves)])
        found = CheckpointManager(tmp_path).latest()
        assert found is not None
        assert found.step >= last  # it was reported as durable
        assert torch.equal(found.tensors["weight"], torch.full((400, 500), float(found.step)))
        interrupted += bool(list(tmp_path.glob(".step-*.tmp")))
        if attempt >= 4 and interrupted:  # a save was hit, and not only the time between them
            break
    assert interrupted
    assert not caplog.messages
