"""Labeled datasets: splits, targets and checks of their counts.

What a labeled set is: pictures in parts, and what is to be told of each of them.

Parts of a set, put together picture by picture in a few flat arrays.

Pictures paired with the files that tell of their pixels.

What a set must hold, by its makers, and what is said where it does not.

A number over fewer pictures than the makers' looks like any other number. So every reader tells the
checker what it found; whatever differs is reported at once, not one by one, and by choice the set
is used as it is, marked as partial.

The text files in which makers of sets say what belongs where.

Files that lie in two parts of a set, where each part is a folder of its own.

No name below the folder of such a set is in two parts, but a picture may have been copied into both
by hand. A copy is known by its file name, its size and, where both agree, its content.
"""

import hashlib
import json
import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from veca.data.images import DataError
from veca.data.listing import (
    MEMBER_MARK,
    UNKNOWN,
    ImageEntry,
    ImageTable,
    TableBuilder,
    absolute,
    open_image,
)

Kind = Literal["classes", "masks", "depth"]
"""What is told of a picture: its class or classes, the class of each pixel, or its depth."""

IGNORE_INDEX = 255
"""The class of pixels that do not count."""

Target = NDArray[np.uint8] | NDArray[np.float32]
"""Classes of the pixels, after the set's own map, `IGNORE_INDEX` where they do not count; or meters, 0
where they are unknown (height, width)."""


@dataclass(frozen=True, kw_only=True)
class Split:
    """A part of a set: N pictures in a fixed order, with what is to be told of them."""

    name: str
    """As its makers call it: 'train', 'val', 'test', 'trainval', 'trainaug', ..."""

    images: ImageTable
    """One row a picture (N)."""

    keys: tuple[str, ...]
    """Name of each picture below the folder of the set, the same wherever that lies (N)."""

    labels: NDArray[Any] | None = None
    """Classes: numbers (N), or booleans (N, classes) where a picture may have several or none."""

    counted: NDArray[np.bool_] | None = None
    """Of labels (N, classes) those that count, either way; None where all do."""

    targets: tuple[str, ...] = ()
    """Masks and depth: the file of each picture (N)."""

    read_target: Callable[[str], Target] | None = None
    """Reads such a file; a function of a module, so that worker processes can have it."""

    def __len__(self) -> int:
        return len(self.images)

    def image(self, index: int) -> ImageEntry:
        """Where a picture lies."""
        return self.images[index]

    def target(self, index: int) -> Target:
        """Mask or depth of a picture, at its own resolution."""
        if self.read_target is None:
            raise ValueError(f"the pictures of {self.name!r} have labels, not masks or depth.")
        return self.read_target(self.targets[index])

    def subset(self, rows: NDArray[np.int64], name: str) -> "Split":
        """Some pictures as a split of their own."""
        chosen, table = rows.tolist(), TableBuilder()
        for row in chosen:
            source = self.image(row)
            if source.shard is None:
                table.add_file(source.name, source.num_bytes)
            else:
                member = source.member or ""
                table.add_member(source.shard, member, source.num_bytes, source.start)
        return replace(
            self,
            name=name,
            images=table.table(),
            keys=tuple(self.keys[row] for row in chosen),
            labels=None if self.labels is None else self.labels[rows],
            counted=None if self.counted is None else self.counted[rows],
            targets=tuple(self.targets[row] for row in chosen) if self.targets else (),
        )

    def fingerprint(self) -> str:
        """SHA-256 over the pictures, by name and size, in their order."""
        found = hashlib.sha256()
        for key, size in zip(self.keys, self.images.sizes.tolist(), strict=True):
            found.update(f"{key}\0{size}\n".encode("utf-8", "surrogateescape"))
        return found.hexdigest()


@dataclass(frozen=True, kw_only=True)
class DepthRange:
    """What the numbers of a depth set mean, and where they count."""

    min_depth: float = 1e-3
    """Meters; a depth that is not above counts as unknown."""

    max_depth: float = 10.0
    """Meters; a depth that is not below counts as unknown."""

    crop: Literal["none", "eigen-nyu", "garg-kitti", "eigen-kitti"] = "none"
    """The pixels of a test picture that count."""

    kb_crop: bool = False
    """Whether pictures and depth are first cut to KITTI's 352 x 1216 pixels, bottom and middle."""

    nyu_crop: bool = False
    """Whether training pictures lose NYU's white frame first (x 43..608, y 45..472)."""


