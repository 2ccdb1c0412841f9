"""Pictures in a folder for each class: `train/<class>/...` and `val/<class>/...`."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from veca.data.errors import InputError
from veca.data.input_table import Input
from veca.data.inputs import SHARDS, find_inputs
from veca.data.labelled import LabelledSet, Split
from veca.data.names import MEMBER_MARK, absolute
from veca.data.sets.counts import Checker, SetError
from veca.data.sets.parts import PartBuilder

TRAIN = "train"
HELD_OUT = ("val", "validation", "valid")
TEST = "test"


class Pictures(NamedTuple):
    """What lies in the class folders of one part."""

    builder: PartBuilder
    """Its labels are places in `names`."""

    names: list[str]
    """The classes, in the order in which they were met."""

    def split(self, classes: Sequence[str], checker: Checker) -> Split:
        """The part, with the places of its classes among all classes as labels."""
        unknown = sorted(set(self.names).difference(classes))
        if unknown:
            raise SetError(
                f"{checker.name}: {self.builder.name} has the class {unknown[0]!r}, which is none "
                f"of the {len(classes):,} classes; give it training pictures, or take it away."
            )
        numbers = {name: number for number, name in enumerate(classes)}
        return self.builder.split(len(classes), checker, [numbers[name] for name in self.names])


def is_class_folders(folder: Path) -> bool:
    """Whether a folder looks like this layout."""
    return (folder / TRAIN).is_dir()


def class_folders(folder: Path, checker: Checker) -> LabelledSet:
    """A set in the plain layout.

    Classes are numbered by name, as they lie in `train`. Numbers are reported on `test` where it
    has class folders, settings then chosen on `val`; else on `val`.
    """
    parts = (TRAIN, *_parts(folder))
    found = [read_class_folders(folder / part, folder, checker) for part in parts]
    classes = tuple(sorted(found[0].names))
    splits = [part.split(classes, checker) for part in found]
    tested = np.bincount(np.asarray(splits[-1].labels), minlength=len(classes))
    absent = [classes[number] for number in np.flatnonzero(tested == 0)]
    return LabelledSet(
        name=folder.resolve().name,
        kind="classes",
        classes=classes,
        train=splits[0],
        held_out=splits[1] if len(splits) > 2 else None,
        test=splits[-1],
        facts={"classes_without_test_pictures": absent} if absent else {},
    )


def read_class_folders(top: Path, folder: Path, checker: Checker) -> Pictures:
    """The pictures of a part, to any depth; a class may be a tar shard, `<class>.tar`, too.

    Args:
        top: holds the class folders; the part has its name.
        folder: of the set, below which pictures are named.
        checker: of the set.
    """
    found = Pictures(PartBuilder(top.name, folder), [])
    places: dict[str, int] = {}
    loose = 0
    for name, source in pictures_below(top, checker):
        class_ = _class_of(name)
        if class_ is None:
            loose += 1
            continue
        if class_ not in places:
            places[class_] = len(places)
            found.names.append(class_)
        found.builder.add_found(source, places[class_])
    if loose:
        checker.report(f"{top.name}: {loose:,} pictures lie in no folder of a class")
    return found


def pictures_below(top: Path, checker: Checker) -> Iterator[tuple[str, Input]]:
    """Name below a folder, and place, of all pictures in it, by folder and name."""
    try:
        found = find_inputs([top])
    except InputError:  # not one
        return
    start = len(absolute(top)) + 1
    for row in found.rows.tolist():
        source = found.table[row]
        if row in found.problems:
            checker.report(f"{source.name}: {found.problems[row].rstrip('.')}")
        else:
            yield source.name[start:], source


def _parts(folder: Path) -> list[str]:
    """The other parts: one to report on, before it perhaps one to choose settings on."""
    held_out = [name for name in HELD_OUT if (folder / name).is_dir()][:1]
    test = [TEST] if has_folders(folder / TEST) else []
    if not held_out and not test:
        raise SetError(
            f"{folder} has {TRAIN}/, but neither {HELD_OUT[0]}/ nor {TEST}/ with a folder for each "
            f"class; move some pictures of every class there, to measure on."
        )
    return held_out + test


def has_folders(folder: Path) -> bool:
    """Whether a part has classes: the test pictures of a challenge often lie there without.

    What begins with a dot is no class: notebooks and file managers put such folders anywhere.
    """
    return folder.is_dir() and any(
        path.is_dir() and not path.name.startswith(".") for path in folder.iterdir()
    )


def _class_of(name: str) -> str | None:
    """The class of a picture, by its name below the folder of its part."""
    shard = f"{SHARDS[0]}{MEMBER_MARK}"
    top, below, _ = name.partition(os.sep)
    if shard in top:
        return top.partition(shard)[0]
    return top if below else None
