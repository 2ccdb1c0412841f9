"""The plain layouts are read, here written small and, where they are present, the real sets."""

from pathlib import Path

import numpy as np
import pytest

from tests.data.sets.dense_layouts import (
    HEIGHT,
    WIDTH,
    parts,
    write_depth,
    write_lines,
    write_mask,
    write_picture,
)
from tests.rules import ROOT
from veca.data.images import decode
from veca.data.sets.dataset import DatasetChecks, DatasetError, DepthRange, LabeledDataset
from veca.data.sets.folders import (
    ANIMALS_SCORED,
    is_plain_depth,
    is_plain_masks,
    plain_depth,
    plain_masks,
)
from veca.data.sets.segmentation import CLASSES

SHARED = ROOT.parent / "shared" / "data"
ANIMALS = SHARED / "segmentation" / "voc2012_animals"
TASKONOMY = SHARED / "depth" / "taskonomy"


def write_masks(folder: Path, classes: tuple[str, ...] = ("other", "cat", "dog")) -> Path:
    """A set of three pictures in several formats."""
    for name, ending in (("one", "jpg"), ("two.b", "png"), ("three", "webp")):
        write_picture(folder / "images" / f"{name}.{ending}")
        write_mask(folder / "masks" / f"{name}.png", (0, 2, 255))
    write_lines(folder / "images" / "one.txt", ["a remark, which is no picture"])
    write_lines(folder / "train.txt", ["two.b", "one"])
    write_lines(folder / "val.txt", ["three"])
    write_lines(folder / "classes.txt", classes)
    return folder


def masks(folder: Path) -> LabeledDataset:
    checker = DatasetChecks(folder.name)
    return checker.finish(plain_masks(folder, checker))


def test_masks_are_read_by_the_names_in_the_lists(tmp_path: Path) -> None:
    folder = write_masks(tmp_path / "mine")
    assert is_plain_masks(folder)
    assert not is_plain_depth(folder)
    found = masks(folder)
    train, val = parts(found)
    assert (found.name, found.kind, found.classes) == ("mine", "masks", ("other", "cat", "dog"))
    assert train.keys == ("images/one.jpg", "images/two.b.png")
    assert (train.name, val.name, val.keys) == ("train", "val", ("images/three.webp",))
    assert val.target(0)[0, :3].tolist() == [0, 2, 255]
    assert (found.eval_classes, found.facts) == (None, {})


def test_scored_classes_are_named_in_a_file(tmp_path: Path) -> None:
    folder = write_masks(tmp_path)
    write_lines(folder / "scored.txt", ["dog", "other"])
    found = masks(folder)
    assert found.eval_classes == (0, 2)
    assert found.facts == {"scored": ["other", "dog"], "scored_by": "scored.txt"}


@pytest.mark.parametrize("names", [["bird"], []])
def test_scored_classes_must_be_classes(tmp_path: Path, names: list[str]) -> None:
    folder = write_masks(tmp_path)
    write_lines(folder / "scored.txt", names)
    with pytest.raises(DatasetError, match=r"must name classes of classes\.txt"):
        masks(folder)


def test_the_animals_of_voc_are_scored_by_the_name_of_their_folder(tmp_path: Path) -> None:
    found = masks(write_masks(tmp_path / "voc2012_animals", CLASSES))
    assert found.eval_classes == (0, 8, 10, 12, 13, 15, 17)
    assert found.facts["scored"] == list(ANIMALS_SCORED)
    assert masks(write_masks(tmp_path / "other", CLASSES)).eval_classes is None
    assert masks(write_masks(tmp_path / "b" / "voc2012_animals")).eval_classes is None


def test_a_class_beyond_the_list_is_an_error_when_it_is_met(tmp_path: Path) -> None:
    found = masks(write_masks(tmp_path, ("other", "cat")))
    with pytest.raises(ValueError, match="holds the numbers 2,"):
        found.test.target(0)


def test_a_class_named_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="names a class twice"):
        masks(write_masks(tmp_path, ("cat", "dog", "cat")))


def test_two_pictures_of_one_name_are_refused(tmp_path: Path) -> None:
    folder = write_masks(tmp_path)
    write_picture(folder / "images" / "one.png")
    with pytest.raises(DatasetError, match=r"both one\.jpg and one\.png"):
        masks(folder)


def test_a_listed_picture_that_is_not_there_is_told_of(tmp_path: Path) -> None:
    folder = write_masks(tmp_path)
    write_lines(folder / "train.txt", ["one", "four"])
    with pytest.raises(DatasetError, match=r"of 1 of 2 pictures .*images/four"):
        masks(folder)


def test_a_picture_in_both_lists_is_refused(tmp_path: Path) -> None:
    folder = write_masks(tmp_path)
    write_lines(folder / "val.txt", ["three", "one"])
    with pytest.raises(DatasetError, match=r"such as images/one\.jpg"):
        masks(folder)


@pytest.mark.parametrize("name", ["classes.txt", "train.txt", "val.txt"])
def test_a_list_that_is_missing_is_named(tmp_path: Path, name: str) -> None:
    folder = write_masks(tmp_path)
    (folder / name).unlink()
    with pytest.raises(DatasetError, match=rf"{name} is missing"):
        masks(folder)


def test_depth_is_read_in_meters(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_picture(tmp_path / "images" / f"{name}.jpg")
        write_depth(tmp_path / "depth" / f"{name}.png", (0, 2500))
    write_lines(tmp_path / "train.txt", ["a"])
    write_lines(tmp_path / "val.txt", ["b"])
    assert is_plain_depth(tmp_path)
    assert not is_plain_masks(tmp_path)
    checker = DatasetChecks("mine")
    found = checker.finish(plain_depth(tmp_path, checker))
    assert (found.kind, found.depth) == ("depth", DepthRange())
    assert found.test.target(0)[0, :2].tolist() == [0, 2.5]
    assert found.test.target(0).shape == (HEIGHT, WIDTH)


@pytest.mark.skipif(not ANIMALS.is_dir(), reason="the shared sets are not on this machine")
def test_the_animals_are_whole_and_their_masks_fit_their_pictures() -> None:
    found = masks(ANIMALS)
    train, val = parts(found)
    assert (found.name, len(train), len(val)) == ("voc2012_animals", 400, 200)
    assert found.eval_classes == (0, 8, 10, 12, 13, 15, 17)
    for index in range(0, 200, 20):
        height, width = decode(val.image(index).name).sides
        assert val.target(index).shape == (height, width)


@pytest.mark.skipif(not TASKONOMY.is_dir(), reason="the shared sets are not on this machine")
def test_the_depth_of_rooms_is_whole_and_in_the_range_of_rooms() -> None:
    checker = DatasetChecks("taskonomy")
    found = checker.finish(plain_depth(TASKONOMY, checker))
    train, val = parts(found)
    assert (found.name, len(train), len(val)) == ("taskonomy", 260, 111)
    seen = np.concatenate([val.target(index).ravel() for index in range(0, 111, 10)])
    assert 0.5 < np.median(seen[seen > 0]) < 5
