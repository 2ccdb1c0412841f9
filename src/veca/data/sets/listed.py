"""Sets whose makers list pictures in text files: Food-101, pets, birds, aircraft and textures."""

from functools import partial
from pathlib import Path

import numpy as np

from veca.data.labelled import LabelledSet, Split
from veca.data.sets.counts import Checker, SetError
from veca.data.sets.lists import lines, read_json, rows, whole
from veca.data.sets.parts import PartBuilder


def food101(folder: Path, checker: Checker) -> LabelledSet:
    """`meta/{classes.txt,train.json,test.json}` and `images/<class>/<number>.jpg`.

    The JSON files map each class to names below `images/`, without their ending. The labels of the
    training pictures are noisy on purpose.
    """
    needed = ("images", "meta/classes.txt", "meta/train.json", "meta/test.json")
    root = checker.find(folder, needed, ("food-101",))
    classes = tuple(sorted(lines(root / "meta/classes.txt")))
    train, test = (_food_split(part, root, classes, checker) for part in ("train", "test"))
    checker.expect("classes", len(classes), 101)
    _expect(checker, train, 75_750, each=750, num_classes=len(classes))
    _expect(checker, test, 25_250, each=250, num_classes=len(classes))
    return LabelledSet(name=checker.name, kind="classes", classes=classes, train=train, test=test)


def oxford_pets(folder: Path, checker: Checker) -> LabelledSet:
    """`annotations/{trainval,test}.txt` and `images/<Breed>_<number>.jpg`.

    Columns are name, class from 1, species and breed within the species; only the second counts.
    """
    parts = {"trainval": 3_680, "test": 3_669}
    needed = ("images", *(f"annotations/{part}.txt" for part in parts))
    root = checker.find(folder, needed, ("oxford-iiit-pet",))
    names: dict[int, str] = {}
    builders = []
    for part in parts:
        listed = root / f"annotations/{part}.txt"
        builder = PartBuilder(part, root)
        for picture, class_, _, _ in rows(listed, 4):
            label = whole(class_, listed) - 1
            names[label] = picture.rpartition("_")[0]
            builder.add(f"images/{picture}.jpg", label)
        builders.append(builder)
    classes = tuple(names.get(label, str(label)) for label in range(max(names, default=-1) + 1))
    train, test = (builder.split(len(classes), checker) for builder in builders)
    checker.expect("classes", len(names), 37)
    for split in (train, test):
        _expect(checker, split, parts[split.name])
    return LabelledSet(
        name=checker.name, kind="classes", classes=classes, train=train, test=test, per_class=True
    )


def cub_200(folder: Path, checker: Checker) -> LabelledSet:
    """Four lists, `classes`, `images`, `image_class_labels` and `train_test_split`, joined by id.

    Classes are counted from 1; 1 in the last list means training. Whole pictures are used, not cut
    to the bird's box.
    """
    names = ("classes", "images", "image_class_labels", "train_test_split")
    needed = ("images", *(f"{name}.txt" for name in names))
    root = checker.find(folder, needed, ("CUB_200_2011",))
    listed = {name: dict(rows(root / f"{name}.txt", 2)) for name in names}
    classes = listed["classes"]
    ordered = sorted(classes, key=partial(whole, path=root / "classes.txt"))
    numbers = {number: place for place, number in enumerate(ordered)}
    builders = {"1": PartBuilder("train", root), "0": PartBuilder("test", root)}
    for id_, picture in listed["images"].items():
        class_, part = listed["image_class_labels"].get(id_), listed["train_test_split"].get(id_)
        if class_ not in numbers or part not in builders:
            raise SetError(
                f"{root}: picture {id_}, {picture}, has the class {class_} and the part {part}; "
                "classes are numbers of classes.txt, parts are 1 and 0: get the lists again."
            )
        builders[part].add(f"images/{picture}", numbers[class_])
    train, test = (builder.split(len(classes), checker) for builder in builders.values())
    checker.expect("classes", len(classes), 200)
    checker.expect("pictures", len(listed["images"]), 11_788)
    _expect(checker, train, 5_994)
    _expect(checker, test, 5_794)
    return LabelledSet(
        name=checker.name,
        kind="classes",
        classes=tuple(classes[number].partition(".")[2] for number in numbers),
        train=train,
        test=test,
    )


