"""Labeled datasets: splits, targets, checks of published counts, and what all readers share.

A number measured on fewer images than were published looks like any other number. So every reader
reports what it found to `DatasetChecks`; all differences come in one error, and with
`allow_partial` the dataset is used as it is, marked as partial.
"""

import hashlib
import json
import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from veca.data.images import DataError, reason
from veca.data.listing import (
    MEMBER_MARK,
    ImageEntry,
    ImageTable,
    TableBuilder,
    absolute,
    open_image,
)

Kind = Literal["classes", "masks", "depth"]
"""Labels of an image: its class or classes, the class of each pixel, or its depth."""

IGNORE_INDEX = 255
"""The class of pixels that are ignored."""

Target = NDArray[np.uint8] | NDArray[np.float32]
"""Classes of the pixels after the label map, `IGNORE_INDEX` where they are ignored; or depth in
meters, 0 where it is unknown (height, width)."""

ReadTarget = Callable[[str], Target]

MAX_COMPARED = 500
"""Files whose content is compared to find copies; of small numbered images many agree in name and
size by chance. The rarest agreements come first."""


@dataclass(frozen=True, kw_only=True)
class Split:
    """A split of a dataset: N images in a fixed order, with their labels."""

    name: str
    """As published: 'train', 'val', 'test', 'trainval', 'trainaug', ..."""

    images: ImageTable
    """One row per image (N)."""

    keys: tuple[str, ...]
    """Name of each image below the folder of the dataset (N)."""

    labels: NDArray[Any] | None = None
    """Class numbers (N), or booleans (N, classes) if an image may have several classes or none."""

    counted: NDArray[np.bool_] | None = None
    """Labels (N, classes) that are scored; None for all."""

    targets: tuple[str, ...] = ()
    """Files of masks or depth (N)."""

    read_target: ReadTarget | None = None
    """Reads such a file; a module-level function, so that worker processes can unpickle it."""

    def __len__(self) -> int:
        return len(self.images)

    def image(self, index: int) -> ImageEntry:
        """Where an image lies."""
        return self.images[index]

    def target(self, index: int) -> Target:
        """Mask or depth of an image, at its own resolution."""
        if self.read_target is None:
            raise ValueError(f"the images of {self.name!r} have labels, not masks or depth.")
        return self.read_target(self.targets[index])

    def subset(self, rows: NDArray[np.int64], name: str) -> "Split":
        """Some of the images as a split of their own."""
        chosen, table = rows.tolist(), TableBuilder()
        for row in chosen:
            table.add(self.image(row))
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
        """SHA-256 over names and sizes of the images in order."""
        found = hashlib.sha256()
        for key, size in zip(self.keys, self.images.sizes.tolist(), strict=True):
            found.update(f"{key}\0{size}\n".encode("utf-8", "surrogateescape"))
        return found.hexdigest()


@dataclass(frozen=True, kw_only=True)
class DepthRange:
    """Which depths and pixels of a depth dataset are evaluated."""

    min_depth: float = 1e-3
    """Meters; smaller or equal depths are unknown."""

    max_depth: float = 10.0
    """Meters; greater or equal depths are unknown."""

    crop: Literal["none", "eigen-nyu", "garg-kitti"] = "none"
    """Pixels of a test image that are evaluated."""

    kb_crop: bool = False
    """Whether images and depth are first cropped to KITTI's 352 x 1216 pixels, bottom center."""

    nyu_crop: bool = False
    """Whether NYU's white frame is cropped off training images (x 43..608, y 45..472)."""


@dataclass(frozen=True, kw_only=True)
class LabeledDataset:
    """A dataset with its splits."""

    name: str
    """Such as 'imagenet-1k'; in a plain layout the name of the folder."""

    kind: Kind

    classes: tuple[str, ...] = ()
    """Names by number."""

    train: Split | None
    """To fit heads on; None if heads of another dataset are evaluated (`uses_head_of`)."""

    val: Split | None = None
    """The published split to choose settings on, if there is one."""

    test: Split
    """The split that numbers are reported on."""

    uses_head_of: str | None = None
    """The dataset whose heads are evaluated here, such as 'imagenet-1k'."""

    eval_classes: tuple[int, ...] | None = None
    """Classes in a mean over classes; None for all."""

    per_class: bool = False
    """Whether the literature reports the mean per-class accuracy first."""

    depth: DepthRange | None = None

    missing: tuple[str, ...] = ()
    """Differences from the published dataset; if there are any, it is partial."""

    facts: dict[str, Any] = field(default_factory=dict)
    """More for the report, such as which of several lists was used."""

    def splits(self) -> list[Split]:
        """The splits that exist."""
        return [split for split in (self.train, self.val, self.test) if split is not None]


