"""COCO is read from small copies of its layouts, as things and stuff and as things alone."""

from pathlib import Path

import numpy as np
import pytest

from tests.data.sets.dense_layouts import parts, write_mask, write_picture
from veca.data.sets.dataset import DatasetChecks, DatasetError
from veca.data.sets.segmentation import STUFF, THINGS, coco_object, coco_stuff

COUNTS = {"train2017 pictures": 2, "val2017 pictures": 1}

LAYOUTS = [
    ("images", "annotations"),
    ("images", "stuffthingmaps"),
    (".", "stuffthingmaps"),
    (".", "stuffthingmaps_trainval2017"),
]


def write_coco(folder: Path, pictures: str, masks: str) -> None:
    """A copy with three pictures."""
    for part, name in (
        ("train2017", "000000000009"),
        ("train2017", "000000000025"),
        ("val2017", "000000000139"),
    ):
        write_picture(folder / pictures / part / f"{name}.jpg")
        write_mask(folder / masks / part / f"{name}.png", (0, 12, 89, 91, 181, 255))


@pytest.mark.parametrize(("pictures", "masks"), LAYOUTS)
def test_coco_stuff_has_171_classes(tmp_path: Path, pictures: str, masks: str) -> None:
    write_coco(tmp_path, pictures, masks)
    checker = DatasetChecks("coco-stuff", instead=COUNTS)
    found = checker.finish(coco_stuff(tmp_path, checker))
    train, val = parts(found)
    assert (found.name, len(found.classes)) == ("coco-stuff", 171)
    assert [Path(key).name for key in train.keys] == ["000000000009.jpg", "000000000025.jpg"]
    assert val.target(0)[0, :6].tolist() == [0, 11, 79, 80, 170, 255]
    names = [found.classes[class_] for class_ in (0, 11, 79, 80, 170)]
    assert names == ["person", "stop sign", "toothbrush", "banner", "wood"]


@pytest.mark.parametrize(("pictures", "masks"), LAYOUTS)
def test_coco_object_has_80_things_and_all_else(tmp_path: Path, pictures: str, masks: str) -> None:
    write_coco(tmp_path, pictures, masks)
    checker = DatasetChecks("coco-object", instead=COUNTS)
    found = checker.finish(coco_object(tmp_path, checker))
    assert (found.name, len(found.classes), found.classes[0]) == ("coco-object", 81, "background")
    assert found.test.target(0)[0, :6].tolist() == [1, 12, 80, 0, 0, 0]


def test_names_are_as_many_as_the_makers_say_and_stuff_follows_the_alphabet() -> None:
    assert (len(set(THINGS)), len(set(STUFF))) == (80, 91)
    assert list(STUFF) == sorted(STUFF)


def test_files_that_others_have_converted_are_passed_by(tmp_path: Path) -> None:
    write_coco(tmp_path, "images", "annotations")
    for ending in ("_labelTrainIds", "_instanceTrainIds"):
        write_mask(tmp_path / f"annotations/val2017/000000000139{ending}.png", [3])
    checker = DatasetChecks("coco-stuff", instead=COUNTS)
    found = checker.finish(coco_stuff(tmp_path, checker))
    assert np.unique(found.test.target(0)).tolist() == [0, 11, 79, 80, 170, 255]


def test_the_published_numbers_are_asked_for(tmp_path: Path) -> None:
    write_coco(tmp_path, "images", "annotations")
    checker = DatasetChecks("coco-object")
    with pytest.raises(DatasetError, match=r"(?s)2 were found, 118,287 .* 1 were found, 5,000"):
        checker.finish(coco_object(tmp_path, checker))


def test_masks_that_are_not_there_are_asked_for_by_the_names_of_their_folders(
    tmp_path: Path,
) -> None:
    write_coco(tmp_path, "images", "elsewhere")
    with pytest.raises(DatasetError, match="none of the folders annotations, stuffthingmaps, "):
        coco_stuff(tmp_path, DatasetChecks("coco-stuff"))
