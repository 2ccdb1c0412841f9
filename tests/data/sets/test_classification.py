"""Classification datasets are read from small copies of their layouts."""

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.data.sets.layouts import Maker, Reader, complaint, complete, labels, part, touch, write
from veca.data.images import decode
from veca.data.listing import key, open_image
from veca.data.sets.classification import (
    CLASSES,
    FLOWERS,
    caltech_101,
    cifar_10,
    cifar_100,
    cub_200,
    dtd,
    fgvc_aircraft,
    flowers_102,
    food101,
    oxford_pets,
    places365,
    stanford_cars,
    sun397,
    voc2007,
)
from veca.data.sets.dataset import DatasetError, Split, read_matlab


def food(folder: Path) -> Path:
    """The files of a part list their classes in another order than the classes have."""
    parts = {
        "train": {"waffles": ["waffles/9"], "apple_pie": ["apple_pie/2", "apple_pie/1"]},
        "test": {"waffles": ["waffles/3"], "apple_pie": ["apple_pie/4"]},
    }
    files = {f"meta/{part}.json": json.dumps(listed) for part, listed in parts.items()}
    images = [
        f"images/{name}.jpg" for part in parts.values() for some in part.values() for name in some
    ]
    touch(folder, *images)
    return write(folder, files | {"meta/classes.txt": "apple_pie\nwaffles\n"})


@pytest.mark.parametrize("below", ["", "food-101"])
def test_food_is_labeled_by_its_json_files(tmp_path: Path, below: str) -> None:
    food(tmp_path / below)
    found = part(food101, tmp_path)
    assert found.classes == ("apple_pie", "waffles")
    assert labels(found.train) == {
        "images/apple_pie/2.jpg": 0,
        "images/apple_pie/1.jpg": 0,
        "images/waffles/9.jpg": 1,
    }
    assert labels(found.test) == {"images/apple_pie/4.jpg": 0, "images/waffles/3.jpg": 1}


def test_food_that_names_other_classes_is_refused(tmp_path: Path) -> None:
    food(tmp_path)
    write(tmp_path, {"meta/test.json": '{"soup": ["soup/1"]}'})
    assert "does not map the names in classes.txt" in complaint(food101, tmp_path)
    write(tmp_path, {"meta/test.json": "[]"})
    assert "does not map the names in classes.txt" in complaint(food101, tmp_path)


def pets(folder: Path) -> Path:
    """Breeds of cats and dogs are counted apart in the last column, which must not be the label."""
    touch(
        folder, *(f"images/{name}.jpg" for name in ("Abyssinian_100", "Abyssinian_2", "beagle_7"))
    )
    touch(
        folder, "images/american_bulldog_10.jpg", "images/beagle_8.jpg", "images/Abyssinian_1.mat"
    )
    return write(
        folder,
        {
            "annotations/trainval.txt": "Abyssinian_100 1 1 1\namerican_bulldog_10 2 2 1\n"
            "beagle_7 3 2 2\n",
            "annotations/test.txt": "Abyssinian_2 1 1 1\nbeagle_8 3 2 2\n",
        },
    )


@pytest.mark.parametrize("below", ["", "oxford-iiit-pet"])
def test_classes_of_pets_are_counted_from_one_in_the_lists(tmp_path: Path, below: str) -> None:
    pets(tmp_path / below)
    counts = {"classes": 3, "trainval images": 3, "test images": 2}
    found = complete(oxford_pets, tmp_path, counts)
    assert found.classes == ("Abyssinian", "american_bulldog", "beagle")
    assert labels(found.train) == {
        "images/Abyssinian_100.jpg": 0,
        "images/american_bulldog_10.jpg": 1,
        "images/beagle_7.jpg": 2,
    }
    assert labels(found.test) == {"images/Abyssinian_2.jpg": 0, "images/beagle_8.jpg": 2}
    assert found.per_class


