"""Readers of segmentation datasets, one function per dataset, and their label maps.

A label map is a table of 256 entries from the numbers in the published files to classes. It is
applied once, by the function that reads a file. Applying it twice would be wrong without an error:
in ADE20K walls would be ignored, and buildings become walls. So files that were converted by others
(`*TrainIds.png`) are never read.
"""

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from jaxtyping import UInt8
from numpy.typing import NDArray

from veca.data.images import (
    MAX_PIXELS,
    DataError,
    ImageError,
    check_size,
    load,
    opened,
    strict_pillow,
)
from veca.data.listing import absolute
from veca.data.sets.dataset import (
    IGNORE_INDEX,
    DatasetChecks,
    LabeledDataset,
    Pair,
    Split,
    files_below,
    lines,
    paired_split,
    read_matlab,
)

UNKNOWN = 254
"""Entry of a label map for numbers that do not occur in the published files."""

MAX_CLASSES = UNKNOWN
"""Most classes of a dataset with masks."""

MAX_LISTED = 8
"""Unknown numbers that an error lists."""

LabelMap = NDArray[np.uint8]


def apply_label_map(
    numbers: UInt8[np.ndarray, "H W"], label_map: UInt8[np.ndarray, "256"]
) -> NDArray[np.uint8]:
    """Map numbers to classes; a number that the dataset does not have is an error."""
    classes: NDArray[np.uint8] = label_map[numbers]
    unknown = np.unique(numbers[classes == UNKNOWN]).tolist()
    if unknown:
        more = ", ..." if len(unknown) > MAX_LISTED else ""
        known = np.flatnonzero(label_map != UNKNOWN)
        raise DataError(
            f"a mask holds the numbers {', '.join(map(str, unknown[:MAX_LISTED]))}{more}, which "
            f"are not among the {len(known)} of this dataset in {known[0]}..{known[-1]}; use "
            "the masks as published, not converted ones."
        )
    return classes


def label_map_of(classes: Mapping[int, int]) -> LabelMap:
    """Build a label map from numbers to classes."""
    label_map = np.full(256, UNKNOWN, np.uint8)
    label_map[list(classes.keys())] = list(classes.values())
    label_map.flags.writeable = False
    return label_map


def plain_label_map(num_classes: int) -> LabelMap:
    """The label map of masks whose numbers are classes, or `IGNORE_INDEX`."""
    if not 1 <= num_classes <= MAX_CLASSES:
        raise DataError(
            f"{num_classes} classes are invalid for masks of 8 bits; use 1 to {MAX_CLASSES}."
        )
    return label_map_of({**_ranks(range(num_classes)), IGNORE_INDEX: IGNORE_INDEX})


def _ranks(numbers: Iterable[int], first: int = 0) -> dict[int, int]:
    """Number classes in order."""
    return {number: class_ for class_, number in enumerate(numbers, start=first)}


ADE20K = label_map_of({0: IGNORE_INDEX, **_ranks(range(1, 151))})
"""0 is not one of the 150 classes."""

CONTEXT_60 = label_map_of(_ranks(range(60)))
"""0 is the background, which is evaluated; nothing is ignored."""

CONTEXT_59 = label_map_of({0: IGNORE_INDEX, **_ranks(range(1, 60))})
"""As `CONTEXT_60`, but the background is ignored."""

_COCO_ABSENT = frozenset({11, 25, 28, 29, 44, 65, 67, 68, 70, 82, 90})
"""Numbers of categories that COCO reserved and never used."""

_COCO_THINGS = [number for number in range(91) if number not in _COCO_ABSENT]
_COCO_STUFF = range(91, 182)

COCO_STUFF = label_map_of({**_ranks([*_COCO_THINGS, *_COCO_STUFF]), IGNORE_INDEX: IGNORE_INDEX})
"""80 things, then 91 kinds of stuff; a number in a file is a category minus one."""

COCO_OBJECT = label_map_of(
    {**dict.fromkeys([*_COCO_STUFF, IGNORE_INDEX], 0), **_ranks(_COCO_THINGS, first=1)}
)
"""Background, which is stuff and unlabeled pixels, then 80 things; nothing is ignored."""

CITYSCAPES_IDS = (7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33)
"""The ids of the 19 classes, in order."""

