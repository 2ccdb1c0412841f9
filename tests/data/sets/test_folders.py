"""Datasets of one's own: class folders, masks and depth beside the images."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.data.pictures import encoded, write_shard
from tests.data.sets.layouts import (
    HEIGHT,
    WIDTH,
    labels,
    touch,
    write_depth,
    write_lines,
    write_mask,
    write_picture,
)
from tests.rules import ROOT
from veca.data.images import decode
from veca.data.listing import key, open_image
from veca.data.sets.dataset import DatasetError, DepthRange, class_names
from veca.data.sets.folders import ANIMALS_SCORED
from veca.data.sets.registry import read_set


def complaint(folder: Path) -> str:
    """The error about a folder."""
    with pytest.raises(DatasetError) as error:
        read_set(str(folder))
    return str(error.value)


def test_classes_are_numbered_by_name_and_evaluated_on_val(tmp_path: Path) -> None:
    folder = tmp_path / "pets"
    touch(folder, "train/dog/1.jpg", "train/cat/2.png", "train/cat/3.jpg", "val/dog/4.JPEG")
    touch(folder, "val/cat/5.jpg", "val/notes.txt", "train/.hidden/6.jpg", "train/cat/._2.png")
    found = read_set(str(folder))
    assert (found.name, found.kind, found.classes) == ("pets", "classes", ("cat", "dog"))
    assert labels(found.train) == {"train/cat/2.png": 0, "train/cat/3.jpg": 0, "train/dog/1.jpg": 1}
    assert labels(found.test) == {"val/cat/5.jpg": 0, "val/dog/4.JPEG": 1}
    assert found.test.name == "val"
    assert found.val is None
    assert found.facts == {}


def test_a_test_split_is_evaluated_and_val_chooses_settings(tmp_path: Path) -> None:
    touch(tmp_path, "train/a/1.jpg", "train/b/2.jpg", "test/b/3.jpg", "test/a/4.jpg")
    found = read_set(str(tmp_path))
    assert found.test.name == "test"
    assert found.val is None
    touch(tmp_path, "val/a/5.jpg")
    found = read_set(str(tmp_path))
    assert found.test.name == "test"
    assert labels(found.val) == {"val/a/5.jpg": 0}


def test_test_images_without_classes_are_not_a_split(tmp_path: Path) -> None:
    touch(tmp_path, "train/a/1.jpg", "val/a/2.jpg", "test/3.jpg")
    assert read_set(str(tmp_path)).test.name == "val"


def test_hidden_folders_are_not_classes(tmp_path: Path) -> None:
    touch(tmp_path, "train/a/1.jpg", "val/a/2.jpg", "test/3.jpg", "test/.ipynb_checkpoints/4.jpg")
    assert read_set(str(tmp_path)).test.name == "val"


def test_a_class_may_be_deep_or_a_shard(tmp_path: Path) -> None:
    touch(tmp_path, "train/a/x/y/1.jpg", "val/a/2.jpg", "val/b/3.jpg")
    write_shard(tmp_path / "train/b.tar", [("deep/4.png", encoded(4)), ("5.png", encoded(5))])
    found = read_set(str(tmp_path))
    assert labels(found.train) == {
        "train/b.tar#deep/4.png": 1,
        "train/b.tar#5.png": 1,
        "train/a/x/y/1.jpg": 0,
    }
    assert found.train is not None
    with open_image(found.train.image(1)) as file:
        assert torch.equal(decode(file).pixels(), decode(encoded(5)).pixels())


def test_classes_without_test_images_are_recorded(tmp_path: Path) -> None:
    touch(tmp_path, "train/a/1.jpg", "train/b/2.jpg", "train/c/3.jpg", "val/b/4.jpg")
    found = read_set(str(tmp_path))
    assert found.facts == {"classes_without_test_pictures": ["a", "c"]}


def test_a_class_without_training_images_is_refused(tmp_path: Path) -> None:
    touch(tmp_path, "train/a/1.jpg", "val/a/2.jpg", "val/z/3.jpg")
    assert "val has the class 'z', which is not one of the 1 classes" in complaint(tmp_path)


def test_images_outside_of_class_folders_make_a_dataset_partial(tmp_path: Path) -> None:
    touch(tmp_path, "train/a/1.jpg", "train/2.jpg", "val/a/3.jpg")
    assert "train: 1 images are not in a class folder, such as 2.jpg" in complaint(tmp_path)
    assert labels(read_set(str(tmp_path), allow_partial=True).train) == {"train/a/1.jpg": 0}


def test_a_damaged_shard_makes_a_dataset_partial(tmp_path: Path) -> None:
    touch(tmp_path, "train/a/1.jpg", "train/b.tar", "val/a/3.jpg")
    assert "b.tar: the tar shard cannot be read" in complaint(tmp_path)


def test_class_folders_without_splits_are_split_by_a_hash_of_names(tmp_path: Path) -> None:
    names = {"cat": 12, "dog": 5, "bird": 2}
    for name, count in names.items():
        touch(tmp_path / "photos", *(f"{name}/{number}.jpg" for number in range(count)))
    found = read_set(str(tmp_path / "photos"))
    assert (found.kind, found.classes, found.val) == ("classes", ("bird", "cat", "dog"), None)
    assert found.train is not None
    assert (found.train.name, found.test.name) == ("train", "val")
    train, held_out = labels(found.train), labels(found.test)
    assert Counter(held_out.values()) == {0: 1, 1: 2, 2: 1}  # a fifth, at least one
    assert {**train, **held_out} == {
        f"{name}/{number}.jpg": ("bird", "cat", "dog").index(name)
        for name, count in names.items()
        for number in range(count)
    }
    cats = sorted((f"cat/{number}.jpg" for number in range(12)), key=key)
    assert {name for name, label in held_out.items() if label == 1} == set(cats[:2])
    assert "so 4 of the 19 images, a fifth of each of the 3 classes" in found.facts["split"]
    (tmp_path / "photos").rename(tmp_path / "moved")
    assert labels(read_set(str(tmp_path / "moved")).test) == held_out


def test_a_class_of_one_image_cannot_be_split(tmp_path: Path) -> None:
    touch(tmp_path, "cat/1.jpg", "cat/2.jpg", "dog/3.jpg")
    assert "dog has only one image, but each class needs one to fit on" in complaint(tmp_path)


def test_training_images_alone_are_refused(tmp_path: Path) -> None:
    touch(tmp_path, "train/a/1.jpg")
    with pytest.raises(DatasetError, match=r"neither val/ nor test/ .* move some images"):
        read_set(str(tmp_path), allow_partial=True)


def test_a_split_without_images_is_refused(tmp_path: Path) -> None:
    touch(tmp_path, "train/a/1.jpg", "val/a/notes.txt")
    assert "val: there are no images" in complaint(tmp_path)


SHARED = ROOT.parent / "shared" / "data"
ANIMALS = SHARED / "segmentation" / "voc2012_animals"
TASKONOMY = SHARED / "depth" / "taskonomy"


def write_masks(folder: Path, classes: tuple[str, ...] = ("other", "cat", "dog")) -> Path:
    """A set of three images in several formats."""
    for name, ending in (("one", "jpg"), ("two.b", "png"), ("three", "webp")):
        write_picture(folder / "images" / f"{name}.{ending}")
        write_mask(folder / "masks" / f"{name}.png", (0, 2, 255))
    write_lines(folder / "images" / "one.txt", ["a remark, not an image"])
    write_lines(folder / "train.txt", ["two.b", "one"])
    write_lines(folder / "val.txt", ["three"])
    write_lines(folder / "classes.txt", classes)
    return folder


def test_masks_are_read_by_the_names_in_the_lists(tmp_path: Path) -> None:
    folder = write_masks(tmp_path / "mine")
    found = read_set(str(folder))
    train, val = found.splits()
    assert (found.name, found.kind, found.classes) == ("mine", "masks", ("other", "cat", "dog"))
    assert train.keys == ("images/one.jpg", "images/two.b.png")
    assert (train.name, val.name, val.keys) == ("train", "val", ("images/three.webp",))
    assert val.target(0)[0, :3].tolist() == [0, 2, 255]
    assert (found.eval_classes, found.facts) == (None, {})


def test_scored_classes_are_named_in_a_file(tmp_path: Path) -> None:
    folder = write_masks(tmp_path)
    write_lines(folder / "scored.txt", ["dog", "other"])
    found = read_set(str(folder))
    assert found.eval_classes == (0, 2)
    assert found.facts == {"scored": ["other", "dog"], "scored_by": "scored.txt"}


@pytest.mark.parametrize("names", [["bird"], []])
def test_scored_classes_must_be_classes(tmp_path: Path, names: list[str]) -> None:
    folder = write_masks(tmp_path)
    write_lines(folder / "scored.txt", names)
    with pytest.raises(DatasetError, match=r"must name classes of classes\.txt"):
        read_set(str(folder))


def test_the_animals_of_voc_are_scored_by_the_name_of_their_folder(tmp_path: Path) -> None:
    found = read_set(str(write_masks(tmp_path / "voc2012_animals", class_names("voc"))))
    assert found.eval_classes == (0, 8, 10, 12, 13, 15, 17)
    assert found.facts["scored"] == list(ANIMALS_SCORED)
    assert read_set(str(write_masks(tmp_path / "other", class_names("voc")))).eval_classes is None
    assert read_set(str(write_masks(tmp_path / "b" / "voc2012_animals"))).eval_classes is None


def test_a_number_beyond_the_classes_is_an_error_when_the_mask_is_read(tmp_path: Path) -> None:
    found = read_set(str(write_masks(tmp_path, ("other", "cat"))))
    with pytest.raises(ValueError, match="holds the numbers 2,"):
        found.test.target(0)


def test_a_class_named_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="names a class twice"):
        read_set(str(write_masks(tmp_path, ("cat", "dog", "cat"))))


def test_two_images_of_one_name_are_refused(tmp_path: Path) -> None:
    folder = write_masks(tmp_path)
    write_picture(folder / "images" / "one.png")
    with pytest.raises(DatasetError, match=r"both one\.jpg and one\.png"):
        read_set(str(folder))


def test_a_missing_image_of_a_list_is_named(tmp_path: Path) -> None:
    folder = write_masks(tmp_path)
    write_lines(folder / "train.txt", ["one", "four"])
    with pytest.raises(DatasetError, match=r"1 of 2 images .*images/four"):
        read_set(str(folder))


def test_an_image_in_both_lists_is_refused(tmp_path: Path) -> None:
    folder = write_masks(tmp_path)
    write_lines(folder / "val.txt", ["three", "one"])
    with pytest.raises(DatasetError, match=r"such as images/one\.jpg"):
        read_set(str(folder))


@pytest.mark.parametrize("name", ["classes.txt", "train.txt", "val.txt"])
def test_a_missing_list_is_named(tmp_path: Path, name: str) -> None:
    folder = write_masks(tmp_path)
    (folder / name).unlink()
    with pytest.raises(DatasetError, match=rf"{name} is missing"):
        read_set(str(folder))


def test_depth_is_read_in_meters(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_picture(tmp_path / "images" / f"{name}.jpg")
        write_depth(tmp_path / "depth" / f"{name}.png", (0, 2500))
    write_lines(tmp_path / "train.txt", ["a"])
    write_lines(tmp_path / "val.txt", ["b"])
    found = read_set(str(tmp_path))
    assert (found.kind, found.depth) == ("depth", DepthRange())
    assert found.test.target(0)[0, :2].tolist() == [0, 2.5]
    assert found.test.target(0).shape == (HEIGHT, WIDTH)


@pytest.mark.skipif(not ANIMALS.is_dir(), reason="the shared datasets are not on this machine")
def test_the_shared_animals_are_complete_and_masks_have_the_size_of_their_images() -> None:
    found = read_set(str(ANIMALS))
    train, val = found.splits()
    assert (found.name, len(train), len(val)) == ("voc2012_animals", 400, 200)
    assert found.eval_classes == (0, 8, 10, 12, 13, 15, 17)
    for index in range(0, 200, 20):
        height, width = decode(val.image(index).name).sides
        assert val.target(index).shape == (height, width)


@pytest.mark.skipif(not TASKONOMY.is_dir(), reason="the shared datasets are not on this machine")
def test_the_shared_depth_of_rooms_is_complete_and_plausible() -> None:
    found = read_set(str(TASKONOMY))
    train, val = found.splits()
    assert (found.name, len(train), len(val)) == ("taskonomy", 260, 111)
    seen = np.concatenate([val.target(index).ravel() for index in range(0, 111, 10)])
    assert 0.5 < np.median(seen[seen > 0]) < 5
