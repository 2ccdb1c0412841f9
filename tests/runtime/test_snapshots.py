"""Checkpoints come back bit for bit, the newest whole one is found, and enough of them stay."""

import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.runtime.states import never, state
from veca.runtime.snapshots import (
    FACTS,
    MANIFEST,
    TENSORS,
    Snapshot,
    SnapshotError,
    Snapshots,
    read_snapshot,
)
from veca.runtime.tensors import DTYPES

FACTS_OF_A_RUN: dict[str, Any] = {
    "seed": 2**70,
    "loss": 0.1 + 0.2,
    "tiny": -5e-324,
    "minus zero": -0.0,
    "name": 'ä"\n\u2028',
    "best": None,
    "done": False,
    "list": [1, 1.0, [], {}],
    "nested": {"b": {"x": 1}, "a": []},
}


def newest_of(folder: Path) -> Snapshot | None:
    """What another process would find."""
    return Snapshots(folder).newest(never)


def names_in(folder: Path) -> list[str]:
    """What is in a folder, hidden or not."""
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A folder for checkpoints that does not exist yet."""
    return tmp_path / "run" / "checkpoints"


def test_tensors_of_every_type_and_shape_come_back_bit_for_bit(runs: Path) -> None:
    tensors = {
        f"{code}/{shape}": (torch.rand(shape) * 100).to(dtype)
        for code, dtype in DTYPES.items()
        for shape in ((), (0,), (2, 0), (3, 2))
    }
    tensors["turned"] = torch.randn(4, 5).t()
    tensors["learned"] = torch.nn.Parameter(torch.randn(2))
    Snapshots(runs).save(7, tensors, {})
    found = newest_of(runs)
    assert found is not None
    loaded = found.tensors()
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert loaded[name].dtype == tensor.dtype
        assert loaded[name].shape == tensor.shape
        assert torch.equal(loaded[name], tensor)


def test_facts_come_back_with_their_types_and_order(runs: Path) -> None:
    Snapshots(runs).save(7, {}, FACTS_OF_A_RUN)
    found = newest_of(runs)
    assert found is not None
    assert repr(found.facts) == repr(FACTS_OF_A_RUN)
    assert found.tensors() == {}


def test_the_newest_is_the_one_of_the_highest_step(runs: Path) -> None:
    snapshots = Snapshots(runs, keep=5)
    for step in (5, 120, 1_234_567_890):
        assert snapshots.save(step, state(step), {}) == runs / f"step-{step:09d}"
        found = newest_of(runs)
        assert found is not None
        assert (found.step, found.folder) == (step, runs / f"step-{step:09d}")
    assert names_in(runs) == ["step-000000005", "step-000000120", "step-1234567890"]


def test_where_nothing_was_saved_nothing_is_found(runs: Path) -> None:
    assert newest_of(runs) is None
    runs.mkdir(parents=True)
    assert newest_of(runs) is None


def test_other_files_and_unfinished_checkpoints_are_not_looked_at(runs: Path) -> None:
    Snapshots(runs).save(3, state(3), {})
    for name in ("step-9", "step-000000009-1", "step-000000009-02", "step-000000009.old", "best"):
        (runs / name).mkdir()
    shutil.copytree(runs / "step-000000003", runs / ".step-000000009.0123.tmp")
    found = newest_of(runs)
    assert found is not None
    assert found.step == 3


def test_equal_states_give_equal_files(tmp_path: Path) -> None:
    one = Snapshots(tmp_path / "a").save(3, state(3), {"x": 1})
    other = Snapshots(tmp_path / "b").save(3, dict(reversed(state(3).items())), {"x": 1})
    for name in (TENSORS, FACTS, MANIFEST):
        assert (one / name).read_bytes() == (other / name).read_bytes()


def test_a_second_state_of_a_step_takes_the_place_of_the_first(runs: Path) -> None:
    snapshots = Snapshots(runs)
    snapshots.save(1, state(1), {})
    for attempt in range(1, 4):
        path = snapshots.save(2, state(2), {"attempt": attempt})
        assert path.name == "step-000000002" + (f"-{attempt}" if attempt > 1 else "")
        assert names_in(runs) == ["step-000000001", path.name]
        found = newest_of(runs)
        assert found is not None
        assert (found.step, found.facts) == (2, {"attempt": attempt})


def test_the_last_two_stay_and_what_killed_processes_left_goes(runs: Path) -> None:
    snapshots = Snapshots(runs)
    for step in range(4):
        (runs / f".step-00000000{step}.77.tmp").mkdir(parents=True)
        snapshots.save(step, state(step), {})
    assert names_in(runs) == ["step-000000002", "step-000000003"]


def test_old_ones_count_once_they_are_verified(runs: Path) -> None:
    Snapshots(runs).save(1, state(1), {})
    Snapshots(runs).save(2, state(2), {})
    late = Snapshots(runs)
    late.save(3, state(3), {})
    assert len(names_in(runs)) == 3  # nobody knows whether the other two are whole
    late.save(4, state(4), {})
    assert names_in(runs) == ["step-000000003", "step-000000004"]
    resumed = Snapshots(runs)
    resumed.newest(never)
    resumed.save(5, state(5), {})
    assert names_in(runs) == ["step-000000004", "step-000000005"]


def test_damaged_ones_do_not_count(runs: Path) -> None:
    snapshots = Snapshots(runs)
    snapshots.save(1, state(1), {})
    (snapshots.save(2, state(2), {}) / TENSORS).unlink()
    resumed, told = Snapshots(runs), list[str]()
    found = resumed.newest(told.append)
    assert found is not None
    assert found.step == 1
    assert told == [
        f"{runs / 'step-000000002'} is no whole checkpoint: tensors.safetensors is missing; it is "
        "passed over."
    ]
    resumed.save(3, state(3), {})
    assert names_in(runs) == ["step-000000001", "step-000000002", "step-000000003"]
    resumed.save(4, state(4), {})
    assert names_in(runs) == ["step-000000003", "step-000000004"]


@pytest.fixture(scope="module")
def quick_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder whose content need not reach the disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda _: None)
        yield tmp_path_factory.mktemp("quick")


def whole_steps(folder: Path) -> list[int]:
    """Steps whose newest checkpoint is whole, newest first, as a slow reader finds them."""
    newest = dict(sorted((path.name[5:14], path) for path in folder.glob("step-*")))
    return [int(step) for step in sorted(newest, reverse=True) if is_whole(newest[step])]


def is_whole(folder: Path) -> bool:
    """Whether a checkpoint can be read."""
    try:
        read_snapshot(folder)
    except SnapshotError:
        return False
    return True


@given(
    keep=st.integers(2, 4),
    actions=st.lists(
        st.tuples(st.sampled_from(["save", "again", "back", "damage"]), st.integers(0, 3)),
        min_size=4,
        max_size=14,
    ),
)
@settings(max_examples=40)
def test_pruning_takes_none_of_the_newest_whole_ones_and_leaves_few_others(
    quick_folder: Path, keep: int, actions: list[tuple[str, int]]
) -> None:
    shutil.rmtree(quick_folder)
    snapshots, step = Snapshots(quick_folder, keep), 0
    for action, number in actions:
        before = whole_steps(quick_folder)
        if action == "damage":  # while no process runs; then one resumes
            for folder in sorted(quick_folder.glob("step-*"), reverse=True)[number : number + 1]:
                (folder / TENSORS).write_bytes(b"")
            snapshots = Snapshots(quick_folder, keep)
            found = snapshots.newest(lambda _: None)
            assert (found.step if found else None) == next(iter(whole_steps(quick_folder)), None)
        else:
            step = max(0, step + {"save": 1, "again": 0, "back": -2}[action])
            snapshots.save(step, {}, {})
            newest = sorted({step, *before}, reverse=True)[:keep]
            assert {step, *newest} <= set(whole_steps(quick_folder))
    for _ in range(keep):  # without further damage exactly the newest stay
        step = max([step, *whole_steps(quick_folder)]) + 10
        snapshots.save(step, {}, {})
    assert len(names_in(quick_folder)) == keep


def test_without_damage_exactly_the_newest_stay(quick_folder: Path) -> None:
    for keep in (2, 3, 5):
        folder = quick_folder / f"keep{keep}"
        snapshots = Snapshots(folder, keep)
        for step in range(8):
            snapshots.save(step, {}, {})
            expected = range(max(0, step - keep + 1), step + 1)
            assert names_in(folder) == [f"step-{at:09d}" for at in expected]


def test_one_checkpoint_is_not_enough(runs: Path) -> None:
    with pytest.raises(ValueError, match=r"keep=1 .*keep 2 or more"):
        Snapshots(runs, keep=1)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_a_state_that_is_not_finite_is_never_saved(
    bad: float, dtype: torch.dtype, runs: Path
) -> None:
    snapshots = Snapshots(runs)
    snapshots.save(1, state(1), {})
    tensors = state(2) | {"momentum": torch.zeros(9, 9, dtype=dtype)}
    tensors["momentum"][4, 7] = bad
    with pytest.raises(SnapshotError, match="'momentum' has numbers that are not finite"):
        snapshots.save(2, tensors, {})
    assert names_in(runs) == ["step-000000001"]
    snapshots.save(2, tensors, {}, may_be_infinite=["momentum"])
    found = newest_of(runs)
    assert found is not None
    np.testing.assert_equal(found.tensors()["momentum"][4, 7].item(), bad)


@pytest.mark.parametrize("fact", [math.nan, (1, 2), {1: 2}, torch.zeros(1)], ids=str)
def test_facts_that_json_would_change_are_refused_by_name(fact: Any, runs: Path) -> None:
    with pytest.raises(SnapshotError, match=r"step 5 is not saved: facts"):
        Snapshots(runs).save(5, state(5), {"outer": {"fact": fact}})
    assert not runs.exists()


def test_a_checkpoint_can_be_named_and_then_must_be_whole(runs: Path) -> None:
    path = Snapshots(runs).save(5, state(5), {"x": 1})
    moved = path.rename(runs / "kept for later")
    found = read_snapshot(moved)
    assert (found.step, found.facts) == (5, {"x": 1})
    (moved / FACTS).write_text('{"x":2}')
    with pytest.raises(SnapshotError, match=r"facts\.json is not what was written; use another"):
        read_snapshot(moved)
    with pytest.raises(SnapshotError, match=r"manifest\.json is missing"):
        read_snapshot(runs / "step-000000005")


def test_a_checkpoint_under_the_name_of_another_step_is_passed_over(runs: Path) -> None:
    Snapshots(runs).save(5, state(5), {}).rename(runs / "step-000000006")
    told = list[str]()
    assert Snapshots(runs).newest(told.append) is None
    assert "its manifest says step 5" in told[0]


def test_a_checkpoint_of_a_later_version_is_passed_over_with_that_reason(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("veca.runtime.snapshots.FORMAT", 2)
        Snapshots(runs).save(5, state(5), {})
    told = list[str]()
    assert Snapshots(runs).newest(told.append) is None
    assert "its format is 2, and this version of veca reads 1" in told[0]


def test_tensors_that_vanish_after_they_were_verified_are_told(runs: Path) -> None:
    found = read_snapshot(Snapshots(runs).save(5, state(5), {}))
    (found.folder / TENSORS).unlink()
    with pytest.raises(SnapshotError, match="was whole and is not any more"):
        found.tensors()
