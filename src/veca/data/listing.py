"""List the images that a user names: files, folders, text lists, tar shards and glob patterns.

Order: that of the arguments; in a list that of its lines, in a shard that of its members; a folder
gives its files by name, then its subfolders by name. An image that is named twice is listed once,
at its first position. A file that is named itself is tried whatever its name; in folders and
shards only names with an image ending count, and names that begin with a dot are skipped.

A list of a million images is a few flat numpy arrays: Python strings would cost hundreds of
megabytes, and again in every worker process, since reading an object writes its reference count and
copies the page. Images in tar shards are read in place.
"""

import contextlib
import glob
import hashlib
import io
import os
import tarfile
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from math import isqrt
from pathlib import Path
from stat import S_ISDIR
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from veca.data.images import DataError, ImageError
from veca.runtime.files import printable
from veca.runtime.tensors import load_tensors, save_tensors

READABLE = (".avif", ".bmp", ".dib", ".gif", ".jfif", ".jpe", ".jpeg", ".jpg", ".pbm", ".pfm",
            ".pgm", ".png", ".pnm", ".ppm", ".tif", ".tiff", ".webp")  # fmt: skip
UNREADABLE = (".heic", ".heif", ".ico", ".jp2", ".jxl", ".psd", ".svg", ".tga")
"""Images too; they are listed, so that the user learns that they were skipped."""

IMAGE_SUFFIXES = READABLE + UNREADABLE
LISTS = (".lst", ".txt")
SHARDS = (".tar",)
PACKED_SHARDS = (".tar.bz2", ".tar.gz", ".tar.xz", ".tar.zst", ".tbz2", ".tgz", ".txz")

MEMBER_MARK = "#"
"""Separates the path of a tar shard from the name of its member."""

RAW_SUFFIX = ".planar-rgb"
"""Name ending of raw square 8-bit images: all of red, then green, then blue (CIFAR)."""

UNKNOWN = -1
"""Size of a file that cannot be read, and start of one that is not in a tar shard."""

FORMAT = 2
"""Version of stored lists."""


def absolute(path: str | os.PathLike[str]) -> str:
    """The absolute path with symbolic links kept, by which a file is known from run to run."""
    return os.path.abspath(os.path.expanduser(path))  # noqa: PTH100, PTH111 - as text, links kept


def member_name(shard: str, member: str) -> str:
    """The name of an image in a tar shard, such as `photos.tar#beach/1.jpg`."""
    return f"{shard}{MEMBER_MARK}{member}"


def split_member(name: str) -> tuple[str, str] | None:
    """Split a name into the absolute path of its tar shard and the member; None for a file."""
    place = name.lower().find(f".tar{MEMBER_MARK}")
    if place < 0:
        return None
    end = place + len(".tar")
    return absolute(name[:end]), name[end + len(MEMBER_MARK) :]


def possible_names(text: str | os.PathLike[str]) -> list[str]:
    """The names that a user may mean by a text: a file, and perhaps a member of a shard."""
    text = os.fspath(text)
    names = [absolute(text)]
    if parts := split_member(text):
        names.append(member_name(*parts))
    return names


def key(name: str | bytes) -> int:
    """Hash a name to 64 bits; among a million names, a collision has a probability of 3e-8."""
    return int.from_bytes(hashlib.blake2b(os.fsencode(name), digest_size=8).digest(), "little")


def one_line(error: Exception) -> str:
    """The message of an error on one line of printable text."""
    return printable(" ".join(str(error).split())) or type(error).__name__


def named_problem(name: str, error: Exception) -> str:
    """What is wrong with an image, on one line, with its name once."""
    text = one_line(error)
    return text if name in text else f"{printable(name)}: {text}"


class ImageEntry(NamedTuple):
    """One image of a table."""

    name: str
    """Absolute path; for an image in a tar shard `<path of the shard>#<member>`."""

    num_bytes: int = UNKNOWN
    """Size of the encoded image."""

    shard: str | None = None
    """Path of the tar shard."""

    start: int = UNKNOWN
    """First byte in the tar shard."""

    @property
    def member(self) -> str | None:
        """Name in the tar shard."""
        return None if self.shard is None else self.name[len(self.shard) + 1 :]


@dataclass(frozen=True)
class ImageTable:
    """N images in order."""

    names: NDArray[np.uint8]
    """All names, concatenated."""

    ends: NDArray[np.int64]
    """Where each name ends (N)."""

    sizes: NDArray[np.int64]
    """Bytes of each encoded image (N)."""

    starts: NDArray[np.int64]
    """First byte of each image in its tar shard (N)."""

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


