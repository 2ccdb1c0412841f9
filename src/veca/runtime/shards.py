"""Tensors of N items, computed once, cut into files: resumable, verified, and shared by all ranks.

ROOT/dinov3-0123456789abcdef/    named by a hash of everything the tensors depend on (`facts`)
    facts.json                   the same, for people
    chunk-00000.safetensors      the tensors of items 0 to chunk_size - 1 (`runtime/tensors.py`)

A chunk is written atomically. Its metadata holds the key of the store and its number, so that a
chunk of another store or place is never taken for this one.
"""

import hashlib
import json
import logging
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Int32
from numpy.typing import NDArray
from torch import Tensor

from veca.runtime.distributed import Ranks, RanksError
from veca.runtime.files import (
    FileError,
    LockedError,
    dumps_strict,
    lock_folder,
    make_folder,
    write_atomic,
)
from veca.runtime.signals import StoppedError
from veca.runtime.tensors import (
    DamagedFileError,
    TensorFile,
    Tensors,
    remove_temporary_files,
    save_tensors,
)

logger = logging.getLogger("veca")


class ShardStore:
    """A folder of chunks: N items, of which each chunk holds `chunk_size` in order.

    A tensor named `image` with a row per item is read by `rows`; items of different shapes are
    stored one tensor each, such as `17/patches`, and read through `open`.
    """

    def __init__(  # noqa: PLR0913 - all but two say what the store is
        self,
        root: Path,
        facts: Mapping[str, Any],
        *,
        count: int,
        chunk_size: int,
        name: str = "",
        lazy: bool = False,
    ) -> None:
        """Name the folder, below `root`; nothing is read or written yet.

        `facts` are plain JSON with everything the tensors depend on: equal facts, equal folder, and
        `name` is what people see before their hash. The items of a chunk are in memory while it is
        written. A `lazy` store, of which a run may read only a part, compares a chunk with its hash
        when it is first opened; others do so in `fill`.
        """
        dumps_strict(dict(facts), "facts")
        self.facts = {"facts": dict(facts), "count": count, "chunk_size": chunk_size}
        text = json.dumps(self.facts, sort_keys=True)
        self.key = hashlib.sha256(text.encode()).hexdigest()
        label = re.sub(r"[^A-Za-z0-9.-]+", "-", name).strip("-.")[-40:]
        self.folder = root / "-".join(filter(None, (label, self.key[:16])))
        self.count = count
        self.chunk_size = chunk_size
        self.lazy = lazy
        self._verified: set[int] = set()
        """Chunks that were compared with their hash, or written, in this run."""

    @property
    def num_chunks(self) -> int:
        """Files of a complete store."""
        return -(-self.count // self.chunk_size)

    def items(self, chunk: int) -> range:
        """The items of a chunk."""
        return range(chunk * self.chunk_size, min((chunk + 1) * self.chunk_size, self.count))

    def path(self, chunk: int) -> Path:
        """The file of a chunk."""
        return self.folder / f"chunk-{chunk:05}.safetensors"

    def problem(self, chunk: int) -> str | None:
        """Why a chunk cannot be used; None if it can. A lazy store looks at its header alone."""
        try:
            self._open(chunk, verify=not self.lazy).close()
        except OSError as error:
            return _reason(error)
        return None

    def write(self, chunk: int, tensors: Tensors) -> None:
        """Write a chunk atomically; equal tensors give equal files."""
        try:
            save_tensors(self.path(chunk), tensors, {"key": self.key, "chunk": chunk})
        except OSError as error:
            raise FileError(
                f"{self.path(chunk)} cannot be written ({error}); finished chunks are kept: make "
                "room or repair the disk, and run the command again."
            ) from error
        self._verified.add(chunk)

    def open(self, chunk: int) -> TensorFile:
        """Open a chunk to read tensors or rows of it; use it in a `with` block."""
        try:
            return self._open(chunk)
        except OSError as error:
            raise FileError(
                f"{self.path(chunk)} cannot be used: {_reason(error)}; delete it and run the "
                "command again, which computes missing chunks."
            ) from error

    def read(self, chunk: int, names: Iterable[str]) -> dict[str, Tensor]:
        """Some tensors of a chunk."""
        with self.open(chunk) as file:
            return {name: file.read(name) for name in names}

    def rows(self, name: str, items: NDArray[np.int64]) -> Tensor:
        """The rows of a tensor for some items, in their order; each chunk is opened once."""
        with self.open(0) as file:
            spec = file.specs[name]
        out = torch.empty((len(items), *spec.shape[1:]), dtype=spec.dtype)
        chunks, rows = np.divmod(items, self.chunk_size)
        for chunk in np.unique(chunks).tolist():
            places = np.flatnonzero(chunks == chunk)
            with self.open(chunk) as file:
                file.read_into(out, name, rows[places], places)
        return out

    def complete(self) -> None:
        """Note that all chunks were verified, by whichever rank; they must be visible here."""
        for chunk in range(self.num_chunks):
            if not self.path(chunk).exists():
                raise FileError(
                    f"{self.path(chunk)} was written by another rank but is not visible to this "
                    "one; use a folder that all ranks share."
                )
        if not self.lazy:
            self._verified.update(range(self.num_chunks))

    def _open(self, chunk: int, verify: bool = True) -> TensorFile:
        """An open chunk that belongs here, compared with its hash if that was not done yet."""
        file = TensorFile(self.path(chunk))
        try:
            if file.metadata != {"key": self.key, "chunk": chunk}:
                raise DamagedFileError(file.path, "it belongs to another store or place")
            if verify and chunk not in self._verified:
                file.verify()
                self._verified.add(chunk)
        except BaseException:
            file.close()
            raise
        return file


class Task(NamedTuple):
    """A chunk to compute, and the numbers of the stores that lack it."""

    chunk: int
    stores: tuple[int, ...]


Compute = Callable[[Sequence[Task]], Iterator[Mapping[int, Tensors]]]
"""Given this rank's tasks, yields for each one, in order, the tensors of each store that lacks it,
by the number of the store. May raise StoppedError."""


def fill(
    stores: Sequence[ShardStore],
    compute: Compute,
    ranks: Ranks,
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Verify the chunks of stores of the same items, and compute what is missing in one pass.

    Every rank calls this and takes its share of the chunks; all of them return when the last one
    is written. No other run may fill the same folders meanwhile. Whatever stops or kills a run,
    finished chunks are used by the next one.

    Raises:
        StoppedError: `stop` returned True on some rank.
        FileError: something cannot be written.
        LockedError: another run is filling a store.
        RanksError: another rank failed; an error of `compute` itself is raised as it is.
    """
    lacking = find_missing(stores, ranks, stop)
    if lacking.any():
        filled = [stores[at] for at in lacking.any(1).nonzero().flatten().tolist()]
        with ExitStack() as locks:
            with all_or_none(ranks):
                if ranks.is_main:
                    _begin(filled, locks)
            # Another run may have been here between the look and the lock.
            lacking = find_missing(stores, ranks, stop, lacking)
            for at, chunk in lacking.nonzero().tolist():
                path = stores[at].path(chunk)
                if ranks.is_main and path.exists():
                    logger.warning("%s is computed again: %s.", path, stores[at].problem(chunk))
            _compute_missing(stores, lacking, compute, ranks, stop)
            ranks.barrier()  # before the lock is released
    for store in stores:
        store.complete()


def find_missing(
    stores: Sequence[ShardStore],
    ranks: Ranks,
    stop: Callable[[], bool],
    suspects: Int32[Tensor, "stores chunks"] | None = None,
) -> Int32[Tensor, "stores chunks"]:
    """Which chunks (of the suspects) are missing or damaged; each rank looks at its share."""
    if suspects is None:
        suspects = torch.ones((len(stores), stores[0].num_chunks), dtype=torch.int32)
    found = torch.zeros_like(suspects)
    with all_or_none(ranks):
        for at, chunk in suspects.nonzero()[ranks.rank :: ranks.world_size].tolist():
            if stop():
                raise StoppedError
            found[at, chunk] = stores[at].problem(chunk) is not None
    return ranks.all_reduce(found)


@contextmanager
def all_or_none(ranks: Ranks) -> Iterator[None]:
    """Run a block on every rank; where it fails or stops on one, it does so on all of them."""
    error: Exception | None = None
    try:
        yield
    except Exception as raised:
        error = raised
    failed = ranks.any(error is not None and not isinstance(error, StoppedError))
    stopped = ranks.any(isinstance(error, StoppedError))
    if error is not None:
        raise error
    if failed:
        raise RanksError("another rank failed; its own message says why.")
    if stopped:
        raise StoppedError


def _compute_missing(
    stores: Sequence[ShardStore],
    lacking: Int32[Tensor, "stores chunks"],
    compute: Compute,
    ranks: Ranks,
    stop: Callable[[], bool],
) -> None:
    """Compute and write chunks; the ranks agree after each turn on whether to go on."""
    tasks = [
        Task(chunk, tuple(lacking[:, chunk].nonzero().flatten().tolist()))
        for chunk in lacking.any(0).nonzero().flatten().tolist()
    ]
    mine = tasks[ranks.rank :: ranks.world_size]

    def computed() -> Generator[Mapping[int, Tensors], None, None]:
        if mine:
            yield from compute(mine)

    with closing(computed()) as results:  # ends data loaders now, not when a traceback is freed
        for turn in range(-(-len(tasks) // ranks.world_size)):
            with all_or_none(ranks):
                if stop():
                    raise StoppedError
                if turn < len(mine):
                    found = next(results)
                    for at in mine[turn].stores:
                        stores[at].write(mine[turn].chunk, found[at])


def _begin(stores: Sequence[ShardStore], locks: ExitStack) -> None:
    """Lock the folders of stores, tidy up after killed processes, and write `facts.json`."""
    for store in stores:
        try:
            make_folder(store.folder)
            locks.enter_context(lock_folder(store.folder))
            remove_temporary_files(store.folder)
            text = json.dumps(store.facts, indent=2, sort_keys=True)
            write_atomic(store.folder / "facts.json", [f"{text}\n".encode()])
        except LockedError:
            raise
        except OSError as error:
            raise FileError(
                f"{store.folder} cannot be written ({error}); use a folder on a writable disk with "
                "room."
            ) from error


def _reason(error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return "it is missing"
    return error.reason if isinstance(error, DamagedFileError) else str(error)
