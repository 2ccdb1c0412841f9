"""From what a user names to the pictures that are meant: files, folders, lists, shards, patterns.

The order is that of the arguments; in a list that of its lines, in a tar shard that of its members;
a folder gives its files by name, then its folders by name. What is meant twice comes once, at its
first place. What is named itself is tried, whatever it is called. In folders and shards the name
decides: what ends like a picture is taken, what begins with a dot or ends otherwise only counted.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from stat import S_ISDIR
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from veca.data.errors import InputError
from veca.data.input_table import UNKNOWN, InputTable, TableBuilder
from veca.data.names import absolute, split_member
from veca.data.stamps import StampBuilder, Stamps, matches, whole_pattern
from veca.data.tar_shards import members

READABLE = (".avif", ".bmp", ".dib", ".gif", ".jfif", ".jpe", ".jpeg", ".jpg", ".pbm", ".pfm",
            ".pgm", ".png", ".pnm", ".ppm", ".tif", ".tiff", ".webp")  # fmt: skip
UNREADABLE = (".heic", ".heif", ".ico", ".jp2", ".jxl", ".psd", ".svg", ".tga")
"""Pictures too; they are tried, so that the list of what was skipped names them."""

PICTURES = READABLE + UNREADABLE
LISTS = (".lst", ".txt")
SHARDS = (".tar",)
PACKED_SHARDS = (".tar.bz2", ".tar.gz", ".tar.xz", ".tar.zst", ".tbz2", ".tgz", ".txz")


class Inputs(NamedTuple):
    """What was found."""

    table: InputTable

    rows: NDArray[np.int64]
    """The rows of the table that are pictures, each name once, in order."""

    problems: Mapping[int, str]
    """Rows that are no pictures, with the reason: damaged shards, folders that cannot be read."""

    others: int
    """Files that were left out for their names."""

    stamps: Stamps
    """Of every folder, shard and list that was read: while they hold, the same would be found."""


def find_inputs(paths: Sequence[str | os.PathLike[str]], leave_out: Path | None = None) -> Inputs:
    """Find every picture that the paths mean; not in the folder `leave_out`, the collection's."""
    finder = _Finder(leave_out)
    for path in paths:
        finder.add_argument(os.fspath(path))
    if not len(finder.builder):
        ignored = f" ({finder.others:,} files with other names were ignored)"
        raise InputError(
            f"no picture was found in {', '.join(str(path) for path in paths) or 'nothing'}"
            f"{ignored if finder.others else ''}; give files, folders, .tar shards, .txt lists of "
            f"paths, or patterns; pictures in folders end in {', '.join(READABLE)}."
        )
    table, stamps = finder.builder.table(), finder.stamps.stamps()
    return Inputs(table, table.first_of_each(), finder.problems, finder.others, stamps)


