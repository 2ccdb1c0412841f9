"""Cityscapes: streets of 50 cities at 2048 x 1024 pixels, 19 classes.

`leftImg8bit/{train,val}/<city>/*_leftImg8bit.png` with `gtFine/.../*_gtFine_labelIds.png`, as
published; train ids that a tool has written beside them are passed by. The labels of the 1,525 test
pictures are not public.
"""

from functools import partial
from pathlib import Path

from veca.data.labelled import LabelledSet
from veca.data.sets.counts import Checker
from veca.data.sets.pairs import Pair, files_below, paired_split
from veca.data.sets.remaps import CITYSCAPES
from veca.data.sets.targets import read_mask

CLASSES = (
    "road", "sidewalk", "building", "wall", "fence", "pole", "traffic light", "traffic sign",
    "vegetation", "terrain", "sky", "person", "rider", "car", "truck", "bus", "train",
    "motorcycle", "bicycle",
)  # fmt: skip

TRAIN, VAL = 2_975, 500

PICTURES, MASKS = "leftImg8bit", "gtFine"
PICTURE_ENDING, MASK_ENDING = "_leftImg8bit.png", "_gtFine_labelIds.png"


def cityscapes(folder: Path, checker: Checker) -> LabelledSet:
    """2,975 pictures to train on, 500 to test on; all that is not of the 19 classes is ignored."""
    parts = ("train", "val")
    needed = [f"{kind}/{part}" for kind in (PICTURES, MASKS) for part in parts]
    home = checker.find(folder, needed, ("cityscapes",))
    read = partial(read_mask, table=CITYSCAPES)
    train, val = (paired_split(part, home, _pairs(home, part), read, checker) for part in parts)
    checker.expect("train pictures", len(train), TRAIN)
    checker.expect("val pictures", len(val), VAL)
    return LabelledSet(name="cityscapes", kind="masks", classes=CLASSES, train=train, test=val)


def _pairs(home: Path, part: str) -> list[Pair]:
    """Pictures and masks of one city and name."""
    pictures = files_below(home, f"{PICTURES}/{part}", PICTURE_ENDING)
    return [Pair(picture, _mask_name(picture)) for picture in pictures]


def _mask_name(picture: str) -> str:
    """The mask that belongs to a picture."""
    return MASKS + picture.removeprefix(PICTURES).removesuffix(PICTURE_ENDING) + MASK_ENDING
