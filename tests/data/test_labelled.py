"""Labeled sets: what a part says of its pictures, and how it is known again."""

from pathlib import Path

import numpy as np
import pytest

from tests.data.pictures import write_pictures
from veca.data.listing import list_images
from veca.data.sets.dataset import LabeledDataset, Split, Target


def doubled(path: str) -> Target:
    """A target that tells which file it was read from."""
    return np.full((2, 3), len(Path(path).name), np.uint8)


def split(folder: Path, *, targets: bool = False) -> Split:
    """Three pictures with classes, or with masks."""
    table = list_images([folder]).table
    return Split(
        name="train",
        images=table,
        keys=tuple(Path(table[row].name).name for row in range(len(table))),
        labels=None if targets else np.array([0, 1, 1]),
        targets=("a", "bb", "ccc") if targets else (),
        read_target=doubled if targets else None,
    )


def test_a_part_knows_its_pictures_by_number(tmp_path: Path) -> None:
    paths = write_pictures(tmp_path, 3)
    part = split(tmp_path)
    assert len(part) == 3
    assert [part.image(number).name for number in range(3)] == [str(path) for path in paths]


def test_targets_are_read_when_they_are_asked_for(tmp_path: Path) -> None:
    write_pictures(tmp_path, 3)
    part = split(tmp_path, targets=True)
    assert [int(part.target(number)[0, 0]) for number in range(3)] == [1, 2, 3]
    with pytest.raises(ValueError, match="have labels, not masks or depth"):
        split(tmp_path).target(0)


def test_a_part_is_known_again_wherever_it_lies_and_not_after_a_change(tmp_path: Path) -> None:
    for name in ("here", "there"):
        write_pictures(tmp_path / name, 3)
    known = split(tmp_path / "here").fingerprint()
    assert split(tmp_path / "there").fingerprint() == known
    (tmp_path / "there" / "0001.png").write_bytes((tmp_path / "here" / "0002.png").read_bytes())
    assert split(tmp_path / "there").fingerprint() != known


def test_a_whole_set_lacks_nothing(tmp_path: Path) -> None:
    write_pictures(tmp_path, 3)
    part = split(tmp_path)
    data = LabeledDataset(name="some", kind="classes", classes=("a", "b"), train=part, test=part)
    assert data.missing == ()
    assert data.facts == {}