def test_pets_without_a_breed_keep_the_numbers_of_the_others(tmp_path: Path) -> None:
    pets(tmp_path)
    write(tmp_path, {"annotations/trainval.txt": "beagle_7 3 2 2\n"})
    write(tmp_path, {"annotations/test.txt": "Abyssinian_2 1 1 1\n"})
    found = part(oxford_pets, tmp_path)
    assert found.classes == ("Abyssinian", "1", "beagle")
    assert labels(found.train) == {"images/beagle_7.jpg": 2}


@pytest.mark.parametrize("line", ["Abyssinian_100 0 1 1", "Abyssinian_100 x 1 1", "Abyssinian_100"])
def test_a_damaged_list_of_pets_is_refused(tmp_path: Path, line: str) -> None:
    pets(tmp_path)
    write(tmp_path, {"annotations/trainval.txt": line})
    assert "again" in complaint(oxford_pets, tmp_path)


def birds(folder: Path) -> Path:
    """Every list is in an order of its own."""
    touch(folder, *(f"images/{name}.jpg" for name in ("001.Albatross/A_1", "001.Albatross/A_2")))
    touch(folder, *(f"images/{name}.jpg" for name in ("002.Auklet/B_1", "010.Bunting/C_1")))
    return write(
        folder,
        {
            "classes.txt": "10 010.Bunting\n1 001.Albatross\n2 002.Auklet\n",
            "images.txt": "4 010.Bunting/C_1.jpg\n1 001.Albatross/A_1.jpg\n"
            "2 001.Albatross/A_2.jpg\n3 002.Auklet/B_1.jpg\n",
            "image_class_labels.txt": "1 1\n3 2\n2 1\n4 10\n",
            "train_test_split.txt": "2 0\n4 1\n1 1\n3 0\n",
        },
    )


@pytest.mark.parametrize("below", ["", "CUB_200_2011"])
def test_the_lists_of_birds_are_joined_by_id(tmp_path: Path, below: str) -> None:
    birds(tmp_path / below)
    counts = {"classes": 3, "pictures": 4, "train images": 2, "test images": 2}
    found = complete(cub_200, tmp_path, counts)
    assert found.classes == ("Albatross", "Auklet", "Bunting")
    assert labels(found.train) == {
        "images/010.Bunting/C_1.jpg": 2,
        "images/001.Albatross/A_1.jpg": 0,
    }
    assert labels(found.test) == {
        "images/001.Albatross/A_2.jpg": 0,
        "images/002.Auklet/B_1.jpg": 1,
    }


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("image_class_labels.txt", "1 1\n2 1\n3 2\n"),
        ("image_class_labels.txt", "1 1\n2 1\n3 2\n4 11\n"),
        ("train_test_split.txt", "1 1\n2 1\n3 0\n4 2\n"),
        ("train_test_split.txt", "1 1\n2 1\n3 0\n"),
    ],
)
def test_a_bird_without_class_or_part_is_refused(tmp_path: Path, name: str, content: str) -> None:
    birds(tmp_path)
    write(tmp_path, {name: content})
    assert "image 4, 010.Bunting/C_1.jpg, has the class" in complaint(cub_200, tmp_path)


def test_a_class_of_birds_that_is_no_number_is_refused(tmp_path: Path) -> None:
    birds(tmp_path)
    write(tmp_path, {"classes.txt": "one 001.Albatross\n"})
    message = complaint(cub_200, tmp_path)
    assert "classes.txt has 'one' in place of an integer" in message


def aircraft(folder: Path) -> Path:
    touch(folder, *(f"data/images/{number:07d}.jpg" for number in range(4)))
    return write(
        folder,
        {
            "data/variants.txt": "707-320\nF/A-18\nModel B200\n",
            "data/images_variant_train.txt": "0000000 Model B200\n0000001 707-320\n",
            "data/images_variant_val.txt": "0000002 F/A-18\n",
            "data/images_variant_test.txt": "0000003 Model B200\n",
        },
    )


