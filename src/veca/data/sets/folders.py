"""Datasets in plain layouts: class folders, or masks or depth maps beside images.

Class folders: `train/<class>/...` and `val/<class>/...`, perhaps `test/<class>/...`; or
`<class>/...` alone, of which a fifth becomes `val`.

Masks and depth: `images/` with `masks/` or `depth/`, whose PNG files have the names of the images,
and `train.txt` and `val.txt`, which list these names without their endings. Masks hold numbers of
`classes.txt`, one name per line from 0, and 255 for ignored pixels. `scored.txt` may name the
classes of a mean over classes; the others stay in the unions. Depth is in millimeters, 0 where it
is unknown.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veca.data.images import DataError
from veca.data.listing import (
    IMAGE_SUFFIXES,
    MEMBER_MARK,
    SHARDS,
    ImageEntry,
    absolute,
    key,
    list_images,
)
from veca.data.sets.dataset import (
    DatasetChecks,
    DatasetError,
    DepthRange,
    Kind,
    LabeledDataset,
    ReadTarget,
    Split,
    build_split,
    class_names,
    lines,
    paired_dataset,
)
from veca.data.sets.segmentation import plain_label_map, read_depth, read_mask


def class_folders(folder: Path, checks: DatasetChecks) -> LabeledDataset:
    """A dataset of class folders.

    Classes are numbered in the order of their names in `train`. The test split is `test` if it has
    class folders, with settings chosen on `val`; else `val`.
    """
    named = ("val", "validation", "valid")
    held_out = [name for name in named if (folder / name).is_dir()][:1]
    tested_on = ["test"] if has_folders(folder / "test") else []
    if not held_out and not tested_on:
        raise DatasetError(
            f"{folder} has train/, but neither val/ nor test/ with a folder for each class; move "
            "some images of every class there."
        )
    train, classes = read_class_folders(folder / "train", folder, checks)
    others = held_out + tested_on
    splits = [train]
    splits += [read_class_folders(folder / part, folder, checks, classes)[0] for part in others]
    tested = np.bincount(np.asarray(splits[-1].labels), minlength=len(classes))
    absent = [classes[number] for number in np.flatnonzero(tested == 0).tolist()]
    facts = {"classes_without_test_pictures": absent} if absent else {}
    return checks.dataset("classes", splits, {}, classes=classes, facts=facts)


VAL_SHARE = 5
"""One image in so many of a class is held out where a folder has no splits."""


def unsplit_class_folders(folder: Path, checks: DatasetChecks) -> LabeledDataset:
    """A dataset of class folders without splits: a fifth of each class is `val`, at least one.

    Which images these are depends on their names only, so they stay the same wherever the folder is
    moved, and few of them change when images are added.
    """
    whole, classes = read_class_folders(folder, folder, checks)
    if len(classes) < 2:
        raise unknown_layout(folder)
    counts = np.bincount(np.asarray(whole.labels), minlength=len(classes))
    if counts.min() < 2:
        raise DatasetError(
            f"{folder / classes[int(counts.argmin())]} has only one image, but each class needs "
            "one to fit on and one to measure on; add images, or remove the folder."
        )
    held_out = drawn_by_hash(whole, whole.keys, lambda count: max(1, round(count / VAL_SHARE)))
    splits = [
        whole.subset(np.flatnonzero(~held_out), "train"),
        whole.subset(np.flatnonzero(held_out), "val"),
    ]
    how = (
        f"there is no train/ and val/, so {held_out.sum():,} of the {len(whole):,} images, a fifth "
        f"of each of the {len(classes):,} classes by a hash of the names, are val"
    )
    return checks.dataset("classes", splits, {}, classes=classes, facts={"split": how})


def drawn_by_hash(
    whole: Split, names: Sequence[str], how_many: Callable[[int], int]
) -> NDArray[np.bool_]:
    """The images of each class whose names have the lowest hashes, so many of a class's count."""
    labels, hashes = np.asarray(whole.labels), [key(name) for name in names]
    drawn = np.zeros(len(whole), bool)
    for label in np.unique(labels):
        of_class = np.flatnonzero(labels == label).tolist()
        drawn[sorted(of_class, key=hashes.__getitem__)[: how_many(len(of_class))]] = True
    return drawn


def unknown_layout(folder: Path) -> DatasetError:
    """The error about a folder in none of the plain layouts."""
    return DatasetError(
        f"{folder} has none of the known layouts (<class>/ for two or more classes; train/<class>/ "
        "with val/<class>/ or test/<class>/; images/ and masks/ with classes.txt, train.txt and "
        "val.txt; images/ and depth/ with train.txt and val.txt); arrange its images like this, or "
        f"name a published dataset, as in 'food101={folder}'."
    )


