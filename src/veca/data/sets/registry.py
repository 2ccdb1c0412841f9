"""Names of datasets, and the plain layouts that a folder is recognized by."""

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from importlib import import_module
from itertools import combinations
from pathlib import Path

from veca.data.listing import absolute
from veca.data.sets.dataset import (
    DatasetChecks,
    DatasetError,
    LabeledDataset,
    require_disjoint,
    require_no_copies,
)
from veca.data.sets.folders import (
    class_folders,
    has_folders,
    plain_depth,
    plain_masks,
    unknown_layout,
    unsplit_class_folders,
)

Reader = Callable[[Path, DatasetChecks], LabeledDataset]

SETS: Mapping[str, str] = {
    "imagenet-1k": "imagenet.imagenet_1k",
    "imagenet-v2": "imagenet.imagenet_v2",
    "imagenet-real": "imagenet.imagenet_real",
    "places365": "classification.places365",
    "food101": "classification.food101",
    "sun397": "classification.sun397",
    "oxford-pets": "classification.oxford_pets",
    "cub-200": "classification.cub_200",
    "cifar-10": "classification.cifar_10",
    "cifar-100": "classification.cifar_100",
    "stanford-cars": "classification.stanford_cars",
    "fgvc-aircraft": "classification.fgvc_aircraft",
    "voc2007": "classification.voc2007",
    "dtd": "classification.dtd",
    "caltech-101": "classification.caltech_101",
    "flowers-102": "classification.flowers_102",
    "voc2012": "segmentation.voc2012",
    "voc2012-aug": "segmentation.voc2012_aug",
    "pascal-context-60": "segmentation.context_60",
    "pascal-context-59": "segmentation.context_59",
    "ade20k": "segmentation.ade20k",
    "coco-stuff": "segmentation.coco_stuff",
    "coco-object": "segmentation.coco_object",
    "cityscapes": "segmentation.cityscapes",
    "nyu-v2": "depth.nyu_v2",
    "nyu-v2-labeled": "depth.nyu_v2_labeled",
    "kitti": "depth.kitti",
}
"""Readers of datasets as they were published, by name; a module is imported when it is needed."""

SPLITS_ARE_FOLDERS = ("class_folders", "imagenet_1k")
"""Readers of datasets whose splits are folders, into which a file may have been copied twice."""


NO_CLASSES = ("val", "validation", "valid", "test", "images")
"""Folders whose images are of several classes, so that their neighbors are no classes either."""


def read_set(text: str, *, allow_partial: bool = False) -> LabeledDataset:
    """Read a dataset and check it against what was published.

    Args:
        text: `NAME=FOLDER` with one of SETS, such as `food101=data/food-101`, or a folder in one of
            the layouts of `folders.py`.
        allow_partial: whether an incomplete dataset is used; `missing` then lists the differences.

    Raises:
        DatasetError: with all differences, not only the first.
    """
    name, _, place = text.partition("=")
    if place and name in SETS:
        module, _, function = SETS[name].partition(".")
        folder = Path(absolute(place))
        reader: Reader = getattr(import_module(f"veca.data.sets.{module}"), function)
    else:
        folder = Path(absolute(text))
        name, reader = folder.resolve().name, _plain_reader(text, folder)
    if not folder.is_dir():
        raise DatasetError(f"{name}: {folder} is not a folder; check the path.")
    checks = DatasetChecks(name, allow_partial=allow_partial)
    found = checks.finish(reader(folder, checks))
    for first, second in combinations(found.splits(), 2):
        require_disjoint(first, second, checks)
        if reader.__name__ in SPLITS_ARE_FOLDERS:
            require_no_copies(first, second, checks)
    return found


def _plain_reader(text: str, folder: Path) -> Reader:
    """The reader of a folder's layout."""
    if not folder.is_dir():
        name = text.partition("=")[0]
        hint = "check the path"
        if name in SETS:
            hint = f"give its folder too, as in '{name}=FOLDER'"
        elif near := get_close_matches(name, SETS, 1):
            hint = f"did you mean {near[0]}"
        raise DatasetError(
            f"{text} is neither a folder nor NAME=FOLDER with a known dataset; {hint}. Known are "
            f"{', '.join(SETS)}."
        )
    for targets, reader in (("masks", plain_masks), ("depth", plain_depth)):
        if (folder / "images").is_dir() and (folder / targets).is_dir():
            return reader
    if (folder / "train").is_dir():
        return class_folders
    if has_folders(folder) and not any((folder / name).is_dir() for name in NO_CLASSES):
        return unsplit_class_folders
    raise unknown_layout(folder)