@pytest.mark.parametrize("below", ["", "fgvc-aircraft-2013b"])
def test_aircraft_are_labeled_by_variant(tmp_path: Path, below: str) -> None:
    aircraft(tmp_path / below)
    counts = {"classes": 3, "train images": 2, "val images": 1, "test images": 1}
    found = complete(fgvc_aircraft, tmp_path, counts)
    assert found.classes == ("707-320", "F/A-18", "Model B200")
    assert labels(found.train) == {"data/images/0000000.jpg": 2, "data/images/0000001.jpg": 0}
    assert labels(found.val) == {"data/images/0000002.jpg": 1}
    assert labels(found.test) == {"data/images/0000003.jpg": 2}
    assert found.per_class


def test_an_unknown_variant_is_refused(tmp_path: Path) -> None:
    aircraft(tmp_path)
    write(tmp_path, {"data/images_variant_val.txt": "0000002 Concorde\n"})
    assert "'Concorde', which is not in variants.txt" in complaint(fgvc_aircraft, tmp_path)


def textures(folder: Path) -> Path:
    names = {"train": ("zigzagged", "banded"), "val": ("banded", "zigzagged"), "test": ("banded",)}
    for place, (part_, classes) in enumerate(names.items()):
        listed = [f"{class_}/{class_}_{place:04d}.jpg" for class_ in classes]
        touch(folder / "images", *listed)
        write(folder, {f"labels/{part_}1.txt": "\n".join(listed)})
    return folder


@pytest.mark.parametrize("below", ["", "dtd"])
def test_textures_come_in_three_parts(tmp_path: Path, below: str) -> None:
    textures(tmp_path / below)
    found = part(dtd, tmp_path)
    assert found.classes == ("banded", "zigzagged")
    assert labels(found.train) == {
        "images/zigzagged/zigzagged_0000.jpg": 1,
        "images/banded/banded_0000.jpg": 0,
    }
    assert list(labels(found.val).values()) == [0, 1]
    assert labels(found.test) == {"images/banded/banded_0002.jpg": 0}
    assert found.facts == {"partition": "1 of 10"}


@pytest.mark.parametrize(
    ("reader", "made", "name"),
    [
        (food101, food, "meta/test.json"),
        (oxford_pets, pets, "annotations/test.txt"),
        (cub_200, birds, "image_class_labels.txt"),
        (fgvc_aircraft, aircraft, "data/variants.txt"),
        (dtd, textures, "labels/val1.txt"),
    ],
)
def test_a_list_that_is_missing_is_named(
    tmp_path: Path, reader: Reader, made: Maker, name: str
) -> None:
    made(tmp_path)
    (tmp_path / name).unlink()
    assert f"{tmp_path / name} is missing" in complaint(reader, tmp_path)


PLACES_LISTS = {
    "categories_places365.txt": "/a/airfield 0\n/a/apartment_building/outdoor 1\n/b/bar 2\n",
    "places365_train_standard.txt": "/b/bar/00000001.jpg 2\n"
    "/a/apartment_building/outdoor/00000001.jpg 1\n/a/airfield/00000007.jpg 0\n",
    "places365_val.txt": "Places365_val_00000001.jpg 1\nPlaces365_val_00000002.jpg 0\n"
    "Places365_val_00000003.jpg 2\n",
}
PLACES_SMALL = {
    "classes": 3,
    "train images": 3,
    "val images": 3,
    "val images of a class": 1,
}
PLACES_TRAIN = (
    "b/bar/00000001.jpg",
    "a/apartment_building/outdoor/00000001.jpg",
    "a/airfield/00000007.jpg",
)


def places(folder: Path, train: str, val: str) -> Path:
    write(folder, PLACES_LISTS)
    touch(folder / train, *PLACES_TRAIN)
    touch(folder / val, *(f"Places365_val_{number:08d}.jpg" for number in (1, 2, 3)))
    return folder


