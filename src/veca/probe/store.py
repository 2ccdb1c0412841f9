"""Tensors of N items on the disk: computed once, verified at each opening, read in any order."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from veca.probe.block_file import StoreError, check_one_shape, read_items, read_stacked
from veca.probe.block_folder import BlockFolder
from veca.probe.filling import Content, Missing, fill_stores
from veca.runtime.workers import Workers

Compute = Callable[[Sequence[range]], Iterator[tuple[range, Content]]]
"""Given the items of missing blocks, their tensors: in the same order, in parts none of which goes
beyond a block."""


class ArrayStore(BlockFolder):
    """N items, each of which has a tensor of each name, of any shape; one type for each name."""

    def fill(
        self,
        compute: Compute,
        workers: Workers,
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
