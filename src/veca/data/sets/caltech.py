"""Caltech-101: pictures of 101 kinds of objects, and of none."""

import os
from pathlib import Path

import numpy as np

from veca.data.labelled import LabelledSet
from veca.data.names import key
from veca.data.sets.class_folders import read_class_folders
from veca.data.sets.counts import Checker
from veca.data.sets.parts import PartBuilder

PICTURES = "101_ObjectCategories"

OF_A_CLASS = 30
"""Training pictures of each class, as in the literature."""


def caltech_101(folder: Path, checker: Checker) -> LabelledSet:
    """`101_ObjectCategories/<class>/`, `BACKGROUND_Google` being the 102nd class.

    The makers have no split: papers draw 30 pictures of each class to train on and test on the
    rest, each in its own way. Here the 30 are those whose names (`<class>/<file>`) have the lowest
    hashes, which is the same draw everywhere. A file `tmp` without an ending, a picture of the
    background, is left out; with it there are 9,145.
    """
    root = checker.find(folder, (PICTURES,), ("caltech-101", "caltech101"))
    found = read_class_folders(root / PICTURES, root, checker)
    classes = tuple(sorted(found.names))
    whole = found.split(classes, checker)
    labels = np.asarray(whole.labels)
    order = [key(name.removeprefix(f"{PICTURES}{os.sep}")) for name in whole.keys]
    builders = PartBuilder("train", root), PartBuilder("test", root)
    for label in range(len(classes)):
        rows = np.flatnonzero(labels == label).tolist()
        drawn = set(sorted(rows, key=order.__getitem__)[:OF_A_CLASS])
        for row in rows:
            builders[row not in drawn].add_found(whole.picture(row), label)
    train, test = (builder.split(len(classes), checker) for builder in builders)
    checker.expect("classes", len(classes), 102)
    checker.expect("train pictures", len(train), 3_060)
    checker.expect("test pictures", len(test), 6_084)
    return LabelledSet(
        name=checker.name,
        kind="classes",
        classes=classes,
        train=train,
        test=test,
        per_class=True,
        facts={"split": "30 pictures of each class by hash of their names, the rest to test on"},
    )