@pytest.mark.parametrize(
    ("train", "val"),
    [
        ("data_256_standard", "val_256"),
        ("data_256", "val_256"),
        ("data_large_standard", "val_large"),
        ("data_large", "val_large"),
    ],
)
def test_places_are_labeled_by_their_lists(tmp_path: Path, train: str, val: str) -> None:
    found = complete(places365, places(tmp_path, train, val), PLACES_SMALL)
    assert found.classes == ("airfield", "apartment_building/outdoor", "bar")
    assert labels(found.train) == {
        f"{train}/{name}": label for name, label in zip(PLACES_TRAIN, (2, 1, 0), strict=True)
    }
    assert list(labels(found.test).values()) == [1, 0, 2]
    assert found.test.name == "val"
    assert found.facts == {"pictures": train}


def test_places_that_are_missing_are_reported(tmp_path: Path) -> None:
    folder = places(tmp_path, "data_256_standard", "val_256")
    (folder / "data_256_standard/b/bar/00000001.jpg").unlink()
    message = complaint(places365, folder)
    assert "train: 1 of 3 images or their targets are missing" in message
    assert list(labels(part(places365, folder).train).values()) == [1, 0]


def test_places_without_pictures_or_lists_are_told_what_is_missing(tmp_path: Path) -> None:
    write(tmp_path, PLACES_LISTS)
    touch(tmp_path, "val_256/1.jpg")
    assert f"{tmp_path / 'data_256_standard'} is missing" in complaint(places365, tmp_path)
    (tmp_path / "places365_val.txt").unlink()
    assert f"{tmp_path / 'places365_val.txt'} is missing" in complaint(places365, tmp_path)


def test_places_whose_classes_are_not_numbered_in_turn_are_refused(tmp_path: Path) -> None:
    folder = places(tmp_path, "data_256_standard", "val_256")
    write(folder, {"categories_places365.txt": "/a/airfield 0\n/b/bar 2\n"})
    assert "does not number its classes" in complaint(places365, folder)


SUN_CLASSES = ("/a/abbey", "/b/bow_window/indoor", "/b/bow_window/outdoor")
SUN_SMALL = {
    "classes": 3,
    "pictures": 7,
    "train images": 3,
    "test images": 3,
    "train images of a class": 1,
    "test images of a class": 1,
}


def sun(folder: Path, images: str, lists: str) -> Path:
    """A class has two levels, and one image is in no list."""
    names = [f"{class_.strip('/')}/sun_{number}.jpg" for class_ in SUN_CLASSES for number in (1, 2)]
    touch(folder / images, *names, "a/abbey/sun_3.jpg", "a/abbey/Thumbs.db")
    write(folder / images, {"ClassName.txt": "\n".join(SUN_CLASSES)})
    train = "".join(f"{class_}/sun_1.jpg\n" for class_ in reversed(SUN_CLASSES))
    test = "".join(f"{class_}/sun_2.jpg\n" for class_ in SUN_CLASSES)
    write(folder / lists, {"Training_01.txt": train, "Testing_01.txt": test})
    return folder


@pytest.mark.parametrize(
    ("images", "lists"),
    [("", ""), ("", "Partitions"), ("SUN397", ""), ("SUN397", "SUN397/Partitions")],
)
def test_classes_of_sun_may_have_two_levels(tmp_path: Path, images: str, lists: str) -> None:
    found = complete(sun397, sun(tmp_path, images, lists), SUN_SMALL)
    assert found.classes == ("abbey", "bow_window/indoor", "bow_window/outdoor")
    assert labels(found.train) == {
        "b/bow_window/outdoor/sun_1.jpg": 2,
        "b/bow_window/indoor/sun_1.jpg": 1,
        "a/abbey/sun_1.jpg": 0,
    }
    assert list(labels(found.test).values()) == [0, 1, 2]
    assert found.facts == {"partition": "01 of 10"}


