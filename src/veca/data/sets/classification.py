"""Readers of classification datasets, one function per dataset.

The docstring of a reader describes the layout as published; class folders of one's own are read by
`folders.py`.
"""

import os
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from veca.data.listing import RAW_SUFFIX, ImageEntry, absolute, key, member_name
from veca.data.sets.dataset import (
    DatasetChecks,
    DatasetError,
    LabeledDataset,
    Split,
    SplitBuilder,
    lines,
    read_json,
    read_matlab,
    rows,
    whole,
)
from veca.data.sets.folders import read_class_folders


def food101(folder: Path, checks: DatasetChecks) -> LabeledDataset:
    """`meta/{classes.txt,train.json,test.json}` and `images/<class>/<number>.jpg`.

    The JSON files map each class to names below `images/` without endings. The labels of the
    training images are noisy on purpose.
    """
    needed = ("images", "meta/classes.txt", "meta/train.json", "meta/test.json")
    root = checks.find(folder, needed, ("food-101",))
    classes = tuple(sorted(lines(root / "meta/classes.txt")))
    train, test = (_food_split(part, root, classes, checks) for part in ("train", "test"))
    checks.expect("classes", len(classes), 101)
    checks.expect_split(train, 75_750, each=750, num_classes=len(classes))
    checks.expect_split(test, 25_250, each=250, num_classes=len(classes))
    return LabeledDataset(name=checks.name, kind="classes", classes=classes, train=train, test=test)


def oxford_pets(folder: Path, checks: DatasetChecks) -> LabeledDataset:
    """`annotations/{trainval,test}.txt` and `images/<Breed>_<number>.jpg`.

    Columns are name, class from 1, species and breed within the species; only the second is used.
    """
    parts = {"trainval": 3_680, "test": 3_669}
    needed = ("images", *(f"annotations/{part}.txt" for part in parts))
    root = checks.find(folder, needed, ("oxford-iiit-pet",))
    names: dict[int, str] = {}
    builders = []
    for part in parts:
        listed = root / f"annotations/{part}.txt"
        builder = SplitBuilder(part, root)
        for image, class_, _, _ in rows(listed, 4):
            label = whole(class_, listed) - 1
            names[label] = image.rpartition("_")[0]
            builder.add(f"images/{image}.jpg", label)
        builders.append(builder)
    classes = tuple(names.get(label, str(label)) for label in range(max(names, default=-1) + 1))
    train, test = (builder.split(len(classes), checks) for builder in builders)
    checks.expect("classes", len(names), 37)
    for split in (train, test):
        checks.expect_split(split, parts[split.name])
    return LabeledDataset(
        name=checks.name, kind="classes", classes=classes, train=train, test=test, per_class=True
    )


def cub_200(folder: Path, checks: DatasetChecks) -> LabeledDataset:
    """Four lists, `classes`, `images`, `image_class_labels` and `train_test_split`, joined by id.

    Classes are numbered from 1; 1 in the last list means training. Images are not cropped to the
    bird's box.
    """
    names = ("classes", "images", "image_class_labels", "train_test_split")
    needed = ("images", *(f"{name}.txt" for name in names))
    root = checks.find(folder, needed, ("CUB_200_2011",))
    listed = {name: dict(rows(root / f"{name}.txt", 2)) for name in names}
    classes = listed["classes"]
    ordered = sorted(classes, key=partial(whole, path=root / "classes.txt"))
    numbers = {number: place for place, number in enumerate(ordered)}
    builders = {"1": SplitBuilder("train", root), "0": SplitBuilder("test", root)}
    for id_, image in listed["images"].items():
        class_, part = listed["image_class_labels"].get(id_), listed["train_test_split"].get(id_)
        if class_ not in numbers or part not in builders:
            raise DatasetError(
                f"{root}: image {id_}, {image}, has the class {class_} and the part {part}; "
                "classes are numbers of classes.txt, parts are 1 and 0: get the lists again."
            )
        builders[part].add(f"images/{image}", numbers[class_])
    train, test = (builder.split(len(classes), checks) for builder in builders.values())
    checks.expect("classes", len(classes), 200)
    checks.expect("pictures", len(listed["images"]), 11_788)
    checks.expect_split(train, 5_994)
    checks.expect_split(test, 5_794)
    return LabeledDataset(
        name=checks.name,
        kind="classes",
        classes=tuple(classes[number].partition(".")[2] for number in numbers),
        train=train,
        test=test,
    )


