"""Batches hold pictures of one size, windows are bounded, and everything comes exactly once."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.data.pictures import SIDES, encoded, write_pictures, write_shard
from veca.data.listing import list_images
from veca.embed import windows
from veca.embed.windows import Planner, Window


def planned(paths: Sequence[Path], **choices: Any) -> list[Window]:
    """The windows of some inputs."""
    found = list_images(paths)
    fields: dict[str, Any] = {
        "size": 32, "fit": "resize", "patch_size": 16, "batch": 4, "map_bytes": 0,
    }  # fmt: skip
    planner = Planner(table=found.table, problems=found.problems, **fields | choices)
    return list(planner.windows(found.rows))


def test_every_input_is_in_one_batch_or_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windows, "WINDOW", 10)
    paths = write_pictures(tmp_path, 33)
    paths[5].write_bytes(b"")
    found = planned(paths)
    assert [window.number for window in found] == [0, 1, 2, 3]
    assert np.concatenate([window.rows for window in found]).tolist() == list(range(33))
    for window in found:
        places = [place for batch in window.batches for place in batch.tolist()]
        assert sorted([*places, *window.skipped]) == list(range(len(window.rows)))
    assert "is empty" in found[0].skipped[5]


def test_a_batch_holds_pictures_of_one_size_in_their_order(tmp_path: Path) -> None:
    (window,) = planned(write_pictures(tmp_path, 20))
    assert max(map(len, window.batches)) == 4
    for batch in window.batches:
        assert len({SIDES[place % len(SIDES)] for place in batch}) == 1
        assert batch.tolist() == sorted(batch)


def test_members_of_shards_are_planned_like_files(tmp_path: Path) -> None:
    numbers = range(20)
    shard = write_shard(tmp_path / "s.tar", [(f"{n}.png", encoded(n)) for n in numbers])
    (in_shard,) = planned([shard])
    (in_files,) = planned(write_pictures(tmp_path / "files", 20))
    assert [batch.tolist() for batch in in_shard.batches] == [
        batch.tolist() for batch in in_files.batches
    ]


def test_plans_do_not_depend_on_how_far_ahead_headers_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = write_pictures(tmp_path, 50)
    monkeypatch.setattr(windows, "WINDOW", 16)
    expected = [[batch.tolist() for batch in window.batches] for window in planned(paths)]
    monkeypatch.setattr(windows, "CHUNK", 3)
    assert expected == [[batch.tolist() for batch in window.batches] for window in planned(paths)]


def test_windows_with_patch_maps_end_before_the_maps_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = write_pictures(tmp_path, 9)
    monkeypatch.setattr(windows, "WINDOW_BYTES", 100)
    found = planned(paths, map_bytes=8)
    assert [len(window.rows) for window in found] == [3, 3, 3]  # of 4, 6 and 8 patches each
    assert len(planned(paths, map_bytes=0)) == 1


def test_windows_of_large_pictures_are_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windows, "WINDOW_PATCHES", 10)
    found = planned(write_pictures(tmp_path, 6))
    assert [len(window.rows) for window in found] == [2, 2, 2]  # 4 + 6, 8 + 4 and 6 + 8 patches


def test_long_pictures_come_in_smaller_batches(tmp_path: Path) -> None:
    for number in range(8):
        (tmp_path / f"{number}.png").write_bytes(encoded(number, (256, 32)))
    (window,) = planned([tmp_path])
    assert [len(batch) for batch in window.batches] == [1] * 8  # eight squares long each


def test_a_picture_that_would_become_endless_is_skipped_with_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windows, "MOST_PATCHES", 10)
    (tmp_path / "a.png").write_bytes(encoded(0, (256, 32)))
    (window,) = planned([tmp_path])
    assert "256 x 32 pixels become 2 x 16 patches, more than 10" in window.skipped[0]
    assert not window.batches


def test_a_window_without_pictures_has_a_task_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"")
    (window,) = planned([tmp_path])
    (task,) = window.tasks()
    assert (task.window, len(task.places), len(task.rows)) == (0, 0, 0)


def test_cropping_needs_no_look_at_the_pictures(tmp_path: Path) -> None:
    paths = write_pictures(tmp_path, 5)
    paths[0].write_bytes(b"")
    (window,) = planned(paths, fit="crop")
    assert [batch.tolist() for batch in window.batches] == [[0, 1, 2, 3], [4]]


def test_problems_are_skipped_with_their_reasons(tmp_path: Path) -> None:
    (tmp_path / "s.tar.gz").touch()
    (window,) = planned([tmp_path])
    assert "make a plain .tar" in window.skipped[0]


def test_tasks_name_the_rows_of_their_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windows, "WINDOW", 6)
    second = planned(write_pictures(tmp_path, 12))[1]
    for task in second.tasks():
        assert task.window == 1
        assert (task.rows == task.places + 6).all()