class _Finder:
    """Walks through arguments and fills the table."""

    def __init__(self, leave_out: Path | None) -> None:
        self.builder = TableBuilder()
        self.problems: dict[int, str] = {}
        self.others = 0
        self.stamps = StampBuilder()
        self._shards: set[str] = set()
        self._folders: set[tuple[int, int]] = set()
        if leave_out is not None and leave_out.exists():
            self._enter(os.fspath(leave_out))

    def add_argument(self, word: str) -> None:
        """Add what a word of the command line means; a path that exists comes before a pattern."""
        path = absolute(word)
        self.stamps.add(path)
        if os.path.lexists(path):
            self._add_named(path)
        elif not self._add_member(word):
            pattern = whole_pattern(word)
            found = matches(pattern)
            self.stamps.add_pattern(pattern, found)
            if not found:
                raise InputError(
                    f"{word} does not exist, and no file matches it as a pattern; check the path."
                )
            for match in found:
                self._add_named(absolute(match))

    def _add_named(self, path: str) -> None:
        """Add an argument that exists."""
        if path.lower().endswith(LISTS) and not os.path.isdir(path):  # noqa: PTH112
            self._add_list(path)
        else:
            self._add_path(path)

    def _add_path(self, path: str) -> None:
        """Add a folder, a shard, or what is taken for a picture."""
        name = path.lower()
        if os.path.isdir(path):  # noqa: PTH112
            self._add_folder(path)
        elif name.endswith(SHARDS):
            self._add_shard(path)
        elif name.endswith(PACKED_SHARDS):
            self._add_problem(
                path, "the tar shard is compressed, which pictures are already; make a plain .tar."
            )
        else:
            num_bytes = _num_bytes(path)
            if num_bytes == UNKNOWN:
                self.stamps.add(path)  # once it exists, it may be a folder
            self.builder.add_file(path, num_bytes)

    def _add_list(self, path: str) -> None:
        """Add every line of a list, relative to its folder; a line without a file is tried too."""
        self.stamps.add(path)
        folder = os.path.dirname(path)  # noqa: PTH120
        with open(path, "rb") as file:  # noqa: PTH123 - names need not be UTF-8
            for number, raw in enumerate(file):
                line = raw.removeprefix(b"\xef\xbb\xbf" if number == 0 else b"").rstrip(b"\r\n")
                if not line:
                    continue
                named = os.path.join(folder, os.fsdecode(line))  # noqa: PTH118
                if os.path.lexists(named) or not self._add_member(named):
                    self._add_path(os.path.abspath(named))  # noqa: PTH100 - a ~ is a letter here

    def _add_folder(self, top: str) -> None:
        """Add a folder and all below it, each folder once, so that links cannot lead in circles."""
        waiting = [top]
        while waiting:
            folder = waiting.pop()
            if not self._enter(folder):
                continue
            self.stamps.add(folder)
            try:
                names = sorted(os.listdir(folder))  # noqa: PTH208 - strings only, for memory's sake
            except OSError as error:
                self.stamps.add(folder, settled=False)
                self._add_problem(folder, f"the folder cannot be read ({error.strerror}).")
                continue
            paths = [f"{folder.rstrip(os.sep)}{os.sep}{name}" for name in names if name[0] != "."]
            self.others += len(names) - len(paths)
            waiting += reversed([path for path in paths if self._is_folder_or_adds(path)])

    def _is_folder_or_adds(self, path: str) -> bool:
        """Add a file of a folder; True where it is a folder itself."""
        try:
            status = os.stat(path)  # noqa: PTH116
        except OSError:
            status = None  # a dangling link
        if status is not None and S_ISDIR(status.st_mode):
            return True
        name = path.lower()
        if name.endswith(SHARDS + PACKED_SHARDS):
            self._add_path(path)
        elif name.endswith(PICTURES):
            self.builder.add_file(path, UNKNOWN if status is None else status.st_size)
        else:
            self.others += 1
        return False

    def _add_shard(self, path: str) -> None:
        """Add the pictures in a tar shard."""
        self._stamp_shard(path)
        try:
            for member in members(path):
                name = member.name.lower()
                if name.endswith(PICTURES) and not name.rpartition("/")[2].startswith("."):
                    self.builder.add_member(path, member.name, member.num_bytes, member.start)
                else:
                    self.others += 1
        except InputError as error:
            if isinstance(error.__cause__, OSError):  # which permissions or a cable can mend
                self.stamps.add(path, settled=False)
            self._add_problem(path, str(error))

    def _add_member(self, word: str) -> bool:
        """Add one member of a shard if that is what a word means."""
        parts = split_member(word)
        if parts is None or not os.path.isfile(parts[0]):  # noqa: PTH113
            return False
        shard, wanted = parts
        self._stamp_shard(shard)
        for member in members(shard):
            if member.name == wanted:
                self.builder.add_member(shard, wanted, member.num_bytes, member.start)
                return True
        return False

    def _stamp_shard(self, path: str) -> None:
        """Stamp a shard that is about to be read; a list may name it for each of its members."""
        if path not in self._shards:
            self._shards.add(path)
            self.stamps.add(path)

    def _add_problem(self, path: str, reason: str) -> None:
        """Add a row that will be skipped."""
        self.problems[len(self.builder)] = reason
        self.builder.add_file(path, _num_bytes(path))

    def _enter(self, folder: str) -> bool:
        """Whether a folder is entered for the first time."""
        status = os.stat(folder)  # noqa: PTH116
        identity = (status.st_dev, status.st_ino)
        first = identity not in self._folders
        self._folders.add(identity)
        return first


def _num_bytes(path: str) -> int:
    """The size of a file, where it can be asked."""
    try:
        return os.stat(path).st_size  # noqa: PTH116
    except (OSError, ValueError):
        return UNKNOWN
