"""A part holds its pictures in order, with names that do not depend on where the set lies."""

from pathlib import Path

import numpy as np
import pytest

from tests.data.sets.miniatures import touch
from veca.data.listing import ImageEntry
from veca.data.sets.dataset import DatasetChecks, DatasetError, Split, SplitBuilder


def built(folder: Path) -> Split:
    touch(folder, "b/1.jpg", "a/2.jpg")
    builder = SplitBuilder("train", folder)
    builder.add("b/1.jpg", 1)
    builder.add("a/2.jpg", 0)
    return builder.split(2, DatasetChecks("the set"))


def test_pictures_keep_their_order_sizes_and_labels(tmp_path: Path) -> None:
    found = built(tmp_path)
    assert found.name == "train"
    assert found.keys == ("b/1.jpg", "a/2.jpg")
    assert found.image(0) == ImageEntry(str(tmp_path / "b/1.jpg"), 1, None, -1)
    assert found.image(1).num_bytes == 2
    assert np.asarray(found.labels).tolist() == [1, 0]


def test_a_part_has_the_same_fingerprint_wherever_it_lies(tmp_path: Path) -> None:
    here, there = built(tmp_path / "here"), built(tmp_path / "there")
    assert here.fingerprint() == there.fingerprint()


def test_pictures_that_are_not_there_are_counted_and_left_out(tmp_path: Path) -> None:
    touch(tmp_path, "2.jpg")
    checker = DatasetChecks("the set", allow_partial=True)
    builder = SplitBuilder("test", tmp_path)
    for number in range(4):
        builder.add(f"{number}.jpg", number)
    found = builder.split(4, checker)
    assert found.keys == ("2.jpg",)
    assert np.asarray(found.labels).tolist() == [2]
    with pytest.raises(
        DatasetError, match=r"test: 3 of 4 pictures are not there, such as .*0\.jpg"
    ):
        checker.require(tmp_path / "anything")


def test_a_picture_in_a_shard_keeps_its_place(tmp_path: Path) -> None:
    shard = str(tmp_path / "a.tar")
    source = ImageEntry(f"{shard}#x/1.jpg", 7, shard, 512)
    builder = SplitBuilder("train", tmp_path)
    builder.add_found(source, 0)
    found = builder.split(1, DatasetChecks("the set"))
    assert found.image(0) == source
    assert found.keys == ("a.tar#x/1.jpg",)


def test_labels_can_stand_for_other_numbers(tmp_path: Path) -> None:
    touch(tmp_path, "0.jpg", "1.jpg", "2.jpg")
    builder = SplitBuilder("train", tmp_path)
    for number, label in enumerate((0, 1, 0)):
        builder.add(f"{number}.jpg", label)
    found = builder.split(8, DatasetChecks("the set"), [7, 3])
    assert np.asarray(found.labels).tolist() == [7, 3, 7]


@pytest.mark.parametrize("label", [-1, 2])
def test_a_label_that_is_no_class_is_refused(tmp_path: Path, label: int) -> None:
    touch(tmp_path, "1.jpg")
    builder = SplitBuilder("train", tmp_path)
    builder.add("1.jpg", label)
    with pytest.raises(DatasetError, match="there are 2 classes"):
        builder.split(2, DatasetChecks("the set", allow_partial=True))


def test_a_part_without_pictures_is_a_part(tmp_path: Path) -> None:
    found = SplitBuilder("train", tmp_path).split(2, DatasetChecks("the set"))
    assert len(found) == 0
    assert found.keys == ()
