"""PASCAL Context is read from a small copy of its layout, with and without the background."""

from pathlib import Path

import numpy as np
import pytest

from tests.data.sets.dense_layouts import parts, write_lines, write_mask, write_picture
from veca.data.sets.dataset import DatasetChecks, DatasetError
from veca.data.sets.segmentation import CLASSES as VOC_CLASSES
from veca.data.sets.segmentation import CONTEXT_CLASSES as CLASSES
from veca.data.sets.segmentation import context_59, context_60

RAW_IDS = (
    0, 2, 9, 18, 19, 22, 23, 25, 31, 33, 34, 44, 45, 46, 59, 65, 68, 72, 80, 85, 98, 104, 105, 113,
    115, 144, 158, 159, 162, 187, 189, 207, 220, 232, 258, 259, 260, 284, 295, 296, 308, 324, 326,
    347, 349, 354, 355, 360, 366, 368, 397, 415, 416, 420, 424, 427, 440, 445, 454, 458,
)  # fmt: skip
"""Of 459 ids those that are kept; the class is the place among them."""

COUNTS = {"train pictures": 2, "val pictures": 1}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A copy with three pictures."""
    home = tmp_path / "VOCdevkit" / "VOC2010"
    for part, names in {"train": ("2008_1", "2008_3"), "val": ("2008_2",)}.items():
        write_lines(home / f"ImageSets/SegmentationContext/{part}.txt", names)
        for name in names:
            write_picture(home / "JPEGImages" / f"{name}.jpg")
            write_mask(home / "SegmentationClassContext" / f"{name}.png", range(60))
    return home


def test_sixty_classes_count_the_background(home: Path) -> None:
    checker = DatasetChecks("pascal-context-60", instead=COUNTS)
    found = checker.finish(context_60(home.parent, checker))
    train, val = parts(found)
    assert (found.name, len(found.classes), found.classes[0]) == (
        "pascal-context-60", 60, "background",
    )  # fmt: skip
    assert train.keys == ("JPEGImages/2008_1.jpg", "JPEGImages/2008_3.jpg")
    assert np.unique(val.target(0)).tolist() == list(range(60))


def test_fifty_nine_classes_ignore_it(home: Path) -> None:
    checker = DatasetChecks("pascal-context-59", instead=COUNTS)
    found = checker.finish(context_59(home, checker))
    _, val = parts(found)
    assert (found.name, len(found.classes), found.classes[0]) == (
        "pascal-context-59", 59, "aeroplane",
    )  # fmt: skip
    assert np.unique(val.target(0)).tolist() == [*range(59), 255]


def test_names_follow_the_alphabet_as_the_raw_ids_do() -> None:
    assert list(CLASSES[1:]) == sorted(CLASSES[1:])
    assert len(RAW_IDS) == len(CLASSES) == 60
    known = {2: "aeroplane", 23: "bicycle", 284: "person", 427: "tvmonitor", 458: "wood"}
    assert {raw: CLASSES[RAW_IDS.index(raw)] for raw in known} == known
    assert set(VOC_CLASSES) - set(CLASSES) == {"diningtable"}


def test_the_published_numbers_are_asked_for(home: Path) -> None:
    checker = DatasetChecks("pascal-context-60")
    with pytest.raises(DatasetError, match=r"(?s)2 were found, 4,998 .* 1 were found, 5,105"):
        checker.finish(context_60(home, checker))


def test_a_number_beyond_the_classes_is_an_error(home: Path) -> None:
    write_mask(home / "SegmentationClassContext/2008_2.png", (0, 255))
    found = context_60(home, DatasetChecks("pascal-context-60"))
    with pytest.raises(ValueError, match="numbers 255"):
        found.test.target(0)
