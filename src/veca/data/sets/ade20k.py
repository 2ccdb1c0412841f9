"""ADE20K with 150 classes, as in the challenge of 2016.

`ADEChallengeData2016/{images,annotations}/{training,validation}`. What belongs to none of the
classes is ignored. A few pictures are tiny, a few are grey.
"""

from functools import partial
from pathlib import Path, PurePosixPath

from veca.data.labelled import LabelledSet
from veca.data.sets.counts import Checker
from veca.data.sets.pairs import Pair, files_below, paired_split
from veca.data.sets.remaps import ADE20K
from veca.data.sets.targets import read_mask

CLASSES = (
    "wall", "building", "sky", "floor", "tree", "ceiling", "road", "bed", "windowpane", "grass",
    "cabinet", "sidewalk", "person", "earth", "door", "table", "mountain", "plant", "curtain",
    "chair", "car", "water", "painting", "sofa", "shelf", "house", "sea", "mirror", "rug", "field",
    "armchair", "seat", "fence", "desk", "rock", "wardrobe", "lamp", "bathtub", "railing",
    "cushion", "base", "box", "column", "signboard", "chest of drawers", "counter", "sand", "sink",
    "skyscraper", "fireplace", "refrigerator", "grandstand", "path", "stairs", "runway", "case",
    "pool table", "pillow", "screen door", "stairway", "river", "bridge", "bookcase", "blind",
    "coffee table", "toilet", "flower", "book", "hill", "bench", "countertop", "stove", "palm",
    "kitchen island", "computer", "swivel chair", "boat", "bar", "arcade machine", "hovel", "bus",
    "towel", "light", "truck", "tower", "chandelier", "awning", "streetlight", "booth",
    "television receiver", "airplane", "dirt track", "apparel", "pole", "land", "bannister",
    "escalator", "ottoman", "bottle", "buffet", "poster", "stage", "van", "ship", "fountain",
    "conveyor belt", "canopy", "washer", "plaything", "swimming pool", "stool", "barrel", "basket",
    "waterfall", "tent", "bag", "minibike", "cradle", "oven", "ball", "food", "step", "tank",
    "trade name", "microwave", "pot", "animal", "bicycle", "lake", "dishwasher", "screen",
    "blanket", "sculpture", "hood", "sconce", "vase", "traffic light", "tray", "ashcan", "fan",
    "pier", "crt screen", "plate", "monitor", "bulletin board", "shower", "radiator", "glass",
    "clock", "flag",
)  # fmt: skip

TRAINING, VALIDATION = 20_210, 2_000

PICTURES, MASKS = "images", "annotations"
PARTS = ("training", "validation")
BELOW = ("ADEChallengeData2016",)


def ade20k(folder: Path, checker: Checker) -> LabelledSet:
    """20,210 pictures to train on, 2,000 to test on."""
    needed = [f"{kind}/{part}" for kind in (PICTURES, MASKS) for part in PARTS]
    home = checker.find(folder, needed, BELOW)
    read = partial(read_mask, table=ADE20K)
    training, validation = (
        paired_split(part, home, _pairs(home, part), read, checker) for part in PARTS
    )
    checker.expect("training pictures", len(training), TRAINING)
    checker.expect("validation pictures", len(validation), VALIDATION)
    return LabelledSet(
        name="ade20k", kind="masks", classes=CLASSES, train=training, test=validation
    )


def _pairs(home: Path, part: str) -> list[Pair]:
    """Pictures and masks of one name."""
    return [
        Pair(picture, f"{MASKS}/{part}/{PurePosixPath(picture).stem}.png")
        for picture in files_below(home, f"{PICTURES}/{part}", ".jpg")
    ]
