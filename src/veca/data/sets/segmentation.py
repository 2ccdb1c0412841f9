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

from veca.data.images import DataError, ImageError, load, opened
from veca.data.listing import absolute
from veca.data.sets.dataset import (
    IGNORE_INDEX,
    DatasetChecks,
    LabeledDataset,
    class_names,
    files_below,
    lines,
    paired_dataset,
    read_matlab,
)

UNKNOWN = 254
"""Entry of a label map for numbers that do not occur in the published files."""

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
    if not 1 <= num_classes <= UNKNOWN:
        raise DataError(
            f"{num_classes} classes are invalid for masks of 8 bits; use 1 to {UNKNOWN}."
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


MATLAB = ".mat"


def read_mask(path: str, label_map: LabelMap) -> NDArray[np.uint8]:
    """Read classes from a PNG file (palette indices, never colors) or a MATLAB file of SBD."""
    if path.endswith(MATLAB):
        numbers = _sbd_numbers(path)
    else:
        mode, numbers = _png(path)
        if mode not in {"P", "L", "1"}:  # 8 bits with and without a palette, or 1 bit
            raise ImageError(
                f"{path} has the mode {mode}, but a mask needs one channel of 8 bits with class "
                "numbers; use the published files, not colored ones."
            )
        if mode == "1":  # as Pillow maps it to gray
            numbers = numbers.astype(np.uint8) * np.uint8(255)
    try:
        return apply_label_map(numbers, label_map)
    except DataError as error:
        raise ImageError(f"{path}: {error}") from error


def read_depth(path: str, per_meter: int) -> NDArray[np.float32]:
    """Read meters from a 16-bit PNG file with `per_meter` steps; 0 stays 0, unknown."""
    mode, numbers = _png(path)
    if mode != "I;16":
        raise ImageError(
            f"{path} has the mode {mode}, but depth needs one channel of 16 bits; use the "
            "published files, not images of them."
        )
    return numbers.astype(np.float32) / np.float32(per_meter)


def _png(path: str) -> tuple[str, NDArray[Any]]:
    """Mode and values of a PNG file; other formats are refused, since JPEG changes values."""
    with opened(path) as (name, image):
        if image.format != "PNG":
            raise ImageError(
                f"{path} is a {image.format} file, but masks and depth must be PNG files, which "
                "are lossless; use the published files."
            )
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


IMAGES, MASKS, LISTS = "JPEGImages", "SegmentationClass", "ImageSets/Segmentation"

SBD = ("benchmark_RELEASE/dataset", "VOCaug/dataset")
"""SBD as published, and as used by mmsegmentation; in the dataset's folder or above it."""

LEVELS_ABOVE = 2
"""Levels above: VOCdevkit, and its parent."""


def voc2012(folder: Path, checks: DatasetChecks) -> LabeledDataset:
    """PASCAL VOC 2012: 1,464 training and 1,449 test images, 21 classes with the background.

    `VOCdevkit/VOC2012/{JPEGImages,SegmentationClass,ImageSets/Segmentation}`.
    """
    home, train, val = _voc(folder, checks)
    pairs = {"train": _named_pairs(train, MASKS), "val": _named_pairs(val, MASKS)}
    counts = {"train": 1_464, "val": 1_449}
    facts = {"train_list": "VOC 2012 train, without the images of SBD"}
    return _masks(home, VOC, pairs, checks, counts, classes=class_names("voc"), facts=facts)


def voc2012_aug(folder: Path, checks: DatasetChecks) -> LabeledDataset:
    """VOC 2012 with 9,118 more training images of the Semantic Boundaries Dataset (SBD).

    "trainaug" in papers: the union of VOC's train split and SBD's splits without VOC's val split,
    10,582 images. SBD's masks have no ignored border around objects; images that VOC has masks of
    keep those. The test images are those of `voc2012`.
    """
    home, train, val = _voc(folder, checks)
    extra, source = _sbd_pairs(home, {*train, *val}, checks)
    checks.expect("images that only SBD has masks of", len(extra), 9_118)
    pairs = {"trainaug": [*_named_pairs(train, MASKS), *extra], "val": _named_pairs(val, MASKS)}
    counts = {"trainaug": 10_582, "val": 1_449}
    facts = {
        "train_list": "VOC 2012 train + SBD train + SBD val - VOC 2012 val",
        "extra_masks": source,
    }
    return _masks(home, VOC, pairs, checks, counts, classes=class_names("voc"), facts=facts)


def _masks(
    folder: Path,
    label_map: LabelMap,
    pairs: Mapping[str, Iterable[tuple[str, str]]],
    checks: DatasetChecks,
    counts: Mapping[str, int],
    **more: Any,  # noqa: ANN401 - further fields
) -> LabeledDataset:
    """A dataset whose masks are read through a label map."""
    read = partial(read_mask, label_map=label_map)
    return paired_dataset("masks", folder, read, pairs, checks, counts=counts, **more)


def _voc(folder: Path, checks: DatasetChecks) -> tuple[Path, set[str], set[str]]:
    """The folder VOC2012, and the names of its training and validation images."""
    needed = (IMAGES, MASKS, f"{LISTS}/train.txt", f"{LISTS}/val.txt")
    home = checks.find(folder, needed, ("VOC2012", "VOCdevkit/VOC2012"))
    train, val = (set(lines(home / LISTS / f"{part}.txt")) for part in ("train", "val"))
    return home, train, val


def _named_pairs(names: Iterable[str], masks: str, ending: str = ".png") -> list[tuple[str, str]]:
    """Images of VOC with their masks."""
    return [(f"{IMAGES}/{name}.jpg", f"{masks}/{name}{ending}") for name in names]


def _sbd_pairs(
    home: Path, known: set[str], checks: DatasetChecks
) -> tuple[list[tuple[str, str]], str]:
    """Images with masks of SBD only, and where these are from: published or converted."""
    start = Path(absolute(home))
    above = [start, *start.parents][: LEVELS_ABOVE + 1]
    places = [place / name for place in above for name in SBD if (place / name / "cls").is_dir()]
    if places:
        lists = [places[0] / "train.txt", places[0] / "val.txt"]
        checks.require(*lists)
        names = {name for listed in lists for name in lines(listed)}
        pairs = _named_pairs(names - known, str(places[0] / "cls"), MATLAB)
        return pairs, "SBD, .mat files as published"
    converted = "SegmentationClassAug"
    if not (home / converted).is_dir():
        checks.report(
            f"SBD is missing: neither {' nor '.join(SBD)} is in {home} or up to {LEVELS_ABOVE} "
            f"folders above, nor {converted} in it"
        )
    names = {Path(file).stem for file in files_below(home, converted, ".png")}
    return _named_pairs(names - known, converted), f"SBD, converted to PNG files ({converted})"


def context_60(folder: Path, checks: DatasetChecks) -> LabeledDataset:
    """PASCAL Context with 60 classes: the background is evaluated, nothing is ignored.

    `VOCdevkit/VOC2010/{JPEGImages,SegmentationClassContext,ImageSets/SegmentationContext}`, the
    masks as mmsegmentation writes them from `trainval_merged.json`: of 459 raw ids the 59 most
    frequent and 0, each by its rank. The MATLAB files of the first release are not read: their
    masks differ (mmsegmentation, pull request 474). Classes are in alphabetical order.
    """
    return _context(folder, checks, CONTEXT_60, class_names("pascal-context"))


def context_59(folder: Path, checks: DatasetChecks) -> LabeledDataset:
    """PASCAL Context with 59 classes: the background is ignored, which gives higher scores."""
    return _context(folder, checks, CONTEXT_59, class_names("pascal-context")[1:])


def _context(
    folder: Path, checks: DatasetChecks, label_map: LabelMap, classes: tuple[str, ...]
) -> LabeledDataset:
    """Either version of PASCAL Context."""
    counts = {"train": 4_998, "val": 5_105}
    masks = "SegmentationClassContext"
    lists = {part: f"ImageSets/SegmentationContext/{part}.txt" for part in counts}
    home = checks.find(folder, (IMAGES, masks, *lists.values()), ("VOC2010", "VOCdevkit/VOC2010"))
    pairs = {part: _named_pairs(lines(home / listed), masks) for part, listed in lists.items()}
    return _masks(home, label_map, pairs, checks, counts, classes=classes)


def ade20k(folder: Path, checks: DatasetChecks) -> LabeledDataset:
    """ADE20K with 150 classes, as in the challenge of 2016: 20,210 training, 2,000 test images.

    `ADEChallengeData2016/{images,annotations}/{training,validation}`.
    """
    counts = {"training": 20_210, "validation": 2_000}
    needed = [f"{kind}/{part}" for kind in ("images", "annotations") for part in counts]
    home = checks.find(folder, needed, ("ADEChallengeData2016",))
    pairs = {part: _stem_pairs(home, f"images/{part}", f"annotations/{part}") for part in counts}
    return _masks(home, ADE20K, pairs, checks, counts, classes=class_names("ade20k"))


def _stem_pairs(folder: Path, images: str, masks: str) -> list[tuple[str, str]]:
    """Images with masks of the same name."""
    return [
        (image, f"{masks}/{PurePosixPath(image).stem}.png")
        for image in files_below(folder, images, ".jpg")
    ]


COCO_IMAGES = ("images", ".")
COCO_MASKS = ("annotations", "stuffthingmaps", "stuffthingmaps_trainval2017")
"""Folders in which the splits may lie, in the order of search."""


def coco_stuff(folder: Path, checks: DatasetChecks) -> LabeledDataset:
    """COCO-Stuff 164k: 171 classes, 80 things and 91 kinds of stuff; unlabeled pixels are ignored.

    Images in `images/{train2017,val2017}` or `{train2017,val2017}`; masks, the content of
    `stuffthingmaps_trainval2017.zip`, in `annotations` or `stuffthingmaps`. Converted files beside
    them (`*_labelTrainIds.png`, `*_instanceTrainIds.png`) are ignored.
    """
    return _coco(folder, checks, COCO_STUFF, class_names("coco-things") + class_names("coco-stuff"))


def coco_object(folder: Path, checks: DatasetChecks) -> LabeledDataset:
    """COCO-Stuff 164k with 81 classes: 80 things and the background; nothing is ignored."""
    return _coco(folder, checks, COCO_OBJECT, ("background", *class_names("coco-things")))


def _coco(
    folder: Path, checks: DatasetChecks, label_map: LabelMap, classes: tuple[str, ...]
) -> LabeledDataset:
    """Either version of COCO-Stuff."""
    counts = {"train2017": 118_287, "val2017": 5_000}
    found = []
    for names in (COCO_IMAGES, COCO_MASKS):
        held = [name for name in names if all((folder / name / part).exists() for part in counts)]
        if not held:
            checks.report(
                f"none of the folders {', '.join(names)} in {folder} has {' and '.join(counts)}"
            )
        found.append((held or names)[0])
        checks.require(*(folder / found[-1] / part for part in counts))
    images, masks = found
    pairs = {part: _stem_pairs(folder, f"{images}/{part}", f"{masks}/{part}") for part in counts}
    return _masks(folder, label_map, pairs, checks, counts, classes=classes)


def cityscapes(folder: Path, checks: DatasetChecks) -> LabeledDataset:
    """Cityscapes: 2,975 training, 500 test images; everything outside the 19 classes is ignored.

    `leftImg8bit/{train,val}/<city>/*_leftImg8bit.png` with `gtFine/.../*_gtFine_labelIds.png`, as
    published; train ids beside them are ignored. The labels of the test images are not public.
    """
    counts = {"train": 2_975, "val": 500}
    needed = [f"{kind}/{part}" for kind in ("leftImg8bit", "gtFine") for part in counts]
    home = checks.find(folder, needed, ("cityscapes",))
    pairs: dict[str, list[tuple[str, str]]] = {part: [] for part in counts}
    for part, found in pairs.items():
        for image in files_below(home, f"leftImg8bit/{part}", "_leftImg8bit.png"):
            stem = image.replace("leftImg8bit/", "gtFine/", 1).removesuffix("_leftImg8bit.png")
            found.append((image, f"{stem}_gtFine_labelIds.png"))
    return _masks(home, CITYSCAPES, pairs, checks, counts, classes=class_names("cityscapes"))
