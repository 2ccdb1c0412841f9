"""A file in two parts is known by its name, its size and its content."""

from pathlib import Path

import pytest

from tests.data.pictures import encoded, write_shard
from tests.data.sets.miniatures import touch, write
from veca.data.sets import dataset as copies
from veca.data.sets.dataset import DatasetChecks, DatasetError, Split, require_no_copies
from veca.data.sets.folders import class_folders


def check(folder: Path) -> None:
    """Compare the two parts of class folders."""
    checker = DatasetChecks("mine", allow_partial=True)
    found = class_folders(folder, checker)
    assert isinstance(found.train, Split)
    require_no_copies(found.train, found.test, checker)


def test_the_same_file_is_refused_in_whatever_class_it_lies(tmp_path: Path) -> None:
    write(tmp_path, {"train/a/x.jpg": b"same", "train/b/y.jpg": b"1", "val/b/deep/x.jpg": b"same"})
    with pytest.raises(DatasetError, match=r"val/b/deep/x\.jpg is a copy of train/a/x\.jpg"):
        check(tmp_path)


def test_equal_names_and_sizes_of_other_content_are_no_copies(tmp_path: Path) -> None:
    write(tmp_path, {"train/a/x.jpg": b"same", "train/a/y.jpg": b"12", "val/a/x.jpg": b"else"})
    check(tmp_path)


def test_a_member_of_a_shard_is_compared_with_a_file(tmp_path: Path) -> None:
    touch(tmp_path, "val/a/other.png")
    (tmp_path / "train").mkdir()
    write_shard(tmp_path / "train/a.tar", [("deep/4.png", encoded(4)), ("5.png", encoded(5))])
    check(tmp_path)
    write(tmp_path, {"val/a/4.png": encoded(4)})
    with pytest.raises(DatasetError, match=r"val/a/4\.png is a copy of train/a\.tar#deep/4\.png"):
        check(tmp_path)


def test_files_that_are_gone_are_left_to_whoever_reads_them(tmp_path: Path) -> None:
    write(tmp_path, {"train/a/x.jpg": b"same", "val/a/x.jpg": b"same"})
    checker = DatasetChecks("mine")
    found = class_folders(tmp_path, checker)
    (tmp_path / "val/a/x.jpg").unlink()
    assert found.train is not None
    require_no_copies(found.train, found.test, checker)
    (tmp_path / "train/a/x.jpg").unlink()
    require_no_copies(found.train, found.test, checker)


def test_only_so_many_files_are_read_and_rare_agreements_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "MOST_READ", 2)
    common = {f"train/{name}/0.jpg": name.encode() for name in "abcd"}
    write(tmp_path, {**common, "val/a/0.jpg": b"a"})
    check(tmp_path)
    write(tmp_path, {"train/a/rare.jpg": b"x", "val/a/rare.jpg": b"x"})
    with pytest.raises(DatasetError, match=r"val/a/rare\.jpg is a copy of train/a/rare\.jpg"):
        check(tmp_path)