class DatasetError(DataError):
    """A labeled dataset that is not as it was published."""


class DatasetChecks:
    """Collects what is wrong with one dataset."""

    def __init__(self, name: str, *, allow_partial: bool = False) -> None:
        """Start checking; with `allow_partial` a dataset with faults is used."""
        self.name = name
        self._allow_partial = allow_partial
        self._problems: list[str] = []

    def report(self, problem: str) -> None:
        """Add a problem, without a full stop."""
        self._problems.append(problem)

    def expect(self, what: str, found: int, published: int) -> None:
        """Compare a count with the published one."""
        if found != published:
            self.report(f"{what}: {found:,} were found, {published:,} are published")

    def dataset(
        self,
        kind: Kind,
        splits: Sequence[Split],
        counts: Mapping[str, int],
        *,
        classes: Sequence[str] = (),
        **more: Any,  # noqa: ANN401 - further fields
    ) -> LabeledDataset:
        """Build a dataset and compare its counts with the published ones.

        The splits are train, perhaps val, and test; or test alone. The counts are published numbers
        of 'classes', of images by the name of the split, and of images per class as
        '<split>/class'; those that are left out are not compared.

        Raises:
            DatasetError: a label is not one of the classes.
        """
        if "classes" in counts:
            self.expect("classes", len(classes), counts["classes"])
        for split in splits:
            if split.name in counts:
                self.expect(f"{split.name} images", len(split), counts[split.name])
            if split.labels is not None and split.labels.ndim == 1:
                self._check_labels(split, len(classes), counts.get(f"{split.name}/class"))
        return LabeledDataset(
            name=self.name,
            kind=kind,
            classes=tuple(classes),
            train=splits[0] if len(splits) > 1 else None,
            val=splits[1] if len(splits) > 2 else None,
            test=splits[-1],
            **more,
        )

    def _check_labels(self, split: Split, num_classes: int, published: int | None) -> None:
        """Check the range of labels, and the published number of images per class, if given."""
        labels = np.asarray(split.labels)
        if len(labels) and not 0 <= labels.min() <= labels.max() < num_classes:
            raise DatasetError(
                f"{self.name}: labels of {split.name} run from {labels.min()} to {labels.max()}, "
                f"but there are {num_classes:,} classes; get its lists again."
            )
        counts = np.bincount(labels, minlength=num_classes)
        others = np.flatnonzero(counts != published)
        if published is not None and len(others):
            self.report(
                f"{split.name} images of a class: {published:,} are published for each class, but "
                f"{len(others):,} of the {num_classes:,} classes differ, such as number "
                f"{others[0]} with {counts[others[0]]:,}"
            )

    def require(self, *paths: Path) -> None:
        """Raise if a required file or folder is missing."""
        missing = [path for path in paths if not path.exists()]
        if missing:
            raise self.lacking(*missing)

    def lacking(self, *paths: Path) -> DatasetError:
        """The error that files are missing, with all problems reported before."""
        for path in paths:
            self.report(f"{path} is missing")
        return self._error("it cannot be read without these")

    def find(self, folder: Path, needed: Sequence[str], below: Sequence[str] = ()) -> Path:
        """Find the folder that holds everything needed: the one given, or one `below` it."""
        if not folder.is_dir():
            raise DatasetError(f"{self.name}: {folder} is not a folder; check the path.")

        def missing(place: Path) -> list[Path]:
            return [place / name for name in needed if not (place / name).exists()]

        places = [folder, *(folder / name for name in below)]
        nearest = min(places, key=lambda place: len(missing(place)))
        if len(missing(nearest)) == len(needed) and below:
            self.report(f"neither {folder} nor a folder {' or '.join(below)} in it is complete")
        self.require(*missing(nearest))
        return nearest

    def finish(self, dataset: LabeledDataset) -> LabeledDataset:
        """Return the dataset if it is complete, or with its problems if partial ones are allowed.

        Raises:
            DatasetError: it differs from what was published, or a split has no images.
        """
        empty = [split.name for split in dataset.splits() if not len(split)]
        for name in empty:
            self.report(f"{name}: there are no images")
        if empty or (self._problems and not self._allow_partial):
            raise self._error(
                "complete it, or allow a partial dataset (--allow-partial), whose results are "
                "marked as partial"
            )
        return replace(dataset, missing=(*dataset.missing, *self._problems))

    def _error(self, advice: str) -> DatasetError:
        """All problems in one message."""
        problems = "".join(f"\n- {problem}" for problem in self._problems)
        return DatasetError(f"{self.name} is not as expected; {advice}:{problems}")


