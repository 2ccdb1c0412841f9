"""Lists of images: folders, lists, patterns and tar shards.

What an input is called: the one name by which a collection knows it, from run to run.

The inputs of a run as a few flat arrays.

A Python list of a million paths costs hundreds of megabytes, and once more in every worker: reading
an object writes its reference count, which copies the page. Arrays are read without a write, so
workers share them with the main process.

Pictures that lie as plain numbers in a larger file, such as CIFAR's, served as files in memory.

Whatever reads an input takes an encoded picture, so a record gets the header of a PPM file.

Pictures in tar shards, read where they lie: nothing is unpacked.

From what a user names to the pictures that are meant: files, folders, lists, shards, patterns.

The order is that of the arguments; in a list that of its lines, in a tar shard that of its members;
a folder gives its files by name, then its folders by name. What is meant twice comes once, at its
first place. What is named itself is tried, whatever it is called. In folders and shards the name
decides: what ends like a picture is taken, what begins with a dot or ends otherwise only counted.

Opening an input, wherever it lies, and wording why it cannot be read.
"""

import hashlib
import io
import os
import tarfile
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import isqrt
from pathlib import Path
from stat import S_ISDIR
from typing import IO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from veca.data.images import DataError, ImageError
from veca.data.stamps import StampBuilder, Stamps, matches, whole_pattern

MEMBER_MARK = "#"
"""Between the path of a tar shard and the name of its member."""


def absolute(path: str | os.PathLike[str]) -> str:
    """The name of a file: its absolute path, links kept, so that it means one file anywhere."""
    return os.path.abspath(os.path.expanduser(path))  # noqa: PTH100, PTH111 - as text, links kept


def member_name(shard: str, member: str) -> str:
    """The name of a picture in a tar shard, such as `photos.tar#beach/1.jpg`."""
    return f"{shard}{MEMBER_MARK}{member}"


def split_member(name: str) -> tuple[str, str] | None:
    """The path of the tar shard, absolute, and the member that a name means; None for a file."""
    place = name.lower().find(f".tar{MEMBER_MARK}")
    if place < 0:
        return None
    end = place + len(".tar")
    return absolute(name[:end]), name[end + len(MEMBER_MARK) :]


def possible_names(word: str | os.PathLike[str]) -> list[str]:
    """The names that a user's word for a picture can mean."""
    text = os.fspath(word)
    names = [absolute(text)]
    if parts := split_member(text):
        names.append(member_name(*parts))
    return names


def key(name: str | bytes) -> int:
    """64 bits that stand for a name; any two of a million names share them by a chance of 3e-8."""
    return int.from_bytes(hashlib.blake2b(os.fsencode(name), digest_size=8).digest(), "little")


UNKNOWN = -1
"""Bytes of a file that could not be asked, and the start of one that is not in a tar shard."""


class ImageEntry(NamedTuple):
    """One picture of the table."""

    name: str
    """Absolute path; of a picture in a tar shard `<path of the shard>#<name in it>`."""

    num_bytes: int
    """Size of the encoded picture, by which a file that changed is noticed."""

    shard: str | None
    """Path of the tar shard."""

    start: int
    """First byte in the tar shard."""

    @property
    def member(self) -> str | None:
        """Name in the tar shard."""
        return None if self.shard is None else self.name[len(self.shard) + 1 :]


@dataclass(frozen=True)
class ImageTable:
    """N inputs in their order."""

    names: NDArray[np.uint8]
    """All names, end to end."""

    ends: NDArray[np.int64]
    """Where each name ends (N)."""

    sizes: NDArray[np.int64]
    """Bytes of each encoded picture (N)."""

    starts: NDArray[np.int64]
    """First byte of each picture in its tar shard (N)."""

    shard_lengths: NDArray[np.int64]
    """How many bytes of each name are the path of a tar shard; 0 for a file (N)."""

    keys: NDArray[np.uint64]
    """`key` of each name (N)."""

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, row: int) -> ImageEntry:
        begin = int(self.ends[row - 1]) if row else 0
        name = self.names[begin : int(self.ends[row])].tobytes()
        length = int(self.shard_lengths[row])
        shard = os.fsdecode(name[:length]) if length else None
        return ImageEntry(os.fsdecode(name), int(self.sizes[row]), shard, int(self.starts[row]))

    def first_of_each(self) -> NDArray[np.int64]:
        """Rows without those whose name stands in an earlier one."""
        return np.sort(np.unique(self.keys, return_index=True)[1])


