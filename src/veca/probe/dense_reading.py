"""Pictures with the classes or the depth of their pixels, read by worker processes."""

import hashlib
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Dataset

from veca.data.images import DataError, DecodedImage, decode
from veca.data.listing import TableBuilder, one_line, open_image
from veca.data.loader import worker_loader
from veca.data.sets.dataset import Split, Target
from veca.probe.feature_cache import unreadable

SAMPLED_TARGETS = 16
"""Targets that are looked into, to tell a set from one with other classes in the same files."""

Task = TypeVar("Task")
Answer = TypeVar("Answer")


class Pair(NamedTuple):
    """A picture and what is to be told of it."""

    picture: DecodedImage

    target: Target


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Put the name of a file before what is said of its picture, whose sizes alone are known."""
    try:
        yield
    except ValueError as error:
        raise DataError(f"{name}: {error}") from error


def load_picture(split: Split, index: int) -> DecodedImage:
    """A picture of a split, or an error that names it."""
    source = split.image(index)
    try:
        with open_image(source) as file:
            return decode(file)
    except (OSError, ValueError) as error:
        raise unreadable(source, one_line(error)) from error


def load_pair(split: Split, index: int) -> Pair:
    """A picture and its target, which must have its size."""
    picture, target = load_picture(split, index), load_target(split, index)
    if target.shape != picture.sides:
        raise DataError(
            f"{split.targets[index]} has {' x '.join(map(str, target.shape))} pixels, but its "
            f"picture has {' x '.join(map(str, picture.sides))} (height x width, upright); get "
            "both again, or take them out of the set."
        )
    return Pair(picture, target)


def load_target(split: Split, index: int) -> Target:
    """The target of a picture, or an error that names its file."""
    try:
        return split.target(index)
    except OSError as error:
        raise DataError(
            f"{split.targets[index]} cannot be read ({one_line(error)}); get it again."
        ) from error


def read_all(
    make: Callable[[Task], Answer], tasks: Iterable[Task], loaders: int
) -> Generator[Answer, None, None]:
    """What `make` makes of every task, in order; a failure is raised here in its own words."""
    with closing(worker_loader(_Maker(make), tasks, loaders)) as answers:
        for answer, problem in answers:
            if problem is not None:
                raise DataError(problem)
            yield answer


def target_facts(split: Split) -> dict[str, Any]:
    """What tells the targets of a split from others, wherever they lie."""
    names, sample = hashlib.sha256(), hashlib.sha256()
    for target in split.targets:
        path = Path(target)
        names.update(f"{path.name}\0{path.stat().st_size}\n".encode("utf-8", "surrogateescape"))
    count = min(SAMPLED_TARGETS, len(split))
    for place in range(count):
        sample.update(load_target(split, place * len(split) // count).tobytes())
    return {"names_and_sizes": names.hexdigest(), "sample": sample.hexdigest()}


def part_of(split: Split, rows: NDArray[np.int64], name: str) -> Split:
    """Some pictures of a split, as one of their own."""
    builder = TableBuilder()
    for row in rows.tolist():
        source = split.image(row)
        if source.shard is None:
            builder.add_file(source.name, source.num_bytes)
        else:
            builder.add_member(source.shard, source.member or "", source.num_bytes, source.start)
    return Split(
        name=name,
        images=builder.table(),
        keys=tuple(split.keys[row] for row in rows.tolist()),
        targets=tuple(split.targets[row] for row in rows.tolist()),
        read_target=split.read_target,
    )


class _Maker(Dataset[tuple[Any, str | None]]):
    """Does tasks in a worker process; errors come back as words."""

    def __init__(self, make: Callable[[Any], Any]) -> None:
        self._make = make

    def __getitem__(self, task: Any) -> tuple[Any, str | None]:  # noqa: ANN401 - as `make` wants it
        try:
            return self._make(task), None
        except (OSError, ValueError) as error:
            return None, one_line(error)
