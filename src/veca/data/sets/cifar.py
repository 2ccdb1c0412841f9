"""CIFAR-10 and CIFAR-100 in their binary version; the Python version is pickled, so it is not read.

A record is the label, in CIFAR-100 after that of its superclass, and a picture of 32 x 32 pixels as
three planes. Pictures are read where they lie.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from veca.data.input_table import Input
from veca.data.labelled import LabelledSet
from veca.data.names import absolute, member_name
from veca.data.raw_records import RAW_SUFFIX
from veca.data.sets.counts import Checker
from veca.data.sets.lists import lines
from veca.data.sets.parts import PartBuilder

PICTURE = 3 * 32 * 32
"""Bytes of a picture."""

TRAIN, TEST = 50_000, 10_000


class Layout(NamedTuple):
    """What differs between the two sets."""

    folder: str
    """As the archive unpacks."""

    names: str
    """File with a class name a line."""

    train: tuple[str, ...]
    test: tuple[str, ...]

    label_bytes: int
    """Before each picture; the last is the label."""

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


def cifar_10(folder: Path, checker: Checker) -> LabelledSet:
    """`cifar-10-batches-bin/{data_batch_1 ... 5,test_batch}.bin` and `batches.meta.txt`."""
    return _read(folder, TEN, checker)


def cifar_100(folder: Path, checker: Checker) -> LabelledSet:
    """`cifar-100-binary/{train,test}.bin` and `fine_label_names.txt`; the fine labels count."""
    return _read(folder, HUNDRED, checker)


def _read(folder: Path, layout: Layout, checker: Checker) -> LabelledSet:
    """Either set."""
    needed = (layout.names, *layout.train, *layout.test)
    if not any((folder / name / layout.names).exists() for name in ("", layout.folder)):
        checker.report(
            "the binary version is needed (its archive's name ends in -binary.tar.gz), not the "
            "Python or the MATLAB version"
        )
    root = checker.find(folder, needed, (layout.folder,))
    classes = tuple(lines(root / layout.names))
    train = _pictures("train", root, layout, checker).split(len(classes), checker)
    test = _pictures("test", root, layout, checker).split(len(classes), checker)
    checker.expect("classes", len(classes), layout.classes)
    checker.expect("train pictures", len(train), TRAIN)
    checker.expect("test pictures", len(test), TEST)
    for split, pictures in ((train, TRAIN), (test, TEST)):
        what = f"{split.name} pictures of a class"
        each = pictures // layout.classes
        checker.expect_each(what, np.asarray(split.labels), len(classes), each)
    return LabelledSet(name=checker.name, kind="classes", classes=classes, train=train, test=test)


def _pictures(part: str, root: Path, layout: Layout, checker: Checker) -> PartBuilder:
    """The records of a part."""
    builder = PartBuilder(part, root)
    record = layout.label_bytes + PICTURE
    for name in layout.train if part == "train" else layout.test:
        path = absolute(root / name)
        numbers = np.fromfile(path, np.uint8)
        count, rest = divmod(len(numbers), record)
        if rest:
            checker.report(f"{path} has {len(numbers):,} bytes, no multiple of {record:,}")
        labels = numbers[layout.label_bytes - 1 :: record][:count].tolist()
        for row, label in enumerate(labels):
            start = row * record + layout.label_bytes
            member = member_name(path, f"{row:05d}{RAW_SUFFIX}")
            builder.add_found(Input(member, PICTURE, path, start), label)
    return builder
