"""Plain layouts for masks and for depth, for sets of one's own.

`images/` with `masks/` or `depth/`, whose PNG files have the names of the pictures, and `train.txt`
and `val.txt`, which list these names without their endings. Masks hold numbers of `classes.txt`,
which has a name a line, from 0, and 255 where pixels do not count. `scored.txt` may name the
classes that a mean goes over; the others stay in the unions. Depth is in millimetres, 0 where it is
unknown.
"""

from functools import partial
from pathlib import Path
from typing import Any

from veca.data.inputs import PICTURES
from veca.data.labelled import DepthFacts, LabelledSet, Split
from veca.data.sets import voc
from veca.data.sets.counts import Checker, SetError
from veca.data.sets.lists import lines
from veca.data.sets.pairs import Pair, ReadTarget, paired_split, require_apart
from veca.data.sets.remaps import plain_table
from veca.data.sets.targets import read_depth, read_mask

IMAGES, MASKS, DEPTH = "images", "masks", "depth"
CLASSES, SCORED = "classes.txt", "scored.txt"
PARTS = ("train", "val")

ANIMALS = "voc2012_animals"
"""A part of VOC 2012 whose other classes show up in too few pictures to be scored."""

ANIMALS_SCORED = ("background", "cat", "cow", "dog", "horse", "person", "sheep")


def is_plain_masks(folder: Path) -> bool:
    """Whether a folder looks like the layout with masks."""
    return (folder / IMAGES).is_dir() and (folder / MASKS).is_dir()


def is_plain_depth(folder: Path) -> bool:
    """Whether a folder looks like the layout with depth."""
    return (folder / IMAGES).is_dir() and (folder / DEPTH).is_dir()


def plain_masks(folder: Path, checker: Checker) -> LabelledSet:
    """A set of masks in the plain layout."""
    checker.require(folder / IMAGES, folder / MASKS, folder / CLASSES)
    classes = tuple(lines(folder / CLASSES))
    if len(set(classes)) != len(classes):
        raise SetError(f"{folder / CLASSES} names a class twice; give each another name.")
    scored, facts = _scored(folder, classes)
    read = partial(read_mask, table=plain_table(len(classes)))
    train, val = _splits(folder, MASKS, read, checker)
    return LabelledSet(
        name=folder.resolve().name,
        kind="masks",
        classes=classes,
        train=train,
        test=val,
        scored=scored,
        facts=facts,
    )


def plain_depth(folder: Path, checker: Checker) -> LabelledSet:
    """A set of depth maps in the plain layout."""
    checker.require(folder / IMAGES, folder / DEPTH)
    train, val = _splits(folder, DEPTH, partial(read_depth, per_metre=1000), checker)
    return LabelledSet(
        name=folder.resolve().name, kind="depth", train=train, test=val, depth=DepthFacts()
    )


def _splits(
    folder: Path, kind: str, read_target: ReadTarget, checker: Checker
) -> tuple[Split, Split]:
    """The parts by their lists."""
    checker.require(*(folder / f"{part}.txt" for part in PARTS))
    pictures = _pictures(folder / IMAGES)
    train, val = (
        paired_split(
            part,
            folder,
            [
                Pair(f"{IMAGES}/{pictures.get(name, name)}", f"{kind}/{name}.png")
                for name in lines(folder / f"{part}.txt")
            ],
            read_target,
            checker,
        )
        for part in PARTS
    )
    require_apart(train, val, checker)
    return train, val


def _pictures(folder: Path) -> dict[str, str]:
    """File names of pictures by their names without endings."""
    found: dict[str, str] = {}
    for path in sorted(folder.iterdir()):
        if path.suffix.lower() not in PICTURES:
            continue
        if path.stem in found:
            raise SetError(
                f"{folder} has both {found[path.stem]} and {path.name}, so that {path.stem} in a "
                "list may mean either; take one away."
            )
        found[path.stem] = path.name
    return found


def _scored(
    folder: Path, classes: tuple[str, ...]
) -> tuple[tuple[int, ...] | None, dict[str, Any]]:
    """The numbers of the classes that a mean goes over, None for all, and who says so."""
    if (folder / SCORED).exists():
        names, source = tuple(lines(folder / SCORED)), SCORED
    elif folder.resolve().name == ANIMALS and classes == voc.CLASSES:
        names, source = ANIMALS_SCORED, f"the name of the folder, {ANIMALS}"
    else:
        return None, {}
    unknown = [name for name in names if name not in classes]
    if unknown or not names:
        raise SetError(
            f"{folder / SCORED} names {unknown[0] if unknown else 'nothing'}, but must name "
            f"classes of {CLASSES}."
        )
    numbers = tuple(sorted({classes.index(name) for name in names}))
    return numbers, {"scored": [classes[number] for number in numbers], "scored_by": source}