CITYSCAPES = label_map_of({**dict.fromkeys(range(34), IGNORE_INDEX), **_ranks(CITYSCAPES_IDS)})
"""Ids 0 to 33. Others are unknown, also 255, which occurs in files of train ids."""

VOC = plain_label_map(21)
"""Classes as they are; 255 along the borders of objects and where it was unclear."""


MASK_MODES = ("P", "L", "1")
"""Pillow's names for 8 bits with and without a palette, and for 1 bit, which it maps to 0, 255."""

DEPTH_MODE = "I;16"

MATLAB = ".mat"


def read_mask(path: str, label_map: LabelMap) -> NDArray[np.uint8]:
    """Read classes from a PNG file, or from a MATLAB file of SBD."""
    numbers = _sbd_numbers(path) if path.endswith(MATLAB) else _indices(path)
    try:
        return apply_label_map(numbers, label_map)
    except DataError as error:
        raise ImageError(f"{path}: {error}") from error


def read_depth(path: str, per_metre: int) -> NDArray[np.float32]:
    """Read meters from a 16-bit PNG file with `per_metre` steps; 0 stays 0, unknown."""
    mode, numbers = _png(path)
    if mode != DEPTH_MODE:
        raise ImageError(
            f"{path} has the mode {mode}, but depth needs one channel of 16 bits; use the "
            "published files, not images of them."
        )
    return numbers.astype(np.float32) / np.float32(per_metre)


def _indices(path: str) -> NDArray[np.uint8]:
    """Read the palette indices of a mask, never its colors."""
    mode, numbers = _png(path)
    if mode not in MASK_MODES:
        raise ImageError(
            f"{path} has the mode {mode}, but a mask needs one channel of 8 bits with class "
            "numbers; use the published files, not colored ones."
        )
    return numbers.astype(np.uint8) * np.uint8(255) if mode == "1" else numbers


def _png(path: str) -> tuple[str, NDArray[Any]]:
    """Mode and values of a PNG file; other formats are refused, since JPEG changes values."""
    with strict_pillow(MAX_PIXELS), opened(path) as (name, image):
        if image.format != "PNG":
            raise ImageError(
                f"{path} is a {image.format} file, but masks and depth must be PNG files, which "
                "are lossless; use the published files."
            )
        check_size(name, image, MAX_PIXELS)
        load(name, image)
        return image.mode, np.array(image)


def _sbd_numbers(path: str) -> NDArray[np.uint8]:
    """`GTcls.Segmentation` of a file of the Semantic Boundaries Dataset."""
    record = read_matlab(Path(path), "GTcls")
    numbers = record["Segmentation"][0] if "Segmentation" in (record.dtype.names or ()) else record
    if numbers.dtype != np.uint8 or numbers.ndim != 2:
        raise ImageError(
            f"{path} has no mask GTcls.Segmentation; get the Semantic Boundaries Dataset again."
        )
    return numbers


CLASSES = (
    "background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair",
    "cow", "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa",
    "train", "tvmonitor",
)  # fmt: skip

TRAIN, VAL, TRAIN_AUG, EXTRA = 1_464, 1_449, 10_582, 9_118

PICTURES, MASKS, LISTS = "JPEGImages", "SegmentationClass", "ImageSets/Segmentation"

BELOW = ("VOC2012", "VOCdevkit/VOC2012")
"""Folders in which the dataset may lie."""

CONVERTED = "SegmentationClassAug"
"""SBD's masks converted to PNG files."""

SBD = ("benchmark_RELEASE/dataset", "VOCaug/dataset")
"""SBD as published, and as used by mmsegmentation; in the dataset's folder or above it."""

LEVELS_ABOVE = 2
"""Levels above: VOCdevkit, and its parent."""


def voc2012(folder: Path, checks: DatasetChecks) -> LabeledDataset:
    """PASCAL VOC 2012: 1,464 training and 1,449 test images, 21 classes with the background.

    `VOCdevkit/VOC2012/{JPEGImages,SegmentationClass,ImageSets/Segmentation}`.
    """
    home = _home(folder, checks)
    names = list(lines(home / LISTS / "train.txt"))
    train = _split("train", home, _own_pairs(names), checks)
    checks.expect("train images", len(train), TRAIN)
    return LabeledDataset(
        name="voc2012",
        kind="masks",
        classes=CLASSES,
        train=train,
        test=_val(home, train, checks),
        facts={"train_list": "VOC 2012 train, without the images of SBD"},
    )