class KeyedRows:
    """Finds rows by key without a dictionary."""

    def __init__(self, keys: NDArray[np.uint64]) -> None:
        self._order = np.argsort(keys, kind="stable")
        self._keys = keys[self._order]

    def find(self, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The first row of each key; -1 if there is none."""
        if not len(self._keys):
            return np.full(len(keys), -1, np.int64)
        places = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        return np.where(self._keys[places] == keys, self._order[places], -1)


class TableBuilder:
    """Collects images one by one."""

    def __init__(self) -> None:
        self._names = bytearray()
        self._ends = array("q")
        self._sizes = array("q")
        self._starts = array("q")
        self._shard_lengths = array("q")
        self._keys = array("Q")

    def __len__(self) -> int:
        return len(self._ends)

    def add(self, entry: ImageEntry) -> None:
        """Add an image."""
        name = os.fsencode(entry.name)
        self._names += name
        self._ends.append(len(self._names))
        self._sizes.append(entry.num_bytes)
        self._starts.append(entry.start)
        self._shard_lengths.append(0 if entry.shard is None else len(os.fsencode(entry.shard)))
        self._keys.append(key(name))

    def table(self) -> ImageTable:
        """Return the table; it shares the builder's memory, so nothing can be added afterwards."""
        return ImageTable(
            names=np.frombuffer(self._names, np.uint8),
            ends=np.frombuffer(self._ends, np.int64),
            sizes=np.frombuffer(self._sizes, np.int64),
            starts=np.frombuffer(self._starts, np.int64),
            shard_lengths=np.frombuffer(self._shard_lengths, np.int64),
            keys=np.frombuffer(self._keys, np.uint64),
        )


def members(path: str) -> Iterator[ImageEntry]:
    """The files in a shard in order; raises where a damaged shard stops being readable."""
    try:
        with tarfile.open(path, "r:") as shard:
            while (found := shard.next()) is not None:
                shard.members.clear()  # type: ignore[attr-defined] # tarfile would keep them all
                if found.isreg() and not found.issparse():
                    name = member_name(path, found.name)
                    yield ImageEntry(name, found.size, path, found.offset_data)
            with io.FileIO(path) as file:
                file.seek(shard.offset)
                # tarfile takes a damaged header for the end, which is a block of zeros.
                if file.read(tarfile.BLOCKSIZE).strip(b"\0"):
                    raise tarfile.ReadError(
                        f"at byte {shard.offset} there is neither a file nor the end"
                    )
    except (tarfile.TarError, OSError, EOFError, ValueError) as error:
        raise DataError(
            f"the tar shard cannot be read to its end ({error}); images before the damage are "
            "used: get the shard again, or create it again without compression."
        ) from error


def exists(entry: ImageEntry) -> bool:
    """Whether the file, or the tar shard, is still there."""
    return os.path.lexists(entry.shard or entry.name)


@contextmanager
def open_image(entry: ImageEntry) -> Iterator[str | IO[bytes]]:
    """What `decode` takes: the path of a file, or the content of a part of a larger file."""
    if entry.shard is None:
        yield entry.name
        return
    with open(entry.shard, "rb") as file:  # noqa: PTH123
        file.seek(entry.start)
        content = file.read(entry.num_bytes)
    if entry.name.endswith(RAW_SUFFIX):  # becomes a PPM file
        side = isqrt(entry.num_bytes // 3)
        if len(content) != entry.num_bytes or 3 * side * side != entry.num_bytes:
            raise ImageError(
                f"{entry.shard} has {len(content):,} bytes at byte {entry.start:,}, but a square "
                f"image needs {entry.num_bytes:,}; it is truncated or another file: get it again."
            )
        pixels = np.frombuffer(content, np.uint8).reshape(3, side, side).transpose(1, 2, 0)
        content = b"P6 %d %d 255\n" % (side, side) + pixels.tobytes()
    yield io.BytesIO(content)


def free_stem(name: str, taken: set[str]) -> str:
    """The start of the names of an image's files; images of the same name are numbered."""
    stem = found = Path(name.rpartition(MEMBER_MARK)[2]).stem
    number = 1
    while found in taken:
        number += 1
        found = f"{stem}-{number}"
    taken.add(found)
    return found


class ImageList(NamedTuple):
    """The images that were found."""

    table: ImageTable

    rows: NDArray[np.int64]
    """Rows of the table, each name once, in order; those with problems included."""

    problems: Mapping[int, str]
    """Rows that are not images, with the reason: damaged shards, folders that cannot be read."""

    others: int
    """Number of files skipped because of their names."""


def list_images(paths: Sequence[str | os.PathLike[str]], exclude: Path | None = None) -> ImageList:
    """List every image that the paths mean, except those in the folder `exclude`."""
    lister = _Lister(exclude)
    for path in paths:
        lister.add_argument(os.fspath(path))
    if not len(lister.builder):
        ignored = f" ({lister.others:,} files with other names were ignored)"
        raise DataError(
            f"no image was found in {', '.join(str(path) for path in paths) or 'nothing'}"
            f"{ignored if lister.others else ''}; give files, folders, .tar shards, .txt lists of "
            f"paths, or patterns; images in folders end in {', '.join(READABLE)}."
        )
    table = lister.builder.table()
    first_of_each = np.sort(np.unique(table.keys, return_index=True)[1])
    return ImageList(table, first_of_each, lister.problems, lister.others)


class _Lister:
    """Walks through arguments and fills the table."""

    def __init__(self, exclude: Path | None) -> None:
        self.builder = TableBuilder()
        self.problems: dict[int, str] = {}
        self.others = 0
        self._folders: set[tuple[int, int]] = set()
        if exclude is not None and exclude.exists():
            self._is_new(os.fspath(exclude))

    def add_argument(self, text: str) -> None:
        """Add what an argument means; an existing path takes precedence over a pattern."""
        paths = [absolute(text)]
        if not os.path.lexists(paths[0]):
            if self._add_member(text):
                return
            matches = sorted(glob.glob(os.path.expanduser(text), recursive=True))  # noqa: PTH111, PTH207
            if not matches:
                raise DataError(
                    f"{text} does not exist, and no file matches it as a pattern; check the path."
                )
            paths = [absolute(match) for match in matches]
        for path in paths:
            if path.lower().endswith(LISTS) and not os.path.isdir(path):  # noqa: PTH112
                self._add_list(path)
            else:
                self._add_path(path)

    def _add_path(self, path: str, problem: str | None = None) -> None:
        """Add a folder, a shard, or a file, which is taken for an image."""
        name = path.lower()
        if problem is None and os.path.isdir(path):  # noqa: PTH112
            self._add_folder(path)
        elif problem is None and name.endswith(SHARDS):
            self._add_shard(path)
        else:
            if problem is None and name.endswith(PACKED_SHARDS):
                problem = "the tar shard is compressed; create a plain .tar."
            if problem is not None:
                self.problems[len(self.builder)] = problem
            status = _stat(path)
            self.builder.add(ImageEntry(path, UNKNOWN if status is None else status.st_size))

    def _add_list(self, path: str) -> None:
        """Add every line of a list, relative to its folder; missing files are listed too."""
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
        """Add a folder and all below it, each folder once, so that links cannot form a cycle."""
        waiting = [top]
        while waiting:
            folder = waiting.pop()
            if not self._is_new(folder):
                continue
            try:
                names = sorted(os.listdir(folder))  # noqa: PTH208 - strings only, to save memory
            except OSError as error:
                self._add_path(folder, f"the folder cannot be read ({error.strerror}).")
                continue
            paths = [f"{folder.rstrip(os.sep)}{os.sep}{name}" for name in names if name[0] != "."]
            self.others += len(names) - len(paths)
            waiting += reversed([path for path in paths if self._is_folder_or_adds(path)])

    def _is_folder_or_adds(self, path: str) -> bool:
        """Add a file of a folder; True if it is a folder itself."""
        status = _stat(path)  # None: a dangling link
        if status is not None and S_ISDIR(status.st_mode):
            return True
        name = path.lower()
        if name.endswith(SHARDS + PACKED_SHARDS):
            self._add_path(path)
        elif name.endswith(IMAGE_SUFFIXES):
            self.builder.add(ImageEntry(path, UNKNOWN if status is None else status.st_size))
        else:
            self.others += 1
        return False

    def _add_shard(self, path: str) -> None:
        """Add the images in a tar shard."""
        try:
            for entry in members(path):
                name = (entry.member or "").lower()
                if name.endswith(IMAGE_SUFFIXES) and not name.rpartition("/")[2].startswith("."):
                    self.builder.add(entry)
                else:
                    self.others += 1
        except DataError as error:
            self._add_path(path, str(error))

    def _add_member(self, text: str) -> bool:
        """Add one member of a shard if that is what a text means."""
        parts = split_member(text)
        if parts is None or not os.path.isfile(parts[0]):  # noqa: PTH113
            return False
        found = next((entry for entry in members(parts[0]) if entry.member == parts[1]), None)
        if found is not None:
            self.builder.add(found)
        return found is not None

    def _is_new(self, folder: str) -> bool:
        """Whether a folder is visited for the first time."""
        status = os.stat(folder)  # noqa: PTH116
        identity = (status.st_dev, status.st_ino)
        new = identity not in self._folders
        self._folders.add(identity)
        return new


def _stat(path: str) -> os.stat_result | None:
    """The status of a file, if there is one."""
    try:
        return os.stat(path)  # noqa: PTH116
    except (OSError, ValueError):
        return None


@dataclass(frozen=True)
class ImageIndex:
    """N images to train on, numbered from 0 in the order in which they were found."""

    table: ImageTable
    """Everything that was found, images or not."""

    rows: NDArray[np.int64]
    """The row of each image in the table (N)."""

    keys: NDArray[np.uint64]
    """Hash of each image's name below the given path, the same wherever that lies (N)."""

    problems: tuple[str, ...] = ()
    """Damaged shards, and folders that cannot be read."""

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> ImageEntry:
        return self.table[int(self.rows[index])]

    def fingerprint(self) -> str:
        """SHA-256 over the names in order, as they are below the given path."""
        return hashlib.sha256(self.keys.tobytes()).hexdigest()

    @classmethod
    def load_or_list(
        cls,
        images: str | os.PathLike[str],
        cache: Path | None = None,
        *,
        resume: bool = False,
        exclude: Path | None = None,
    ) -> "ImageIndex":
        """Find the images of a folder, a shard, a list or a pattern, without those in `exclude`.

        The list is stored in the file `cache`. With `resume` a list stored there is used, so that a
        resumed run trains on the same images; else they are listed again.
        """
        text = os.fspath(images)
        if resume and cache is not None and (stored := _load_index(cache, absolute(text))):
            return stored
        found = list_images([images], exclude)
        problems = tuple(f"{found.table[row].name}: {text}" for row, text in found.problems.items())
        rows = np.setdiff1d(found.rows, np.fromiter(found.problems, np.int64))
        if not len(rows):
            raise DataError(f"no image was found in {text}: {problems[0]}")
        keys = _keys_below(found.table, rows, _root(text))
        index = cls(found.table, rows, keys, problems)
        if cache is not None:
            arrays = {part.name: getattr(found.table, part.name) for part in fields(found.table)}
            arrays |= {"rows": rows, "index_keys": keys}
            metadata = {"format": FORMAT, "images": absolute(text), "problems": list(problems)}
            with contextlib.suppress(OSError):  # only costs the next run the time to list again
                save_tensors(cache, arrays, metadata)
        return index


def split_train_val(index: ImageIndex, num_val: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Split into training and validation images.

    Names decide, not positions: an image stays on its side when the folder moves, is listed in
    another order or, nearly always, grows. At most a tenth is held out, and at least one image of
    two or more.

    Returns:
        Training images in increasing order; validation images in random order, so that the first
        few represent all of them.
    """
    if num_val < 0:
        raise DataError(f"{num_val} validation images are invalid; use 0 or more.")
    most = max(len(index) // 10, 1) if len(index) > 1 else 0
    order = np.argsort(index.keys, kind="stable")
    count = min(num_val, most)
    return np.sort(order[count:]), order[:count]


def _root(text: str) -> str:
    """The part of names that only says where the images lie."""
    path = absolute(text)
    if os.path.isdir(path):  # noqa: PTH112
        folder = path
    elif os.path.lexists(path):
        if path.lower().endswith(SHARDS):
            return path + MEMBER_MARK
        folder = os.path.dirname(path)  # noqa: PTH120
    elif parts := split_member(text):
        return parts[0] + MEMBER_MARK
    else:
        folder = os.path.dirname(text)  # noqa: PTH120
        while glob.has_magic(folder):
            folder = os.path.dirname(folder)  # noqa: PTH120
    return os.path.join(absolute(folder), "")  # noqa: PTH118


def _keys_below(table: ImageTable, rows: NDArray[np.int64], root: str) -> NDArray[np.uint64]:
    """The `key` of each name without the root."""
    names, start = table.names.tobytes(), os.fsencode(root)
    begins = np.concatenate(([0], table.ends[:-1]))[rows]
    keys = (
        key(names[begin:end].removeprefix(start))
        for begin, end in zip(begins.tolist(), table.ends[rows].tolist(), strict=True)
    )
    return np.fromiter(keys, np.uint64, count=len(rows))


def _load_index(path: Path, images: str) -> ImageIndex | None:
    """Load a stored index; None if it is missing, damaged or of other images."""
    try:
        tensors, metadata = load_tensors(path)
    except OSError:
        return None
    if (metadata.get("format"), metadata.get("images")) != (FORMAT, images):
        return None
    arrays: dict[str, Any] = {name: tensor.numpy() for name, tensor in tensors.items()}
    rows, keys = arrays.pop("rows"), arrays.pop("index_keys")
    return ImageIndex(ImageTable(**arrays), rows, keys, tuple(metadata["problems"]))
