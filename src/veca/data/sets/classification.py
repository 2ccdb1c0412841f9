"""Readers of classification datasets, one function per dataset.

The docstring of a reader describes the layout as published; class folders of one's own are read by
`folders.py`.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from veca.data.listing import RAW_SUFFIX, ImageEntry, absolute, member_name
from veca.data.sets.dataset import (
    DatasetChecks,
    DatasetError,
    LabeledDataset,
    build_split,
    class_names,
    labeled_dataset,
    lines,
    numbered,
    parse_int,
    read_json,
    read_matlab,
    rows,
)
from veca.data.sets.folders import drawn_by_hash, read_class_folders


def food101(folder: Path, checks: DatasetChecks) -> LabeledDataset:
    """`meta/{classes.txt,train.json,test.json}` and `images/<class>/<number>.jpg`.

    The JSON files map each class to names below `images/` without endings. The labels of the
    training images are noisy on purpose.
    """
    needed = ("images", "meta/classes.txt", "meta/train.json", "meta/test.json")
    root = checks.find(folder, needed, ("food-101",))
    classes = sorted(lines(root / "meta/classes.txt"))
    images = {}
    for part in ("train", "test"):
        path = root / f"meta/{part}.json"
        listed = read_json(path)
        if not isinstance(listed, dict) or not set(listed) <= set(classes):
            raise DatasetError(
                f"{path} does not map the names in classes.txt to images; get it again."
            )
        images[part] = [
            (f"images/{image}.jpg", number)
            for number, name in enumerate(classes)
            for image in listed.get(name, ())
        ]
    counts = {"classes": 101, "train": 75_750, "train/class": 750}
    counts |= {"test": 25_250, "test/class": 250}
    return labeled_dataset(root, images, checks, counts, classes=classes)


def oxford_pets(folder: Path, checks: DatasetChecks) -> LabeledDataset:
    """`annotations/{trainval,test}.txt` and `images/<Breed>_<number>.jpg`.

    Columns are name, class from 1, species and breed within the species; only the second is used.
    """
    counts = {"trainval": 3_680, "test": 3_669}
    needed = ("images", *(f"annotations/{part}.txt" for part in counts))
    root = checks.find(folder, needed, ("oxford-iiit-pet",))
    names: dict[int, str] = {}
    images: dict[str, list[tuple[str, int]]] = {part: [] for part in counts}
    for part, found in images.items():
        listed = root / f"annotations/{part}.txt"
        for image, class_, _, _ in rows(listed, 4):
            label = parse_int(class_, listed) - 1
            names[label] = image.rpartition("_")[0]
            found.append((f"images/{image}.jpg", label))
    classes = [names.get(label, str(label)) for label in range(max(names, default=-1) + 1)]
    checks.expect("classes", len(names), 37)
    return labeled_dataset(root, images, checks, counts, classes=classes, per_class=True)


def cub_200(folder: Path, checks: DatasetChecks) -> LabeledDataset:
    """Four lists, `classes`, `images`, `image_class_labels` and `train_test_split`, joined by id.

    Classes are numbered from 1; 1 in the last list means training. Images are not cropped to the
    bird's box.
    """
    lists = ("classes", "images", "image_class_labels", "train_test_split")
    needed = ("images", *(f"{name}.txt" for name in lists))
    root = checks.find(folder, needed, ("CUB_200_2011",))
    listed = {name: dict(rows(root / f"{name}.txt", 2)) for name in lists}
    classes = listed["classes"]
    ordered = sorted(classes, key=partial(parse_int, path=root / "classes.txt"))
    numbers = {number: place for place, number in enumerate(ordered)}
    images: dict[str, list[tuple[str, int]]] = {"1": [], "0": []}
    for id_, image in listed["images"].items():
        class_, part = listed["image_class_labels"].get(id_), listed["train_test_split"].get(id_)
        if class_ not in numbers or part not in images:
            raise DatasetError(
                f"{root}: image {id_}, {image}, has the class {class_} and the part {part}; "
                "classes are numbers of classes.txt, parts are 1 and 0: get the lists again."
            )
        images[part].append((f"images/{image}", numbers[class_]))
    checks.expect("images", len(listed["images"]), 11_788)
    counts = {"classes": 200, "train": 5_994, "test": 5_794}
    names = [classes[number].partition(".")[2] for number in ordered]
    splits = {"train": images["1"], "test": images["0"]}
    return labeled_dataset(root, splits, checks, counts, classes=names)


def fgvc_aircraft(folder: Path, checks: DatasetChecks) -> LabeledDataset:
    """`data/images_variant_{train,val,test}.txt`, `data/variants.txt` and `data/images/`.

    The 100 variants are the classes, not the families or manufacturers. The authors ask to crop
    the lowest 20 pixels, a line with the photographer's name; evaluations generally do not, nor
    does this one.
    """
    counts = {"classes": 100, "train": 3_334, "val": 3_333, "test": 3_333}
    lists = {part: f"data/images_variant_{part}.txt" for part in ("train", "val", "test")}
    needed = ("data/images", "data/variants.txt", *lists.values())
    root = checks.find(folder, needed, ("fgvc-aircraft-2013b",))
    classes = list(lines(root / "data/variants.txt"))
    images = {}
    for part, listed in lists.items():
        named = ((f"data/images/{image}.jpg", class_) for image, class_ in rows(root / listed, 2))
        images[part] = numbered(named, classes, root / listed)
    facts = {"classes_are": "variants", "banner": "kept"}
    return labeled_dataset(
        root, images, checks, counts, classes=classes, per_class=True, facts=facts
    )


def dtd(folder: Path, checks: DatasetChecks) -> LabeledDataset:
    """`labels/{train,val,test}1.txt` and `images/<texture>/`, the first of ten partitions."""
    parts = ("train", "val", "test")
    root = checks.find(folder, ("images", *(f"labels/{part}1.txt" for part in parts)), ("dtd",))
    listed = {part: list(lines(root / f"labels/{part}1.txt")) for part in parts}
    classes = sorted({path.partition("/")[0] for part in parts for path in listed[part]})
    counts, images = {"classes": 47}, {}
    for part in parts:
        counts |= {part: 1_880, f"{part}/class": 40}
        images[part] = [
            (f"images/{path}", classes.index(path.partition("/")[0])) for path in listed[part]
        ]
    facts = {"partition": "1 of 10"}
    return labeled_dataset(root, images, checks, counts, classes=classes, facts=facts)


PLACES_FOLDERS = (("data_256_standard", "val_256"), ("data_256", "val_256"),
                  ("data_large_standard", "val_large"), ("data_large", "val_large"))  # fmt: skip
"""Folders of training and validation images: 256 x 256 pixels, or full size; the archives unpack to
names without `_standard`."""


def places365(folder: Path, checks: DatasetChecks) -> LabeledDataset:
    """Lists of `path class` beside `data_256_standard/` and `val_256/`, or the large images.

    `val` is the test split; the labels of the test images are not public.
    """
    categories = "categories_places365.txt"
    lists = {"train": "places365_train_standard.txt", "val": "places365_val.txt"}
    root = checks.find(folder, (categories, *lists.values()))
    found = [names for names in PLACES_FOLDERS if all((root / name).is_dir() for name in names)]
    if not found:
        raise checks.lacking(*(root / name for name in PLACES_FOLDERS[0]))
    names = {
        parse_int(number, root / categories): name for name, number in rows(root / categories, 2)
    }
    if sorted(names) != list(range(len(names))):
        raise DatasetError(
            f"{root / categories} does not number its classes 0, 1, 2, ...; get it again."
        )
    splits = []
    for (part, listed), below in zip(lists.items(), found[0], strict=True):
        images = (
            (f"{below}/{path.lstrip('/')}", parse_int(label, root / listed))
            for path, label in rows(root / listed, 2)
        )
        splits.append(build_split(part, root, images, checks))
    counts = {"classes": 365, "train": 1_803_460, "val": 36_500, "val/class": 100}
    classes = [names[number].strip("/").partition("/")[2] for number in range(len(names))]
    facts = {"pictures": found[0][0]}
    return checks.dataset("classes", splits, counts, classes=classes, facts=facts)


def sun397(folder: Path, checks: DatasetChecks) -> LabeledDataset:
    """`SUN397/<letter>/<class>/`, with the first of ten published partitions: 50 + 50 per class.

    A class may have two levels, as `b/bow_window/indoor`. The lists come in a separate archive and
    are searched beside the images, in the given folder, and in a folder `Partitions` of either.
    """
    class_list = "ClassName.txt"
    lists = {"train": "Training_01.txt", "test": "Testing_01.txt"}
    root = checks.find(folder, (class_list, "a"), ("SUN397",))
    homes = [folder, folder / "Partitions", root, root / "Partitions"]
    home = next((home for home in homes if (home / lists["train"]).exists()), folder)
    checks.require(*(home / listed for listed in lists.values()))
    paths = [path.strip("/") for path in lines(root / class_list)]
    present = sum(len(list((root / path).glob("sun_*"))) for path in paths)
    checks.expect("images", present, 108_754)  # listed or not
    counts, images = {"classes": 397}, {}
    for part, listed in lists.items():
        counts |= {part: 19_850, f"{part}/class": 50}
        names = (line.strip("/") for line in lines(home / listed))
        named = ((name, name.rpartition("/")[0]) for name in names)
        images[part] = numbered(named, paths, home / listed)
    classes = [path.partition("/")[2] for path in paths]
    facts = {"partition": "01 of 10"}
    return labeled_dataset(root, images, checks, counts, classes=classes, facts=facts)


CIFAR_BYTES = 3 * 32 * 32
"""Bytes of an image: 32 x 32 pixels as three planes."""


def cifar_10(folder: Path, checks: DatasetChecks) -> LabeledDataset:
    """`cifar-10-batches-bin/{data_batch_1 ... 5,test_batch}.bin` and `batches.meta.txt`."""
    train = [f"data_batch_{number}.bin" for number in range(1, 6)]
    files = {"train": train, "test": ["test_batch.bin"]}
    return _cifar(folder / "batches.meta.txt", "cifar-10-batches-bin", files, 10, checks)


def cifar_100(folder: Path, checks: DatasetChecks) -> LabeledDataset:
    """`cifar-100-binary/{train,test}.bin` and `fine_label_names.txt`; fine labels."""
    files = {"train": ["train.bin"], "test": ["test.bin"]}
    return _cifar(folder / "fine_label_names.txt", "cifar-100-binary", files, 100, checks)


def _cifar(
    names: Path, below: str, files: Mapping[str, list[str]], num_classes: int, checks: DatasetChecks
) -> LabeledDataset:
    """Read either dataset in its binary version; the Python version is pickled."""
    folder = names.parent
    if not any((folder / name / names.name).exists() for name in ("", below)):
        checks.report(
            "the binary version is needed (its archive's name ends in -binary.tar.gz), not the "
            "Python or the MATLAB version"
        )
    root = checks.find(folder, (names.name, *files["train"], *files["test"]), (below,))
    label_bytes = 1 if num_classes == 10 else 2  # a coarse label before the fine one
    counts, images = {"classes": num_classes}, {}
    for part, number in (("train", 50_000), ("test", 10_000)):
        counts |= {part: number, f"{part}/class": number // num_classes}
        batches = [_records(root / name, label_bytes, checks) for name in files[part]]
        images[part] = chain.from_iterable(batches)
    classes = list(lines(root / names.name))
    return labeled_dataset(root, images, checks, counts, classes=classes)


def _records(
    file: Path, label_bytes: int, checks: DatasetChecks
) -> Iterator[tuple[ImageEntry, int]]:
    """Images and labels of a batch, whose pixels are read in place."""
    path, record = absolute(file), label_bytes + CIFAR_BYTES
    numbers = np.fromfile(path, np.uint8)
    count, rest = divmod(len(numbers), record)
    if rest:
        checks.report(f"{path} has {len(numbers):,} bytes, no multiple of {record:,}")
    for row, label in enumerate(numbers[label_bytes - 1 :: record][:count].tolist()):
        name = member_name(path, f"{row:05d}{RAW_SUFFIX}")
        yield ImageEntry(name, CIFAR_BYTES, path, row * record + label_bytes), label


def caltech_101(folder: Path, checks: DatasetChecks) -> LabeledDataset:
    """`101_ObjectCategories/<class>/`, `BACKGROUND_Google` being the 102nd class.

    There is no published split: papers draw 30 training images per class and test on the rest.
    Here these are the 30 whose names (`<class>/<file>`) have the lowest hashes. A background image
    `tmp` without an ending is skipped; with it there are 9,145.
    """
    top = "101_ObjectCategories"
    root = checks.find(folder, (top,), ("caltech-101", "caltech101"))
    whole, classes = read_class_folders(root / top, root, checks)
    names = [name.removeprefix(f"{top}{os.sep}") for name in whole.keys]
    by_class = np.argsort(np.asarray(whole.labels), kind="stable")
    in_train = drawn_by_hash(whole, names, lambda count: 30)[by_class]
    splits = [whole.subset(by_class[in_train], "train"), whole.subset(by_class[~in_train], "test")]
    counts = {"classes": 102, "train": 3_060, "test": 6_084}
    facts = {"split": "30 images of each class by hash of their names, the rest to test on"}
    return checks.dataset("classes", splits, counts, classes=classes, per_class=True, facts=facts)


CLASSES = class_names("voc")[1:]
LISTS = "ImageSets/Main"
PRESENT, DIFFICULT, ABSENT = 1, 0, -1


def voc2007(folder: Path, checks: DatasetChecks) -> LabeledDataset:
    """VOC 2007: `VOCdevkit/VOC2007/{JPEGImages,ImageSets/Main}`; an image shows 1 to 20 classes.

    The list of a class has 1 for images that show it, -1 for others, and 0 if all its objects are
    marked as difficult. By the rules of the challenge the last count neither as present nor as
    absent. The test archive is unpacked into the same folder.
    """
    counts = {"trainval": 5_011, "test": 4_952}
    needed = ["JPEGImages"]
    for part in counts:
        needed += [f"{LISTS}/{part}.txt", *(f"{LISTS}/{name}_{part}.txt" for name in CLASSES)]
    root = checks.find(folder, needed, ("VOC2007", "VOCdevkit/VOC2007"))
    splits = []
    for part in counts:
        names = list(lines(root / LISTS / f"{part}.txt"))
        images = ((f"JPEGImages/{name}.jpg", row) for row, name in enumerate(names))
        split = build_split(part, root, images, checks)
        marks = [_voc_marks(root / LISTS / f"{name}_{part}.txt", names) for name in CLASSES]
        shown = np.stack(marks, 1)[np.asarray(split.labels)]
        splits.append(replace(split, labels=shown == PRESENT, counted=shown != DIFFICULT))
    facts = {"difficult": "left out of the score of their class"}
    return checks.dataset("classes", splits, counts, classes=CLASSES, facts=facts)


def _voc_marks(path: Path, names: list[str]) -> NDArray[np.int64]:
    """The marks of a class for each image, joined by name (N)."""
    listed = {name: parse_int(mark, path) for name, mark in rows(path, 2)}
    for name in names:
        if listed.get(name) not in (PRESENT, DIFFICULT, ABSENT):
            raise DatasetError(
                f"{path} has {listed.get(name)} for {name}; allowed are 1, 0 and -1: get it again."
            )
    return np.array([listed[name] for name in names], np.int64)


CARS_TEST_LABELS = "cars_test_annos_withlabels.mat"


def stanford_cars(folder: Path, checks: DatasetChecks) -> LabeledDataset:
    """`devkit/`, `cars_train/` and `cars_test/`; classes are numbered from 1.

    The labels of the test images are in `cars_test_annos_withlabels.mat`, beside the devkit or in
    it; `cars_test_annos.mat` has none.
    """
    needed = ("devkit/cars_meta.mat", "devkit/cars_train_annos.mat", "cars_train", "cars_test")
    root = checks.find(folder, needed, ("stanford_cars",))
    homes = (root, root / "devkit")
    listed = [home / CARS_TEST_LABELS for home in homes if (home / CARS_TEST_LABELS).exists()]
    checks.require(*(listed or [root / CARS_TEST_LABELS])[:1])
    names = read_matlab(root / "devkit/cars_meta.mat", "class_names")
    lists = {"train": root / "devkit/cars_train_annos.mat", "test": listed[0]}
    images = {part: _cars(path, f"cars_{part}") for part, path in lists.items()}
    counts = {"classes": 196, "train": 8_144, "test": 8_041}
    classes = [str(name) for name in np.ravel(names)]
    return labeled_dataset(root, images, checks, counts, classes=classes)


def _cars(listed: Path, below: str) -> Iterator[tuple[str, int]]:
    """Images and labels of a split, by its records."""
    records = read_matlab(listed, "annotations")
    fields = records.dtype.names or ()
    if not {"fname", "class"} <= set(fields):
        raise DatasetError(
            f"{listed} has no classes, only {', '.join(fields)}; get the one with them."
        )
    for record in records:
        yield f"{below}/{record['fname']}", parse_int(str(record["class"]), listed) - 1


def flowers_102(folder: Path, checks: DatasetChecks) -> LabeledDataset:
    """`imagelabels.mat`, `setid.mat` and `jpg/image_00001.jpg` ...; classes are numbered from 1.

    The test split is the large one (`tstid`); some papers train on it instead.
    """
    root = checks.find(folder, ("jpg", "imagelabels.mat", "setid.mat"), ("flowers-102",))
    labels = np.ravel(read_matlab(root / "imagelabels.mat", "labels")).astype(np.int64) - 1
    checks.expect("classes", len(np.unique(labels)), 102)
    checks.expect("images", len(labels), 8_189)
    images: dict[str, list[tuple[str, int]]] = {}
    for part, variable in (("train", "trnid"), ("val", "valid"), ("test", "tstid")):
        numbers = np.ravel(read_matlab(root / "setid.mat", variable))
        unknown = numbers[(numbers < 1) | (numbers > len(labels))]
        if len(unknown):
            raise DatasetError(
                f"{root / 'setid.mat'} has image {unknown[0]}, but imagelabels.mat has "
                f"{len(labels):,} labels; get both again."
            )
        shown = labels[numbers.astype(np.int64) - 1].tolist()
        images[part] = [
            (f"jpg/image_{number:05d}.jpg", label)
            for number, label in zip(numbers.tolist(), shown, strict=True)
        ]
    counts = {"train": 1_020, "train/class": 10, "val": 1_020, "val/class": 10, "test": 6_149}
    names = class_names("flowers-102")
    return labeled_dataset(root, images, checks, counts, classes=names, per_class=True)