def voc2012_aug(folder: Path, checks: DatasetChecks) -> LabeledDataset:
    """VOC 2012 with 9,118 more training images of the Semantic Boundaries Dataset (SBD).

    "trainaug" in papers: the union of VOC's train split and SBD's splits without VOC's val split,
    10,582 images. SBD's masks have no ignored border around objects; images that VOC has masks of
    keep those. The test images are those of `voc2012`.
    """
    home = _home(folder, checks)
    own = set(lines(home / LISTS / "train.txt"))
    val = set(lines(home / LISTS / "val.txt"))
    extra, source = _extra_pairs(home, own | val, checks)
    checks.expect("pictures that only SBD has masks of", len(extra), EXTRA)
    train = _split("trainaug", home, [*_own_pairs(own), *extra], checks)
    checks.expect("trainaug images", len(train), TRAIN_AUG)
    return LabeledDataset(
        name="voc2012-aug",
        kind="masks",
        classes=CLASSES,
        train=train,
        test=_val(home, train, checks),
        facts={
            "train_list": "VOC 2012 train + SBD train + SBD val - VOC 2012 val",
            "extra_masks": source,
        },
    )


def _home(folder: Path, checks: DatasetChecks) -> Path:
    """The folder VOC2012."""
    needed = (PICTURES, MASKS, f"{LISTS}/train.txt", f"{LISTS}/val.txt")
    return checks.find(folder, needed, BELOW)


def _own_pairs(names: Iterable[str]) -> list[Pair]:
    """Images with VOC's own masks."""
    return [Pair(f"{PICTURES}/{name}.jpg", f"{MASKS}/{name}.png") for name in names]


def _val(home: Path, train: Split, checks: DatasetChecks) -> Split:
    """The test split."""
    val = _split("val", home, _own_pairs(lines(home / LISTS / "val.txt")), checks)
    checks.expect("val images", len(val), VAL)
    return val


def _split(name: str, home: Path, pairs: Iterable[Pair], checks: DatasetChecks) -> Split:
    """A split with VOC's label map."""
    return paired_split(name, home, pairs, partial(read_mask, label_map=VOC), checks)


