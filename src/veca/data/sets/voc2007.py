"""PASCAL VOC 2007 classification: 20 classes, of which a picture shows one or more.

A list of each class says 1 where a picture shows it, -1 where not, and 0 where it shows the class
only in objects that are marked as difficult. By the rules of the challenge the last count neither
as present nor as absent: such a picture is left out when that class is scored.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from veca.data.labelled import LabelledSet, Split
from veca.data.sets.counts import Checker, SetError
from veca.data.sets.lists import lines, rows, whole
from veca.data.sets.parts import PartBuilder

CLASSES = ("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow",
           "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa",
           "train", "tvmonitor")  # fmt: skip

PARTS = {"trainval": 5_011, "test": 4_952}
LISTS = "ImageSets/Main"
PRESENT, DIFFICULT, ABSENT = 1, 0, -1


def voc2007(folder: Path, checker: Checker) -> LabelledSet:
    """`VOCdevkit/VOC2007/{JPEGImages,ImageSets/Main}`, with the test archive unpacked into it."""
    needed = ["JPEGImages"]
    for part in PARTS:
        needed += [f"{LISTS}/{part}.txt", *(f"{LISTS}/{name}_{part}.txt" for name in CLASSES)]
    root = checker.find(folder, needed, ("VOC2007", "VOCdevkit/VOC2007"))
    trainval, test = (_split(part, root, checker) for part in PARTS)
    for split in (trainval, test):
        checker.expect(f"{split.name} pictures", len(split), PARTS[split.name])
    return LabelledSet(
        name=checker.name,
        kind="classes",
        classes=CLASSES,
        train=trainval,
        test=test,
        facts={"difficult": "left out of the score of their class"},
    )


def _split(part: str, root: Path, checker: Checker) -> Split:
    """A part with its labels (N, 20)."""
    names = list(lines(root / LISTS / f"{part}.txt"))
    builder = PartBuilder(part, root)
    for row, name in enumerate(names):
        builder.add(f"JPEGImages/{name}.jpg", row)
    found = builder.split(max(len(names), 1), checker)
    shown = np.stack([_shown(root / LISTS / f"{name}_{part}.txt", names) for name in CLASSES], 1)
    shown = shown[np.asarray(found.labels)]
    return replace(found, labels=shown == PRESENT, counted=shown != DIFFICULT)


def _shown(path: Path, names: list[str]) -> NDArray[np.int64]:
    """What the list of a class says of each picture, joined by name (N)."""
    listed = {name: whole(mark, path) for name, mark in rows(path, 2)}
    marks = [listed.get(name) for name in names]
    for name, mark in zip(names, marks, strict=True):
        if mark not in (PRESENT, DIFFICULT, ABSENT):
            raise SetError(f"{path} says {mark} of {name}; allowed are 1, 0 and -1: get it again.")
    return np.array(marks, np.int64)