def fgvc_aircraft(folder: Path, checks: DatasetChecks) -> LabeledDataset:
    """`data/images_variant_{train,val,test}.txt`, `data/variants.txt` and `data/images/`.

    The 100 variants are the classes, not the families or manufacturers. The authors ask to crop
    the lowest 20 pixels, a line with the photographer's name; evaluations generally do not, nor
    does this one.
    """
    parts = {"train": 3_334, "val": 3_333, "test": 3_333}
    lists = {part: f"data/images_variant_{part}.txt" for part in parts}
    needed = ("data/images", "data/variants.txt", *lists.values())
    root = checks.find(folder, needed, ("fgvc-aircraft-2013b",))
    classes = tuple(lines(root / "data/variants.txt"))
    numbers = {name: number for number, name in enumerate(classes)}
    splits = {}
    for part, listed in lists.items():
        builder = SplitBuilder(part, root)
        for image, class_ in rows(root / listed, 2):
            if class_ not in numbers:
                raise DatasetError(f"{root / listed} has {class_!r}, which is not in variants.txt.")
            builder.add(f"data/images/{image}.jpg", numbers[class_])
        splits[part] = builder.split(len(classes), checks)
    checks.expect("classes", len(classes), 100)
    for part, split in splits.items():
        checks.expect_split(split, parts[part])
    return LabeledDataset(
        name=checks.name,
        kind="classes",
        classes=classes,
        train=splits["train"],
        val=splits["val"],
        test=splits["test"],
        per_class=True,
        facts={"classes_are": "variants", "banner": "kept"},
    )


def dtd(folder: Path, checks: DatasetChecks) -> LabeledDataset:
    """`labels/{train,val,test}1.txt` and `images/<texture>/`, the first of ten partitions."""
    parts = ("train", "val", "test")
    needed = ("images", *(f"labels/{part}1.txt" for part in parts))
    root = checks.find(folder, needed, ("dtd",))
    listed = {part: list(lines(root / f"labels/{part}1.txt")) for part in parts}
    classes = tuple(sorted({path.partition("/")[0] for part in parts for path in listed[part]}))
    numbers = {name: number for number, name in enumerate(classes)}
    splits = {}
    for part in parts:
        builder = SplitBuilder(part, root)
        for path in listed[part]:
            builder.add(f"images/{path}", numbers[path.partition("/")[0]])
        splits[part] = builder.split(len(classes), checks)
    checks.expect("classes", len(classes), 47)
    for split in splits.values():
        checks.expect_split(split, 1_880, each=40, num_classes=len(classes))
    return LabeledDataset(
        name=checks.name,
        kind="classes",
        classes=classes,
        train=splits["train"],
        val=splits["val"],
        test=splits["test"],
        facts={"partition": "1 of 10"},
    )


def _food_split(part: str, root: Path, classes: tuple[str, ...], checks: DatasetChecks) -> Split:
    """A split by its JSON file."""
    path = root / f"meta/{part}.json"
    listed = read_json(path)
    if not isinstance(listed, dict) or not set(listed) <= set(classes):
        raise DatasetError(f"{path} does not map the names in classes.txt to images; get it again.")
    builder = SplitBuilder(part, root)
    for number, name in enumerate(classes):
        for image in listed.get(name, ()):
            builder.add(f"images/{image}.jpg", number)
    return builder.split(len(classes), checks)


PLACES_CLASSES = 365
PLACES_TRAIN = 1_803_460
PLACES_VAL = 36_500

PLACES_CATEGORIES = "categories_places365.txt"
PLACES_LISTS = {"train": "places365_train_standard.txt", "val": "places365_val.txt"}

PLACES_FOLDERS = (
    ("data_256_standard", "val_256"),
    ("data_256", "val_256"),
    ("data_large_standard", "val_large"),
    ("data_large", "val_large"),
)
"""Folders of training and validation images: 256 x 256 pixels, or full size; the archives unpack to
names without `_standard`."""

SUN_CLASSES = 397
SUN_PICTURES = 108_754
SUN_PART = 19_850
SUN_CLASS_LIST = "ClassName.txt"
SUN_LISTS = {"train": "Training_01.txt", "test": "Testing_01.txt"}