class KeyedRows:
    """Finds many names at once, without a dictionary of them."""

    def __init__(self, keys: NDArray[np.uint64]) -> None:
        self._order = np.argsort(keys, kind="stable")
        self._keys = keys[self._order]

    def find(self, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The first row of each key, -1 where there is none."""
        if not len(self._keys):
            return np.full(len(keys), -1, np.int64)
        places = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        return np.where(self._keys[places] == keys, self._order[places], -1)


class TableBuilder:
    """Collects inputs one by one."""

    def __init__(self) -> None:
        self._names = bytearray()
        self._ends = array("q")
        self._sizes = array("q")
        self._starts = array("q")
        self._shard_lengths = array("q")
        self._keys = array("Q")

    def __len__(self) -> int:
        return len(self._ends)

    def add_file(self, path: str, num_bytes: int = UNKNOWN) -> None:
        """Add a picture that is a file."""
        self._add(os.fsencode(path), num_bytes, UNKNOWN, 0)

    def add_member(self, shard: str, member: str, num_bytes: int, start: int) -> None:
        """Add a picture that lies in a tar shard."""
        name = os.fsencode(member_name(shard, member))
        self._add(name, num_bytes, start, len(os.fsencode(shard)))

    def table(self) -> ImageTable:
        """The table; it shares memory with the builder, to which nothing can be added any more."""
        return ImageTable(
            names=np.frombuffer(self._names, np.uint8),
            ends=np.frombuffer(self._ends, np.int64),
            sizes=np.frombuffer(self._sizes, np.int64),
            starts=np.frombuffer(self._starts, np.int64),
            shard_lengths=np.frombuffer(self._shard_lengths, np.int64),
            keys=np.frombuffer(self._keys, np.uint64),
        )

    def _add(self, name: bytes, num_bytes: int, start: int, shard_length: int) -> None:
        """Add a row."""
        self._names += name
        self._ends.append(len(self._names))
        self._sizes.append(num_bytes)
        self._starts.append(start)
        self._shard_lengths.append(shard_length)
        self._keys.append(key(name))


RAW_SUFFIX = ".planar-rgb"
"""How the name of such a picture ends: a square of 8 bits, all of red, then green, then blue."""


def open_record(path: str, start: int, num_bytes: int) -> io.BytesIO:
    """A record as an open PPM file."""
    with io.FileIO(path) as file:
        file.seek(start)
        numbers = file.read(num_bytes)
    side = isqrt(num_bytes // 3)
    if len(numbers) != num_bytes or 3 * side * side != num_bytes:
        raise ImageError(
            f"{path} has {len(numbers):,} bytes at byte {start:,}, where a square picture of "
            f"{num_bytes:,} was expected; it was cut short or exchanged: get it again."
        )
    pixels = np.frombuffer(numbers, np.uint8).reshape(3, side, side).transpose(1, 2, 0)
    return io.BytesIO(b"P6 %d %d 255\n" % (side, side) + pixels.tobytes())


BLOCK = 512
"""A tar file is made of blocks of so many bytes."""


class Member(NamedTuple):
    """A regular file in a tar shard."""

    name: str
    start: int
    """Its first byte, counted from the start of the shard."""
    num_bytes: int


def members(path: str) -> Iterator[Member]:
    """The files in a shard in their order; a shard that is damaged raises where that is found."""
    try:
        with tarfile.open(path, "r:") as shard:
            while (found := shard.next()) is not None:
                shard.members.clear()  # type: ignore[attr-defined] # else all would be kept
                if found.isreg() and not found.issparse():
                    yield Member(found.name, found.offset_data, found.size)
            _check_end(path, shard.offset)
    except (tarfile.TarError, OSError, EOFError, ValueError) as error:
        raise DataError(
            f"the tar shard cannot be read to its end ({error}); what lies before the damage was "
            "taken: get the shard again, or make it anew, without compression."
        ) from error


def _check_end(path: str, end: int) -> None:
    """Refuse a shard whose list of files stops at something else than its end.

    The library takes a damaged header in the middle for the end and says nothing.
    """
    with io.FileIO(path) as file:
        file.seek(end)
        rest = file.read(BLOCK)
    if rest.strip(b"\0"):
        raise tarfile.ReadError(f"at byte {end} there is neither a file nor the end")


def open_member(path: str, start: int, num_bytes: int) -> io.BufferedReader:
    """A member as an open binary file."""
    return io.BufferedReader(_Section(io.FileIO(path), start, num_bytes))


class _Section(io.RawIOBase):
    """A part of a file as a file of its own."""

    def __init__(self, file: io.FileIO, start: int, num_bytes: int) -> None:
        self._file = file
        self._start = start
        self._num_bytes = num_bytes
        self._place = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        """Read at the current place and not beyond the end of the part."""
        length = max(0, min(len(buffer), self._num_bytes - self._place))
        self._file.seek(self._start + self._place)
        read = self._file.readinto(memoryview(buffer)[:length]) or 0
        self._place += read
        return read

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to any place that is not before the start."""
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._num_bytes}[whence]
        if origin + offset < 0:
            raise ValueError(f"place {origin + offset} lies before the start of the file")
        self._place = origin + offset
        return self._place

    def close(self) -> None:
        """Close the file underneath too."""
        if not self.closed:
            self._file.close()
        super().close()


