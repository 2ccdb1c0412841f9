"""A dataset is found by its name and folder, or by the layout of a folder."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.data.sets.layouts import touch, write
from tests.data.sets.test_classification import (
    aircraft,
    birds,
    cars,
    flowers,
    food,
    hundred,
    make_voc2007,
    objects,
    pets,
    places,
    sun,
    ten,
    textures,
)
from tests.data.sets.test_depth import (
    KITTI_LAYOUTS,
    NYU_LAYOUTS,
    write_frame,
    write_kitti,
    write_nyu,
)
from tests.data.sets.test_imagenet import FISH, TRAIN, VAL
from tests.data.sets.test_segmentation import (
    add_sbd,
    make_ade20k,
    make_cityscapes,
    make_context,
    make_voc,
    write_coco,
)
from veca.data.sets.dataset import DatasetError
from veca.data.sets.registry import SETS, read_set


@pytest.mark.parametrize("name", sorted(SETS))
def test_every_reader_names_what_is_missing_in_an_empty_folder(tmp_path: Path, name: str) -> None:
    for allow_partial in (False, True):
        with pytest.raises(DatasetError, match="missing") as error:
            read_set(f"{name}={tmp_path}", allow_partial=allow_partial)
        assert name in str(error.value)
        assert str(tmp_path) in str(error.value)


def test_an_image_in_train_and_test_is_refused_even_in_a_partial_dataset(
    tmp_path: Path,
) -> None:
    pets(tmp_path)
    write(tmp_path, {"annotations/test.txt": "beagle_7 3 2 2\n"})
    with pytest.raises(DatasetError, match="1 images are in 'trainval' and in 'test' too"):
        read_set(f"oxford-pets={tmp_path}", allow_partial=True)


def test_a_copy_of_a_training_image_is_refused_where_splits_are_folders(tmp_path: Path) -> None:
    files = {"train/a/1.jpg": b"one", "train/b/2.jpg": b"two", "test/a/3.jpg": b"more"}
    write(tmp_path, {**files, "val/b/1.jpg": b"six"})
    assert read_set(str(tmp_path)).val is not None
    write(tmp_path, {"val/b/1.jpg": b"one"})
    with pytest.raises(DatasetError, match=r"val/b/1\.jpg is a copy of train/a/1\.jpg"):
        read_set(str(tmp_path), allow_partial=True)
    write(tmp_path, {"val/b/1.jpg": b"six", "test/a/1.jpg": b"six"})
    with pytest.raises(DatasetError, match=r"test/a/1\.jpg is a copy of val/b/1\.jpg"):
        read_set(str(tmp_path), allow_partial=True)


def test_a_folder_may_have_any_name_and_be_relative(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch(tmp_path / "mine=own", "train/a/1.jpg", "val/a/2.jpg")
    monkeypatch.chdir(tmp_path)
    found = read_set("mine=own")
    assert (found.name, found.kind, found.missing) == ("mine=own", "classes", ())
    assert found.test.image(0).name == str(tmp_path / "mine=own/val/a/2.jpg")


def test_an_unknown_layout_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    touch(tmp_path, "cat/1.jpg", "notes/dog.txt")
    with pytest.raises(DatasetError, match="train/<class>/ with val/<class>/") as error:
        read_set(str(tmp_path))
    assert "arrange its images like this" in str(error.value)
    assert "food101" in str(error.value)
    touch(tmp_path, "images/2.jpg")  # of a published dataset, whose other folder is no class
    with pytest.raises(DatasetError, match="train/<class>/ with val/<class>/"):
        read_set(str(tmp_path))


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("oxford-pet=nowhere", "did you mean oxford-pets"),
        ("food101", "give its folder too, as in 'food101=FOLDER'"),
        ("food101=", "give its folder too"),
        ("nowhere/at/all", "check the path"),
        ("food101=nowhere/at/all", "is not a folder"),
    ],
)
def test_a_text_that_means_nothing_is_refused_with_a_hint(text: str, hint: str) -> None:
    with pytest.raises(DatasetError) as error:
        read_set(text)
    assert hint in str(error.value)
    assert "food101" in str(error.value)


def make_imagenet(folder: Path) -> None:
    touch(folder, *TRAIN, f"val/{FISH}/{VAL.format(1)}")


def make_imagenet_v2(folder: Path) -> None:
    touch(folder, *(f"{number}/a.jpeg" for number in range(12)))


def make_imagenet_real(folder: Path) -> None:
    write(folder, {"real.json": "[[1], [2]]"})
    touch(folder, f"val/{VAL.format(1)}")


def make_voc_aug(folder: Path) -> None:
    add_sbd(make_voc(folder).parent / "benchmark_RELEASE/dataset")


def make_coco(folder: Path) -> None:
    write_coco(folder, "images", "annotations")


def make_nyu(folder: Path) -> None:
    write_nyu(folder, *NYU_LAYOUTS[0])


def make_nyu_labeled(folder: Path) -> None:
    for part, number in (("train", 1), ("test", 0)):
        write_frame(folder / "official_splits" / part, "basement", number)


def make_kitti(folder: Path) -> None:
    write_kitti(folder, *KITTI_LAYOUTS[0])


PUBLISHED: dict[str, tuple[Callable[[Path], object], str]] = {
    "imagenet-1k": (make_imagenet, "1,000; 1,281,167; 50,000; 50 are published for each"),
    "imagenet-v2": (make_imagenet_v2, "1,000; 10,000; 10 are published for each"),
    "imagenet-real": (make_imagenet_real, "50,000; 50,000; 46,837"),
    "places365": (places, "365; 1,803,460; 36,500; 100 are published for each"),
    "food101": (food, "101; 75,750; 750 are published for each; 25,250; 250 are published for"),
    "sun397": (sun, "108,754; 397; 19,850; 50 are published for each; 19,850; 50 are pub"),
    "oxford-pets": (pets, "37; 3,680; 3,669"),
    "cub-200": (birds, "11,788; 200; 5,994; 5,794"),
    "cifar-10": (ten, "10; 50,000; 5,000 are published for each; 10,000; 1,000 are published for"),
    "cifar-100": (
        hundred,
        "100; 50,000; 500 are published for each; 10,000; 100 are",
    ),
    "stanford-cars": (cars, "196; 8,144; 8,041"),
    "fgvc-aircraft": (aircraft, "100; 3,334; 3,333; 3,333"),
    "voc2007": (make_voc2007, "5,011; 4,952"),
    "dtd": (textures, "47; 1,880; 40 are published for each; 1,880; 40 are; 1,880; 40 are pub"),
    "caltech-101": (objects, "102; 3,060; 6,084"),
    "flowers-102": (flowers, "102; 8,189; 1,020; 10 are published for each; 1,020; 10 are; 6,149"),
    "voc2012": (make_voc, "1,464; 1,449"),
    "voc2012-aug": (make_voc_aug, "9,118; 10,582; 1,449"),
    "pascal-context-60": (make_context, "4,998; 5,105"),
    "pascal-context-59": (make_context, "4,998; 5,105"),
    "ade20k": (make_ade20k, "20,210; 2,000"),
    "coco-stuff": (make_coco, "118,287; 5,000"),
    "coco-object": (make_coco, "118,287; 5,000"),
    "cityscapes": (make_cityscapes, "2,975; 500"),
    "nyu-v2": (make_nyu, "24,231; 654"),
    "nyu-v2-labeled": (make_nyu_labeled, "795; 654"),
    "kitti": (make_kitti, "45; 23,158; 652"),
}
"""What each dataset must hold, in the order in which it is checked."""


@pytest.mark.parametrize("name", sorted(SETS))
def test_published_counts_are_asserted(name: str, tmp_path: Path) -> None:
    assert PUBLISHED.keys() == SETS.keys()
    make, counts = PUBLISHED[name]
    make(tmp_path)
    missing = read_set(f"{name}={tmp_path}", allow_partial=True).missing
    text = " ".join(problem for problem in missing if " published" in problem)
    for count in counts.split("; "):
        place = text.find(f" {count}")
        assert place >= 0, (count, missing)
        text = text[place + 1 :]
