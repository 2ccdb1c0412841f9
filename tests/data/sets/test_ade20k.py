"""ADE20K is read from a small copy of its layout."""

from pathlib import Path

import numpy as np
import pytest

from tests.data.sets.dense_layouts import parts, write_mask, write_picture
from veca.data.sets.dataset import DatasetChecks, DatasetError
from veca.data.sets.segmentation import ADE20K_CLASSES as CLASSES
from veca.data.sets.segmentation import ade20k

COUNTS = {"training pictures": 2, "validation pictures": 1}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A copy with three pictures."""
    home = tmp_path / "ADEChallengeData2016"
    for part, name in (
        ("training", "ADE_train_00000002"),
        ("training", "ADE_train_00000001"),
        ("validation", "ADE_val_00000001"),
    ):
        write_picture(home / f"images/{part}/{name}.jpg")
        write_mask(home / f"annotations/{part}/{name}.png", range(151))
    return home


@pytest.mark.parametrize("given", [".", ".."])
def test_150_classes_start_after_what_is_ignored(home: Path, given: str) -> None:
    checker = DatasetChecks("ade20k", instead=COUNTS)
    found = checker.finish(ade20k((home / given).resolve(), checker))
    train, val = parts(found)
    assert (found.name, found.kind) == ("ade20k", "masks")
    assert (train.name, val.name) == ("training", "validation")
    assert train.keys == tuple(f"images/training/ADE_train_0000000{n}.jpg" for n in (1, 2))
    assert val.target(0).ravel()[:3].tolist() == [255, 0, 1]
    assert np.unique(val.target(0)).tolist() == [*range(150), 255]
    assert len(set(CLASSES)) == 150
    assert (CLASSES[0], CLASSES[12], CLASSES[149]) == ("wall", "person", "flag")


def test_the_published_numbers_are_asked_for(home: Path) -> None:
    checker = DatasetChecks("ade20k")
    with pytest.raises(DatasetError, match=r"(?s)2 were found, 20,210 .* 1 were found, 2,000"):
        checker.finish(ade20k(home, checker))


def test_a_picture_without_a_mask_is_told_of(home: Path) -> None:
    (home / "annotations/training/ADE_train_00000001.png").unlink()
    checker = DatasetChecks("ade20k", instead=COUNTS)
    with pytest.raises(DatasetError, match=r"of 1 of 2 pictures .*ADE_train_00000001\.png"):
        checker.finish(ade20k(home, checker))


def test_a_part_that_is_missing_is_named(home: Path) -> None:
    (home / "annotations/validation/ADE_val_00000001.png").unlink()
    (home / "annotations/validation").rmdir()
    with pytest.raises(DatasetError, match="annotations/validation is missing"):
        ade20k(home, DatasetChecks("ade20k"))
