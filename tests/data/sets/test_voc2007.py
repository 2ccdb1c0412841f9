"""VOC 2007 pictures show several classes, and difficult objects count neither way."""

from pathlib import Path

import numpy as np
import pytest

from tests.data.sets.miniatures import complaint, complete, part, touch, write
from veca.data.sets.classification import CLASSES, voc2007

NAMES = {"trainval": ("000005", "000007", "000009"), "test": ("000001", "000002")}
SMALL = {"trainval pictures": 3, "test pictures": 2}


def voc(folder: Path) -> Path:
    """Everything is absent, but: 5 shows a chair, 7 a car, 9 a car and, difficult, a person."""
    for split, names in NAMES.items():
        touch(folder, *(f"JPEGImages/{name}.jpg" for name in names))
        files = {f"{split}.txt": "".join(f"{name}\n" for name in names)}
        for class_ in CLASSES:
            marks = {name: mark(class_, name) for name in reversed(names)}
            files[f"{class_}_{split}.txt"] = "".join(
                f"{name} {number:2d}\n" for name, number in marks.items()
            )
        write(folder / "ImageSets/Main", files)
    return folder


def mark(class_: str, name: str) -> int:
    shown = {"000005": ["chair"], "000007": ["car"], "000009": ["car"], "000001": ["dog", "person"]}
    if (class_, name) == ("person", "000009"):
        return 0
    return 1 if class_ in shown.get(name, []) else -1


@pytest.mark.parametrize("below", ["", "VOC2007", "VOCdevkit/VOC2007"])
def test_a_picture_shows_any_number_of_classes(tmp_path: Path, below: str) -> None:
    voc(tmp_path / below)
    found = complete(voc2007, tmp_path, SMALL)
    assert found.train is not None
    assert found.train.name == "trainval"
    assert found.train.keys == tuple(f"JPEGImages/{name}.jpg" for name in NAMES["trainval"])
    assert shown(found.train.labels) == [["chair"], ["car"], ["car"]]
    assert shown(found.test.labels) == [["dog", "person"], []]
    assert np.asarray(found.train.labels).shape == (3, 20)
    assert np.asarray(found.train.labels).dtype == np.bool_


def test_difficult_objects_count_neither_as_present_nor_as_absent(tmp_path: Path) -> None:
    found = complete(voc2007, voc(tmp_path), SMALL)
    assert found.train is not None
    assert found.train.counted is not None
    assert shown(~found.train.counted) == [[], [], ["person"]]
    assert found.test.counted is not None
    assert found.test.counted.all()


def shown(marks: object) -> list[list[str]]:
    return [[CLASSES[place] for place in np.flatnonzero(row)] for row in np.asarray(marks)]


def test_all_counts_of_voc_2007_are_asserted(tmp_path: Path) -> None:
    voc(tmp_path)
    (tmp_path / "JPEGImages/000005.jpg").unlink()
    message = complaint(voc2007, tmp_path)
    assert "trainval pictures: 2 were found, 5,011" in message
    assert "test pictures: 2 were found, 4,952" in message
    found = part(voc2007, tmp_path)
    assert found.train is not None
    assert shown(found.train.labels) == [["car"], ["car"]]
    assert shown(~np.asarray(found.train.counted)) == [[], ["person"]]


def test_lists_that_are_missing_are_all_named(tmp_path: Path) -> None:
    voc(tmp_path)
    for name in ("dog_test.txt", "test.txt"):
        (tmp_path / "ImageSets/Main" / name).unlink()
    message = complaint(voc2007, tmp_path)
    assert "dog_test.txt is missing" in message
    assert f"{Path('Main') / 'test.txt'} is missing" in message


@pytest.mark.parametrize("content", ["000005 2\n000007 1\n000009 1\n", "000005 1\n000007 1\n"])
def test_a_mark_that_means_nothing_or_is_missing_is_refused(tmp_path: Path, content: str) -> None:
    voc(tmp_path)
    write(tmp_path, {"ImageSets/Main/cow_trainval.txt": content})
    assert "allowed are 1, 0 and -1" in complaint(voc2007, tmp_path)
