"""Whatever fails while a model is saved, the whole old one or the whole new one can be loaded."""

import errno
import os
import resource
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import veca
from tests.weights.models import same_weights, trained_model
from veca.weights.card import Provenance

OLD, NEW = trained_model(seed=1, layers=1), trained_model(seed=2, layers=2)
STEPS = ("open", "write", "fsync", "replace")


class Disk:
    """The calls that reach the disk, counted, one of which can fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        self.fails_at = -1
        self.error: BaseException = OSError(errno.EIO, "injected")
        for name in STEPS:
            monkeypatch.setattr(os, name, self.watched(getattr(os, name)))

    def watched(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """The call, which fails when its turn has come."""

        def step(*arguments: Any) -> Any:
            self.calls += 1
            if self.calls - 1 == self.fails_at:
                raise self.error
            return real(*arguments)

        return step


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    """The disk under watch."""
    return Disk(monkeypatch)


def content_of(folder: Path) -> dict[str, bytes]:
    """Every file of a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def put(folder: Path, content: dict[str, bytes]) -> None:
    """Make a folder hold these files."""
    for name, data in content.items():
        (folder / name).write_bytes(data)


@pytest.mark.parametrize(
    "error",
    [OSError(errno.EIO, "injected"), OSError(errno.ENOSPC, "disk full"), KeyboardInterrupt()],
    ids=["broken disk", "full disk", "interrupt"],
)
def test_a_failure_at_any_step_leaves_a_whole_model_and_no_other_file(
    error: BaseException, tmp_path: Path, disk: Disk
) -> None:
    veca.save(OLD, tmp_path, provenance=Provenance(notes="old"))
    old = content_of(tmp_path)
    disk.calls = 0
    veca.save(NEW, tmp_path, provenance=Provenance(notes="new"))
    new, steps, left = content_of(tmp_path), disk.calls, []

    disk.error = error
    for step in range(steps):
        put(tmp_path, old)
        disk.calls, disk.fails_at = 0, step
        with pytest.raises(type(error)):
            veca.save(NEW, tmp_path, provenance=Provenance(notes="new"))
        disk.fails_at = -1
        left.append(content_of(tmp_path))
        assert left[-1].keys() == old.keys()  # no temporary file remains
        assert all(left[-1][name] in (old[name], new[name]) for name in old)

    outcomes = [state for at, state in enumerate(left) if state not in left[:at]]
    assert outcomes == [  # in the order of the steps: weights, then config.json, then the card
        old,
        old | {"model.safetensors": new["model.safetensors"]},
        new | {"README.md": old["README.md"]},
        new,
    ]
    for outcome in outcomes:
        put(tmp_path, outcome)
        whole = OLD if outcome == old else NEW
        assert same_weights(veca.load(tmp_path), whole)


def test_a_failed_first_save_leaves_nothing_or_a_whole_model(tmp_path: Path, disk: Disk) -> None:
    veca.save(NEW, tmp_path / "whole")
    whole = content_of(tmp_path / "whole")
    for step in range(disk.calls):
        folder = tmp_path / str(step)
        disk.calls, disk.fails_at = 0, step
        with pytest.raises(OSError, match="injected"):
            veca.save(NEW, folder)
        disk.fails_at = -1
        found = content_of(folder)
        assert found.items() <= whole.items()
        assert not found or "model.safetensors" in found  # the weights come first


def test_a_disk_that_really_takes_no_more_leaves_the_old_model(tmp_path: Path) -> None:
    veca.save(OLD, tmp_path)
    before = content_of(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in (1, 1000, 50_000):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        try:
            with pytest.raises(OSError, match="File too large"):
                veca.save(NEW, tmp_path)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert content_of(tmp_path) == before


def test_a_model_loads_whole_while_others_save_over_it(tmp_path: Path) -> None:
    veca.save(OLD, tmp_path)
    stop = threading.Event()

    def save_in_turns() -> None:
        while not stop.is_set():
            veca.save(NEW, tmp_path)
            veca.save(OLD, tmp_path)

    threads = [threading.Thread(target=save_in_turns) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            model = veca.load(tmp_path)
            assert same_weights(model, OLD) or same_weights(model, NEW)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert len(list(tmp_path.iterdir())) == 3