def _extra_pairs(home: Path, known: set[str], checks: DatasetChecks) -> tuple[list[Pair], str]:
    """Images with masks of SBD only, and where these are from: published or converted."""
    if sbd := _find_sbd(home):
        checks.require(sbd / "train.txt", sbd / "val.txt")
        names = {*lines(sbd / "train.txt"), *lines(sbd / "val.txt")}
        masks, ending, source = str(sbd / "cls"), MATLAB, "SBD, .mat files as published"
    else:
        if not (home / CONVERTED).is_dir():
            checks.report(
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


CONTEXT_CLASSES = (
    "background", "aeroplane", "bag", "bed", "bedclothes", "bench", "bicycle", "bird", "boat",
    "book", "bottle", "building", "bus", "cabinet", "car", "cat", "ceiling", "chair", "cloth",
    "computer", "cow", "cup", "curtain", "dog", "door", "fence", "floor", "flower", "food",
    "grass", "ground", "horse", "keyboard", "light", "motorbike", "mountain", "mouse", "person",
    "plate", "platform", "pottedplant", "road", "rock", "sheep", "shelves", "sidewalk", "sign",
    "sky", "snow", "sofa", "table", "track", "train", "tree", "truck", "tvmonitor", "wall",
    "water", "window", "wood",
)  # fmt: skip

CONTEXT_TRAIN, CONTEXT_VAL = 4_998, 5_105

CONTEXT_PICTURES, CONTEXT_MASKS = "JPEGImages", "SegmentationClassContext"
CONTEXT_LISTS = "ImageSets/SegmentationContext"
CONTEXT_BELOW = ("VOC2010", "VOCdevkit/VOC2010")


def context_60(folder: Path, checks: DatasetChecks) -> LabeledDataset:
    """PASCAL Context with 60 classes: the background is evaluated, nothing is ignored.

    `VOCdevkit/VOC2010/{JPEGImages,SegmentationClassContext,ImageSets/SegmentationContext}`, the
    masks as mmsegmentation writes them from `trainval_merged.json`: of 459 raw ids the 59 most
    frequent and 0, each by its rank. The MATLAB files of the first release are not read: their
    masks differ (mmsegmentation, pull request 474). Classes are in alphabetical order.
    """
    train, val = _splits(folder, checks, CONTEXT_60)
    name = "pascal-context-60"
    return LabeledDataset(name=name, kind="masks", classes=CONTEXT_CLASSES, train=train, test=val)


def context_59(folder: Path, checks: DatasetChecks) -> LabeledDataset:
    """PASCAL Context with 59 classes: the background is ignored, which gives higher scores."""
    train, val = _splits(folder, checks, CONTEXT_59)
    name = "pascal-context-59"
    return LabeledDataset(
        name=name, kind="masks", classes=CONTEXT_CLASSES[1:], train=train, test=val
    )


def _splits(folder: Path, checks: DatasetChecks, label_map: LabelMap) -> tuple[Split, Split]:
    """Both splits with one of the two label maps."""
    needed = (
        CONTEXT_PICTURES,
        CONTEXT_MASKS,
        f"{CONTEXT_LISTS}/train.txt",
        f"{CONTEXT_LISTS}/val.txt",
    )
    home = checks.find(folder, needed, CONTEXT_BELOW)
    read = partial(read_mask, label_map=label_map)
    train, val = (
        paired_split(
            part,
            home,
            [
                Pair(f"{CONTEXT_PICTURES}/{name}.jpg", f"{CONTEXT_MASKS}/{name}.png")
                for name in lines(home / CONTEXT_LISTS / f"{part}.txt")
            ],
            read,
            checks,
        )
        for part in ("train", "val")
    )
    checks.expect("train images", len(train), CONTEXT_TRAIN)
    checks.expect("val images", len(val), CONTEXT_VAL)
    return train, val


ADE20K_CLASSES = (
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

ADE20K_PICTURES, ADE20K_MASKS = "images", "annotations"
PARTS = ("training", "validation")
ADE20K_BELOW = ("ADEChallengeData2016",)


def ade20k(folder: Path, checks: DatasetChecks) -> LabeledDataset:
    """ADE20K with 150 classes, as in the challenge of 2016: 20,210 training, 2,000 test images.

    `ADEChallengeData2016/{images,annotations}/{training,validation}`.
    """
    needed = [f"{kind}/{part}" for kind in (ADE20K_PICTURES, ADE20K_MASKS) for part in PARTS]
    home = checks.find(folder, needed, ADE20K_BELOW)
    read = partial(read_mask, label_map=ADE20K)
    training, validation = (
        paired_split(part, home, _pairs(home, part), read, checks) for part in PARTS
    )
    checks.expect("training images", len(training), TRAINING)
    checks.expect("validation images", len(validation), VALIDATION)
    return LabeledDataset(
        name="ade20k", kind="masks", classes=ADE20K_CLASSES, train=training, test=validation
    )


def _pairs(home: Path, part: str) -> list[Pair]:
    """Images and masks of the same name."""
    return [
        Pair(image, f"{ADE20K_MASKS}/{part}/{PurePosixPath(image).stem}.png")
        for image in files_below(home, f"{ADE20K_PICTURES}/{part}", ".jpg")
    ]


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

COCO_TRAIN, COCO_VAL = 118_287, 5_000

COCO_PARTS = ("train2017", "val2017")
COCO_PICTURES = ("images", "")
COCO_MASKS = ("annotations", "stuffthingmaps", "stuffthingmaps_trainval2017")
"""Folders in which the splits may lie, in the order of search."""


def coco_stuff(folder: Path, checks: DatasetChecks) -> LabeledDataset:
    """COCO-Stuff 164k: 171 classes, 80 things and 91 kinds of stuff; unlabeled pixels are ignored.

    Images in `images/{train2017,val2017}` or `{train2017,val2017}`; masks, the content of
    `stuffthingmaps_trainval2017.zip`, in `annotations` or `stuffthingmaps`. Converted files beside
    them (`*_labelTrainIds.png`, `*_instanceTrainIds.png`) are ignored.
    """
    train, val = _coco_splits(folder, checks, COCO_STUFF)
    classes = THINGS + STUFF
    return LabeledDataset(name="coco-stuff", kind="masks", classes=classes, train=train, test=val)


def coco_object(folder: Path, checks: DatasetChecks) -> LabeledDataset:
    """COCO-Stuff 164k with 81 classes: 80 things and the background; nothing is ignored."""
    train, val = _coco_splits(folder, checks, COCO_OBJECT)
    classes = ("background", *THINGS)
    return LabeledDataset(name="coco-object", kind="masks", classes=classes, train=train, test=val)


def _coco_splits(folder: Path, checks: DatasetChecks, label_map: LabelMap) -> tuple[Split, Split]:
    """Both splits with one of the two label maps."""
    images, masks = (_place(folder, names, checks) for names in (COCO_PICTURES, COCO_MASKS))
    read = partial(read_mask, label_map=label_map)
    train, val = (
        paired_split(
            part,
            folder,
            [
                Pair(image, f"{masks}/{part}/{PurePosixPath(image).stem}.png")
                for image in files_below(folder, f"{images}/{part}".lstrip("/"), ".jpg")
            ],
            read,
            checks,
        )
        for part in COCO_PARTS
    )
    checks.expect("train2017 images", len(train), COCO_TRAIN)
    checks.expect("val2017 images", len(val), COCO_VAL)
    return train, val


def _place(folder: Path, names: tuple[str, ...], checks: DatasetChecks) -> str:
    """The first of some folders that holds both splits."""
    held = [name for name in names if all((folder / name / part).exists() for part in COCO_PARTS)]
    if not held:
        wanted = ", ".join(name or "." for name in names)
        checks.report(f"none of the folders {wanted} in {folder} has {' and '.join(COCO_PARTS)}")
    place = (held or names)[0]
    checks.require(*(folder / place / part for part in COCO_PARTS))
    return place


CITYSCAPES_CLASSES = (
    "road", "sidewalk", "building", "wall", "fence", "pole", "traffic light", "traffic sign",
    "vegetation", "terrain", "sky", "person", "rider", "car", "truck", "bus", "train",
    "motorcycle", "bicycle",
)  # fmt: skip

CITYSCAPES_TRAIN, CITYSCAPES_VAL = 2_975, 500

CITYSCAPES_PICTURES, CITYSCAPES_MASKS = "leftImg8bit", "gtFine"
PICTURE_ENDING, MASK_ENDING = "_leftImg8bit.png", "_gtFine_labelIds.png"


def cityscapes(folder: Path, checks: DatasetChecks) -> LabeledDataset:
    """Cityscapes: 2,975 training, 500 test images; everything outside the 19 classes is ignored.

    `leftImg8bit/{train,val}/<city>/*_leftImg8bit.png` with `gtFine/.../*_gtFine_labelIds.png`, as
    published; train ids beside them are ignored. The labels of the test images are not public.
    """
    parts = ("train", "val")
    needed = [
        f"{kind}/{part}" for kind in (CITYSCAPES_PICTURES, CITYSCAPES_MASKS) for part in parts
    ]
    home = checks.find(folder, needed, ("cityscapes",))
    read = partial(read_mask, label_map=CITYSCAPES)
    train, val = (
        paired_split(part, home, _cityscapes_pairs(home, part), read, checks) for part in parts
    )
    checks.expect("train images", len(train), CITYSCAPES_TRAIN)
    checks.expect("val images", len(val), CITYSCAPES_VAL)
    return LabeledDataset(
        name="cityscapes", kind="masks", classes=CITYSCAPES_CLASSES, train=train, test=val
    )


def _cityscapes_pairs(home: Path, part: str) -> list[Pair]:
    """Images and masks of the same city and name."""
    images = files_below(home, f"{CITYSCAPES_PICTURES}/{part}", PICTURE_ENDING)
    return [Pair(image, _mask_name(image)) for image in images]


def _mask_name(image: str) -> str:
    """The mask that belongs to an image."""
    return (
        CITYSCAPES_MASKS
        + image.removeprefix(CITYSCAPES_PICTURES).removesuffix(PICTURE_ENDING)
        + MASK_ENDING
    )
