"""ImageNet-1K, and ImageNetV2 and ReaL, on which its heads are evaluated too.

A class is a WordNet id such as n01440764; its number is its position among the sorted 1,000.
"""

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veca.data.sets.dataset import (
    DatasetChecks,
    DatasetError,
    LabeledDataset,
    Split,
    build_split,
    lines,
    numbered,
    read_json,
)
from veca.data.sets.folders import has_folders, images_below, read_class_folders

CLASSES = 1000

KAGGLE = "ILSVRC/Data/CLS-LOC"
"""Where the competition's download keeps train/ and val/."""

SOLUTION = "LOC_val_solution.csv"
"""Kaggle's list of validation images and their classes."""

REAL_LIST = "real.json"
"""The list of ReaL: 50,000 lists of class numbers."""

V2_FOLDERS = (
    "imagenetv2-matched-frequency-format-val",
    "imagenetv2-matched-frequency",
    "imagenet-matched-frequency-format-val",
)
"""The variant that papers report, under the names of its archives."""

VAL_NAME = re.compile(r"ILSVRC2012_val_(\d{8})\.jpe?g", re.IGNORECASE)
WORDNET_ID = re.compile(r"n\d{8}")


def imagenet_1k(folder: Path, checks: DatasetChecks) -> LabeledDataset:
    """`train/<wnid>/` (or `train/<wnid>.tar`) and `val/<wnid>/`, or a flat `val/` with a list.

    The list is LOC_val_solution.csv of the Kaggle download. `val` is the test split: the labels of
    the test images are not public.
    """
    root = checks.find(folder, ("train", "val"), (KAGGLE,))
    train, classes = read_class_folders(root / "train", root, checks)
    solutions = [place / SOLUTION for place in (root, folder) if (place / SOLUTION).exists()]
    if has_folders(root / "val") or not solutions:
        val, _ = read_class_folders(root / "val", root, checks, classes)
    else:
        # A line is `ILSVRC2012_val_00000001,n01751748 111 108 ...`, below a line of titles.
        listed = (line.partition(",") for line in lines(solutions[0]))
        named = (
            (f"val/{image}.JPEG", boxes.split(" ")[0])
            for image, _, boxes in listed
            if image != "ImageId"
        )
        val = build_split("val", root, numbered(named, classes, solutions[0]), checks)
    counts = {"classes": CLASSES, "train": 1_281_167, "val": 50_000, "val/class": 50}
    return checks.dataset("classes", [train, val], counts, classes=classes)


def imagenet_v2(folder: Path, checks: DatasetChecks) -> LabeledDataset:
    """`<class number>/`: the name of the folder is the number, so 10 comes after 9, not after 1.

    An older archive has WordNet ids instead; all 1,000 must be there to number them.
    """
    places = (folder, *(folder / name for name in V2_FOLDERS))
    root = next((place for place in places if _has_classes(place)), None)
    if root is None:
        raise checks.lacking(folder / "0")
    found, names = read_class_folders(root, root, checks)
    if len(names) == CLASSES and all(WORDNET_ID.fullmatch(name) for name in names):
        numbers = np.arange(CLASSES)
    elif others := [name for name in names if not name.isdecimal()]:
        raise DatasetError(
            f"{root} has the folder {others[0]!r}; allowed are the numbers 0 ... 999, or all 1,000 "
            "WordNet ids and nothing else."
        )
    else:
        numbers = np.array([int(name) for name in names])
    test = replace(found, name="test", labels=numbers[np.asarray(found.labels)])
    checks.expect("classes", len(numbers), CLASSES)
    return _test_set(checks, test, {"test": 10_000, "test/class": 10}, {"variant": root.name})


def imagenet_real(folder: Path, checks: DatasetChecks) -> LabeledDataset:
    """The folder of ImageNet-1K with real.json in it; `val/` may be flat or in class folders.

    An image has several labels or none; those with none (3,163 of 50,000) are left out. The list is
    joined by the number in the name of an image, which is its place in the list, counted from 1.
    """
    root = checks.find(folder, ("val",), (KAGGLE,))
    listed = (folder if (folder / REAL_LIST).exists() else root) / REAL_LIST
    checks.require(listed)
    real = _real_labels(listed)
    found = {
        int(match[1]): entry
        for name, entry in images_below(root / "val", checks)
        if (match := VAL_NAME.fullmatch(name.rpartition(os.sep)[2]))
    }
    images = [
        (found[number], number - 1)
        for number in sorted(found)
        if number <= len(real) and real[number - 1].any()
    ]
    split = build_split("val", root, images, checks)
    test = replace(split, labels=real[np.asarray(split.labels)])
    checks.expect(f"lists in {REAL_LIST}", len(real), 50_000)
    checks.expect("val images", len(found), 50_000)
    checks.expect("val images with labels", len(test), 46_837)
    return _test_set(checks, test, {}, {"pictures_without_labels": int((~real.any(1)).sum())})


def _test_set(
    checks: DatasetChecks, test: Split, counts: dict[str, int], facts: dict[str, Any]
) -> LabeledDataset:
    """A dataset on which heads of ImageNet-1K are evaluated."""
    classes = [str(number) for number in range(CLASSES)]
    return checks.dataset(
        "classes", [test], counts, classes=classes, uses_head_of="imagenet-1k", facts=facts
    )


def _has_classes(folder: Path) -> bool:
    """Whether there are folders of ImageNetV2's kinds."""
    if not folder.is_dir():
        return False
    names = [path.name for path in folder.iterdir() if path.is_dir()]
    return any(name.isdecimal() or WORDNET_ID.fullmatch(name) for name in names)


def _real_labels(path: Path) -> NDArray[np.bool_]:
    """Which classes each image has (images, 1,000)."""
    listed = read_json(path)
    if not isinstance(listed, list) or not all(isinstance(some, list) for some in listed):
        raise DatasetError(f"{path} is not a list of lists of class numbers; get it again.")
    labels = np.zeros((len(listed), CLASSES), np.bool_)
    for row, some in enumerate(listed):
        if not all(isinstance(number, int) and 0 <= number < CLASSES for number in some):
            raise DatasetError(f"{path} has {some} at place {row}; classes are 0 ... 999.")
        labels[row, some] = True
    return labels
