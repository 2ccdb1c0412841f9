"""Cityscapes is read from a small copy of its layout."""

from pathlib import Path

import numpy as np
import pytest

from tests.data.sets.dense_layouts import parts, write_mask, write_picture
from veca.data.sets.dataset import DatasetChecks, DatasetError
from veca.data.sets.segmentation import CITYSCAPES_CLASSES as CLASSES
from veca.data.sets.segmentation import cityscapes

COUNTS = {"train pictures": 2, "val pictures": 1}

FRAMES = (
    ("train", "zurich", "zurich_000000_000019"),
    ("train", "aachen", "aachen_000000_000019"),
    ("val", "munster", "munster_000000_000019"),
)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A copy with three pictures, a test part, and the other files of its archives."""
    for part, city, name in FRAMES:
        write_picture(tmp_path / f"leftImg8bit/{part}/{city}/{name}_leftImg8bit.png")
        masks = tmp_path / f"gtFine/{part}/{city}"
        write_mask(masks / f"{name}_gtFine_labelIds.png", range(34))
        write_mask(masks / f"{name}_gtFine_labelTrainIds.png", (0, 255))
        write_mask(masks / f"{name}_gtFine_instanceIds.png", (0,))
    write_picture(tmp_path / "leftImg8bit/test/berlin/berlin_000000_000019_leftImg8bit.png")
    return tmp_path


def test_19_classes_are_read_from_the_published_ids(home: Path) -> None:
    checker = DatasetChecks("cityscapes", instead=COUNTS)
    found = checker.finish(cityscapes(home, checker))
    train, val = parts(found)
    assert (found.name, len(found.classes)) == ("cityscapes", 19)
    assert train.keys == tuple(
        f"leftImg8bit/train/{city}/{city}_000000_000019_leftImg8bit.png"
        for city in ("aachen", "zurich")
    )
    mask = val.target(0).ravel()
    assert mask[[0, 7, 8, 11, 24, 33]].tolist() == [255, 0, 1, 2, 11, 18]
    assert np.unique(mask).tolist() == [*range(19), 255]
    assert (CLASSES[0], CLASSES[11], CLASSES[18]) == ("road", "person", "bicycle")


def test_the_published_numbers_are_asked_for(home: Path) -> None:
    checker = DatasetChecks("cityscapes")
    with pytest.raises(DatasetError, match=r"(?s)2 were found, 2,975 .* 1 were found, 500"):
        checker.finish(cityscapes(home, checker))


def test_a_city_without_masks_is_told_of(home: Path) -> None:
    (home / "gtFine/train/aachen/aachen_000000_000019_gtFine_labelIds.png").unlink()
    checker = DatasetChecks("cityscapes", instead=COUNTS, allow_partial=True)
    found = checker.finish(cityscapes(home, checker))
    assert len(parts(found)[0]) == 1
    assert "aachen_000000_000019_gtFine_labelIds.png" in found.missing[0]
