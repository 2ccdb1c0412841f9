"""Pictures come with the files that tell of their pixels, or are told of as missing."""

from functools import partial
from pathlib import Path

import pytest

from tests.data.sets.dense_layouts import write_mask, write_picture
from veca.data.sets.dataset import (
    DatasetChecks,
    DatasetError,
    Pair,
    Split,
    files_below,
    paired_split,
    require_apart,
)
from veca.data.sets.segmentation import VOC, read_mask


def written(folder: Path, *names: str) -> list[Pair]:
    """Pairs whose files exist."""
    for number, name in enumerate(names):
        write_picture(folder / "a" / f"{name}.jpg", number)
        write_mask(folder / "b" / f"{name}.png", [number])
    return [Pair(f"a/{name}.jpg", f"b/{name}.png") for name in names]


def split_of(folder: Path, pairs: list[Pair], checker: DatasetChecks, name: str = "train") -> Split:
    return paired_split(name, folder, pairs, partial(read_mask, table=VOC), checker)


def test_pictures_stand_by_name_whatever_the_order_of_the_list(tmp_path: Path) -> None:
    pairs = written(tmp_path, "x", "z", "y")
    checker = DatasetChecks("some")
    split = split_of(tmp_path, pairs, checker)
    assert split.keys == ("a/x.jpg", "a/y.jpg", "a/z.jpg")
    assert [split.target(index)[0, 0] for index in range(3)] == [0, 2, 1]
    assert split.image(1).name == str(tmp_path / "a" / "y.jpg")
    assert split.image(1).num_bytes == (tmp_path / "a" / "y.jpg").stat().st_size
    assert split.fingerprint() == split_of(tmp_path, pairs[::-1], checker).fingerprint()


def test_the_fingerprint_is_the_same_wherever_the_folder_lies(tmp_path: Path) -> None:
    found = [
        split_of(tmp_path / place, written(tmp_path / place, "x", "y"), DatasetChecks("some"))
        for place in ("here", "there")
    ]
    assert found[0].fingerprint() == found[1].fingerprint()


def test_a_pair_without_one_of_its_files_is_left_out_and_told_of(tmp_path: Path) -> None:
    pairs = written(tmp_path, "v", "w", "x")
    (tmp_path / "a/v.jpg").unlink()
    (tmp_path / "b/x.png").unlink()
    checker = DatasetChecks("some", allow_partial=True)
    split = split_of(tmp_path, pairs, checker)
    assert split.keys == ("a/w.jpg",)
    assert len(split.targets) == 1
    with pytest.raises(DatasetError, match=r"of 2 of 3 pictures .* such as .*a/v\.jpg"):
        checker.require(tmp_path / "nowhere")


def test_targets_may_lie_elsewhere(tmp_path: Path) -> None:
    written(tmp_path, "x")
    elsewhere = tmp_path / "other" / "x.png"
    write_mask(elsewhere, [5])
    split = split_of(tmp_path, [Pair("a/x.jpg", str(elsewhere))], DatasetChecks("some"))
    assert split.targets == (str(elsewhere),)
    assert split.target(0)[0, 0] == 5


def test_a_picture_in_both_parts_is_refused_even_of_a_partial_set(tmp_path: Path) -> None:
    pairs = written(tmp_path, "x", "y", "z")
    checker = DatasetChecks("some", allow_partial=True)
    train = split_of(tmp_path, pairs[:2], checker)
    require_apart(train, split_of(tmp_path, pairs[2:], checker, "val"), checker)
    with pytest.raises(
        DatasetError, match=r"1 pictures are in 'train' and in 'val' too, such as a/y"
    ):
        require_apart(train, split_of(tmp_path, pairs[1:], checker, "val"), checker)


def test_files_are_found_at_any_depth_by_how_their_names_end(tmp_path: Path) -> None:
    for name in ("a/1_x.png", "a/b/2_x.png", "a/b/2_y.png", "a/b/._2_x.png", "c/3_x.png"):
        write_picture(tmp_path / name)
    assert sorted(files_below(tmp_path, "a", "_x.png")) == ["a/1_x.png", "a/b/2_x.png"]
    assert len(files_below(tmp_path, "", "_x.png")) == 3
    assert files_below(tmp_path, "nowhere", ".png") == []