def build_split(
    name: str,
    folder: Path,
    images: Iterable[tuple[str | ImageEntry, int | str]],
    checks: DatasetChecks,
    read_target: ReadTarget | None = None,
) -> Split:
    """Build a split; missing files are reported and left out.

    An image comes by its name below the folder or as it was listed there, with its label or the
    file of its target: by its name below the folder or an absolute path, read by `read_target`.
    """
    top, table = absolute(folder), TableBuilder()
    keys: list[str] = []
    labels = array("q")
    targets: list[str] = []
    missing: list[str] = []
    for image, answer in images:
        try:
            if isinstance(image, str):
                path = f"{top}{os.sep}{image}"
                image = ImageEntry(path, os.stat(path).st_size)  # noqa: PTH116, PLW2901
            if isinstance(answer, str):
                target = os.path.join(top, answer)  # noqa: PTH118 - a million times
                os.stat(target)  # noqa: PTH116
                targets.append(target)
            else:
                labels.append(answer)
        except OSError as error:
            missing.append(str(error.filename))
            continue
        table.add(image)
        keys.append(image.name[len(top) + 1 :])
    if missing:
        checks.report(
            f"{name}: {len(missing):,} of {len(missing) + len(keys):,} images or their targets are "
            f"missing, such as {missing[0]}"
        )
    return Split(
        name=name,
        images=table.table(),
        keys=tuple(keys),
        labels=np.array(labels, np.int64) if read_target is None else None,
        targets=tuple(targets),
        read_target=read_target,
    )


def numbered(
    images: Iterable[tuple[str, str]], classes: Sequence[str], source: Path
) -> Iterator[tuple[str, int]]:
    """Replace the class name of each image in a list by its number."""
    numbers = {name: number for number, name in enumerate(classes)}
    for image, name in images:
        if name not in numbers:
            raise DatasetError(f"{source} has the class {name!r}, which is not one of the classes.")
        yield image, numbers[name]


def labeled_dataset(
    folder: Path,
    images: Mapping[str, Iterable[tuple[str | ImageEntry, int]]],
    checks: DatasetChecks,
    counts: Mapping[str, int],
    **more: Any,  # noqa: ANN401 - further fields
) -> LabeledDataset:
    """Build a dataset from the images of each split with their class numbers."""
    splits = [build_split(name, folder, some, checks) for name, some in images.items()]
    return checks.dataset("classes", splits, counts, **more)


def paired_dataset(  # noqa: PLR0913 - what differs between datasets
    kind: Kind,
    folder: Path,
    read_target: ReadTarget,
    pairs: Mapping[str, Iterable[tuple[str, str]]],
    checks: DatasetChecks,
    *,
    counts: Mapping[str, int] | None = None,
    **more: Any,  # noqa: ANN401 - further fields
) -> LabeledDataset:
    """Build a dataset from the pairs of image and target of each split, sorted by name."""
    splits = [
        build_split(name, folder, sorted(some), checks, read_target) for name, some in pairs.items()
    ]
    return checks.dataset(kind, splits, counts or {}, **more)


def require_disjoint(first: Split, second: Split, checks: DatasetChecks) -> None:
    """Refuse a dataset, even a partial one, that would be evaluated on images it was fitted on."""
    shared = sorted(set(first.keys) & set(second.keys))
    if shared:
        raise DatasetError(
            f"{checks.name}: {len(shared):,} images are in {first.name!r} and in {second.name!r} "
            f"too, such as {shared[0]}, so results would be meaningless; get the lists again."
        )


