"""COCO 2017 with the masks of COCO-Stuff 164k, in two readings.

Pictures in `images/{train2017,val2017}` or `{train2017,val2017}`; masks, which are the content of
`stuffthingmaps_trainval2017.zip`, in a folder `annotations` or `stuffthingmaps`. Files that others
have converted and put beside them (`*_labelTrainIds.png`, `*_instanceTrainIds.png`) are passed by.
"""

from functools import partial
from pathlib import Path, PurePosixPath

from veca.data.labelled import LabelledSet, Split
from veca.data.sets.counts import Checker
from veca.data.sets.pairs import Pair, files_below, paired_split
from veca.data.sets.remaps import COCO_OBJECT, COCO_STUFF, Table
from veca.data.sets.targets import read_mask

THINGS = (
    "person", "bicycle", "car", "motorcycle", "airplane", "bus", "train", "truck", "boat",
    "traffic light", "fire hydrant", "stop sign", "parking meter", "bench", "bird", "cat", "dog",
    "horse", "sheep", "cow", "elephant", "bear", "zebra", "giraffe", "backpack", "umbrella",
    "handbag", "tie", "suitcase", "frisbee", "skis", "snowboard", "sports ball", "kite",
    "baseball bat", "baseball glove", "skateboard", "surfboard", "tennis racket", "bottle",
    "wine glass", "cup", "fork", "knife", "spoon", "bowl", "banana", "apple", "sandwich", "orange",
    "broccoli", "carrot", "hot dog", "pizza", "donut", "cake", "chair", "couch", "potted plant",
    "bed", "dining table", "toilet", "tv", "laptop", "mouse", "remote", "keyboard", "cell phone",
    "microwave", "oven", "toaster", "sink", "refrigerator", "book", "clock", "vase", "scissors",
    "teddy bear", "hair drier", "toothbrush",
)  # fmt: skip

STUFF = (
    "banner", "blanket", "branch", "bridge", "building-other", "bush", "cabinet", "cage",
    "cardboard", "carpet", "ceiling-other", "ceiling-tile", "cloth", "clothes", "clouds",
    "counter", "cupboard", "curtain", "desk-stuff", "dirt", "door-stuff", "fence", "floor-marble",
    "floor-other", "floor-stone", "floor-tile", "floor-wood", "flower", "fog", "food-other",
    "fruit", "furniture-other", "grass", "gravel", "ground-other", "hill", "house", "leaves",
    "light", "mat", "metal", "mirror-stuff", "moss", "mountain", "mud", "napkin", "net", "paper",
    "pavement", "pillow", "plant-other", "plastic", "platform", "playingfield", "railing",
    "railroad", "river", "road", "rock", "roof", "rug", "salad", "sand", "sea", "shelf",
    "sky-other", "skyscraper", "snow", "solid-other", "stairs", "stone", "straw",
    "structural-other", "table", "tent", "textile-other", "towel", "tree", "vegetable",
    "wall-brick", "wall-concrete", "wall-other", "wall-panel", "wall-stone", "wall-tile",
    "wall-wood", "water-other", "waterdrops", "window-blind", "window-other", "wood",
)  # fmt: skip

TRAIN, VAL = 118_287, 5_000

PARTS = ("train2017", "val2017")
PICTURES = ("images", "")
MASKS = ("annotations", "stuffthingmaps", "stuffthingmaps_trainval2017")
"""Folders in which the parts may lie, in the order in which they are looked for."""


def coco_stuff(folder: Path, checker: Checker) -> LabelledSet:
    """171 classes: 80 things and 91 stuffs; what has no label is ignored."""
    train, val = _splits(folder, checker, COCO_STUFF)
    classes = THINGS + STUFF
    return LabelledSet(name="coco-stuff", kind="masks", classes=classes, train=train, test=val)


def coco_object(folder: Path, checker: Checker) -> LabelledSet:
    """81 classes: 80 things and the background, which is all else; nothing is ignored."""
    train, val = _splits(folder, checker, COCO_OBJECT)
    classes = ("background", *THINGS)
    return LabelledSet(name="coco-object", kind="masks", classes=classes, train=train, test=val)


def _splits(folder: Path, checker: Checker, table: Table) -> tuple[Split, Split]:
    """Both parts with one of the two readings of their masks."""
    pictures, masks = (_place(folder, names, checker) for names in (PICTURES, MASKS))
    read = partial(read_mask, table=table)
    train, val = (
        paired_split(
            part,
            folder,
            [
                Pair(picture, f"{masks}/{part}/{PurePosixPath(picture).stem}.png")
                for picture in files_below(folder, f"{pictures}/{part}".lstrip("/"), ".jpg")
            ],
            read,
            checker,
        )
        for part in PARTS
    )
    checker.expect("train2017 pictures", len(train), TRAIN)
    checker.expect("val2017 pictures", len(val), VAL)
    return train, val


def _place(folder: Path, names: tuple[str, ...], checker: Checker) -> str:
    """The first of some folders that holds both parts."""
    held = [name for name in names if all((folder / name / part).exists() for part in PARTS)]
    if not held:
        wanted = ", ".join(name or "." for name in names)
        checker.report(f"none of the folders {wanted} in {folder} has {' and '.join(PARTS)}")
    place = (held or names)[0]
    checker.require(*(folder / place / part for part in PARTS))
    return place
