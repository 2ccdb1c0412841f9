"""PASCAL VOC 2012 segmentation, alone and with the masks of the Semantic Boundaries Dataset (SBD).

`VOCdevkit/VOC2012/{JPEGImages,SegmentationClass,ImageSets/Segmentation}`. What papers call
"trainaug" is the union of VOC's train part and SBD's train and val parts without VOC's val part,
which SBD has cut elsewhere: 10,582 pictures. SBD's masks have no ignored border around objects;
pictures that VOC itself has masks of keep those.
"""

from collections.abc import Iterable
from functools import partial
from pathlib import Path

from veca.data.labelled import LabelledSet, Split
from veca.data.names import absolute
from veca.data.sets.counts import Checker
from veca.data.sets.lists import lines
from veca.data.sets.pairs import Pair, files_below, paired_split, require_apart
from veca.data.sets.remaps import VOC
from veca.data.sets.targets import MATLAB, read_mask

CLASSES = (
    "background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair",
    "cow", "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa",
    "train", "tvmonitor",
)  # fmt: skip

TRAIN, VAL, TRAIN_AUG, EXTRA = 1_464, 1_449, 10_582, 9_118

PICTURES, MASKS, LISTS = "JPEGImages", "SegmentationClass", "ImageSets/Segmentation"

BELOW = ("VOC2012", "VOCdevkit/VOC2012")
"""Where the set may lie below the folder that is given."""

CONVERTED = "SegmentationClassAug"
"""SBD's masks as PNG files, beside those of VOC, as others convert them."""

SBD = ("benchmark_RELEASE/dataset", "VOCaug/dataset")
"""SBD as published, and as mmsegmentation wants it; in the folder of the set or above it."""

LEVELS_ABOVE = 2
"""How far above: VOCdevkit, and the folder that holds it."""


def voc2012(folder: Path, checker: Checker) -> LabelledSet:
    """VOC's own 1,464 pictures to train on, 1,449 to test on; 21 classes with the background."""
    home = _home(folder, checker)
    names = list(lines(home / LISTS / "train.txt"))
    train = _split("train", home, _own_pairs(names), checker)
    checker.expect("train pictures", len(train), TRAIN)
    return LabelledSet(
        name="voc2012",
        kind="masks",
        classes=CLASSES,
        train=train,
        test=_val(home, train, checker),
        facts={"train_list": "VOC 2012 train, without the pictures of SBD"},
    )


def voc2012_aug(folder: Path, checker: Checker) -> LabelledSet:
    """VOC's train part with 9,118 pictures of SBD; the same pictures to test on as `voc2012`."""
    home = _home(folder, checker)
    own = set(lines(home / LISTS / "train.txt"))
    val = set(lines(home / LISTS / "val.txt"))
    extra, source = _extra_pairs(home, own | val, checker)
    checker.expect("pictures that only SBD has masks of", len(extra), EXTRA)
    train = _split("trainaug", home, [*_own_pairs(own), *extra], checker)
    checker.expect("trainaug pictures", len(train), TRAIN_AUG)
    return LabelledSet(
        name="voc2012-aug",
        kind="masks",
        classes=CLASSES,
        train=train,
        test=_val(home, train, checker),
        facts={
            "train_list": "VOC 2012 train + SBD train + SBD val - VOC 2012 val",
            "extra_masks": source,
        },
    )


def _home(folder: Path, checker: Checker) -> Path:
    """The folder VOC2012."""
    needed = (PICTURES, MASKS, f"{LISTS}/train.txt", f"{LISTS}/val.txt")
    return checker.find(folder, needed, BELOW)


def _own_pairs(names: Iterable[str]) -> list[Pair]:
    """Pictures with VOC's own masks."""
    return [Pair(f"{PICTURES}/{name}.jpg", f"{MASKS}/{name}.png") for name in names]


def _val(home: Path, train: Split, checker: Checker) -> Split:
    """The part to test on."""
    val = _split("val", home, _own_pairs(lines(home / LISTS / "val.txt")), checker)
    checker.expect("val pictures", len(val), VAL)
    require_apart(train, val, checker)
    return val


def _split(name: str, home: Path, pairs: Iterable[Pair], checker: Checker) -> Split:
    """A part, with VOC's numbers."""
    return paired_split(name, home, pairs, partial(read_mask, table=VOC), checker)


def _extra_pairs(home: Path, known: set[str], checker: Checker) -> tuple[list[Pair], str]:
    """Pictures that only SBD has masks of, and what those are: its own, or converted ones."""
    if sbd := _find_sbd(home):
        checker.require(sbd / "train.txt", sbd / "val.txt")
        names = {*lines(sbd / "train.txt"), *lines(sbd / "val.txt")}
        masks, ending, source = str(sbd / "cls"), MATLAB, "SBD, .mat files as published"
    else:
        if not (home / CONVERTED).is_dir():
            checker.report(
                f"SBD is missing: neither {' nor '.join(SBD)} is in {home} or up to {LEVELS_ABOVE} "
                f"folders above, nor {CONVERTED} in it"
            )
        names = {Path(file).stem for file in files_below(home, CONVERTED, ".png")}
        masks, ending, source = CONVERTED, ".png", f"SBD, converted to PNG files ({CONVERTED})"
    extra = [
        Pair(f"{PICTURES}/{name}.jpg", f"{masks}/{name}{ending}") for name in sorted(names - known)
    ]
    return extra, source


def _find_sbd(home: Path) -> Path | None:
    """The folder `dataset` of SBD."""
    start = Path(absolute(home))
    above = [start, *start.parents][: LEVELS_ABOVE + 1]
    places = (place / name for place in above for name in SBD)
    return next((place for place in places if (place / "cls").is_dir()), None)
