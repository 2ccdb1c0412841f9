"""Frozen features on disk.

What kept features depend on: the model that made them, and the pictures that they are of.

One file with tensors of some items: it tells of damage, and any item can be read alone.

A safetensors file. Of each name it has the numbers of all items end to end, and as `NAME/shape` the
shape of each (items, axes), which may so differ from item to item. The header holds a SHA-256 over
all tensors and a `seal`, a text that stands for what the block is a part of: a block of something
else, or under another number, does not verify.

A folder of blocks: which items lie in which file, and what all of them depend on.

FOLDER/0123456789abcdef/       named after all that its content depends on
    facts.json                 this, for people
    block-00000.safetensors    the items of some numbers (`block_file.py`)

Tensors of N items on the disk: computed once, verified at each opening, read in any order.

Filling stores of the same items in one pass: what is missing or damaged, and nothing else.

Each block is written in one step, so that whoever is stopped leaves whole blocks. No memory is
taken but for one block of each store.
"""

import hashlib
import io
import json
import math
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Int32
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor

from veca.data.images import DataError, ImageError
from veca.data.listing import ImageEntry, one_line, open_image
from veca.data.sets.dataset import Split
from veca.probe.models import FrozenModel
from veca.runtime import VecaError
from veca.runtime.distributed import Ranks
from veca.runtime.files import TEMPORARY_SUFFIX, LockedError, dumps_strict, write_atomic
from veca.runtime.logging import progress
from veca.runtime.tensors import DTYPES, METADATA, read_tensors, tensor_pieces

SHAPE = "/shape"
"""What is added to a name for the shapes of its items."""

DIGEST = "sha256"
"""The field of the header with the hash."""


class StoreError(VecaError, ValueError):
    """Stored items that cannot be written or read: what was got, what is allowed, what to do."""


def write_block(path: Path, seal: str, content: Mapping[str, Sequence[Tensor]]) -> None:
    """Write the tensors of some items in one step; equal tensors give equal files."""
    counts = {name: len(items) for name, items in content.items()}
    if len(set(counts.values())) != 1 or 0 in counts.values():
        raise StoreError(f"{counts} are no tensors of some items; give each name one for each.")
    tensors: dict[str, Tensor] = {}
    for name in sorted(content):
        tensors[name], tensors[name + SHAPE] = _end_to_end(name, content[name])
    digest = _digest(seal, tensors)
    try:
        write_atomic(path, tensor_pieces(tensors, {DIGEST: digest}))
    except OSError as error:
        raise StoreError(
            f"{path} cannot be written ({error.strerror}); what was finished is kept: make room or "
            "repair the disk, and start again."
        ) from error


def block_problem(path: Path, seal: str) -> str | None:
    """What is wrong with a block; None if it is as it was written."""
    try:
        with safe_open(path, framework="pt") as file:
            told = (file.metadata() or {}).get(DIGEST)
        tensors = read_tensors(path)
    except FileNotFoundError:
        return "is missing"
    except (OSError, SafetensorError) as error:
        return f"cannot be read ({error})"
    return None if told == _digest(seal, tensors) else "was changed after it was written"


def read_items(
    path: Path, places: Sequence[int], names: Sequence[str] | None = None
) -> list[dict[str, Tensor]]:
    """The tensors of some items of a block, by their places in it; by default those of all names.

    Files are read, not mapped: one that is cut off meanwhile is then an error and not a crash, and
    what the system keeps in memory of them does not count as this process's.
    """
    with _opened(path) as reader:
        parts = {name: reader.part(name) for name in names or reader.names()}
        return [
            {name: reader.item(part, place) for name, part in parts.items()} for place in places
        ]


def read_stacked(path: Path, name: str) -> Tensor:
    """The tensors of one name of all items of a block, which must have one shape."""
    with _opened(path) as reader:
        part = reader.part(name)
        check_one_shape(name, part.shapes)
        return reader.numbers(part, 0, part.ends[-1]).reshape(len(part.shapes), *part.shapes[0])


def check_one_shape(name: str, shapes: Iterable[tuple[int, ...]]) -> None:
    """Refuse to stack tensors of several shapes."""
    found = sorted({tuple(shape) for shape in shapes})
    if len(found) > 1:
        raise StoreError(
            f"the tensors {name!r} have several shapes, such as {found[0]} and {found[1]}, and "
            "cannot be stacked; take them one by one."
        )