@dataclass(frozen=True, kw_only=True)
class LabeledDataset:
    """A set with its parts."""

    name: str
    """Such as 'imagenet-1k'; of a plain layout the name of its folder."""

    kind: Kind

    classes: tuple[str, ...] = ()
    """Names, by number."""

    train: Split | None
    """To fit heads on; None where a head of another set is measured (`uses_head_of`)."""

    val: Split | None = None
    """The makers' own part to choose settings on, where there is one."""

    test: Split
    """What numbers are reported on."""

    uses_head_of: str | None = None
    """The set whose head is measured here, such as 'imagenet-1k'."""

    eval_classes: tuple[int, ...] | None = None
    """Classes over which a mean over classes goes; None means all."""

    per_class: bool = False
    """Whether its literature reports the mean of the classes' accuracies first."""

    depth: DepthRange | None = None

    missing: tuple[str, ...] = ()
    """Sentences about what is not as its makers published it; not empty means partial."""

    facts: dict[str, Any] = field(default_factory=dict)
    """What else a report should say, such as which of several lists was used."""


class DatasetError(DataError):
    """A labeled set that is not as its makers published it: what is missing, and what to do."""


class DatasetChecks:
    """Collects what is wrong with one set."""

    def __init__(
        self,
        name: str,
        *,
        allow_partial: bool = False,
        instead: Mapping[str, int] | None = None,
    ) -> None:
        """Check a set.

        Args:
            name: the set, for messages.
            allow_partial: whether a set with faults is used, its faults told.
            instead: other numbers than the makers', by what is counted: of a copy that was made
                smaller on purpose.
        """
        self.name = name
        self._allow_partial = allow_partial
        self._instead = dict(instead or {})
        self._problems: list[str] = []

    def expect(self, what: str, found: int, wanted: int) -> None:
        """Compare a number with that of the makers."""
        wanted = self._instead.get(what, wanted)
        if found != wanted:
            self.report(f"{what}: {found:,} were found, {wanted:,} are published")

    def expect_each(self, what: str, labels: NDArray[Any], num_classes: int, wanted: int) -> None:
        """Compare the pictures of every class (N labels) with the number of the makers."""
        wanted = self._instead.get(what, wanted)
        counts = np.bincount(labels, minlength=num_classes)
        others = np.flatnonzero(counts != wanted)
        if len(others):
            self.report(
                f"{what}: {wanted:,} are published for each class, but {len(others):,} of the "
                f"{num_classes:,} classes differ, such as number {others[0]} with "
                f"{counts[others[0]]:,}"
            )

    def report(self, problem: str) -> None:
        """Note anything else, as a clause without a full stop."""
        self._problems.append(problem)

    def require(self, *paths: Path) -> None:
        """Stop where a file or folder is missing without which nothing can be read."""
        missing = [path for path in paths if not path.exists()]
        if missing:
            raise self.lacking(*missing)

    def lacking(self, *paths: Path) -> DatasetError:
        """The error that such files are missing, with all that was noted before."""
        for path in paths:
            self.report(f"{path} is missing")
        return self._error("without what is missing it cannot be read")

    def find(self, folder: Path, needed: Sequence[str], below: Sequence[str] = ()) -> Path:
        """The folder that holds all that is needed: the one given, or one `below` it."""
        places = [folder, *(folder / name for name in below)]
        for place in places:
            if all((place / name).exists() for name in needed):
                return place
        if not folder.is_dir():
            raise DatasetError(f"{self.name} was looked for in {folder}, which is no folder.")
        held = [place for place in places if any((place / name).exists() for name in needed)]
        nearest = (held or places)[0]
        if below and not held:
            self.report(f"neither {folder} nor a folder {' or '.join(below)} in it has all below")
        raise self.lacking(*(nearest / name for name in needed if not (nearest / name).exists()))

    def finish(self, found: LabeledDataset) -> LabeledDataset:
        """The set, if it is whole; with allow_partial the set with its faults.

        Raises:
            DatasetError: it differs from what was published; or it has no pictures, partial or not.
        """
        parts = [part for part in (found.train, found.val, found.test) if part is not None]
        empty = [part.name for part in parts if not len(part)]
        for name in empty:
            self.report(f"{name}: not one picture is there")
        if empty or (self._problems and not self._allow_partial):
            raise self._error(
                "complete it, or allow a partial set (--allow-partial), whose results are marked so"
            )
        return replace(found, missing=(*found.missing, *self._problems))

    def _error(self, advice: str) -> DatasetError:
        """All problems in one message."""
        problems = "".join(f"\n- {problem}" for problem in self._problems)
        return DatasetError(f"{self.name} is not what it should be; {advice}:{problems}")


