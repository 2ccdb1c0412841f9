"""Filling stores of the same items in one pass: what is missing or damaged, and nothing else.

Each block is written in one step, so that whoever is stopped leaves whole blocks. No memory is
taken but for one block of each store.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from jaxtyping import Int32
from torch import Tensor

from veca.probe.block_file import StoreError
from veca.probe.block_folder import BlockFolder
from veca.runtime.company import Company
from veca.runtime.progress import progress
from veca.runtime.workers import Workers

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
    workers: Workers,
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
    shown = shown and workers.first
    every = torch.ones((len(stores), stores[0].num_blocks), dtype=torch.int32)
    lacking = _lacking(stores, every, workers, shown)
    if lacking.any():
        with _alone_in([stores[row] for row in _rows(lacking.any(1))], workers):
            # Another run may have been at it meanwhile.
            lacking = _lacking(stores, lacking, workers, shown)
            if workers.first:
                _tell_damage(stores, lacking, tell)
            _compute(
                stores, _missing(stores, lacking)[workers.rank :: workers.count], compute, shown
            )
            workers.barrier()  # before anyone else may write
    for store in stores:
        store.confirm()


def _lacking(
    stores: Sequence[BlockFolder],
    suspects: Int32[Tensor, "stores blocks"],
    workers: Workers,
    shown: bool,
) -> Int32[Tensor, "stores blocks"]:
    """Which of these blocks are not as they were written; each process looks at some of them."""
    mine = suspects.nonzero()[workers.rank :: workers.count].tolist()
    found = torch.zeros_like(suspects)
    paths = (stores[row].path(block) for row, block in mine)
    size = sum(path.stat().st_size for path in paths if path.exists())
    with progress(len(mine), "blocks verified", shown=shown and size >= SHOWN_BYTES) as tracker:
        for row, block in mine:
            found[row, block] = stores[row].problem(block) is not None
            tracker.advance()
    return workers.sum(found)


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
def _alone_in(stores: Sequence[BlockFolder], workers: Workers) -> Iterator[None]:
    """Keep other runs out of stores, or be kept out by them, and begin to fill them."""
    company = Company(workers=workers, refusal=StoreError, unwritable=_unwritable)

    def begin() -> None:
        for store in stores:
            store.begin()

    with company.alone_in(*(store.folder for store in stores)):
        company.first_does(begin)
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
