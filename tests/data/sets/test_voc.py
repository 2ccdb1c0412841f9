"""VOC 2012 is read from small copies of its layout, with and without SBD."""

from pathlib import Path

import numpy as np
import pytest

from tests.data.sets.dense_layouts import (
    parts,
    write_lines,
    write_mask,
    write_picture,
    write_sbd,
)
from veca.data.sets.dataset import DatasetChecks, DatasetError, LabeledDataset
from veca.data.sets.segmentation import CLASSES, voc2012, voc2012_aug

OWN, VAL = ("2007_01", "2007_02"), ("2007_03", "2008_04")
SBD_TRAIN, SBD_VAL = ("2007_01", "2008_04", "2008_05"), ("2007_03", "2008_06", "2008_07")
"""SBD's parts hold pictures of VOC's train and val parts, in another way."""

COUNTS = {
    "train pictures": 2,
    "val pictures": 2,
    "trainaug pictures": 5,
    "pictures that only SBD has masks of": 3,
}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A copy of VOC 2012 with seven pictures."""
    home = tmp_path / "VOCdevkit" / "VOC2012"
    for name in {*OWN, *VAL, *SBD_TRAIN, *SBD_VAL}:
        write_picture(home / "JPEGImages" / f"{name}.jpg")
    for name in OWN + VAL:
        write_mask(home / "SegmentationClass" / f"{name}.png", (0, 20, 255), palette=True)
    write_lines(home / "ImageSets/Segmentation/train.txt", OWN)
    write_lines(home / "ImageSets/Segmentation/val.txt", VAL)
    return home


def add_sbd(dataset: Path) -> None:
    """SBD as published."""
    for name in SBD_TRAIN + SBD_VAL:
        write_sbd(dataset / "cls" / f"{name}.mat", (0, 7))
    write_lines(dataset / "train.txt", SBD_TRAIN)
    write_lines(dataset / "val.txt", SBD_VAL)


def with_sbd(folder: Path, *, allow_partial: bool = False) -> LabeledDataset:
    checker = DatasetChecks("voc2012-aug", instead=COUNTS, allow_partial=allow_partial)
    return checker.finish(voc2012_aug(folder, checker))


@pytest.mark.parametrize("given", [".", "..", "../.."])
def test_voc_2012_has_its_own_train_and_val_parts(home: Path, given: str) -> None:
    checker = DatasetChecks("voc2012", instead=COUNTS)
    found = checker.finish(voc2012((home / given).resolve(), checker))
    train, val = parts(found)
    assert (found.name, found.kind, found.missing) == ("voc2012", "masks", ())
    assert train.keys == tuple(f"JPEGImages/{name}.jpg" for name in OWN)
    assert val.keys == tuple(f"JPEGImages/{name}.jpg" for name in VAL)
    assert np.unique(val.target(0)).tolist() == [0, 20, 255]
    assert found.classes == CLASSES
    assert (len(CLASSES), CLASSES[0], CLASSES[15], CLASSES[20]) == (
        21, "background", "person", "tvmonitor",
    )  # fmt: skip


def test_the_published_numbers_are_asked_for_all_at_once(home: Path) -> None:
    add_sbd(home.parent / "benchmark_RELEASE/dataset")
    checker = DatasetChecks("voc2012")
    with pytest.raises(
        DatasetError, match=r"(?s)2 were found, 1,464 are .* 2 were found, 1,449 are"
    ):
        checker.finish(voc2012(home, checker))
    checker = DatasetChecks("voc2012-aug", allow_partial=True)
    missing = "\n".join(checker.finish(voc2012_aug(home, checker)).missing)
    assert "5 were found, 10,582 are published" in missing
    assert "3 were found, 9,118 are published" in missing


@pytest.mark.parametrize(
    "place",
    [
        "VOC2012/benchmark_RELEASE/dataset",
        "VOCaug/dataset",
        "benchmark_RELEASE/dataset",
        "../benchmark_RELEASE/dataset",
    ],
)
def test_the_pictures_of_sbd_are_added_without_those_of_val(home: Path, place: str) -> None:
    add_sbd((home.parent / place).resolve())
    found = with_sbd(home)
    train, val = parts(found)
    names = ("2007_01", "2007_02", "2008_05", "2008_06", "2008_07")
    assert (found.name, train.name) == ("voc2012-aug", "trainaug")
    assert train.keys == tuple(f"JPEGImages/{name}.jpg" for name in names)
    assert not set(train.keys) & set(val.keys)
    assert found.facts["extra_masks"] == "SBD, .mat files as published"


def test_pictures_of_voc_keep_their_own_masks_and_others_have_those_of_sbd(home: Path) -> None:
    add_sbd(home.parent / "VOCaug/dataset")
    train, val = parts(with_sbd(home))
    seen = [np.unique(train.target(index)).tolist() for index in range(5)]
    assert seen == [[0, 20, 255], [0, 20, 255], [0, 7], [0, 7], [0, 7]]
    assert np.unique(val.target(1)).tolist() == [0, 20, 255]


def test_masks_of_sbd_that_others_have_converted_will_do(home: Path) -> None:
    for name in (*SBD_TRAIN, *SBD_VAL, "2007_02"):
        write_mask(home / "SegmentationClassAug" / f"{name}.png", (0, 3))
    found = with_sbd(home)
    train, _ = parts(found)
    assert len(train) == 5
    assert np.unique(train.target(0)).tolist() == [0, 20, 255]
    assert np.unique(train.target(4)).tolist() == [0, 3]
    assert "converted" in found.facts["extra_masks"]


def test_without_sbd_the_error_names_where_it_was_looked_for(home: Path) -> None:
    with pytest.raises(
        DatasetError, match=r"SBD is missing: neither benchmark_RELEASE/dataset nor"
    ):
        with_sbd(home)
    assert len(parts(with_sbd(home, allow_partial=True))[0]) == 2


def test_a_picture_of_val_in_the_train_list_is_refused(home: Path) -> None:
    write_lines(home / "ImageSets/Segmentation/train.txt", (*OWN, VAL[0]))
    checker = DatasetChecks("voc2012", instead=COUNTS, allow_partial=True)
    with pytest.raises(DatasetError, match="such as JPEGImages/2007_03"):
        voc2012(home, checker)


def test_what_is_missing_is_named(home: Path, tmp_path: Path) -> None:
    (home / "ImageSets/Segmentation/val.txt").unlink()
    with pytest.raises(DatasetError, match=r"ImageSets/Segmentation/val\.txt is missing"):
        voc2012(home, DatasetChecks("voc2012"))
    with pytest.raises(DatasetError, match="no folder"):
        voc2012(tmp_path / "nowhere", DatasetChecks("voc2012"))
