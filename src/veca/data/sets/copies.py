"""Files that lie in two parts of a set, where each part is a folder of its own.

No name below the folder of such a set is in two parts, but a picture may have been copied into both
by hand. A copy is known by its file name, its size and, where both agree, its content.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from veca.data.input_table import UNKNOWN, Input
from veca.data.labelled import Split
from veca.data.names import MEMBER_MARK
from veca.data.reading import open_input
from veca.data.sets.counts import Checker, SetError

MOST_READ = 4096
"""Files whose content is compared, at most: of small numbered pictures many agree in name and size
by chance, and a set must not be slow to open for it. The rarest agreements come first."""


def require_no_copies(first: Split, second: Split, checker: Checker) -> None:
    """Refuse a set, even a partial one, of which a file of the same name is in both parts."""
    read = 0
    for rows, others in _alike(first, second):
        read += len(rows) + len(others)
        if read > MOST_READ:
            return
        contents = {_content(second.picture(other)): other for other in others}
        for row in rows:
            content = _content(first.picture(row))
            if content is not None and content in contents:
                raise SetError(
                    f"{checker.name}: {second.keys[contents[content]]} is a copy of "
                    f"{first.keys[row]}, so that {first.name!r} and {second.name!r} share pictures "
                    "and results would mean nothing; take it, and others like it, out of one part."
                )


def _alike(first: Split, second: Split) -> list[tuple[list[int], list[int]]]:
    """Rows of the first and of the second that agree in name and size, small groups first."""
    found: dict[tuple[str, int], tuple[list[int], list[int]]] = {}
    for row, mark in enumerate(_marks(second)):
        if mark[1] != UNKNOWN:
            found.setdefault(mark, ([], []))[1].append(row)
    for row, mark in enumerate(_marks(first)):
        if mark in found:
            found[mark][0].append(row)
    return sorted(
        (pair for pair in found.values() if pair[0]), key=lambda pair: sum(map(len, pair))
    )


def _marks(split: Split) -> Iterator[tuple[str, int]]:
    """File name and size of every picture."""
    for key, size in zip(split.keys, split.pictures.sizes.tolist(), strict=True):
        yield key.rpartition("/")[2].rpartition(MEMBER_MARK)[2], size


def _content(source: Input) -> bytes | None:
    """SHA-256 of a file; None where it cannot be read, which is told when it is used."""
    try:
        with open_input(source) as file:
            if not isinstance(file, str):
                return hashlib.sha256(file.read()).digest()
            return hashlib.sha256(Path(file).read_bytes()).digest()
    except OSError:
        return None