def places365(folder: Path, checks: DatasetChecks) -> LabeledDataset:
    """Lists of `path class` beside `data_256_standard/` and `val_256/`, or the large images.

    `val` is the test split; the labels of the test images are not public.
    """
    root = checks.find(folder, (PLACES_CATEGORIES, *PLACES_LISTS.values()))
    folders = _places_folders(root, checks)
    classes = _places_classes(root / PLACES_CATEGORIES)
    splits = {}
    for (name, listed), images in zip(PLACES_LISTS.items(), folders, strict=True):
        builder = SplitBuilder(name, root)
        for path, label in rows(root / listed, 2):
            builder.add(f"{images}/{path.lstrip('/')}", whole(label, root / listed))
        splits[name] = builder.split(len(classes), checks)
    train, val = splits["train"], splits["val"]
    checks.expect("classes", len(classes), PLACES_CLASSES)
    checks.expect("train images", len(train), PLACES_TRAIN)
    checks.expect("val images", len(val), PLACES_VAL)
    checks.expect_each("val images of a class", np.asarray(val.labels), len(classes), 100)
    return LabeledDataset(
        name=checks.name,
        kind="classes",
        classes=classes,
        train=train,
        test=val,
        facts={"pictures": folders[0]},
    )


def sun397(folder: Path, checks: DatasetChecks) -> LabeledDataset:
    """`SUN397/<letter>/<class>/`, with the first of ten published partitions: 50 + 50 per class.

    A class may have two levels, as `b/bow_window/indoor`. The lists come in a separate archive and
    are searched beside the images, in the given folder, and in a folder `Partitions` of either.
    """
    root = checks.find(folder, (SUN_CLASS_LIST, "a"), ("SUN397",))
    homes = [folder, folder / "Partitions", root, root / "Partitions"]
    home = next((home for home in homes if (home / SUN_LISTS["train"]).exists()), folder)
    checks.require(*(home / listed for listed in SUN_LISTS.values()))
    paths = [path.strip("/") for path in lines(root / SUN_CLASS_LIST)]
    numbers = {path: number for number, path in enumerate(paths)}
    splits = {
        name: _sun_split(name, root, home / listed, numbers, checks)
        for name, listed in SUN_LISTS.items()
    }
    checks.expect("classes", len(paths), SUN_CLASSES)
    checks.expect("pictures", _sun_pictures(root, paths), SUN_PICTURES)
    for name, split in splits.items():
        checks.expect(f"{name} images", len(split), SUN_PART)
        each = f"{name} images of a class"
        checks.expect_each(each, np.asarray(split.labels), len(paths), 50)
    return LabeledDataset(
        name=checks.name,
        kind="classes",
        classes=tuple(path.partition("/")[2] for path in paths),
        train=splits["train"],
        test=splits["test"],
        facts={"partition": "01 of 10"},
    )


def _places_folders(root: Path, checks: DatasetChecks) -> tuple[str, str]:
    """The folders that hold the images."""
    for folders in PLACES_FOLDERS:
        if all((root / name).is_dir() for name in folders):
            return folders
    raise checks.lacking(*(root / name for name in PLACES_FOLDERS[0]))


def _places_classes(path: Path) -> tuple[str, ...]:
    """Class names by number; lines are `/a/airfield 0`."""
    names = {whole(number, path): name for name, number in rows(path, 2)}
    if sorted(names) != list(range(len(names))):
        raise DatasetError(f"{path} does not number its classes 0, 1, 2, ...; get it again.")
    return tuple(names[number].strip("/").partition("/")[2] for number in range(len(names)))


def _sun_split(
    name: str, root: Path, listed: Path, numbers: dict[str, int], checks: DatasetChecks
) -> Split:
    """A part by its list, whose lines are `/a/abbey/sun_aaalbzqrimafwbiv.jpg`."""
    builder = SplitBuilder(name, root)
    for line in lines(listed):
        path = line.strip("/")
        class_ = path.rpartition("/")[0]
        if class_ not in numbers:
            raise DatasetError(f"{listed} has {line}, whose class is not in {SUN_CLASS_LIST}.")
        builder.add(path, numbers[class_])
    return builder.split(len(numbers), checks)


def _sun_pictures(root: Path, classes: list[str]) -> int:
    """Number of images, listed or not."""
    folders = [root / class_ for class_ in classes if (root / class_).is_dir()]
    return sum(path.name.startswith("sun_") for folder in folders for path in folder.iterdir())