class _Part(NamedTuple):
    """Where the tensors of one name lie."""

    dtype: torch.dtype
    start: int
    """First byte in the file."""
    shapes: list[tuple[int, ...]]
    """Of each item."""
    ends: list[int]
    """Where each item ends, counted in numbers."""


@contextmanager
def _opened(path: Path) -> Iterator["_Reader"]:
    """An open block; that it is not any more what was verified is told with its path."""
    try:
        with path.open("rb") as file:
            yield _Reader(path, file)
    except StoreError:
        raise
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise StoreError(
            f"{path} cannot be read any more ({error}); start again, which computes what is "
            "missing."
        ) from error


class _Reader:
    """Finds tensors in an open block."""

    def __init__(self, path: Path, file: io.BufferedReader) -> None:
        self._path, self._file = path, file
        length = int.from_bytes(file.read(8), "little")
        if length > os.fstat(file.fileno()).st_size:
            raise OSError("it was cut off")
        self._header: dict[str, Any] = json.loads(file.read(length))
        self._header.pop(METADATA)
        self._start = 8 + length

    def names(self) -> list[str]:
        """The names of an item's tensors."""
        return sorted(name for name in self._header if not name.endswith(SHAPE))

    def part(self, name: str) -> _Part:
        """Where the tensors of a name lie."""
        if name not in self._header:
            raise StoreError(
                f"{self._path} has no tensors {name!r}; it has {', '.join(self.names())}."
            )
        about, told = self._header[name], self._header[name + SHAPE]
        items, axes = told["shape"]
        rows = self._numbers(DTYPES[told["dtype"]], self._place(told), items * axes)
        shapes = [tuple(row) for row in rows.reshape(items, axes).tolist()]
        ends, end = [], 0
        for shape in shapes:
            end += math.prod(shape)
            ends.append(end)
        return _Part(DTYPES[about["dtype"]], self._place(about), shapes, ends)

    def item(self, part: _Part, place: int) -> Tensor:
        """The tensor of one item."""
        begin = part.ends[place - 1] if place else 0
        return self.numbers(part, begin, part.ends[place]).reshape(part.shapes[place])

    def numbers(self, part: _Part, begin: int, end: int) -> Tensor:
        """Some of the numbers of a name."""
        start = part.start + begin * part.dtype.itemsize
        return self._numbers(part.dtype, start, end - begin)

    def _numbers(self, dtype: torch.dtype, start: int, count: int) -> Tensor:
        """Numbers from a place in the file on, in memory of their own."""
        found = torch.empty(count, dtype=dtype)
        self._file.seek(start)
        if self._file.readinto(found.view(torch.uint8).numpy().data) != found.nbytes:
            raise OSError("it was cut off")
        return found

    def _place(self, about: Mapping[str, Any]) -> int:
        """First byte of a tensor in the file."""
        return self._start + int(about["data_offsets"][0])


