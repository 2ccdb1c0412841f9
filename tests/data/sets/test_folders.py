"""Datasets of one's own: class folders, masks and depth beside the images."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.data.pictures import encoded, write_shard
from tests.data.sets.layouts import (
    HEIGHT,
    WIDTH,
    complaint,
    complete,
    labels,
    part,
    parts,
    touch,
    write_depth,
    write_lines,
    write_mask,
    write_picture,
)
from tests.rules import ROOT
from veca.data.images import decode
from veca.data.listing import open_image
from veca.data.sets.dataset import DatasetChecks, DatasetError, DepthRange, LabeledDataset
from veca.data.sets.folders import (
    ANIMALS_SCORED,
    class_folders,
    is_class_folders,
    is_plain_depth,
    is_plain_masks,
    plain_depth,
    plain_masks,
)
from veca.data.sets.registry import read_set
from veca.data.sets.segmentation import CLASSES


def test_classes_are_numbered_by_name_and_val_is_reported_on(tmp_path: Path) -> None:
    folder = tmp_path / "pets"
    touch(folder, "train/dog/1.jpg", "train/cat/2.png", "train/cat/3.jpg", "val/dog/4.JPEG")
    touch(folder, "val/cat/5.jpg", "val/notes.txt", "train/.hidden/6.jpg", "train/cat/._2.png")
    found = complete(class_folders, folder, {})
    assert (found.name, found.kind, found.classes) == ("pets", "classes", ("cat", "dog"))
    assert labels(found.train) == {"train/cat/2.png": 0, "train/cat/3.jpg": 0, "train/dog/1.jpg": 1}
    assert labels(found.test) == {"val/cat/5.jpg": 0, "val/dog/4.JPEG": 1}
    assert found.test.name == "val"
    assert found.val is None
    assert found.facts == {}


def test_test_takes_the_place_of_val_and_both_are_used_where_both_are(tmp_path: Path) -> None:
    touch(tmp_path, "train/a/1.jpg", "train/b/2.jpg", "test/b/3.jpg", "test/a/4.jpg")
    found = complete(class_folders, tmp_path, {})
    assert found.test.name == "test"
    assert found.val is None
    touch(tmp_path, "val/a/5.jpg")
    found = complete(class_folders, tmp_path, {})
    assert found.test.name == "test"
    assert labels(found.val) == {"val/a/5.jpg": 0}


def test_test_pictures_without_classes_are_no_part(tmp_path: Path) -> None:
    touch(tmp_path, "train/a/1.jpg", "val/a/2.jpg", "test/3.jpg")
    assert complete(class_folders, tmp_path, {}).test.name == "val"


def test_folders_that_begin_with_a_dot_are_no_classes(tmp_path: Path) -> None:
    touch(tmp_path, "train/a/1.jpg", "val/a/2.jpg", "test/3.jpg", "test/.ipynb_checkpoints/4.jpg")
    assert complete(class_folders, tmp_path, {}).test.name == "val"


def test_a_class_may_be_deep_or_a_shard(tmp_path: Path) -> None:
    touch(tmp_path, "train/a/x/y/1.jpg", "val/a/2.jpg", "val/b/3.jpg")
    write_shard(tmp_path / "train/b.tar", [("deep/4.png", encoded(4)), ("5.png", encoded(5))])
    found = complete(class_folders, tmp_path, {})
    assert labels(found.train) == {
        "train/b.tar#deep/4.png": 1,
        "train/b.tar#5.png": 1,
        "train/a/x/y/1.jpg": 0,
    }
    assert found.train is not None
    with open_image(found.train.image(1)) as file:
        assert torch.equal(decode(file).pixels(), decode(encoded(5)).pixels())


def test_classes_that_are_not_tested_are_told(tmp_path: Path) -> None:
    touch(tmp_path, "train/a/1.jpg", "train/b/2.jpg", "train/c/3.jpg", "val/b/4.jpg")
    found = complete(class_folders, tmp_path, {})
    assert found.facts == {"classes_without_test_pictures": ["a", "c"]}


def test_a_class_without_training_pictures_is_refused(tmp_path: Path) -> None:
    touch(tmp_path, "train/a/1.jpg", "val/a/2.jpg", "val/z/3.jpg")
    assert "val has the class 'z', which is not one of the 1 classes" in complaint(
        class_folders, tmp_path
    )


def test_pictures_outside_of_class_folders_make_a_set_partial(tmp_path: Path) -> None:
    touch(tmp_path, "train/a/1.jpg", "train/2.jpg", "val/a/3.jpg")
    assert "train: 1 images are not in a class folder" in complaint(class_folders, tmp_path)
    assert labels(part(class_folders, tmp_path).train) == {"train/a/1.jpg": 0}


def test_a_damaged_shard_makes_a_set_partial(tmp_path: Path) -> None:
    touch(tmp_path, "train/a/1.jpg", "train/b.tar", "val/a/3.jpg")
    assert "b.tar: the tar shard cannot be read" in complaint(class_folders, tmp_path)


def test_pictures_without_any_to_measure_on_are_refused_with_advice(tmp_path: Path) -> None:
    touch(tmp_path, "train/a/1.jpg")
    assert is_class_folders(tmp_path)
    with pytest.raises(DatasetError, match=r"neither val/ nor test/ .* move some images"):
        class_folders(tmp_path, DatasetChecks("the set", allow_partial=True))


def test_a_part_without_pictures_is_refused(tmp_path: Path) -> None:
    touch(tmp_path, "train/a/1.jpg", "val/a/notes.txt")
    assert "val: there are no images" in complaint(class_folders, tmp_path)


SHARED = ROOT.parent / "shared" / "data"
ANIMALS = SHARED / "segmentation" / "voc2012_animals"
TASKONOMY = SHARED / "depth" / "taskonomy"


def write_masks(folder: Path, classes: tuple[str, ...] = ("other", "cat", "dog")) -> Path:
    """A set of three images in several formats."""
    for name, ending in (("one", "jpg"), ("two.b", "png"), ("three", "webp")):
        write_picture(folder / "images" / f"{name}.{ending}")
        write_mask(folder / "masks" / f"{name}.png", (0, 2, 255))
    write_lines(folder / "images" / "one.txt", ["a remark, which is no image"])
    write_lines(folder / "train.txt", ["two.b", "one"])
    write_lines(folder / "val.txt", ["three"])
    write_lines(folder / "classes.txt", classes)
    return folder


def masks(folder: Path) -> LabeledDataset:
    checks = DatasetChecks(folder.name)
    return checks.finish(plain_masks(folder, checks))


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
    with pytest.raises(DatasetError, match=r"1 of 2 images .*images/four"):
        masks(folder)


def test_a_picture_in_both_lists_is_refused(tmp_path: Path) -> None:
    folder = write_masks(tmp_path)
    write_lines(folder / "val.txt", ["three", "one"])
    with pytest.raises(DatasetError, match=r"such as images/one\.jpg"):
        read_set(str(folder))


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
    checks = DatasetChecks("mine")
    found = checks.finish(plain_depth(tmp_path, checks))
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
    checks = DatasetChecks("taskonomy")
    found = checks.finish(plain_depth(TASKONOMY, checks))
    train, val = parts(found)
    assert (found.name, len(train), len(val)) == ("taskonomy", 260, 111)
    seen = np.concatenate([val.target(index).ravel() for index in range(0, 111, 10)])
    assert 0.5 < np.median(seen[seen > 0]) < 5
