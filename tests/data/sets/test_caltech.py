"""Caltech-101 is split by the names of its pictures, the same way everywhere."""

from collections import Counter
from pathlib import Path

import pytest

from tests.data.sets.miniatures import complaint, complete, labels, part, touch
from veca.data.listing import key
from veca.data.sets.classification import caltech_101

SMALL = {"classes": 3, "train pictures": 90, "test pictures": 9}


def objects(folder: Path) -> Path:
    classes = {"BACKGROUND_Google": 31, "Faces": 35, "accordion": 33}
    for class_, count in classes.items():
        names = (f"101_ObjectCategories/{class_}/image_{number:04d}.jpg" for number in range(count))
        touch(folder, *names)
    return touch(folder, "101_ObjectCategories/BACKGROUND_Google/tmp")


@pytest.mark.parametrize("below", ["", "caltech-101", "caltech101"])
def test_thirty_pictures_of_each_class_are_trained_on(tmp_path: Path, below: str) -> None:
    objects(tmp_path / below)
    found = complete(caltech_101, tmp_path, SMALL)
    assert found.classes == ("BACKGROUND_Google", "Faces", "accordion")
    train, test = labels(found.train), labels(found.test)
    assert Counter(train.values()) == {0: 30, 1: 30, 2: 30}
    assert Counter(test.values()) == {0: 1, 1: 5, 2: 3}
    assert not train.keys() & test.keys()
    assert all(found.classes[label] == name.split("/")[1] for name, label in (train | test).items())
    assert found.per_class
    assert "30 pictures of each class" in found.facts["split"]


def test_the_draw_is_that_of_the_lowest_hashes_of_the_names(tmp_path: Path) -> None:
    found = part(caltech_101, objects(tmp_path))
    wanted = sorted((f"Faces/image_{number:04d}.jpg" for number in range(35)), key=key)[:30]
    assert found.train is not None
    drawn = [name.split("/", 1)[1] for name in found.train.keys if "/Faces/" in name]
    assert drawn == sorted(wanted)


def test_all_counts_of_caltech_are_asserted(tmp_path: Path) -> None:
    message = complaint(caltech_101, objects(tmp_path))
    for count in ("classes: 3 were found, 102", "3,060", "6,084"):
        assert count in message


def test_a_folder_without_the_pictures_is_told_so(tmp_path: Path) -> None:
    assert f"{tmp_path / '101_ObjectCategories'} is missing" in complaint(caltech_101, tmp_path)