PICTURE = 3 * 32 * 32
"""Bytes of an image: 32 x 32 pixels as three planes."""

TRAIN, TEST = 50_000, 10_000


class Layout(NamedTuple):
    """What differs between CIFAR-10 and CIFAR-100."""

    folder: str
    """Folder of the archive."""

    names: str
    """File with one class name per line."""

    train: tuple[str, ...]
    test: tuple[str, ...]

    label_bytes: int
    """Label bytes before each image; the last is the label."""

    classes: int


TEN = Layout(
    folder="cifar-10-batches-bin",
    names="batches.meta.txt",
    train=tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    test=("test_batch.bin",),
    label_bytes=1,
    classes=10,
)
HUNDRED = Layout(
    folder="cifar-100-binary",
    names="fine_label_names.txt",
    train=("train.bin",),
    test=("test.bin",),
    label_bytes=2,
    classes=100,
)


def cifar_10(folder: Path, checks: DatasetChecks) -> LabeledDataset:
    """`cifar-10-batches-bin/{data_batch_1 ... 5,test_batch}.bin` and `batches.meta.txt`."""
    return _read(folder, TEN, checks)


def cifar_100(folder: Path, checks: DatasetChecks) -> LabeledDataset:
    """`cifar-100-binary/{train,test}.bin` and `fine_label_names.txt`; fine labels."""
    return _read(folder, HUNDRED, checks)


def _read(folder: Path, layout: Layout, checks: DatasetChecks) -> LabeledDataset:
    """Read either dataset in its binary version; the Python version is pickled."""
    needed = (layout.names, *layout.train, *layout.test)
    if not any((folder / name / layout.names).exists() for name in ("", layout.folder)):
        checks.report(
            "the binary version is needed (its archive's name ends in -binary.tar.gz), not the "
            "Python or the MATLAB version"
        )
    root = checks.find(folder, needed, (layout.folder,))
    classes = tuple(lines(root / layout.names))
    train = _records("train", root, layout, checks).split(len(classes), checks)
    test = _records("test", root, layout, checks).split(len(classes), checks)
    checks.expect("classes", len(classes), layout.classes)
    checks.expect("train images", len(train), TRAIN)
    checks.expect("test images", len(test), TEST)
    for split, images in ((train, TRAIN), (test, TEST)):
        what = f"{split.name} images of a class"
        each = images // layout.classes
        checks.expect_each(what, np.asarray(split.labels), len(classes), each)
    return LabeledDataset(name=checks.name, kind="classes", classes=classes, train=train, test=test)


def _records(part: str, root: Path, layout: Layout, checks: DatasetChecks) -> SplitBuilder:
    """The records of a split, which are read in place."""
    builder = SplitBuilder(part, root)
    record = layout.label_bytes + PICTURE
    for name in layout.train if part == "train" else layout.test:
        path = absolute(root / name)
        numbers = np.fromfile(path, np.uint8)
        count, rest = divmod(len(numbers), record)
        if rest:
            checks.report(f"{path} has {len(numbers):,} bytes, no multiple of {record:,}")
        labels = numbers[layout.label_bytes - 1 :: record][:count].tolist()
        for row, label in enumerate(labels):
            start = row * record + layout.label_bytes
            member = member_name(path, f"{row:05d}{RAW_SUFFIX}")
            builder.add_found(ImageEntry(member, PICTURE, path, start), label)
    return builder


PICTURES = "101_ObjectCategories"

OF_A_CLASS = 30
"""Training images per class, as in the literature."""


def caltech_101(folder: Path, checks: DatasetChecks) -> LabeledDataset:
    """`101_ObjectCategories/<class>/`, `BACKGROUND_Google` being the 102nd class.

    There is no published split: papers draw 30 training images per class and test on the rest.
    Here these are the 30 whose names (`<class>/<file>`) have the lowest hashes. A background image
    `tmp` without an ending is skipped; with it there are 9,145.
    """
    root = checks.find(folder, (PICTURES,), ("caltech-101", "caltech101"))
    found = read_class_folders(root / PICTURES, root, checks)
    classes = tuple(sorted(found.names))
    whole = found.split(classes, checks)
    labels = np.asarray(whole.labels)
    order = [key(name.removeprefix(f"{PICTURES}{os.sep}")) for name in whole.keys]
    builders = SplitBuilder("train", root), SplitBuilder("test", root)
    for label in range(len(classes)):
        rows = np.flatnonzero(labels == label).tolist()
        drawn = set(sorted(rows, key=order.__getitem__)[:OF_A_CLASS])
        for row in rows:
            builders[row not in drawn].add_found(whole.image(row), label)
    train, test = (builder.split(len(classes), checks) for builder in builders)
    checks.expect("classes", len(classes), 102)
    checks.expect("train images", len(train), 3_060)
    checks.expect("test images", len(test), 6_084)
    return LabeledDataset(
        name=checks.name,
        kind="classes",
        classes=classes,
        train=train,
        test=test,
        per_class=True,
        facts={"split": "30 images of each class by hash of their names, the rest to test on"},
    )