class SplitBuilder:
    """Collects the pictures of one part; those that are not there are told of and left out."""

    def __init__(self, name: str, folder: Path) -> None:
        """Begin a part.

        Args:
            name: as its makers call it.
            folder: that of the set, below which pictures are named.
        """
        self.name = name
        self._folder = absolute(folder)
        self._table = TableBuilder()
        self._keys: list[str] = []
        self._labels = array("q")
        self._missing = 0
        self._first_missing = ""

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, key: str, label: int) -> None:
        """Add a file by its name below the folder."""
        path = f"{self._folder}{os.sep}{key}"
        try:
            num_bytes = os.stat(path).st_size  # noqa: PTH116 - a million times
        except OSError:
            self._first_missing = self._first_missing or path
            self._missing += 1
            return
        self._table.add_file(path, num_bytes)
        self._keep(key, label)

    def add_found(self, source: ImageEntry, label: int) -> None:
        """Add a picture that was found below the folder, perhaps in a tar shard."""
        if source.member is not None and source.shard is not None:
            self._table.add_member(source.shard, source.member, source.num_bytes, source.start)
        else:
            self._table.add_file(source.name, source.num_bytes)
        self._keep(source.name[len(self._folder) + 1 :], label)

    def split(
        self, num_classes: int, checker: DatasetChecks, numbers: Sequence[int] | None = None
    ) -> Split:
        """The part; files that are missing are reported.

        Args:
            num_classes: how many classes there are.
            checker: of the set.
            numbers: the class that each label stands for; None where a label is the class.

        Raises:
            DatasetError: a label is none of the classes.
        """
        if self._missing:
            checker.report(
                f"{self.name}: {self._missing:,} of {self._missing + len(self):,} pictures are not "
                f"there, such as {self._first_missing}"
            )
        labels = np.array(self._labels, np.int64)
        if numbers is not None:
            labels = np.array(numbers, np.int64)[labels]
        if len(labels) and not 0 <= labels.min() <= labels.max() < num_classes:
            raise DatasetError(
                f"{checker.name}: labels of {self.name} run from {labels.min()} to {labels.max()}, "
                f"but there are {num_classes:,} classes; get its lists again."
            )
        return Split(
            name=self.name, images=self._table.table(), keys=tuple(self._keys), labels=labels
        )

    def _keep(self, key: str, label: int) -> None:
        """Remember name and label of a picture that is in the table."""
        self._keys.append(key)
        self._labels.append(label)


class Pair(NamedTuple):
    """A picture and the file that tells of its pixels."""

    picture: str
    """Name below the folder of the set, with slashes."""

    target: str
    """The same, or an absolute path."""


ReadTarget = Callable[[str], Target]


def paired_split(
    name: str, folder: Path, pairs: Iterable[Pair], read_target: ReadTarget, checker: DatasetChecks
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
        images=builder.table(),
        keys=tuple(keys),
        targets=tuple(targets),
        read_target=read_target,
    )


def require_apart(train: Split, test: Split, checker: DatasetChecks) -> None:
    """Refuse a set, even a partial one, whose numbers would be about pictures it was fitted on."""
    shared = sorted(set(train.keys) & set(test.keys))
    if shared:
        raise DatasetError(
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


def lines(path: Path) -> Iterator[str]:
    """The lines of a file that are not empty, without white space around them."""
    with path.open(encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            if text := line.strip():
                yield text


def rows(path: Path, columns: int) -> Iterator[list[str]]:
    """The lines cut at white space; the last column keeps what it has of it."""
    for line in lines(path):
        row = line.split(None, columns - 1)
        if len(row) != columns:
            raise DatasetError(
                f"{path} has the line {line[:80]!r}, which are not {columns} columns; get it again."
            )
        yield row


def whole(text: str, path: Path) -> int:
    """A number of a list."""
    try:
        return int(text)
    except ValueError as error:
        raise DatasetError(
            f"{path} has {text[:80]!r} where a whole number belongs; get it again."
        ) from error


def read_json(path: Path) -> Any:  # noqa: ANN401 - whatever the file says
    """The content of a JSON file."""
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:
        raise DatasetError(f"{path} is no JSON file ({error}); get it again.") from error


MOST_READ = 4096
"""Files whose content is compared, at most: of small numbered pictures many agree in name and size
by chance, and a set must not be slow to open for it. The rarest agreements come first."""


def require_no_copies(first: Split, second: Split, checker: DatasetChecks) -> None:
    """Refuse a set, even a partial one, of which a file of the same name is in both parts."""
    read = 0
    for rows, others in _alike(first, second):
        read += len(rows) + len(others)
        if read > MOST_READ:
            return
        contents = {_content(second.image(other)): other for other in others}
        for row in rows:
            content = _content(first.image(row))
            if content is not None and content in contents:
                raise DatasetError(
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
    for key, size in zip(split.keys, split.images.sizes.tolist(), strict=True):
        yield key.rpartition("/")[2].rpartition(MEMBER_MARK)[2], size


def _content(source: ImageEntry) -> bytes | None:
    """SHA-256 of a file; None where it cannot be read, which is told when it is used."""
    try:
        with open_image(source) as file:
            if not isinstance(file, str):
                return hashlib.sha256(file.read()).digest()
            return hashlib.sha256(Path(file).read_bytes()).digest()
    except OSError:
        return None