def _end_to_end(name: str, items: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """The numbers of all items, and their shapes."""
    kinds = {(item.dtype, item.ndim) for item in items}
    if "/" in name or len(kinds) != 1:
        told = ", ".join(f"{dtype} with {axes} axes" for dtype, axes in sorted(kinds, key=str))
        raise StoreError(
            f"tensors {name!r} of {told} cannot lie in one block; use one type and one number of "
            "axes for all, and a name without '/'."
        )
    flat = torch.cat([item.detach().cpu().reshape(-1) for item in items])
    rows = torch.tensor([list(item.shape) for item in items], dtype=torch.int64)
    return flat, rows.reshape(len(items), items[0].ndim)


def _digest(seal: str, tensors: Mapping[str, Tensor]) -> str:
    """A hash over the seal and over names, types, shapes and numbers of tensors."""
    found = hashlib.sha256(f"{seal}\n".encode())
    for piece in tensor_pieces({name: tensors[name] for name in sorted(tensors)}):
        found.update(piece)
    return found.hexdigest()


SAMPLED_PICTURES = 16
"""Pictures that are looked into, since two sets may have files of the same names and sizes."""

SAMPLED_BYTES = 2**16
"""Bytes of each of them that are looked at."""


def model_facts(model: FrozenModel) -> dict[str, Any]:
    """What tells a model from another, wherever it lies and whatever it is called.

    A model without a digest is refused: what was kept of it could be that of another.
    """
    if model.digest is None:
        raise StoreError(
            f"features of {model.name} cannot be kept, since it has no digest by which they would "
            "be found again; give the model one."
        )
    found = {
        "digest": model.digest,
        "stride": model.stride,
        "image_width": model.image_width,
        "patch_width": model.patch_width,
    }
    # Features that were kept before there was a choice are fp32, and stay usable.
    return found if model.precision == "fp32" else {**found, "precision": model.precision}


def picture_facts(split: Split) -> dict[str, Any]:
    """What tells the pictures of a split from others, wherever they lie."""
    count = min(SAMPLED_PICTURES, len(split))
    sample = hashlib.sha256()
    for place in range(count):
        source = split.image(place * len(split) // count)
        try:
            sample.update(hashlib.sha256(_first_bytes(source)).digest())
        except (OSError, ImageError) as error:
            raise unreadable(source, one_line(error)) from error
    return {"names_and_sizes": split.fingerprint(), "sample": sample.hexdigest()}


def unreadable(source: ImageEntry, reason: str) -> DataError:
    """The error for a picture that cannot be read: without it a number would be of another set."""
    return DataError(
        f"{source.name} cannot be read ({reason}), and a number over the other pictures would not "
        "be one of this set; get the picture again, or take it out of the set."
    )


def _first_bytes(source: ImageEntry) -> bytes:
    """The beginning of an encoded picture."""
    with open_image(source) as file:
        if not isinstance(file, str):
            return file.read(SAMPLED_BYTES)
        with Path(file).open("rb") as opened:
            return opened.read(SAMPLED_BYTES)


FORMAT = 1
"""Rises when older readers would misunderstand a folder."""

FACTS = "facts.json"


class BlockFolder:
    """The blocks of N items."""

    def __init__(
        self,
        folder: Path,
        facts: Mapping[str, Any],
        count: int,
        block: int = 64,
        *,
        notes: Mapping[str, Any] | None = None,
    ) -> None:
        """Name it; nothing is read or written yet.

        Args:
            folder: where it lies, beside others.
            facts: plain values that tell everything on which the tensors depend.
            count: number of items.
            block: items of one file, all of which are in memory while it is written.
            notes: what else people are told in the folder; the tensors do not depend on it.
        """
        if count < 1 or block < 1:
            raise StoreError(
                f"{count} items in blocks of {block} cannot be stored; use 1 or more of both."
            )
        about = {"format": FORMAT, "count": count, "block": block, "facts": dict(facts)}
        plain = json.loads(json.dumps(about, sort_keys=True))
        self.key = hashlib.sha256(dumps_strict(plain, "facts of a store").encode()).hexdigest()
        self.folder = folder / self.key[:16]
        self.count = count
        self.block = block
        self.is_whole = False
        """Whether every block was seen to be there."""
        self._told = {**plain, "notes": dict(notes or {})}

    @property
    def num_blocks(self) -> int:
        """Files of a full store."""
        return -(-self.count // self.block)

    def numbers(self, block: int) -> range:
        """The items of a block."""
        return range(block * self.block, min((block + 1) * self.block, self.count))

    def path(self, block: int) -> Path:
        """The file of a block."""
        return self.folder / f"block-{block:05}.safetensors"

    def problem(self, block: int) -> str | None:
        """What is wrong with a block; None if it is as it was written."""
        return block_problem(self.path(block), self._seal(block))

    def write(self, block: int, content: Mapping[str, Sequence[Tensor]]) -> None:
        """Write a block."""
        write_block(self.path(block), self._seal(block), content)

    def begin(self) -> None:
        """Remove what a killed process had not finished, and say in clear text what this is."""
        for path in self.folder.glob(f".*{TEMPORARY_SUFFIX}"):
            path.unlink()
        write_atomic(self.folder / FACTS, [f"{json.dumps(self._told, indent=2)}\n".encode()])

    def confirm(self) -> None:
        """Note that every block is there, after a look."""
        there: set[str] = set()
        with suppress(FileNotFoundError):
            there.update(os.listdir(self.folder))  # noqa: PTH208 - names, no paths
        for block in range(self.num_blocks):
            if self.path(block).name not in there:
                raise StoreError(
                    f"{self.path(block)} was written by another process, but is not to be seen in "
                    "this one; give a folder that all processes share."
                )
        self.is_whole = True

    def _seal(self, block: int) -> str:
        """What a block belongs to."""
        return f"{self.key}/{block}"


SHOWN_BYTES = 2**30
"""Verifying less than this is not worth a progress bar."""

Content = Mapping[str, Tensor | Sequence[Tensor]]
"""Of each name a tensor for each item, stacked or one by one."""


class Missing(NamedTuple):
    """A block that is to be computed."""

    items: range

    stores: tuple[int, ...]
    """Which of the stores that are filled together lack it."""


ComputeAll = Callable[[Sequence[Missing]], Iterator[tuple[range, Mapping[int, Content]]]]
"""Given missing blocks, the tensors of their items by the numbers of the stores: in the same order,
in parts none of which goes beyond a block. What a store does not lack is not looked at."""


def fill_stores(
    stores: Sequence[BlockFolder],
    compute: ComputeAll,
    workers: Ranks,
    tell: Callable[[str], None],
    *,
    shown: bool = True,
) -> None:
    """Verify what stores of the same items hold, and compute what they lack in one pass.

    Every process calls this. Blocks that are not there, or damaged, are dealt out among them, and
    all wait until the last one is written. `tell` gets a sentence about each damaged block, and
    `shown` shows how far it has come.

    Raises:
        StoreError: another run is filling one of the stores, or something cannot be written.
    """
    if len({(store.count, store.block) for store in stores}) != 1:
        raise StoreError("stores that are filled together must have the same items and blocks.")
    shown = shown and workers.is_main
    every = torch.ones((len(stores), stores[0].num_blocks), dtype=torch.int32)
    lacking = _lacking(stores, every, workers, shown)
    if lacking.any():
        with _alone_in([stores[row] for row in _rows(lacking.any(1))], workers):
            # Another run may have been at it meanwhile.
            lacking = _lacking(stores, lacking, workers, shown)
            if workers.is_main:
                _tell_damage(stores, lacking, tell)
            _compute(
                stores,
                _missing(stores, lacking)[workers.rank :: workers.world_size],
                compute,
                shown,
            )
            workers.barrier()  # before anyone else may write
    for store in stores:
        store.confirm()


def _lacking(
    stores: Sequence[BlockFolder],
    suspects: Int32[Tensor, "stores blocks"],
    workers: Ranks,
    shown: bool,
) -> Int32[Tensor, "stores blocks"]:
    """Which of these blocks are not as they were written; each process looks at some of them."""
    mine = suspects.nonzero()[workers.rank :: workers.world_size].tolist()
    found = torch.zeros_like(suspects)
    paths = (stores[row].path(block) for row, block in mine)
    size = sum(path.stat().st_size for path in paths if path.exists())
    with progress(len(mine), "blocks verified", shown=shown and size >= SHOWN_BYTES) as tracker:
        for row, block in mine:
            found[row, block] = stores[row].problem(block) is not None
            tracker.advance()
    return workers.all_reduce(found)


def _missing(
    stores: Sequence[BlockFolder], lacking: Int32[Tensor, "stores blocks"]
) -> list[Missing]:
    """The blocks that at least one store lacks."""
    return [
        Missing(stores[0].numbers(block), tuple(_rows(lacking[:, block])))
        for block in _rows(lacking.any(0))
    ]


def _compute(
    stores: Sequence[BlockFolder], mine: Sequence[Missing], compute: ComputeAll, shown: bool
) -> None:
    """Compute and write the blocks that are this process's."""
    if not mine:
        return
    total = sum(len(wanted.items) for wanted in mine)
    parts = compute(mine)
    try:
        with progress(total, "images", shown=shown) as tracker:
            for wanted in mine:
                held: dict[int, dict[str, list[Tensor]]] = {row: {} for row in wanted.stores}
                for count, found in _parts_of(wanted.items, parts):
                    for row, tensors in held.items():
                        _add(tensors, found[row], count)
                    tracker.advance(count)
                for row, tensors in held.items():
                    stores[row].write(wanted.items.start // stores[row].block, tensors)
    finally:
        if isinstance(parts, Generator):
            parts.close()  # now, and not when the last traceback lets go of it


def _parts_of(
    items: range, parts: Iterator[tuple[range, Mapping[int, Content]]]
) -> Iterator[tuple[int, Mapping[int, Content]]]:
    """How many items the parts of a block have, and what was computed of them."""
    done = items.start
    while done < items.stop:
        some, found = next(parts, (range(0), {}))
        if not some or some.start != done or some.stop > items.stop:
            raise StoreError(
                f"tensors of items {some.start}..{some.stop - 1} came where {done}.."
                f"{items.stop - 1} were awaited; compute all items, in their order."
            )
        yield len(some), found
        done = some.stop


def _add(held: dict[str, list[Tensor]], content: Content, count: int) -> None:
    """Put the computed tensors of so many items to those of the same block."""
    for name, tensors in content.items():
        if len(tensors) != count:
            raise StoreError(
                f"{len(tensors)} tensors {name!r} came for {count} items; compute one for each."
            )
        # A part of a tensor would keep all of it in memory.
        held.setdefault(name, []).extend(tensor.detach().cpu().clone() for tensor in tensors)


@contextmanager
def _alone_in(stores: Sequence[BlockFolder], workers: Ranks) -> Iterator[None]:
    """Keep other runs out of stores, or be kept out by them, and begin to fill them."""

    def begin() -> None:
        for store in stores:
            store.begin()

    with ExitStack() as stack:
        try:
            stack.enter_context(workers.locked(*(store.folder for store in stores)))
            workers.on_main(begin)
        except LockedError:
            raise
        except OSError as error:
            raise StoreError(_unwritable(error)) from error
        yield


def _unwritable(error: OSError) -> str:
    """The sentence for a disk that does not take features."""
    return (
        f"features cannot be kept ({error}); give a folder that can be written, on a disk with "
        "room."
    )


def _tell_damage(
    stores: Sequence[BlockFolder],
    lacking: Int32[Tensor, "stores blocks"],
    tell: Callable[[str], None],
) -> None:
    """Say which blocks are there, but not as they were written."""
    for row, block in lacking.nonzero().tolist():
        if (path := stores[row].path(block)).exists():
            tell(f"{path} {stores[row].problem(block)}; it is computed again.")


def _rows(flags: Tensor) -> list[int]:
    """The places of flags that are raised."""
    return flags.nonzero().flatten().tolist()


Compute = Callable[[Sequence[range]], Iterator[tuple[range, Content]]]
"""Given the items of missing blocks, their tensors: in the same order, in parts none of which goes
beyond a block."""


class ArrayStore(BlockFolder):
    """N items, each of which has a tensor of each name, of any shape; one type for each name."""

    def fill(
        self,
        compute: Compute,
        workers: Ranks,
        tell: Callable[[str], None],
        *,
        shown: bool = True,
    ) -> None:
        """Verify what is there and compute what is not; see `fill_stores`."""

        def parts(missing: Sequence[Missing]) -> Iterator[tuple[range, Mapping[int, Content]]]:
            for items, content in compute([wanted.items for wanted in missing]):
                yield items, {0: content}

        fill_stores([self], parts, workers, tell, shown=shown)

    def item(self, index: int) -> dict[str, Tensor]:
        """The tensors of an item by their names."""
        block, place = divmod(self._checked(np.array([index]))[0], self.block)
        return read_items(self.path(int(block)), [int(place)])[0]

    def each(self, name: str, indices: NDArray[np.int64]) -> list[Tensor]:
        """The tensors of one name of some items, whatever their shapes."""
        blocks, places = np.divmod(self._checked(indices), self.block)
        found: dict[int, Tensor] = {}
        for block in np.unique(blocks).tolist():
            wanted = np.flatnonzero(blocks == block)
            items = read_items(self.path(block), places[wanted].tolist(), [name])
            found |= {at: item[name] for at, item in zip(wanted.tolist(), items, strict=True)}
        return [found[at] for at in range(len(found))]

    def gather(self, name: str, indices: NDArray[np.int64]) -> Tensor:
        """The tensors of one name of one or more items, stacked; they must have one shape."""
        found = self.each(name, indices)
        check_one_shape(name, [tensor.shape for tensor in found])
        return torch.stack(found)

    def blocks(self, name: str) -> Iterator[tuple[range, Tensor]]:
        """The tensors of one name of all items, stacked, block by block."""
        self._checked(np.zeros(0, np.int64))
        for block in range(self.num_blocks):
            yield self.numbers(block), read_stacked(self.path(block), name)

    def stacked(self, name: str) -> Tensor:
        """The tensors of one name of all items, stacked; they must have one shape."""
        _, first = next(self.blocks(name))
        found = first.new_empty((self.count, *first.shape[1:]))
        for items, tensors in self.blocks(name):
            check_one_shape(name, [first.shape[1:], tensors.shape[1:]])
            found[items.start : items.stop] = tensors
        return found

    def _checked(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Numbers of items, if the store has them."""
        if not self.is_whole:
            raise StoreError(f"{self.folder} may not be full; call `fill` before items are read.")
        strange = indices[(indices < 0) | (indices >= self.count)]
        if len(strange):
            raise StoreError(f"there is no item {strange[0]}; use 0 to {self.count - 1}.")
        return indices