READABLE = (".avif", ".bmp", ".dib", ".gif", ".jfif", ".jpe", ".jpeg", ".jpg", ".pbm", ".pfm",
            ".pgm", ".png", ".pnm", ".ppm", ".tif", ".tiff", ".webp")  # fmt: skip
UNREADABLE = (".heic", ".heif", ".ico", ".jp2", ".jxl", ".psd", ".svg", ".tga")
"""Pictures too; they are tried, so that the list of what was skipped names them."""

PICTURES = READABLE + UNREADABLE
LISTS = (".lst", ".txt")
SHARDS = (".tar",)
PACKED_SHARDS = (".tar.bz2", ".tar.gz", ".tar.xz", ".tar.zst", ".tbz2", ".tgz", ".txz")


class ImageList(NamedTuple):
    """What was found."""

    table: ImageTable

    rows: NDArray[np.int64]
    """The rows of the table that are pictures, each name once, in order."""

    problems: Mapping[int, str]
    """Rows that are no pictures, with the reason: damaged shards, folders that cannot be read."""

    others: int
    """Files that were left out for their names."""

    stamps: Stamps
    """Of every folder, shard and list that was read: while they hold, the same would be found."""


def list_images(paths: Sequence[str | os.PathLike[str]], exclude: Path | None = None) -> ImageList:
    """Find every picture that the paths mean; not in the folder `exclude`, the collection's."""
    finder = _Finder(exclude)
    for path in paths:
        finder.add_argument(os.fspath(path))
    if not len(finder.builder):
        ignored = f" ({finder.others:,} files with other names were ignored)"
        raise DataError(
            f"no picture was found in {', '.join(str(path) for path in paths) or 'nothing'}"
            f"{ignored if finder.others else ''}; give files, folders, .tar shards, .txt lists of "
            f"paths, or patterns; pictures in folders end in {', '.join(READABLE)}."
        )
    table, stamps = finder.builder.table(), finder.stamps.stamps()
    return ImageList(table, table.first_of_each(), finder.problems, finder.others, stamps)


class _Finder:
    """Walks through arguments and fills the table."""

    def __init__(self, exclude: Path | None) -> None:
        self.builder = TableBuilder()
        self.problems: dict[int, str] = {}
        self.others = 0
        self.stamps = StampBuilder()
        self._shards: set[str] = set()
        self._folders: set[tuple[int, int]] = set()
        if exclude is not None and exclude.exists():
            self._enter(os.fspath(exclude))

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
                raise DataError(
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
        except DataError as error:
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


@contextmanager
def open_image(source: ImageEntry) -> Iterator[str | IO[bytes]]:
    """What the picture readers take: the path of a file, or an open part of a larger file."""
    if source.shard is None:
        yield source.name
        return
    if source.name.endswith(RAW_SUFFIX):
        yield open_record(source.shard, source.start, source.num_bytes)
        return
    with open_member(source.shard, source.start, source.num_bytes) as file:
        yield file


def one_line(error: Exception) -> str:
    """Why an input was skipped, on one line."""
    words = " ".join(str(error).split()) or type(error).__name__
    return words.encode("utf-8", "replace").decode()  # names may hold what is no text


def exists(source: ImageEntry) -> bool:
    """Whether the file, or the tar shard, is still there."""
    return os.path.lexists(source.shard or source.name)