def test_sun_without_its_lists_names_them(tmp_path: Path) -> None:
    folder = sun(tmp_path, "SUN397", "")
    (folder / "Training_01.txt").unlink()
    (folder / "Testing_01.txt").unlink()
    message = complaint(sun397, folder)
    assert "Training_01.txt is missing" in message
    assert "Testing_01.txt is missing" in message


def test_a_picture_of_an_unknown_scene_is_refused(tmp_path: Path) -> None:
    folder = sun(tmp_path, "", "")
    write(folder, {"Testing_01.txt": "/b/bow_window/sun_2.jpg\n"})
    assert "whose class is not in ClassName.txt" in complaint(sun397, folder)


TEN_NAMES = "airplane\nautomobile\nbird\n\n"


def records(*told: tuple[int, ...], seed: int = 0) -> bytes:
    """Labels, each before 3,072 numbers of chance."""
    numbers = np.random.default_rng(seed).integers(0, 256, (len(told), 3072), np.uint8)
    return b"".join(
        bytes(labels) + row.tobytes() for labels, row in zip(told, numbers, strict=True)
    )


def ten(folder: Path) -> Path:
    batches = {
        f"data_batch_{number}.bin": records((number % 3,), seed=number) for number in range(1, 5)
    }
    last = {
        "data_batch_5.bin": records((2,), (0,), seed=5),
        "test_batch.bin": records((1,), seed=6),
    }
    return write(folder, batches | last | {"batches.meta.txt": TEN_NAMES})


def hundred(folder: Path) -> Path:
    """The superclass comes first, and is not the label."""
    return write(
        folder,
        {
            "train.bin": records((19, 1), (3, 0)),
            "test.bin": records((7, 2), seed=1),
            "fine_label_names.txt": "apple\naquarium_fish\nbaby\n",
            "coarse_label_names.txt": "aquatic_mammals\nfish\n",
        },
    )


def pixels(split: Split | None, row: int) -> NDArray[np.uint8]:
    assert split is not None
    with open_image(split.image(row)) as file:
        return np.asarray(decode(file).pixels(), np.uint8)


@pytest.mark.parametrize("below", ["", "cifar-10-batches-bin"])
def test_batches_of_cifar_10_follow_each_other(tmp_path: Path, below: str) -> None:
    ten(tmp_path / below)
    found = part(cifar_10, tmp_path)
    assert found.classes == ("airplane", "automobile", "bird")
    assert list(labels(found.train).values()) == [1, 2, 0, 1, 2, 0]
    assert list(labels(found.train))[-1] == "data_batch_5.bin#00001.planar-rgb"
    assert list(labels(found.test).values()) == [1]


@pytest.mark.parametrize("below", ["", "cifar-100-binary"])
def test_the_fine_labels_of_cifar_100_count(tmp_path: Path, below: str) -> None:
    hundred(tmp_path / below)
    found = part(cifar_100, tmp_path)
    assert found.classes == ("apple", "aquarium_fish", "baby")
    assert list(labels(found.train).values()) == [1, 0]
    assert list(labels(found.test).values()) == [2]


def test_the_pixels_of_a_record_are_its_three_planes(tmp_path: Path) -> None:
    found = part(cifar_100, hundred(tmp_path))
    raw = np.frombuffer((tmp_path / "train.bin").read_bytes(), np.uint8).reshape(2, 3074)
    for row in range(2):
        wanted = raw[row, 2:].reshape(3, 32, 32)
        np.testing.assert_array_equal(pixels(found.train, row), wanted)


def test_a_whole_cifar_has_as_many_of_each_class(tmp_path: Path) -> None:
    ten(tmp_path)
    write(tmp_path, {"test_batch.bin": records((1,), (0,), (2,))})
    counts = {
        "classes": 3,
        "train images": 6,
        "train images of a class": 2,
        "test images": 3,
        "test images of a class": 1,
    }
    assert list(labels(complete(cifar_10, tmp_path, counts).test).values()) == [1, 0, 2]


