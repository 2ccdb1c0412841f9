"""What changed on a disk is noticed without reading it, and doubt counts as change."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from veca.data.stamps import MISSING, StampBuilder, Stamps, matches, stamp_of, whole_pattern


def aged(path: Path) -> Path:
    """The same path as if nothing had touched it for a minute."""
    before = time.time() - 60
    os.utime(path, (before, before))
    return path


def stamps_of(*paths: Path | str) -> Stamps:
    builder = StampBuilder()
    for path in paths:
        builder.add(str(path))
    return builder.stamps()


def test_what_nobody_touches_stays_unchanged(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("a")
    paths = (aged(tmp_path / "list.txt"), aged(tmp_path), tmp_path / "missing")
    assert stamps_of(*paths).unchanged()
    assert stamps_of().unchanged()


CHANGES: dict[str, Callable[[Path], object]] = {
    "a new file": lambda folder: (folder / "new").touch(),
    "a file less": lambda folder: (folder / "file").unlink(),
    "another name": lambda folder: (folder / "file").rename(folder / "other"),
    "other content": lambda folder: (folder / "file").write_text("longer"),
    "a file that was missing": lambda folder: (folder / "missing").touch(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=list(CHANGES))
def test_a_change_is_noticed(change: Callable[[Path], object], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    paths = (aged(tmp_path / "file"), aged(tmp_path), tmp_path / "missing")
    stamps = stamps_of(*paths)
    change(tmp_path)
    assert not stamps.unchanged()


def test_a_change_of_size_alone_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("x")
    stamps = stamps_of(aged(path))
    moment = path.stat().st_mtime_ns
    path.write_text("longer")
    os.utime(path, ns=(moment, moment))
    assert not stamps.unchanged()


def test_what_was_written_just_now_is_not_trusted(tmp_path: Path) -> None:
    (tmp_path / "new").touch()
    assert not stamps_of(tmp_path).unchanged()


def test_what_could_not_be_read_is_looked_at_again(tmp_path: Path) -> None:
    builder = StampBuilder()
    builder.add(str(aged(tmp_path)), settled=False)
    assert not builder.stamps().unchanged()


def test_names_that_are_no_text_are_kept(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"\xff\xfe")
    path.touch()
    stamps = stamps_of(aged(path), tmp_path / "nul\0byte")
    assert stamps.unchanged()
    path.unlink()
    assert not stamps.unchanged()


def test_a_pattern_is_unchanged_while_it_matches_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "[folder]"
    here.mkdir()
    (here / "a.jpg").touch()
    monkeypatch.chdir(here)
    pattern = whole_pattern("*.jpg")
    monkeypatch.chdir("/")
    assert matches(pattern) == [str(here / "a.jpg")]
    builder = StampBuilder()
    builder.add_pattern(pattern, matches(pattern))
    stamps = builder.stamps()
    (here / "b.png").touch()
    assert stamps.unchanged()
    (here / "b.jpg").touch()
    assert not stamps.unchanged()


def test_a_missing_path_has_a_stamp_of_its_own(tmp_path: Path) -> None:
    assert stamp_of(str(tmp_path / "missing")) == MISSING
    assert stamp_of(str(tmp_path)) != MISSING
