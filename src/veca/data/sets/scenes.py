"""Sets of scenes: Places365-Standard and SUN397."""

from pathlib import Path

import numpy as np

from veca.data.labelled import LabelledSet, Split
from veca.data.sets.counts import Checker, SetError
from veca.data.sets.lists import lines, rows, whole
from veca.data.sets.parts import PartBuilder

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
"""Folders of the training and validation pictures: 256 x 256 pixels, or as large as they come; the
archives unpack to names without `_standard`."""

SUN_CLASSES = 397
SUN_PICTURES = 108_754
SUN_PART = 19_850
SUN_CLASS_LIST = "ClassName.txt"
SUN_LISTS = {"train": "Training_01.txt", "test": "Testing_01.txt"}


def places365(folder: Path, checker: Checker) -> LabelledSet:
    """Lists of `path class` beside `data_256_standard/` and `val_256/`, or the large pictures.

    Numbers are reported on `val`; the labels of the test pictures are not public.
    """
    root = checker.find(folder, (PLACES_CATEGORIES, *PLACES_LISTS.values()))
    folders = _places_folders(root, checker)
    classes = _places_classes(root / PLACES_CATEGORIES)
    splits = {}
    for (name, listed), pictures in zip(PLACES_LISTS.items(), folders, strict=True):
        builder = PartBuilder(name, root)
        for path, label in rows(root / listed, 2):
            builder.add(f"{pictures}/{path.lstrip('/')}", whole(label, root / listed))
        splits[name] = builder.split(len(classes), checker)
    train, val = splits["train"], splits["val"]
    checker.expect("classes", len(classes), PLACES_CLASSES)
    checker.expect("train pictures", len(train), PLACES_TRAIN)
    checker.expect("val pictures", len(val), PLACES_VAL)
    checker.expect_each("val pictures of a class", np.asarray(val.labels), len(classes), 100)
    return LabelledSet(
        name=checker.name,
        kind="classes",
        classes=classes,
        train=train,
        test=val,
        facts={"pictures": folders[0]},
    )


def sun397(folder: Path, checker: Checker) -> LabelledSet:
    """`SUN397/<letter>/<class>/`, with partition 01 of the makers' ten: 50 + 50 of each class.

    A class may have two levels, as `b/bow_window/indoor`; so a picture's class is all of its path.
    The lists come in an archive of their own and are looked for beside the pictures, in the folder
    given, and in a folder `Partitions` of either.
    """
    root = checker.find(folder, (SUN_CLASS_LIST, "a"), ("SUN397",))
    homes = [folder, folder / "Partitions", root, root / "Partitions"]
    home = next((home for home in homes if (home / SUN_LISTS["train"]).exists()), folder)
    checker.require(*(home / listed for listed in SUN_LISTS.values()))
    paths = [path.strip("/") for path in lines(root / SUN_CLASS_LIST)]
    numbers = {path: number for number, path in enumerate(paths)}
    splits = {
        name: _sun_split(name, root, home / listed, numbers, checker)
        for name, listed in SUN_LISTS.items()
    }
    checker.expect("classes", len(paths), SUN_CLASSES)
    checker.expect("pictures", _sun_pictures(root, paths), SUN_PICTURES)
    for name, split in splits.items():
        checker.expect(f"{name} pictures", len(split), SUN_PART)
        each = f"{name} pictures of a class"
        checker.expect_each(each, np.asarray(split.labels), len(paths), 50)
    return LabelledSet(
        name=checker.name,
        kind="classes",
        classes=tuple(path.partition("/")[2] for path in paths),
        train=splits["train"],
        test=splits["test"],
        facts={"partition": "01 of 10"},
    )


def _places_folders(root: Path, checker: Checker) -> tuple[str, str]:
    """The folders that hold the pictures."""
    for folders in PLACES_FOLDERS:
        if all((root / name).is_dir() for name in folders):
            return folders
    raise checker.lacking(*(root / name for name in PLACES_FOLDERS[0]))


def _places_classes(path: Path) -> tuple[str, ...]:
    """Class names by number; lines are `/a/airfield 0`."""
    names = {whole(number, path): name for name, number in rows(path, 2)}
    if sorted(names) != list(range(len(names))):
        raise SetError(f"{path} does not number its classes 0, 1, 2, ...; get it again.")
    return tuple(names[number].strip("/").partition("/")[2] for number in range(len(names)))


def _sun_split(
    name: str, root: Path, listed: Path, numbers: dict[str, int], checker: Checker
) -> Split:
    """A part by its list, whose lines are `/a/abbey/sun_aaalbzqrimafwbiv.jpg`."""
    builder = PartBuilder(name, root)
    for line in lines(listed):
        path = line.strip("/")
        class_ = path.rpartition("/")[0]
        if class_ not in numbers:
            raise SetError(f"{listed} has {line}, whose class is not in {SUN_CLASS_LIST}.")
        builder.add(path, numbers[class_])
    return builder.split(len(numbers), checker)


def _sun_pictures(root: Path, classes: list[str]) -> int:
    """How many pictures there are, listed or not."""
    folders = [root / class_ for class_ in classes if (root / class_).is_dir()]
    return sum(path.name.startswith("sun_") for folder in folders for path in folder.iterdir())
