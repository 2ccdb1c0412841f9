"""Pictures in class folders are numbered by the names of the classes."""

from pathlib import Path

import pytest
import torch

from tests.data.pictures import encoded, write_shard
from tests.data.sets.miniatures import complaint, complete, labels, part, touch
from veca.data.images import decode
from veca.data.listing import open_image
from veca.data.sets.dataset import DatasetChecks, DatasetError
from veca.data.sets.folders import class_folders, is_class_folders


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
    assert "val has the class 'z', which is none of the 1 classes" in complaint(
        class_folders, tmp_path
    )


def test_pictures_outside_of_class_folders_make_a_set_partial(tmp_path: Path) -> None:
    touch(tmp_path, "train/a/1.jpg", "train/2.jpg", "val/a/3.jpg")
    assert "train: 1 pictures lie in no folder of a class" in complaint(class_folders, tmp_path)
    assert labels(part(class_folders, tmp_path).train) == {"train/a/1.jpg": 0}


def test_a_damaged_shard_makes_a_set_partial(tmp_path: Path) -> None:
    touch(tmp_path, "train/a/1.jpg", "train/b.tar", "val/a/3.jpg")
    assert "b.tar: the tar shard cannot be read" in complaint(class_folders, tmp_path)


def test_pictures_without_any_to_measure_on_are_refused_with_advice(tmp_path: Path) -> None:
    touch(tmp_path, "train/a/1.jpg")
    assert is_class_folders(tmp_path)
    with pytest.raises(DatasetError, match=r"neither val/ nor test/ .* move some pictures"):
        class_folders(tmp_path, DatasetChecks("the set", allow_partial=True))


def test_a_part_without_pictures_is_refused(tmp_path: Path) -> None:
    touch(tmp_path, "train/a/1.jpg", "val/a/notes.txt")
    assert "val: not one picture is there" in complaint(class_folders, tmp_path)
