"""A set is found by its name and folder, or by the layout of a folder."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data.sets.miniatures import touch, write
from veca.data.sets.dataset import DatasetError
from veca.data.sets.registry import SETS, read_set

CLASSIFICATION = (
    "imagenet-1k imagenet-v2 imagenet-real places365 food101 sun397 oxford-pets cub-200 cifar-10 "
    "cifar-100 stanford-cars fgvc-aircraft voc2007 dtd caltech-101 flowers-102"
)
DENSE = (
    "voc2012 voc2012-aug pascal-context-60 pascal-context-59 ade20k coco-stuff coco-object "
    "cityscapes nyu-v2 kitti"
)


def pets(folder: Path) -> Path:
    touch(folder, "images/Abyssinian_1.jpg", "images/beagle_2.jpg")
    trainval, test = "beagle_2 2 2 1\n", "Abyssinian_1 1 1 1\n"
    return write(folder, {"annotations/trainval.txt": trainval, "annotations/test.txt": test})


def test_all_sets_of_the_paper_are_known() -> None:
    assert set(SETS) >= {*CLASSIFICATION.split(), *DENSE.split()}


@pytest.mark.parametrize("name", sorted(SETS))
def test_every_set_says_what_is_missing_in_an_empty_folder(tmp_path: Path, name: str) -> None:
    for allow_partial in (False, True):
        with pytest.raises(DatasetError, match="missing") as told:
            read_set(f"{name}={tmp_path}", allow_partial=allow_partial)
        assert name in str(told.value)
        assert str(tmp_path) in str(told.value)


def test_a_known_set_is_read_in_its_folder(tmp_path: Path) -> None:
    text = f"oxford-pets={pets(tmp_path)}"
    with pytest.raises(DatasetError, match="3,680"):
        read_set(text)
    found = read_set(text, allow_partial=True)
    assert found.name == "oxford-pets"
    assert len(found.missing) == 3
    assert np.asarray(found.test.labels).tolist() == [0]


def test_a_set_without_a_training_part_is_found_too(tmp_path: Path) -> None:
    touch(tmp_path, "10/a.jpeg")
    assert read_set(f"imagenet-v2={tmp_path}", allow_partial=True).uses_head_of == "imagenet-1k"


def test_a_picture_to_train_and_to_test_on_is_refused_even_in_a_partial_set(
    tmp_path: Path,
) -> None:
    pets(tmp_path)
    write(tmp_path, {"annotations/test.txt": "beagle_2 2 2 1\n"})
    with pytest.raises(DatasetError, match="1 pictures are in 'trainval' and in 'test' too"):
        read_set(f"oxford-pets={tmp_path}", allow_partial=True)


def test_a_copy_of_a_training_picture_is_refused_where_parts_are_folders(tmp_path: Path) -> None:
    files = {"train/a/1.jpg": b"one", "train/b/2.jpg": b"two", "test/a/3.jpg": b"more"}
    write(tmp_path, {**files, "val/b/1.jpg": b"six"})
    assert read_set(str(tmp_path)).val is not None
    write(tmp_path, {"val/b/1.jpg": b"one"})
    with pytest.raises(DatasetError, match=r"val/b/1\.jpg is a copy of train/a/1\.jpg"):
        read_set(str(tmp_path), allow_partial=True)
    write(tmp_path, {"val/b/1.jpg": b"six", "test/a/1.jpg": b"six"})
    with pytest.raises(DatasetError, match=r"test/a/1\.jpg is a copy of val/b/1\.jpg"):
        read_set(str(tmp_path), allow_partial=True)


def test_a_picture_to_choose_and_to_test_on_is_refused(tmp_path: Path) -> None:
    touch(tmp_path, *(f"images/dots/dots_{number}.jpg" for number in range(3)))
    lists = {"train": 0, "val": 1, "test": 1}
    write(tmp_path, {f"labels/{it}1.txt": f"dots/dots_{n}.jpg\n" for it, n in lists.items()})
    with pytest.raises(DatasetError, match="1 pictures are in 'val' and in 'test' too"):
        read_set(f"dtd={tmp_path}", allow_partial=True)


def test_class_folders_are_known_by_their_layout(tmp_path: Path) -> None:
    touch(tmp_path / "mine=own", "train/a/1.jpg", "val/a/2.jpg")
    found = read_set(str(tmp_path / "mine=own"))
    assert (found.name, found.kind, found.missing) == ("mine=own", "classes", ())


def test_a_folder_may_be_given_by_a_relative_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch(tmp_path, "mine/train/a/1.jpg", "mine/val/a/2.jpg")
    monkeypatch.chdir(tmp_path)
    assert read_set("mine").test.image(0).name == str(tmp_path / "mine/val/a/2.jpg")


@pytest.mark.parametrize(("kind", "folder"), [("masks", "masks"), ("depth", "depth")])
def test_masks_and_depth_are_known_by_their_layout(tmp_path: Path, kind: str, folder: str) -> None:
    write(tmp_path, {"train.txt": "a\n", "val.txt": "b\n", "classes.txt": "none\nsome\n"})
    for name in ("a", "b"):
        numbers = np.ones((4, 4), np.uint16 if kind == "depth" else np.uint8)
        for place, values in (("images", np.zeros((4, 4, 3), np.uint8)), (folder, numbers)):
            (tmp_path / place).mkdir(exist_ok=True)
            Image.fromarray(values).save(tmp_path / place / f"{name}.png")
    found = read_set(str(tmp_path))
    assert found.kind == kind
    assert found.test.target(0).shape == (4, 4)


def test_a_folder_without_a_split_is_told_what_to_do(tmp_path: Path) -> None:
    touch(tmp_path, "cat/1.jpg", "dog/2.jpg")
    with pytest.raises(DatasetError, match="train/<class>/ with val/<class>/") as told:
        read_set(str(tmp_path))
    assert "split its pictures so" in str(told.value)
    assert "food101" in str(told.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("oxford-pet=nowhere", "nearest to it is oxford-pets"),
        ("food101", "give its folder too, as in 'food101=FOLDER'"),
        ("food101=", "give its folder too"),
        ("nowhere/at/all", "check the path"),
        ("food101=nowhere/at/all", "which is no folder"),
    ],
)
def test_a_text_that_means_nothing_is_answered_with_what_is_allowed(text: str, told: str) -> None:
    with pytest.raises(DatasetError) as error:
        read_set(text)
    assert told in str(error.value)
    assert "food101" in str(error.value)