def require_no_copies(first: Split, second: Split, checks: DatasetChecks) -> None:
    """Refuse a dataset, even a partial one, with the same file in two splits that are folders.

    Only files of equal name and size are compared.
    """
    groups: dict[tuple[str, int], tuple[list[int], list[int]]] = {}
    for side, split in enumerate((first, second)):
        sizes = split.images.sizes.tolist()
        for row, (key, size) in enumerate(zip(split.keys, sizes, strict=True)):
            name = key.rpartition("/")[2].rpartition(MEMBER_MARK)[2]
            groups.setdefault((name, size), ([], []))[side].append(row)
    pairs = [pair for pair in groups.values() if all(pair)]
    compared = 0
    for rows, others in sorted(pairs, key=lambda pair: len(pair[0]) + len(pair[1])):
        compared += len(rows) + len(others)
        if compared > MAX_COMPARED:
            return
        contents = {_content(second.image(other)): other for other in others}
        for row in rows:
            content = _content(first.image(row))
            if content is not None and content in contents:
                raise DatasetError(
                    f"{checks.name}: {second.keys[contents[content]]} is a copy of "
                    f"{first.keys[row]}, so {first.name!r} and {second.name!r} share images and "
                    "results would be meaningless; remove such copies from one split."
                )


def _content(entry: ImageEntry) -> bytes | None:
    """SHA-256 of a file; None if it cannot be read, which is reported when it is used."""
    try:
        with open_image(entry) as file:
            content = Path(file).read_bytes() if isinstance(file, str) else file.read()
    except OSError:
        return None
    return hashlib.sha256(content).digest()


@cache
def class_names(dataset: str) -> tuple[str, ...]:
    """Names by number of the classes of datasets whose files hold numbers only."""
    names = json.loads(Path(__file__).with_name("class_names.json").read_text("utf-8"))
    return tuple(names[dataset])


def files_below(folder: Path, part: str, ending: str) -> list[str]:
    """Names below the folder of all files in `part`, at any depth, with an ending.

    Names that begin with a dot are skipped: macOS writes such a file beside each file it copies.
    """
    return [
        path.relative_to(folder).as_posix()
        for path in (folder / part).rglob(f"*{ending}")
        if not path.name.startswith(".")
    ]


def lines(path: Path) -> Iterator[str]:
    """The stripped lines of a file that are not empty."""
    with path.open(encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            if text := line.strip():
                yield text


def rows(path: Path, columns: int) -> Iterator[list[str]]:
    """The lines split at white space; the last column keeps its spaces."""
    for line in lines(path):
        row = line.split(None, columns - 1)
        if len(row) != columns:
            raise DatasetError(
                f"{path} has the line {line[:80]!r}, which has not {columns} columns; get it again."
            )
        yield row


def parse_int(text: str, path: Path) -> int:
    """Parse an integer of a list."""
    try:
        return int(text)
    except ValueError as error:
        raise DatasetError(
            f"{path} has {text[:80]!r} in place of an integer; get it again."
        ) from error


def read_json(path: Path) -> Any:  # noqa: ANN401 - any JSON
    """Read a JSON file."""
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:
        raise DatasetError(f"{path} is not a JSON file ({error}); get it again.") from error


def read_matlab(path: Path, variable: str) -> NDArray[Any]:
    """Read a variable of a MATLAB file, without axes of length one."""
    try:
        from scipy.io import loadmat  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise DatasetError(
            f"{path} is a MATLAB file, which needs scipy; run `pip install veca[probe]`."
        ) from error
    try:
        found = loadmat(path, variable_names=[variable], squeeze_me=True)[variable]
    except Exception as error:  # such files are damaged in many ways
        raise DatasetError(
            f"{path} has no readable variable {variable} ({reason(error)}); get it again."
        ) from error
    return np.atleast_1d(found)


def check_same_classes(other: LabeledDataset, data: LabeledDataset) -> None:
    """Require that heads of `data` can be tested on another dataset."""
    if other.kind != "classes" or len(other.classes) != len(data.classes):
        raise DatasetError(
            f"{other.name} has {len(other.classes)} classes of {other.kind}, {data.name} has "
            f"{len(data.classes)}; --also needs datasets with the same classes."
        )
    if other.uses_head_of not in {None, data.name}:
        raise DatasetError(
            f"{other.name} is tested with heads of {other.uses_head_of}, not of {data.name}; use "
            f"{other.uses_head_of}=FOLDER as the dataset to fit on."
        )
    if other.uses_head_of is None and other.classes != data.classes:
        first = next(
            pair for pair in zip(other.classes, data.classes, strict=True) if pair[0] != pair[1]
        )
        raise DatasetError(
            f"{other.name} has the class {first[0]!r} where {data.name} has {first[1]!r}; --also "
            "needs datasets with the same classes."
        )