CLASSES = ("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow",
           "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa",
           "train", "tvmonitor")  # fmt: skip

PARTS = {"trainval": 5_011, "test": 4_952}
LISTS = "ImageSets/Main"
PRESENT, DIFFICULT, ABSENT = 1, 0, -1


def voc2007(folder: Path, checks: DatasetChecks) -> LabeledDataset:
    """VOC 2007: `VOCdevkit/VOC2007/{JPEGImages,ImageSets/Main}`; an image shows 1 to 20 classes.

    The list of a class has 1 for images that show it, -1 for others, and 0 if all its objects are
    marked as difficult. By the rules of the challenge the last count neither as present nor as
    absent. The test archive is unpacked into the same folder.
    """
    needed = ["JPEGImages"]
    for part in PARTS:
        needed += [f"{LISTS}/{part}.txt", *(f"{LISTS}/{name}_{part}.txt" for name in CLASSES)]
    root = checks.find(folder, needed, ("VOC2007", "VOCdevkit/VOC2007"))
    trainval, test = (_split(part, root, checks) for part in PARTS)
    for split in (trainval, test):
        checks.expect(f"{split.name} images", len(split), PARTS[split.name])
    return LabeledDataset(
        name=checks.name,
        kind="classes",
        classes=CLASSES,
        train=trainval,
        test=test,
        facts={"difficult": "left out of the score of their class"},
    )


def _split(part: str, root: Path, checks: DatasetChecks) -> Split:
    """A split with its labels (N, 20)."""
    names = list(lines(root / LISTS / f"{part}.txt"))
    builder = SplitBuilder(part, root)
    for row, name in enumerate(names):
        builder.add(f"JPEGImages/{name}.jpg", row)
    found = builder.split(max(len(names), 1), checks)
    shown = np.stack([_shown(root / LISTS / f"{name}_{part}.txt", names) for name in CLASSES], 1)
    shown = shown[np.asarray(found.labels)]
    return replace(found, labels=shown == PRESENT, counted=shown != DIFFICULT)


def _shown(path: Path, names: list[str]) -> NDArray[np.int64]:
    """The marks of a class for each image, joined by name (N)."""
    listed = {name: whole(mark, path) for name, mark in rows(path, 2)}
    marks = [listed.get(name) for name in names]
    for name, mark in zip(names, marks, strict=True):
        if mark not in (PRESENT, DIFFICULT, ABSENT):
            raise DatasetError(
                f"{path} has {mark} for {name}; allowed are 1, 0 and -1: get it again."
            )
    return np.array(marks, np.int64)


CARS_TEST_LABELS = "cars_test_annos_withlabels.mat"

