"""From the numbers in the files of a set to its classes: tables with a place for each of 256.

A table is applied once, by the function that reads a file, to a file as the makers of the set
published it. Twice is wrong without an error: in ADE20K walls would be ignored, and buildings
become walls. So files that others have converted (`*TrainIds.png`) are never read.
"""

from collections.abc import Iterable, Mapping

import numpy as np
from jaxtyping import UInt8
from numpy.typing import NDArray

from veca.data.errors import DataError
from veca.data.labelled import IGNORED

UNKNOWN = 254
"""The mark, in a table, of numbers that do not occur in the files of a set; no class has it."""

MOST_CLASSES = UNKNOWN
"""Classes that a set of masks can have."""

MOST_NAMED = 8
"""Unknown numbers that an error names."""

Table = NDArray[np.uint8]


def remap(numbers: UInt8[np.ndarray, "H W"], table: UInt8[np.ndarray, "256"]) -> NDArray[np.uint8]:
    """The class of each pixel; a number that the set does not have is an error."""
    classes: NDArray[np.uint8] = table[numbers]
    unknown = np.unique(numbers[classes == UNKNOWN]).tolist()
    if unknown:
        more = ", ..." if len(unknown) > MOST_NAMED else ""
        known = np.flatnonzero(table != UNKNOWN)
        raise DataError(
            f"a mask holds the numbers {', '.join(map(str, unknown[:MOST_NAMED]))}{more}, but the "
            f"{len(known)} numbers of this set lie in {known[0]}..{known[-1]} and are others; give "
            "the masks as their makers published them, not converted ones."
        )
    return classes


def table_of(classes: Mapping[int, int]) -> Table:
    """A table that knows these numbers, each with its class."""
    table = np.full(256, UNKNOWN, np.uint8)
    table[list(classes.keys())] = list(classes.values())
    table.flags.writeable = False
    return table


def plain_table(num_classes: int) -> Table:
    """Numbers that are classes already, and `IGNORED`."""
    if not 1 <= num_classes <= MOST_CLASSES:
        raise DataError(
            f"{num_classes} classes cannot be told apart in the 8 bits of a mask; use 1 to "
            f"{MOST_CLASSES}."
        )
    return table_of({**_ranks(range(num_classes)), IGNORED: IGNORED})


def _ranks(numbers: Iterable[int], first: int = 0) -> dict[int, int]:
    """Numbers to classes in their order."""
    return {number: class_ for class_, number in enumerate(numbers, start=first)}


ADE20K = table_of({0: IGNORED, **_ranks(range(1, 151))})
"""0 is what belongs to none of the 150 classes."""

CONTEXT_60 = table_of(_ranks(range(60)))
"""0 is the background, a class that counts; nothing is ignored."""

CONTEXT_59 = table_of({0: IGNORED, **_ranks(range(1, 60))})
"""As `CONTEXT_60`, but the background does not count."""

_COCO_ABSENT = frozenset({11, 25, 28, 29, 44, 65, 67, 68, 70, 82, 90})
"""Numbers of categories that COCO planned and never used."""

_COCO_THINGS = [number for number in range(91) if number not in _COCO_ABSENT]
_COCO_STUFF = range(91, 182)

COCO_STUFF = table_of({**_ranks([*_COCO_THINGS, *_COCO_STUFF]), IGNORED: IGNORED})
"""80 things, then 91 stuffs; a number in a file is that of a category less one."""

COCO_OBJECT = table_of(
    {**dict.fromkeys([*_COCO_STUFF, IGNORED], 0), **_ranks(_COCO_THINGS, first=1)}
)
"""80 things after the background, which is all stuff and all that has no label; none is ignored."""

CITYSCAPES_IDS = (7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33)
"""The ids that count, in the order of the 19 classes."""

CITYSCAPES = table_of({**dict.fromkeys(range(34), IGNORED), **_ranks(CITYSCAPES_IDS)})
"""Ids 0 to 33. Others are unknown, 255 too: it is in files of train ids, which are no ids."""

VOC = plain_table(21)
"""Classes as they are, 255 along the borders of objects and where nobody could tell."""
