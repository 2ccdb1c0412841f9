"""Classification datasets are read from small copies of their layouts."""

import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.data.sets.layouts import complaint, labels, read, touch, write
from veca.data.images import decode
from veca.data.listing import key, open_image
from veca.data.sets.dataset import DatasetError, class_names, read_matlab

CLASSES, FLOWERS = class_names("voc")[1:], class_names("flowers-102")

scipy_io = pytest.importorskip("scipy.io", reason="MATLAB files need scipy")


def food(folder: Path) -> Path:
    """The files of a split list their classes in another order than the classes have."""
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


def pets(folder: Path) -> Path:
    """The last column counts breeds of cats and dogs separately; it must not be the label."""
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


def birds(folder: Path) -> Path:
    """Every list has another order."""
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


def textures(folder: Path) -> Path:
    names = {"train": ("zigzagged", "banded"), "val": ("banded", "zigzagged"), "test": ("banded",)}
    for place, (part_, classes) in enumerate(names.items()):
        listed = [f"{class_}/{class_}_{place:04d}.jpg" for class_ in classes]
        touch(folder / "images", *listed)
        write(folder, {f"labels/{part_}1.txt": "\n".join(listed)})
    return folder


PLACES_TRAIN = (
    "b/bar/00000001.jpg",
    "a/apartment_building/outdoor/00000001.jpg",
    "a/airfield/00000007.jpg",
)


def places(folder: Path, train: str = "data_256", val: str = "val_256") -> Path:
    lines = [f"/{name} {label}\n" for name, label in zip(PLACES_TRAIN, (2, 1, 0), strict=True)]
    write(
        folder,
        {
            "categories_places365.txt": "/a/airfield 0\n/a/apartment_building/outdoor 1\n"
            "/b/bar 2\n",
            "places365_train_standard.txt": "".join(lines),
            "places365_val.txt": "Places365_val_00000001.jpg 1\nPlaces365_val_00000002.jpg 0\n"
            "Places365_val_00000003.jpg 2\n",
        },
    )
    touch(folder / train, *PLACES_TRAIN)
    touch(folder / val, *(f"Places365_val_{number:08d}.jpg" for number in (1, 2, 3)))
    return folder


SUN_CLASSES = ("/a/abbey", "/b/bow_window/indoor", "/b/bow_window/outdoor")


def sun(folder: Path, images: str = "", lists: str = "") -> Path:
    """A class has two levels, and one image is in no list."""
    names = [f"{class_.strip('/')}/sun_{number}.jpg" for class_ in SUN_CLASSES for number in (1, 2)]
    touch(folder / images, *names, "a/abbey/sun_3.jpg", "a/abbey/Thumbs.db")
    write(folder / images, {"ClassName.txt": "\n".join(SUN_CLASSES)})
    train = "".join(f"{class_}/sun_1.jpg\n" for class_ in reversed(SUN_CLASSES))
    test = "".join(f"{class_}/sun_2.jpg\n" for class_ in SUN_CLASSES)
    write(folder / lists, {"Training_01.txt": train, "Testing_01.txt": test})
    return folder


def records(*marks: tuple[int, ...], seed: int = 0) -> bytes:
    """Labels, each before 3,072 random numbers."""
    numbers = np.random.default_rng(seed).integers(0, 256, (len(marks), 3072), np.uint8)
    return b"".join(
        bytes(labels) + row.tobytes() for labels, row in zip(marks, numbers, strict=True)
    )


def ten(folder: Path) -> Path:
    batches = {
        f"data_batch_{number}.bin": records((number % 3,), seed=number) for number in range(1, 5)
    }
    last = {
        "data_batch_5.bin": records((2,), (0,), seed=5),
        "test_batch.bin": records((1,), seed=6),
    }
    return write(folder, batches | last | {"batches.meta.txt": "airplane\nautomobile\nbird\n\n"})


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


def objects(folder: Path) -> Path:
    classes = {"BACKGROUND_Google": 31, "Faces": 35, "accordion": 33}
    for class_, count in classes.items():
        names = (f"101_ObjectCategories/{class_}/image_{number:04d}.jpg" for number in range(count))
        touch(folder, *names)
    return touch(folder, "101_ObjectCategories/BACKGROUND_Google/tmp")


