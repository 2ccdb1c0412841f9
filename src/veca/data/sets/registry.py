"""Names of datasets, and the plain layouts that a folder is recognized by."""

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from itertools import combinations
from pathlib import Path

from veca.data.listing import absolute
from veca.data.sets.classification import (
    caltech_101,
    cifar_10,
    cifar_100,
    cub_200,
    dtd,
    fgvc_aircraft,
    flowers_102,
    food101,
    oxford_pets,
    places365,
    stanford_cars,
    sun397,
    voc2007,
)
from veca.data.sets.dataset import (
    DatasetChecks,
    DatasetError,
    LabeledDataset,
    require_disjoint,
    require_no_copies,
)
from veca.data.sets.depth import kitti, nyu_v2, nyu_v2_labeled
from veca.data.sets.folders import (
    class_folders,
    is_class_folders,
    is_plain_depth,
    is_plain_masks,
    plain_depth,
    plain_masks,
)
from veca.data.sets.imagenet import imagenet_1k, imagenet_real, imagenet_v2
from veca.data.sets.segmentation import (
    ade20k,
    cityscapes,
    coco_object,
    coco_stuff,
    context_59,
    context_60,
    voc2012,
    voc2012_aug,
)

Reader = Callable[[Path, DatasetChecks], LabeledDataset]

SETS: Mapping[str, Reader] = {
    "imagenet-1k": imagenet_1k,
    "imagenet-v2": imagenet_v2,
    "imagenet-real": imagenet_real,
    "places365": places365,
    "food101": food101,
    "sun397": sun397,
    "oxford-pets": oxford_pets,
    "cub-200": cub_200,
    "cifar-10": cifar_10,
    "cifar-100": cifar_100,
    "stanford-cars": stanford_cars,
    "fgvc-aircraft": fgvc_aircraft,
    "voc2007": voc2007,
    "dtd": dtd,
    "caltech-101": caltech_101,
    "flowers-102": flowers_102,
    "voc2012": voc2012,
    "voc2012-aug": voc2012_aug,
    "pascal-context-60": context_60,
    "pascal-context-59": context_59,
    "ade20k": ade20k,
    "coco-stuff": coco_stuff,
    "coco-object": coco_object,
    "cityscapes": cityscapes,
    "nyu-v2": nyu_v2,
    "nyu-v2-labeled": nyu_v2_labeled,
    "kitti": kitti,
}
"""Readers of datasets as they were published, by name."""

SPLITS_ARE_FOLDERS: tuple[Reader, ...] = (class_folders, imagenet_1k)
"""Readers of datasets whose splits are folders, into which a file may have been copied twice."""

PLAIN = (
    "train/<class>/ with val/<class>/ or test/<class>/; images/ and masks/ with classes.txt, "
    "train.txt and val.txt; images/ and depth/ with train.txt and val.txt"
)
"""Layouts that a folder is recognized by."""


def read_set(text: str, *, allow_partial: bool = False) -> LabeledDataset:
    """Read a dataset and check it against what was published.

    Args:
        text: `NAME=FOLDER` with one of SETS, such as `food101=data/food-101`, or a folder in one of
            the layouts of PLAIN.
        allow_partial: whether an incomplete dataset is used; `missing` then lists the differences.

    Raises:
        DatasetError: with all differences, not only the first.
    """
    name, _, place = text.partition("=")
    if place and name in SETS:
        folder, reader = Path(absolute(place)), SETS[name]
    else:
        folder = Path(absolute(text))
        name, reader = folder.name, _plain_reader(text, folder)
    if not folder.is_dir():
        raise DatasetError(f"{name}: {folder} is not a folder; check the path.")
    checks = DatasetChecks(name, allow_partial=allow_partial)
    found = checks.finish(reader(folder, checks))
    for first, second in combinations(found.splits(), 2):
        require_disjoint(first, second, checks)
        if reader in SPLITS_ARE_FOLDERS:
            require_no_copies(first, second, checks)
    return found


def _plain_reader(text: str, folder: Path) -> Reader:
    """The reader of a folder's layout."""
    if not folder.is_dir():
        raise DatasetError(_unknown(text))
    if is_plain_masks(folder):
        return plain_masks
    if is_plain_depth(folder):
        return plain_depth
    if is_class_folders(folder):
        return class_folders
    raise DatasetError(
        f"{folder} has none of the known layouts ({PLAIN}); arrange its images like this, or name "
        f"the dataset, as in 'food101={folder}': {', '.join(SETS)}."
    )


def _unknown(text: str) -> str:
    """The message for a text that means neither a dataset nor a folder."""
    name = text.partition("=")[0]
    near = get_close_matches(name, SETS, 1)
    if name in SETS:
        hint = f"give its folder too, as in '{name}=FOLDER'"
    elif near:
        hint = f"did you mean {near[0]}"
    else:
        hint = "check the path"
    return (
        f"{text} is neither a folder nor NAME=FOLDER with a known dataset; {hint}. Known are "
        f"{', '.join(SETS)}."
    )
