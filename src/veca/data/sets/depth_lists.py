"""Lists of pictures and depth maps, as the depth sets are passed around with.

A line is `picture depth focal-length`; the depth is `None` where there is no map. Names may begin
with a slash that means the folder of the set.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from veca.data.sets.counts import Checker
from veca.data.sets.lists import rows

NO_DEPTH = "None"


class DepthList(NamedTuple):
    """What a list names."""

    name: str
    """Of the file."""

    pairs: list[tuple[str, str]]
    """Pictures and depth maps, as they are written, without a slash before them."""

    without_depth: int
    """Pictures that have no depth map and are left out."""


def read_depth_list(folder: Path, names: Sequence[str], checker: Checker) -> DepthList:
    """The first of some lists that is in the folder; they are one list under several names."""
    path = next((folder / name for name in names if (folder / name).exists()), folder / names[0])
    if not path.exists():
        checker.report(f"none of the lists {', '.join(names)} is in {folder}")
    checker.require(path)
    pairs, without = [], 0
    for picture, rest in rows(path, 2):
        depth = rest.split(None, 1)[0]
        if depth == NO_DEPTH:
            without += 1
        else:
            pairs.append((picture.lstrip("/"), depth.lstrip("/")))
    return DepthList(path.name, pairs, without)


def first_place(folder: Path, places: Sequence[str], name: str) -> str:
    """Name below the folder of a file, or of the folder a name begins with, in one of some places.

    Where none has it, the first place is named.
    """
    ways = [f"{place}/{name}".lstrip("/") for place in places]
    return next((way for way in ways if (folder / way).exists()), ways[0])