def read_class_folders(
    top: Path, folder: Path, checks: DatasetChecks, classes: Sequence[str] | None = None
) -> tuple[Split, Sequence[str]]:
    """The split named `top`, with images at any depth of its class folders, and its classes.

    A class may be a tar shard, `<class>.tar`. By default the classes are the folders, sorted.
    """
    names: dict[str, int] = {}  # in the order of their folders
    loose = []

    def images() -> Iterator[tuple[ImageEntry, int]]:
        for name, entry in images_below(top, checks):
            class_, slash, _ = name.partition(os.sep)
            shard, tar, _ = class_.partition(f"{SHARDS[0]}{MEMBER_MARK}")
            if slash or tar:
                yield entry, names.setdefault(shard, len(names))
            else:
                loose.append(name)

    split = build_split(top.name, folder, images(), checks)
    if loose:
        checks.report(
            f"{top.name}: {len(loose):,} images are not in a class folder, such as {loose[0]}; "
            "move or remove them"
        )
    classes = sorted(names) if classes is None else classes
    unknown = sorted(set(names).difference(classes))
    if unknown:
        raise DatasetError(
            f"{checks.name}: {top.name} has the class {unknown[0]!r}, which is not one of the "
            f"{len(classes):,} classes; add training images, or remove it."
        )
    position = {name: number for number, name in enumerate(classes)}
    numbers = np.array([position[name] for name in names], np.int64)
    return replace(split, labels=numbers[np.asarray(split.labels)]), classes


def images_below(top: Path, checks: DatasetChecks) -> Iterator[tuple[str, ImageEntry]]:
    """All images in a folder, with their names below it."""
    try:
        found = list_images([top])
    except DataError:  # no images
        return
    start = len(absolute(top)) + 1
    for row in found.rows.tolist():
        source = found.table[row]
        if row in found.problems:
            checks.report(f"{source.name}: {found.problems[row].rstrip('.')}")
        else:
            yield source.name[start:], source


def has_folders(folder: Path) -> bool:
    """Whether a split has class folders; the test images of a challenge often have none.

    Folders that begin with a dot do not count; notebooks and file managers create them.
    """
    return folder.is_dir() and any(
        path.is_dir() and not path.name.startswith(".") for path in folder.iterdir()
    )


CLASSES, SCORED = "classes.txt", "scored.txt"
PARTS = ("train", "val")

ANIMALS = "voc2012_animals"
"""A subset of VOC 2012 whose other classes are in too few images to be evaluated."""

ANIMALS_SCORED = ("background", "cat", "cow", "dog", "horse", "person", "sheep")


def plain_masks(folder: Path, checks: DatasetChecks) -> LabeledDataset:
    """A dataset with masks in the plain layout."""
    checks.require(folder / CLASSES)
    classes = tuple(lines(folder / CLASSES))
    if len(set(classes)) != len(classes):
        raise DatasetError(f"{folder / CLASSES} names a class twice; give each another name.")
    scored, facts = _scored(folder, classes)
    read = partial(read_mask, label_map=plain_label_map(len(classes)))
    return _plain(
        "masks", folder, "masks", read, checks, classes=classes, eval_classes=scored, facts=facts
    )


def plain_depth(folder: Path, checks: DatasetChecks) -> LabeledDataset:
    """A dataset with depth maps in the plain layout."""
    read = partial(read_depth, per_meter=1000)
    return _plain("depth", folder, "depth", read, checks, depth=DepthRange())


def _plain(
    kind: Kind,
    folder: Path,
    targets: str,
    read_target: ReadTarget,
    checks: DatasetChecks,
    **more: Any,  # noqa: ANN401 - further fields
) -> LabeledDataset:
    """A dataset by its two lists."""
    checks.require(*(folder / f"{part}.txt" for part in PARTS))
    images: dict[str, str] = {}  # file names by their stems, which the lists hold
    for path in sorted((folder / "images").iterdir()):
        if path.suffix.lower() not in IMAGE_SUFFIXES:
            continue
        if path.stem in images:
            raise DatasetError(
                f"{path.parent} has both {images[path.stem]} and {path.name}, so that {path.stem} "
                "in a list is ambiguous; remove one."
            )
        images[path.stem] = path.name
    pairs = {
        part: [
            (f"images/{images.get(name, name)}", f"{targets}/{name}.png")
            for name in lines(folder / f"{part}.txt")
        ]
        for part in PARTS
    }
    return paired_dataset(kind, folder, read_target, pairs, checks, **more)


def _scored(
    folder: Path, classes: tuple[str, ...]
) -> tuple[tuple[int, ...] | None, dict[str, Any]]:
    """The classes that are evaluated, None for all, and the source of this choice."""
    if (folder / SCORED).exists():
        names, source = tuple(lines(folder / SCORED)), SCORED
    elif folder.resolve().name == ANIMALS and classes == class_names("voc"):
        names, source = ANIMALS_SCORED, f"the name of the folder, {ANIMALS}"
    else:
        return None, {}
    unknown = [name for name in names if name not in classes]
    if unknown or not names:
        raise DatasetError(
            f"{folder / SCORED} names {unknown[0] if unknown else 'nothing'}, but must name "
            f"classes of {CLASSES}."
        )
    numbers = tuple(sorted({classes.index(name) for name in names}))
    return numbers, {"scored": [classes[number] for number in numbers], "scored_by": source}