def test_a_file_that_was_cut_is_told_of_and_read_as_far_as_it_goes(tmp_path: Path) -> None:
    hundred(tmp_path)
    whole = (tmp_path / "train.bin").read_bytes()
    (tmp_path / "train.bin").write_bytes(whole[:-1])
    assert "has 6,147 bytes, no multiple of 3,074" in complaint(cifar_100, tmp_path)
    assert list(labels(part(cifar_100, tmp_path).train).values()) == [1]


def test_the_pickled_version_is_not_read_and_the_other_one_is_named(tmp_path: Path) -> None:
    write(tmp_path / "cifar-10-batches-py", {"data_batch_1": b"x", "batches.meta": b"x"})
    message = complaint(cifar_10, tmp_path)
    assert "the binary version is needed" in message
    assert "data_batch_1.bin is missing" in message


CALTECH_SMALL = {"classes": 3, "train images": 90, "test images": 9}


def objects(folder: Path) -> Path:
    classes = {"BACKGROUND_Google": 31, "Faces": 35, "accordion": 33}
    for class_, count in classes.items():
        names = (f"101_ObjectCategories/{class_}/image_{number:04d}.jpg" for number in range(count))
        touch(folder, *names)
    return touch(folder, "101_ObjectCategories/BACKGROUND_Google/tmp")


@pytest.mark.parametrize("below", ["", "caltech-101", "caltech101"])
def test_thirty_pictures_of_each_class_are_trained_on(tmp_path: Path, below: str) -> None:
    objects(tmp_path / below)
    found = complete(caltech_101, tmp_path, CALTECH_SMALL)
    assert found.classes == ("BACKGROUND_Google", "Faces", "accordion")
    train, test = labels(found.train), labels(found.test)
    assert Counter(train.values()) == {0: 30, 1: 30, 2: 30}
    assert Counter(test.values()) == {0: 1, 1: 5, 2: 3}
    assert not train.keys() & test.keys()
    assert all(found.classes[label] == name.split("/")[1] for name, label in (train | test).items())
    assert found.per_class
    assert "30 images of each class" in found.facts["split"]


def test_the_draw_is_that_of_the_lowest_hashes_of_the_names(tmp_path: Path) -> None:
    found = part(caltech_101, objects(tmp_path))
    wanted = sorted((f"Faces/image_{number:04d}.jpg" for number in range(35)), key=key)[:30]
    assert found.train is not None
    drawn = [name.split("/", 1)[1] for name in found.train.keys if "/Faces/" in name]
    assert drawn == sorted(wanted)


def test_a_folder_without_the_pictures_is_told_so(tmp_path: Path) -> None:
    assert f"{tmp_path / '101_ObjectCategories'} is missing" in complaint(caltech_101, tmp_path)


scipy_io = pytest.importorskip("scipy.io", reason="MATLAB files need scipy")


