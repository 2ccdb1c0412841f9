"""Pictures paired with the files that tell of their pixels."""

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from veca.data.input_table import TableBuilder
from veca.data.labelled import Split, Target
from veca.data.names import absolute
from veca.data.sets.counts import Checker, SetError


class Pair(NamedTuple):
    """A picture and the file that tells of its pixels."""

    picture: str
    """Name below the folder of the set, with slashes."""

    target: str
    """The same, or an absolute path."""


ReadTarget = Callable[[str], Target]


def paired_split(
    name: str, folder: Path, pairs: Iterable[Pair], read_target: ReadTarget, checker: Checker
) -> Split:
    """A part by the names of its pictures, whatever order they were listed in.

    A pair of which one file is not there is left out and reported.
    """
    root = absolute(folder)
    builder = TableBuilder()
    keys: list[str] = []
    targets: list[str] = []
    missing: list[str] = []
    for pair in sorted(pairs):
        picture, target = (os.path.join(root, part) for part in pair)  # noqa: PTH118
        try:
            num_bytes = os.stat(picture).st_size  # noqa: PTH116 - a hundred thousand times
            os.stat(target)  # noqa: PTH116
        except OSError as error:
            missing.append(str(error.filename))
            continue
        builder.add_file(picture, num_bytes)
        keys.append(pair.picture)
        targets.append(target)
    if missing:
        checker.report(
            f"{name}: of {len(missing):,} of {len(missing) + len(keys):,} pictures the file or "
            f"what tells of its pixels is not there, such as {missing[0]}"
        )
    return Split(
        name=name,
        pictures=builder.table(),
        keys=tuple(keys),
        targets=tuple(targets),
        read_target=read_target,
    )


def require_apart(train: Split, test: Split, checker: Checker) -> None:
    """Refuse a set, even a partial one, whose numbers would be about pictures it was fitted on."""
    shared = sorted(set(train.keys) & set(test.keys))
    if shared:
        raise SetError(
            f"{checker.name}: {len(shared):,} pictures are in {train.name!r} and in {test.name!r} "
            f"too, such as {shared[0]}, so that results would mean nothing; get the lists again."
        )


def files_below(folder: Path, part: str, ending: str) -> list[str]:
    """Names below the folder of the files in one of its parts, at any depth, that end so.

    What begins with a dot is left out: macOS puts such a file beside each file it copies.
    """
    return [
        path.relative_to(folder).as_posix()
        for path in (folder / part).rglob(f"*{ending}")
        if not path.name.startswith(".")
    ]
