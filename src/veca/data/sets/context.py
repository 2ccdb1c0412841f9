"""PASCAL Context: VOC 2010's pictures with all of their pixels labelled.

`VOCdevkit/VOC2010/{JPEGImages,SegmentationClassContext,ImageSets/SegmentationContext}`, the masks
as mmsegmentation writes them from `trainval_merged.json`: of 459 raw ids the 59 most frequent and
0, each by its rank. The MATLAB files of the first release are not read: their masks differ from
those (mmsegmentation, pull request 474).

Raw ids follow the alphabet, and so do the classes. Lists that begin with VOC's 20 classes, as in
early mmsegmentation, name them wrongly.
"""

from functools import partial
from pathlib import Path

from veca.data.labelled import LabelledSet, Split
from veca.data.sets.counts import Checker
from veca.data.sets.lists import lines
from veca.data.sets.pairs import Pair, paired_split, require_apart
from veca.data.sets.remaps import CONTEXT_59, CONTEXT_60, Table
from veca.data.sets.targets import read_mask

CLASSES = (
    "background", "aeroplane", "bag", "bed", "bedclothes", "bench", "bicycle", "bird", "boat",
    "book", "bottle", "building", "bus", "cabinet", "car", "cat", "ceiling", "chair", "cloth",
    "computer", "cow", "cup", "curtain", "dog", "door", "fence", "floor", "flower", "food",
    "grass", "ground", "horse", "keyboard", "light", "motorbike", "mountain", "mouse", "person",
    "plate", "platform", "pottedplant", "road", "rock", "sheep", "shelves", "sidewalk", "sign",
    "sky", "snow", "sofa", "table", "track", "train", "tree", "truck", "tvmonitor", "wall",
    "water", "window", "wood",
)  # fmt: skip

TRAIN, VAL = 4_998, 5_105

PICTURES, MASKS = "JPEGImages", "SegmentationClassContext"
LISTS = "ImageSets/SegmentationContext"
BELOW = ("VOC2010", "VOCdevkit/VOC2010")


def context_60(folder: Path, checker: Checker) -> LabelledSet:
    """60 classes: the background counts, and nothing is ignored."""
    train, val = _splits(folder, checker, CONTEXT_60)
    name = "pascal-context-60"
    return LabelledSet(name=name, kind="masks", classes=CLASSES, train=train, test=val)


def context_59(folder: Path, checker: Checker) -> LabelledSet:
    """59 classes: the background is ignored, which gives higher numbers."""
    train, val = _splits(folder, checker, CONTEXT_59)
    name = "pascal-context-59"
    return LabelledSet(name=name, kind="masks", classes=CLASSES[1:], train=train, test=val)


def _splits(folder: Path, checker: Checker, table: Table) -> tuple[Split, Split]:
    """Both parts with one of the two ways to see the background."""
    needed = (PICTURES, MASKS, f"{LISTS}/train.txt", f"{LISTS}/val.txt")
    home = checker.find(folder, needed, BELOW)
    read = partial(read_mask, table=table)
    train, val = (
        paired_split(
            part,
            home,
            [
                Pair(f"{PICTURES}/{name}.jpg", f"{MASKS}/{name}.png")
                for name in lines(home / LISTS / f"{part}.txt")
            ],
            read,
            checker,
        )
        for part in ("train", "val")
    )
    checker.expect("train pictures", len(train), TRAIN)
    checker.expect("val pictures", len(val), VAL)
    require_apart(train, val, checker)
    return train, val