def fgvc_aircraft(folder: Path, checker: Checker) -> LabelledSet:
    """`data/images_variant_{train,val,test}.txt`, `data/variants.txt` and `data/images/`.

    The 100 variants are the classes, not the families or manufacturers. The makers ask to cut off
    the lowest 20 pixels, a line with the photographer's name; evaluations in general do not, nor
    does this one.
    """
    parts = {"train": 3_334, "val": 3_333, "test": 3_333}
    lists = {part: f"data/images_variant_{part}.txt" for part in parts}
    needed = ("data/images", "data/variants.txt", *lists.values())
    root = checker.find(folder, needed, ("fgvc-aircraft-2013b",))
    classes = tuple(lines(root / "data/variants.txt"))
    numbers = {name: number for number, name in enumerate(classes)}
    splits = {}
    for part, listed in lists.items():
        builder = PartBuilder(part, root)
        for picture, class_ in rows(root / listed, 2):
            if class_ not in numbers:
                raise SetError(f"{root / listed} has {class_!r}, which is not in variants.txt.")
            builder.add(f"data/images/{picture}.jpg", numbers[class_])
        splits[part] = builder.split(len(classes), checker)
    checker.expect("classes", len(classes), 100)
    for part, split in splits.items():
        _expect(checker, split, parts[part])
    return LabelledSet(
        name=checker.name,
        kind="classes",
        classes=classes,
        train=splits["train"],
        held_out=splits["val"],
        test=splits["test"],
        per_class=True,
        facts={"classes_are": "variants", "banner": "kept"},
    )


def dtd(folder: Path, checker: Checker) -> LabelledSet:
    """`labels/{train,val,test}1.txt` and `images/<texture>/`, the first of ten partitions."""
    parts = ("train", "val", "test")
    needed = ("images", *(f"labels/{part}1.txt" for part in parts))
    root = checker.find(folder, needed, ("dtd",))
    listed = {part: list(lines(root / f"labels/{part}1.txt")) for part in parts}
    classes = tuple(sorted({path.partition("/")[0] for part in parts for path in listed[part]}))
    numbers = {name: number for number, name in enumerate(classes)}
    splits = {}
    for part in parts:
        builder = PartBuilder(part, root)
        for path in listed[part]:
            builder.add(f"images/{path}", numbers[path.partition("/")[0]])
        splits[part] = builder.split(len(classes), checker)
    checker.expect("classes", len(classes), 47)
    for split in splits.values():
        _expect(checker, split, 1_880, each=40, num_classes=len(classes))
    return LabelledSet(
        name=checker.name,
        kind="classes",
        classes=classes,
        train=splits["train"],
        held_out=splits["val"],
        test=splits["test"],
        facts={"partition": "1 of 10"},
    )


def _food_split(part: str, root: Path, classes: tuple[str, ...], checker: Checker) -> Split:
    """A part by its JSON file."""
    path = root / f"meta/{part}.json"
    listed = read_json(path)
    if not isinstance(listed, dict) or not set(listed) <= set(classes):
        raise SetError(f"{path} is no map from the names in classes.txt to pictures; get it again.")
    builder = PartBuilder(part, root)
    for number, name in enumerate(classes):
        for picture in listed.get(name, ()):
            builder.add(f"images/{picture}.jpg", number)
    return builder.split(len(classes), checker)


def _expect(
    checker: Checker, split: Split, pictures: int, *, each: int = 0, num_classes: int = 0
) -> None:
    """Compare a part with what is published of it: its pictures and, if given, those of a class."""
    checker.expect(f"{split.name} pictures", len(split), pictures)
    if each:
        what = f"{split.name} pictures of a class"
        checker.expect_each(what, np.asarray(split.labels), num_classes, each)