def save(path: Path, **variables: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    scipy_io.savemat(path, variables)


def annotations(*records: tuple[str, int | None]) -> NDArray[Any]:
    """Records as in the devkit: a box, the class from 1 if it is known, the file."""
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


def flowers(folder: Path) -> Path:
    """Image n has the class 102, 1, 5, 5, 1 in turn."""
    save(folder / "imagelabels.mat", labels=np.array([[102, 1, 5, 5, 1]], np.uint8))
    parts = {"trnid": [[5, 1]], "valid": [[3]], "tstid": [[2, 4]]}
    save(folder / "setid.mat", **{name: np.array(ids, np.uint16) for name, ids in parts.items()})
    return touch(folder, *(f"jpg/image_{number:05d}.jpg" for number in range(1, 6)))


VOC_NAMES = {"trainval": ("000005", "000007", "000009"), "test": ("000001", "000002")}


def make_voc2007(folder: Path) -> Path:
    """Image 5 shows a chair, 7 a car, 9 a car and a difficult person; all else is absent."""
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


class Case(NamedTuple):
    """A copy of a dataset, and what must be read of it."""

    name: str
    make: Callable[[Path], Path]
    below: tuple[str, ...]
    classes: tuple[str, ...]
    train: Mapping[str, int]
    test: Mapping[str, int]
    val: Mapping[str, int] | None = None
    more: Mapping[str, object] = {}


CASES = [
    Case(
        "food101",
        food,
        ("food-101",),
        ("apple_pie", "waffles"),
        {"images/apple_pie/2.jpg": 0, "images/apple_pie/1.jpg": 0, "images/waffles/9.jpg": 1},
        {"images/apple_pie/4.jpg": 0, "images/waffles/3.jpg": 1},
    ),
    Case(
        "oxford-pets",
        pets,
        ("oxford-iiit-pet",),
        ("Abyssinian", "american_bulldog", "beagle"),
        {
            "images/Abyssinian_100.jpg": 0,
            "images/american_bulldog_10.jpg": 1,
            "images/beagle_7.jpg": 2,
        },
        {"images/Abyssinian_2.jpg": 0, "images/beagle_8.jpg": 2},
        more={"per_class": True},
    ),
    Case(
        "cub-200",
        birds,
        ("CUB_200_2011",),
        ("Albatross", "Auklet", "Bunting"),
        {"images/010.Bunting/C_1.jpg": 2, "images/001.Albatross/A_1.jpg": 0},
        {"images/001.Albatross/A_2.jpg": 0, "images/002.Auklet/B_1.jpg": 1},
    ),
    Case(
        "fgvc-aircraft",
        aircraft,
        ("fgvc-aircraft-2013b",),
        ("707-320", "F/A-18", "Model B200"),
        {"data/images/0000000.jpg": 2, "data/images/0000001.jpg": 0},
        {"data/images/0000003.jpg": 2},
        {"data/images/0000002.jpg": 1},
        {"per_class": True},
    ),
    Case(
        "dtd",
        textures,
        ("dtd",),
        ("banded", "zigzagged"),
        {"images/zigzagged/zigzagged_0000.jpg": 1, "images/banded/banded_0000.jpg": 0},
        {"images/banded/banded_0002.jpg": 0},
        {"images/banded/banded_0001.jpg": 0, "images/zigzagged/zigzagged_0001.jpg": 1},
        {"facts": {"partition": "1 of 10"}},
    ),
    Case(
        "places365",
        places,
        (),
        ("airfield", "apartment_building/outdoor", "bar"),
        {f"data_256/{name}": 2 - place for place, name in enumerate(PLACES_TRAIN)},
        {f"val_256/Places365_val_0000000{n}.jpg": label for n, label in ((1, 1), (2, 0), (3, 2))},
        more={"facts": {"pictures": "data_256"}},
    ),
    Case(
        "sun397",
        sun,
        (),
        ("abbey", "bow_window/indoor", "bow_window/outdoor"),
        {
            "b/bow_window/outdoor/sun_1.jpg": 2,
            "b/bow_window/indoor/sun_1.jpg": 1,
            "a/abbey/sun_1.jpg": 0,
        },
        {f"{class_[1:]}/sun_2.jpg": label for label, class_ in enumerate(SUN_CLASSES)},
        more={"facts": {"partition": "01 of 10"}},
    ),
    Case(
        "cifar-10",
        ten,
        ("cifar-10-batches-bin",),
        ("airplane", "automobile", "bird"),
        {f"data_batch_{n}.bin#00000.planar-rgb": n % 3 for n in range(1, 6)}
        | {"data_batch_5.bin#00001.planar-rgb": 0},
        {"test_batch.bin#00000.planar-rgb": 1},
    ),
    Case(
        "cifar-100",
        hundred,
        ("cifar-100-binary",),
        ("apple", "aquarium_fish", "baby"),
        {"train.bin#00000.planar-rgb": 1, "train.bin#00001.planar-rgb": 0},
        {"test.bin#00000.planar-rgb": 2},
    ),
    Case(
        "stanford-cars",
        cars,
        ("stanford_cars",),
        ("AM General Hummer SUV 2000", "Acura RL Sedan 2012", "smart fortwo 2012"),
        {"cars_train/00001.jpg": 2, "cars_train/00002.jpg": 0},
        {"cars_test/00001.jpg": 1},
    ),
    Case(
        "flowers-102",
        flowers,
        ("flowers-102",),
        FLOWERS,
        {"jpg/image_00005.jpg": 0, "jpg/image_00001.jpg": 101},
        {"jpg/image_00002.jpg": 0, "jpg/image_00004.jpg": 4},
        {"jpg/image_00003.jpg": 4},
        {"per_class": True},
    ),
]


@pytest.mark.parametrize(
    ("case", "below"),
    [pytest.param(case, at, id=f"{case.name}/{at}") for case in CASES for at in ("", *case.below)],
)
def test_images_have_the_published_labels(tmp_path: Path, case: Case, below: str) -> None:
    case.make(tmp_path / below)
    found = read(case.name, tmp_path)
    assert (found.name, found.kind, found.classes) == (case.name, "classes", case.classes)
    assert labels(found.train) == case.train
    assert labels(found.test) == case.test
    assert (found.val and labels(found.val)) == case.val
    expected = {"per_class": False, **case.more}
    assert {name: getattr(found, name) for name in expected} == expected
    assert all(" published" in problem for problem in found.missing)


REFUSED: list[tuple[str, Callable[[Path], Path], Mapping[str, str | None], str]] = [
    ("food101", food, {"meta/test.json": None}, "meta/test.json is missing"),
    ("food101", food, {"meta/test.json": '{"soup": ["soup/1"]}'}, "names in classes.txt"),
    ("food101", food, {"meta/test.json": "[]"}, "does not map the names in classes.txt"),
    ("oxford-pets", pets, {"annotations/test.txt": None}, "annotations/test.txt is missing"),
    ("oxford-pets", pets, {"annotations/test.txt": "beagle_7 0 1 1"}, "lists again"),
    ("oxford-pets", pets, {"annotations/test.txt": "beagle_7 x 1 1"}, "get it again"),
    ("oxford-pets", pets, {"annotations/test.txt": "beagle_7"}, "get it again"),
    ("cub-200", birds, {"image_class_labels.txt": None}, "image_class_labels.txt is missing"),
    ("cub-200", birds, {"image_class_labels.txt": "1 1\n2 1\n3 2\n"}, "image 4, 010.Bunting/C_1"),
    ("cub-200", birds, {"image_class_labels.txt": "1 1\n2 1\n3 2\n4 11\n"}, "has the class 11"),
    ("cub-200", birds, {"train_test_split.txt": "1 1\n2 1\n3 0\n4 2\n"}, "the part 2"),
    ("cub-200", birds, {"classes.txt": "one 001.Albatross\n"}, "'one' in place of an integer"),
    ("fgvc-aircraft", aircraft, {"data/variants.txt": None}, "data/variants.txt is missing"),
    (
        "fgvc-aircraft",
        aircraft,
        {"data/images_variant_val.txt": "0000002 Concorde\n"},
        "'Concorde', which is not one of the classes",
    ),
    ("dtd", textures, {"labels/val1.txt": None}, "labels/val1.txt is missing"),
    (
        "places365",
        lambda folder: places(folder, "elsewhere", "val_256"),
        {},
        "data_256_standard is missing",
    ),
    ("places365", places, {"places365_val.txt": None}, "places365_val.txt is missing"),
    ("places365", places, {f"data_256/{PLACES_TRAIN[0]}": None}, "train: 1 of 3 images or their"),
    (
        "places365",
        places,
        {"categories_places365.txt": "/a/airfield 0\n/b/bar 2\n"},
        "does not number its classes",
    ),
    ("sun397", sun, {"Testing_01.txt": None}, "Testing_01.txt is missing"),
    (
        "sun397",
        sun,
        {"Testing_01.txt": "/b/bow_window/sun_2.jpg\n"},
        "'b/bow_window', which is not",
    ),
    ("caltech-101", Path, {}, "101_ObjectCategories is missing"),
    ("stanford-cars", cars, {"cars_test_annos_withlabels.mat": None}, "withlabels.mat is missing"),
    ("voc2007", make_voc2007, {"ImageSets/Main/test.txt": None}, "Main/test.txt is missing"),
    (
        "voc2007",
        make_voc2007,
        {"ImageSets/Main/cow_trainval.txt": "000005 2\n000007 1\n000009 1\n"},
        "allowed are 1, 0 and -1",
    ),
    (
        "voc2007",
        make_voc2007,
        {"ImageSets/Main/cow_trainval.txt": "000005 1\n000007 1\n"},
        "allowed are 1, 0 and -1",
    ),
]


@pytest.mark.parametrize(("name", "make", "changes", "words"), REFUSED)
def test_missing_and_damaged_files_are_named(
    tmp_path: Path,
    name: str,
    make: Callable[[Path], Path],
    changes: Mapping[str, str | None],
    words: str,
) -> None:
    make(tmp_path)
    for file, content in changes.items():
        if content is None:
            (tmp_path / file).unlink()
        else:
            write(tmp_path, {file: content})
    assert words in complaint(name, tmp_path)


def test_missing_breeds_keep_the_numbers_of_the_others(tmp_path: Path) -> None:
    pets(tmp_path)
    write(tmp_path, {"annotations/trainval.txt": "beagle_7 3 2 2\n"})
    write(tmp_path, {"annotations/test.txt": "Abyssinian_2 1 1 1\n"})
    found = read("oxford-pets", tmp_path)
    assert found.classes == ("Abyssinian", "1", "beagle")
    assert labels(found.train) == {"images/beagle_7.jpg": 2}


@pytest.mark.parametrize("train", ["data_256_standard", "data_large_standard", "data_large"])
def test_places_are_read_in_any_size(tmp_path: Path, train: str) -> None:
    val = "val_256" if "256" in train else "val_large"
    found = read("places365", places(tmp_path, train, val))
    assert list(labels(found.train)) == [f"{train}/{name}" for name in PLACES_TRAIN]
    assert (found.test.name, found.facts) == ("val", {"pictures": train})


@pytest.mark.parametrize(
    ("images", "lists"), [("", "Partitions"), ("SUN397", ""), ("SUN397", "SUN397/Partitions")]
)
def test_the_lists_of_sun_may_lie_elsewhere(tmp_path: Path, images: str, lists: str) -> None:
    found = read("sun397", sun(tmp_path, images, lists))
    assert list(labels(found.test).values()) == [0, 1, 2]


def test_the_pixels_of_a_cifar_record_are_its_three_planes(tmp_path: Path) -> None:
    train = read("cifar-100", hundred(tmp_path)).splits()[0]
    raw = np.frombuffer((tmp_path / "train.bin").read_bytes(), np.uint8).reshape(2, 3074)
    for row in range(2):
        with open_image(train.image(row)) as file:
            found = decode(file).pixels().numpy()
        np.testing.assert_array_equal(found, raw[row, 2:].reshape(3, 32, 32))


def test_a_truncated_cifar_file_is_reported_and_read_as_far_as_possible(tmp_path: Path) -> None:
    hundred(tmp_path)
    (tmp_path / "train.bin").write_bytes((tmp_path / "train.bin").read_bytes()[:-1])
    assert "has 6,147 bytes, no multiple of 3,074" in complaint("cifar-100", tmp_path)
    assert list(labels(read("cifar-100", tmp_path).train).values()) == [1]


def test_the_pickled_cifar_is_not_read(tmp_path: Path) -> None:
    write(tmp_path / "cifar-10-batches-py", {"data_batch_1": b"x", "batches.meta": b"x"})
    message = complaint("cifar-10", tmp_path)
    assert "the binary version is needed" in message
    assert "data_batch_1.bin is missing" in message


@pytest.mark.parametrize("below", ["", "caltech-101", "caltech101"])
def test_caltech_trains_on_the_thirty_images_of_each_class_with_the_lowest_hashes(
    tmp_path: Path, below: str
) -> None:
    objects(tmp_path / below)
    found = read("caltech-101", tmp_path)
    assert found.classes == ("BACKGROUND_Google", "Faces", "accordion")
    train, test = labels(found.train), labels(found.test)
    assert Counter(train.values()) == {0: 30, 1: 30, 2: 30}
    assert Counter(test.values()) == {0: 1, 1: 5, 2: 3}
    assert not train.keys() & test.keys()
    assert all(found.classes[label] == name.split("/")[1] for name, label in (train | test).items())
    drawn = [name.split("/", 1)[1] for name in train if "/Faces/" in name]
    every = [f"Faces/image_{number:04d}.jpg" for number in range(35)]
    assert drawn == sorted(sorted(every, key=key)[:30])
    assert found.per_class
    assert "30 images of each class" in found.facts["split"]


def test_the_test_labels_of_cars_may_lie_in_the_devkit(tmp_path: Path) -> None:
    found = read("stanford-cars", cars(tmp_path, "devkit"))
    assert labels(found.test) == {"cars_test/00001.jpg": 1}


def test_files_of_cars_without_classes_are_refused(tmp_path: Path) -> None:
    cars(tmp_path)
    unlabeled = tmp_path / "devkit/cars_test_annos.mat"
    unlabeled.rename(tmp_path / "cars_test_annos_withlabels.mat")
    assert "has no classes, only bbox_x1" in complaint("stanford-cars", tmp_path)
    records = np.array([[("00001.jpg", "three")]], dtype=[("fname", object), ("class", object)])
    save(tmp_path / "devkit/cars_train_annos.mat", annotations=records)
    message = complaint("stanford-cars", tmp_path)
    assert "cars_train_annos.mat has 'three' in place of an integer" in message


def test_a_flower_without_a_label_is_refused(tmp_path: Path) -> None:
    flowers(tmp_path)
    save(tmp_path / "imagelabels.mat", labels=np.array([[1, 2, 3]], np.uint8))
    message = complaint("flowers-102", tmp_path)
    assert "setid.mat has image 5, but imagelabels.mat has 3 labels" in message


def test_every_flower_has_a_name() -> None:
    assert len(set(FLOWERS)) == len(FLOWERS) == 102
    assert (FLOWERS[0], FLOWERS[101]) == ("pink primrose", "blackberry lily")


def test_matlab_files_are_read_or_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path / "one.mat", ids=np.array([[7]], np.uint16))
    assert read_matlab(tmp_path / "one.mat", "ids").tolist() == [7]
    write(tmp_path, {"torn.mat": b"MATLAB 5.0 MAT-file" + bytes(200)})
    for name in ("torn.mat", "one.mat"):
        with pytest.raises(DatasetError, match=rf"{name} has no readable variable labels"):
            read_matlab(tmp_path / name, "labels")
    monkeypatch.setitem(sys.modules, "scipy.io", None)
    with pytest.raises(DatasetError, match=r"pip install veca\[probe\]"):
        read_matlab(tmp_path / "one.mat", "ids")