def save(path: Path, **variables: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    scipy_io.savemat(path, variables)


def annotations(*records: tuple[str, int | None]) -> NDArray[Any]:
    """Records as in the devkit: a box, the class from 1 if it is told, the file."""
    fields = ["bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2", "class", "fname"]
    rows = [(1, 2, 30, 40, class_, name) for name, class_ in records]
    if any(class_ is None for _, class_ in records):
        fields.remove("class")
        rows = [(*row[:4], row[5]) for row in rows]  # type: ignore[misc]
    return np.array([rows], dtype=[(field, object) for field in fields])


def cars(folder: Path, labels_in: str = "") -> Path:
    names = np.array(["AM General Hummer SUV 2000", "Acura RL Sedan 2012", "smart fortwo 2012"])
    save(folder / "devkit/cars_meta.mat", class_names=names.astype(object)[None])
    records = annotations(("00001.jpg", 3), ("00002.jpg", 1))
    save(folder / "devkit/cars_train_annos.mat", annotations=records)
    save(folder / "devkit/cars_test_annos.mat", annotations=annotations(("00001.jpg", None)))
    records = annotations(("00001.jpg", 2))
    save(folder / labels_in / "cars_test_annos_withlabels.mat", annotations=records)
    touch(folder, "cars_train/00001.jpg", "cars_train/00002.jpg", "cars_test/00001.jpg")
    return folder


@pytest.mark.parametrize("below", ["", "stanford_cars"])
@pytest.mark.parametrize("labels_in", ["", "devkit"])
def test_classes_of_cars_are_counted_from_one_in_the_files(
    tmp_path: Path, below: str, labels_in: str
) -> None:
    cars(tmp_path / below, labels_in)
    counts = {"classes": 3, "train images": 2, "test images": 1}
    found = complete(stanford_cars, tmp_path, counts)
    assert found.classes[1] == "Acura RL Sedan 2012"
    assert labels(found.train) == {"cars_train/00001.jpg": 2, "cars_train/00002.jpg": 0}
    assert labels(found.test) == {"cars_test/00001.jpg": 1}


def test_cars_need_the_file_with_the_test_labels(tmp_path: Path) -> None:
    cars(tmp_path)
    listed = tmp_path / "cars_test_annos_withlabels.mat"
    listed.unlink()
    assert f"{listed} is missing" in complaint(stanford_cars, tmp_path)
    (tmp_path / "devkit/cars_test_annos.mat").rename(listed)
    assert "has no classes, only bbox_x1" in complaint(stanford_cars, tmp_path)


def test_a_class_of_cars_that_is_no_number_is_told_with_its_file(tmp_path: Path) -> None:
    cars(tmp_path)
    records = np.array([[("00001.jpg", "three")]], dtype=[("fname", object), ("class", object)])
    save(tmp_path / "devkit/cars_train_annos.mat", annotations=records)
    message = complaint(stanford_cars, tmp_path)
    assert "cars_train_annos.mat has 'three' as the class of 00001.jpg" in message


def flowers(folder: Path) -> Path:
    """Image n has the class 102, 1, 5, 5, 1 in turn."""
    save(folder / "imagelabels.mat", labels=np.array([[102, 1, 5, 5, 1]], np.uint8))
    parts = {"trnid": [[5, 1]], "valid": [[3]], "tstid": [[2, 4]]}
    save(folder / "setid.mat", **{name: np.array(ids, np.uint16) for name, ids in parts.items()})
    return touch(folder, *(f"jpg/image_{number:05d}.jpg" for number in range(1, 6)))


@pytest.mark.parametrize("below", ["", "flowers-102"])
def test_flowers_and_their_classes_are_counted_from_one_in_the_files(
    tmp_path: Path, below: str
) -> None:
    flowers(tmp_path / below)
    found = part(flowers_102, tmp_path)
    assert labels(found.train) == {"jpg/image_00005.jpg": 0, "jpg/image_00001.jpg": 101}
    assert labels(found.val) == {"jpg/image_00003.jpg": 4}
    assert labels(found.test) == {"jpg/image_00002.jpg": 0, "jpg/image_00004.jpg": 4}
    assert found.per_class
    assert len(found.classes) == len(set(found.classes)) == 102
    assert (found.classes[0], found.classes[101]) == ("pink primrose", "blackberry lily")


def test_a_flower_without_a_label_is_refused(tmp_path: Path) -> None:
    flowers(tmp_path)
    save(tmp_path / "imagelabels.mat", labels=np.array([[1, 2, 3]], np.uint8))
    message = complaint(flowers_102, tmp_path)
    assert "setid.mat has image 5, but imagelabels.mat has 3 labels" in message


def test_a_part_of_one_picture_is_read_too(tmp_path: Path) -> None:
    save(tmp_path / "one.mat", ids=np.array([[7]], np.uint16))
    assert read_matlab(tmp_path / "one.mat", "ids").tolist() == [7]


def test_a_damaged_matlab_file_is_named(tmp_path: Path) -> None:
    write(tmp_path, {"torn.mat": b"MATLAB 5.0 MAT-file" + bytes(200)})
    with pytest.raises(DatasetError, match=r"torn\.mat has no readable variable labels"):
        read_matlab(tmp_path / "torn.mat", "labels")
    save(tmp_path / "other.mat", x=np.zeros(3))
    with pytest.raises(DatasetError, match=r"other\.mat has no readable variable labels"):
        read_matlab(tmp_path / "other.mat", "labels")


def test_without_scipy_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.io", None)
    with pytest.raises(DatasetError, match=r"pip install veca\[probe\]"):
        read_matlab(tmp_path / "labels.mat", "labels")


def test_no_flower_is_named_twice() -> None:
    assert len(set(FLOWERS)) == len(FLOWERS) == 102


VOC_NAMES = {"trainval": ("000005", "000007", "000009"), "test": ("000001", "000002")}
VOC_SMALL = {"trainval images": 3, "test images": 2}


def make_voc2007(folder: Path) -> Path:
    """Everything is absent, but: 5 shows a chair, 7 a car, 9 a car and, difficult, a person."""
    for split, names in VOC_NAMES.items():
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
    make_voc2007(tmp_path / below)
    found = complete(voc2007, tmp_path, VOC_SMALL)
    assert found.train is not None
    assert found.train.name == "trainval"
    assert found.train.keys == tuple(f"JPEGImages/{name}.jpg" for name in VOC_NAMES["trainval"])
    assert shown(found.train.labels) == [["chair"], ["car"], ["car"]]
    assert shown(found.test.labels) == [["dog", "person"], []]
    assert np.asarray(found.train.labels).shape == (3, 20)
    assert np.asarray(found.train.labels).dtype == np.bool_


def test_difficult_objects_count_neither_as_present_nor_as_absent(tmp_path: Path) -> None:
    found = complete(voc2007, make_voc2007(tmp_path), VOC_SMALL)
    assert found.train is not None
    assert found.train.counted is not None
    assert shown(~found.train.counted) == [[], [], ["person"]]
    assert found.test.counted is not None
    assert found.test.counted.all()


def shown(marks: object) -> list[list[str]]:
    return [[CLASSES[place] for place in np.flatnonzero(row)] for row in np.asarray(marks)]


def test_an_image_that_is_missing_is_left_out(tmp_path: Path) -> None:
    make_voc2007(tmp_path)
    (tmp_path / "JPEGImages/000005.jpg").unlink()
    found = part(voc2007, tmp_path)
    assert found.train is not None
    assert shown(found.train.labels) == [["car"], ["car"]]
    assert shown(~np.asarray(found.train.counted)) == [[], ["person"]]


def test_lists_that_are_missing_are_all_named(tmp_path: Path) -> None:
    make_voc2007(tmp_path)
    for name in ("dog_test.txt", "test.txt"):
        (tmp_path / "ImageSets/Main" / name).unlink()
    message = complaint(voc2007, tmp_path)
    assert "dog_test.txt is missing" in message
    assert f"{Path('Main') / 'test.txt'} is missing" in message


@pytest.mark.parametrize("content", ["000005 2\n000007 1\n000009 1\n", "000005 1\n000007 1\n"])
def test_a_mark_that_means_nothing_or_is_missing_is_refused(tmp_path: Path, content: str) -> None:
    make_voc2007(tmp_path)
    write(tmp_path, {"ImageSets/Main/cow_trainval.txt": content})
    assert "allowed are 1, 0 and -1" in complaint(voc2007, tmp_path)
