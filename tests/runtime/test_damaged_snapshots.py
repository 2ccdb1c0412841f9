"""Every damage to a checkpoint is found, named and passed over."""

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.runtime.states import is_state, state
from veca.runtime.snapshots import FACTS, MANIFEST, TENSORS, Snapshots


def flip(path: Path, draw: random.Random) -> None:
    """Change one bit."""
    content = bytearray(path.read_bytes())
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(content)


def truncate(path: Path, draw: random.Random) -> None:
    """Cut the end off."""
    os.truncate(path, draw.randrange(path.stat().st_size))


def delete(path: Path, _draw: random.Random) -> None:
    """Remove the file."""
    path.unlink()


def zero(path: Path, _draw: random.Random) -> None:
    """Keep only the size."""
    path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.parametrize("damage", [flip, truncate, delete, zero])
def test_every_damage_is_found_and_the_older_state_taken(
    damage: Callable[[Path, random.Random], None], tmp_path: Path
) -> None:
    snapshots, draw = Snapshots(tmp_path / "run"), random.Random(0)
    snapshots.save(1, state(1), {"old": 1})
    whole = snapshots.save(2, state(2), {"new": 1})
    shutil.copytree(whole, tmp_path / "copy")
    for round_number in range(51):
        name = (TENSORS, FACTS, MANIFEST)[round_number % 3]
        shutil.rmtree(whole)
        shutil.copytree(tmp_path / "copy", whole)
        damage(whole / name, draw)
        told = list[str]()
        assert is_state(Snapshots(tmp_path / "run").newest(told.append), 1, {"old": 1})
        assert len(told) == 1
        assert told[0].startswith(f"{whole} is no whole checkpoint: ")
        assert name in told[0] or "its format is" in told[0]
        cut = damage is truncate and name != MANIFEST
        assert cut == ("bytes, not as many as its manifest says" in told[0])


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b"null",
        b"[" * 100_000,
        b'{"format":1,"step":2,"files":3}',
        b'{"format":1,"step":"2","files":{}}',
    ],
    ids=["empty", "bytes", "list", "object", "null", "deep", "no files", "no step"],
)
def test_a_manifest_that_is_none_is_damage(content: bytes, tmp_path: Path) -> None:
    (Snapshots(tmp_path).save(2, state(2), {}) / MANIFEST).write_bytes(content)
    told = list[str]()
    assert Snapshots(tmp_path).newest(told.append) is None
    assert "manifest.json is damaged" in told[0]


def test_a_file_in_the_place_of_a_checkpoint_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "step-000000005").touch()
    told = list[str]()
    assert Snapshots(tmp_path).newest(told.append) is None
    assert "manifest.json cannot be read" in told[0]


def test_an_unreadable_file_is_passed_over(tmp_path: Path) -> None:
    path = Snapshots(tmp_path).save(2, state(2), {}) / FACTS
    path.unlink()
    path.mkdir()
    told = list[str]()
    assert Snapshots(tmp_path).newest(told.append) is None
    assert "facts.json cannot be read" in told[0]