def shown(marks: object) -> list[list[str]]:
    return [[CLASSES[place] for place in np.flatnonzero(row)] for row in np.asarray(marks)]


@pytest.mark.parametrize("below", ["", "VOC2007", "VOCdevkit/VOC2007"])
def test_an_image_of_voc_shows_any_number_of_classes(tmp_path: Path, below: str) -> None:
    make_voc2007(tmp_path / below)
    train, test = read("voc2007", tmp_path).splits()
    assert train.name == "trainval"
    assert train.keys == tuple(f"JPEGImages/{name}.jpg" for name in VOC_NAMES["trainval"])
    assert shown(train.labels) == [["chair"], ["car"], ["car"]]
    assert shown(test.labels) == [["dog", "person"], []]
    assert np.asarray(train.labels).shape == (3, 20)
    assert np.asarray(train.labels).dtype == np.bool_
    assert shown(~np.asarray(train.counted)) == [[], [], ["person"]]  # a difficult object
    assert np.asarray(test.counted).all()


def test_a_missing_image_of_voc_is_left_out(tmp_path: Path) -> None:
    make_voc2007(tmp_path)
    (tmp_path / "JPEGImages/000005.jpg").unlink()
    train = read("voc2007", tmp_path).splits()[0]
    assert shown(train.labels) == [["car"], ["car"]]
    assert shown(~np.asarray(train.counted)) == [[], ["person"]]