FLOWERS = (
    "pink primrose", "hard-leaved pocket orchid", "canterbury bells", "sweet pea",
    "english marigold", "tiger lily", "moon orchid", "bird of paradise", "monkshood",
    "globe thistle", "snapdragon", "colt's foot", "king protea", "spear thistle", "yellow iris",
    "globe-flower", "purple coneflower", "peruvian lily", "balloon flower",
    "giant white arum lily", "fire lily", "pincushion flower", "fritillary", "red ginger",
    "grape hyacinth", "corn poppy", "prince of wales feathers", "stemless gentian", "artichoke",
    "sweet william", "carnation", "garden phlox", "love in the mist", "mexican aster",
    "alpine sea holly", "ruby-lipped cattleya", "cape flower", "great masterwort", "siam tulip",
    "lenten rose", "barbeton daisy", "daffodil", "sword lily", "poinsettia", "bolero deep blue",
    "wallflower", "marigold", "buttercup", "oxeye daisy", "common dandelion", "petunia",
    "wild pansy", "primula", "sunflower", "pelargonium", "bishop of llandaff", "gaura",
    "geranium", "orange dahlia", "pink-yellow dahlia", "cautleya spicata", "japanese anemone",
    "black-eyed susan", "silverbush", "californian poppy", "osteospermum", "spring crocus",
    "bearded iris", "windflower", "tree poppy", "gazania", "azalea", "water lily", "rose",
    "thorn apple", "morning glory", "passion flower", "lotus", "toad lily", "anthurium",
    "frangipani", "clematis", "hibiscus", "columbine", "desert-rose", "tree mallow", "magnolia",
    "cyclamen", "watercress", "canna lily", "hippeastrum", "bee balm", "ball moss", "foxglove",
    "bougainvillea", "camellia", "mallow", "mexican petunia", "bromelia", "blanket flower",
    "trumpet creeper", "blackberry lily",
)  # fmt: skip
"""Names by number, from the authors' page: the files hold numbers only."""


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
    classes = tuple(str(name) for name in np.ravel(names))
    train = _cars_split("train", root, root / "devkit/cars_train_annos.mat", classes, checks)
    test = _cars_split("test", root, listed[0], classes, checks)
    checks.expect("classes", len(classes), 196)
    checks.expect("train images", len(train), 8_144)
    checks.expect("test images", len(test), 8_041)
    return LabeledDataset(name=checks.name, kind="classes", classes=classes, train=train, test=test)


def flowers_102(folder: Path, checks: DatasetChecks) -> LabeledDataset:
    """`imagelabels.mat`, `setid.mat` and `jpg/image_00001.jpg` ...; classes are numbered from 1.

    The test split is the large one (`tstid`); some papers train on it instead.
    """
    root = checks.find(folder, ("jpg", "imagelabels.mat", "setid.mat"), ("flowers-102",))
    labels = np.ravel(read_matlab(root / "imagelabels.mat", "labels")).astype(np.int64) - 1
    train = _flowers_split("train", "trnid", root, labels, checks)
    val = _flowers_split("val", "valid", root, labels, checks)
    test = _flowers_split("test", "tstid", root, labels, checks)
    checks.expect("classes", len(np.unique(labels)), len(FLOWERS))
    checks.expect("pictures", len(labels), 8_189)
    checks.expect("train images", len(train), 1_020)
    checks.expect("val images", len(val), 1_020)
    checks.expect("test images", len(test), 6_149)
    for split in (train, val):
        each = f"{split.name} images of a class"
        checks.expect_each(each, np.asarray(split.labels), len(FLOWERS), 10)
    return LabeledDataset(
        name=checks.name,
        kind="classes",
        classes=FLOWERS,
        train=train,
        val=val,
        test=test,
        per_class=True,
    )


def _cars_split(
    part: str, root: Path, listed: Path, classes: tuple[str, ...], checks: DatasetChecks
) -> Split:
    """A split by its records, of which file name and class are used."""
    records = read_matlab(listed, "annotations")
    fields = records.dtype.names or ()
    if not {"fname", "class"} <= set(fields):
        raise DatasetError(
            f"{listed} has no classes, only {', '.join(fields)}; get the one with them."
        )
    builder = SplitBuilder(part, root)
    for record in records:
        try:
            label = int(record["class"]) - 1
        except (TypeError, ValueError) as error:
            raise DatasetError(
                f"{listed} has {record['class']!r} as the class of {record['fname']}, not an "
                "integer; get it again."
            ) from error
        builder.add(f"cars_{part}/{record['fname']}", label)
    return builder.split(len(classes), checks)


def _flowers_split(
    part: str, variable: str, root: Path, labels: NDArray[np.int64], checks: DatasetChecks
) -> Split:
    """A split by its image numbers, from 1."""
    numbers: Iterable[int] = np.ravel(read_matlab(root / "setid.mat", variable)).tolist()
    builder = SplitBuilder(part, root)
    for number in numbers:
        if not 1 <= number <= len(labels):
            raise DatasetError(
                f"{root / 'setid.mat'} has image {number}, but imagelabels.mat has "
                f"{len(labels):,} labels; get both again."
            )
        builder.add(f"jpg/image_{number:05d}.jpg", int(labels[number - 1]))
    return builder.split(len(FLOWERS), checks)
