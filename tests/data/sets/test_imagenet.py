"""ImageNet's classes are numbered by WordNet id, V2's by its folders' numbers, ReaL's by names."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.data.sets.layouts import complaint, labels, read, touch, write
from veca.data.sets import imagenet

FISH, SHARK, PAPER = "n01440764", "n01484850", "n15075141"

TRAIN = (
    f"train/{PAPER}/{PAPER}_1.JPEG",
    f"train/{FISH}/{FISH}_10.JPEG",
    f"train/{FISH}/{FISH}_9.JPEG",
)
VAL = "ILSVRC2012_val_{:08d}.JPEG"


@pytest.mark.parametrize("below", ["", "ILSVRC/Data/CLS-LOC/"])
def test_classes_of_imagenet_are_sorted_ids(tmp_path: Path, below: str) -> None:
    touch(tmp_path / below, *TRAIN, f"val/{PAPER}/{VAL.format(1)}", f"val/{FISH}/{VAL.format(2)}")
    found = read("imagenet-1k", tmp_path)
    assert found.classes == (FISH, PAPER)
    assert labels(found.train) == {TRAIN[1]: 0, TRAIN[2]: 0, TRAIN[0]: 1}
    assert labels(found.test) == {
        f"val/{FISH}/{VAL.format(2)}": 0,
        f"val/{PAPER}/{VAL.format(1)}": 1,
    }
    assert found.test.name == "val"


@pytest.mark.parametrize("below", ["", "ILSVRC/Data/CLS-LOC/"])
def test_a_flat_val_is_read_by_its_list(tmp_path: Path, below: str) -> None:
    touch(tmp_path / below, *TRAIN, *(f"val/{VAL.format(number)}" for number in (1, 2)))
    listed = "ImageId,PredictionString\n"
    listed += f"ILSVRC2012_val_00000002,{FISH} 85 1 499 272 {FISH} 1 1 9 9 \n"
    listed += f"ILSVRC2012_val_00000001,{PAPER} 1 2 3 4 \n"
    write(tmp_path, {"LOC_val_solution.csv": listed})
    found = read("imagenet-1k", tmp_path)
    assert labels(found.test) == {f"val/{VAL.format(2)}": 0, f"val/{VAL.format(1)}": 1}


def test_a_list_with_a_class_that_train_lacks_is_refused(tmp_path: Path) -> None:
    touch(tmp_path, *TRAIN, f"val/{VAL.format(1)}")
    write(tmp_path, {"LOC_val_solution.csv": f"ILSVRC2012_val_00000001,{SHARK} 1 2 3 4\n"})
    assert f"has the class '{SHARK}', which is not one of the classes" in complaint(
        "imagenet-1k", tmp_path
    )


def test_a_flat_val_without_a_list_is_refused(tmp_path: Path) -> None:
    touch(tmp_path, *TRAIN, f"val/{VAL.format(1)}")
    message = complaint("imagenet-1k", tmp_path)
    assert "val: 1 images are not in a class folder" in message
    assert "val: there are no images" in message


def test_a_missing_val_is_named(tmp_path: Path) -> None:
    touch(tmp_path, *TRAIN)
    assert f"{tmp_path / 'val'} is missing" in complaint("imagenet-1k", tmp_path)


@pytest.mark.parametrize("below", ["", "imagenetv2-matched-frequency-format-val"])
def test_the_class_of_imagenet_v2_is_the_number_of_its_folder(tmp_path: Path, below: str) -> None:
    names = [f"{number}/{number:x}.jpeg" for number in (0, 1, 2, 10, 11, 100, 999)]
    touch(tmp_path / below, *names)
    found = read("imagenet-v2", tmp_path)
    assert labels(found.test) == {name: int(name.split("/")[0]) for name in names}
    assert (found.train, found.uses_head_of, len(found.classes)) == (None, "imagenet-1k", 1000)


def test_a_whole_imagenet_v2_has_ten_of_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch(tmp_path, *(f"{number}/a.jpeg" for number in range(12)))
    assert "classes: 12 were found, 1,000" in complaint("imagenet-v2", tmp_path)
    monkeypatch.setattr(imagenet, "CLASSES", 12)
    found = read("imagenet-v2", tmp_path)
    assert labels(found.test)["11/a.jpeg"] == 11
    message = complaint("imagenet-v2", tmp_path)
    assert "10,000 are published" in message
    assert "10 are published for each class" in message
    assert "classes:" not in message


def test_the_older_imagenet_v2_is_numbered_if_all_ids_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(imagenet, "CLASSES", 12)
    names = [f"n{number:08d}/a.jpeg" for number in range(5, 65, 5)]
    touch(tmp_path, *reversed(names))
    found = read("imagenet-v2", tmp_path)
    assert labels(found.test) == {name: number for number, name in enumerate(names)}
    (tmp_path / names[0]).unlink()
    assert "folder 'n00000010'" in complaint("imagenet-v2", tmp_path)


def test_a_folder_without_classes_of_imagenet_v2_is_refused(tmp_path: Path) -> None:
    touch(tmp_path, "images/a.jpeg")
    assert f"{tmp_path / '0'} is missing" in complaint("imagenet-v2", tmp_path)


@pytest.mark.parametrize("below", ["", f"{FISH}/"])
@pytest.mark.parametrize("place", ["", "ILSVRC/Data/CLS-LOC/"])
def test_labels_of_real_are_joined_by_the_number_in_the_name(
    tmp_path: Path, below: str, place: str
) -> None:
    write(tmp_path, {"real.json": json.dumps([[7], [], [999, 0], [3]])})
    touch(tmp_path / place, *(f"val/{below}{VAL.format(number)}" for number in (4, 2, 1, 3)))
    found = read("imagenet-real", tmp_path)
    assert found.test.keys == tuple(f"val/{below}{VAL.format(number)}" for number in (1, 3, 4))
    found_labels = np.asarray(found.test.labels)
    assert found_labels.dtype == np.bool_
    assert found_labels.shape == (3, 1000)
    assert [np.flatnonzero(row).tolist() for row in found_labels] == [[7], [0, 999], [3]]
    assert (found.train, found.uses_head_of) == (None, "imagenet-1k")
    assert found.facts == {"pictures_without_labels": 1}


def test_missing_images_of_real_do_not_shift_the_labels(tmp_path: Path) -> None:
    write(tmp_path, {"real.json": json.dumps([[1], [2], [3]])})
    touch(tmp_path, f"val/{VAL.format(3)}", f"val/{VAL.format(9)}", "val/other.jpg")
    found = read("imagenet-real", tmp_path)
    assert found.test.keys == (f"val/{VAL.format(3)}",)
    assert np.flatnonzero(np.asarray(found.test.labels)).tolist() == [3]
    message = complaint("imagenet-real", tmp_path)
    assert "50,000" in message
    assert "46,837" in message


@pytest.mark.parametrize("content", ['{"a": 1}', "[1, 2]", "[[1000]]", '[["a"]]', "[[-1]]", "[["])
def test_a_damaged_list_of_real_is_refused(tmp_path: Path, content: str) -> None:
    write(tmp_path, {"real.json": content})
    touch(tmp_path, f"val/{VAL.format(1)}")
    assert "real.json" in complaint("imagenet-real", tmp_path)


def test_a_missing_list_of_real_is_named(tmp_path: Path) -> None:
    touch(tmp_path, f"val/{VAL.format(1)}")
    assert f"{tmp_path / 'real.json'} is missing" in complaint("imagenet-real", tmp_path)
