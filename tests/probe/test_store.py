"""Items come back from a store in any order, alone or stacked."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.probe.small_features import ALONE, unheard
from veca.probe.feature_cache import ArrayStore, Content, StoreError

COUNT = 10


def picture(item: int) -> Tensor:
    return torch.full((1 + item % 3, 2), float(item))


def compute(blocks: Sequence[range]) -> Iterator[tuple[range, Content]]:
    """Vectors as a stack, pictures of several shapes one by one."""
    for items in blocks:
        numbers = torch.tensor(list(items)).half()
        yield (
            items,
            {"vector": numbers[:, None].expand(-1, 4), "picture": list(map(picture, items))},
        )


@pytest.fixture
def store(tmp_path: Path) -> ArrayStore:
    found = ArrayStore(tmp_path, {"name": "numbers"}, COUNT, block=4)
    found.fill(compute, ALONE, unheard, shown=False)
    return found


def test_an_item_has_a_tensor_of_each_name(store: ArrayStore) -> None:
    for item in range(COUNT):
        found = store.item(item)
        assert found.keys() == {"vector", "picture"}
        assert torch.equal(found["vector"], torch.full((4,), float(item)).half())
        assert torch.equal(found["picture"], picture(item))


def test_items_are_gathered_in_the_order_asked_for(store: ArrayStore) -> None:
    asked = [9, 0, 5, 4, 9, 1]
    found = store.gather("vector", np.array(asked))
    assert found.dtype == torch.float16
    assert found[:, 0].tolist() == asked
    for item, tensor in zip(asked, store.each("picture", np.array(asked)), strict=True):
        assert torch.equal(tensor, picture(item))
    assert store.each("picture", np.zeros(0, np.int64)) == []
    alike = store.gather("picture", np.array([7, 1, 4]))
    assert alike[:, 0, 0].tolist() == [7, 1, 4]


def test_all_items_are_stacked(store: ArrayStore) -> None:
    assert torch.equal(store.stacked("vector"), store.gather("vector", np.arange(COUNT)))
    blocks = list(store.blocks("vector"))
    assert [items for items, _ in blocks] == [range(4), range(4, 8), range(8, 10)]
    assert torch.equal(torch.cat([found for _, found in blocks]), store.stacked("vector"))


def test_items_of_several_shapes_are_not_stacked(store: ArrayStore, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="'picture' have several shapes"):
        store.gather("picture", np.array([0, 1]))
    with pytest.raises(StoreError, match="'picture' have several shapes"):
        store.stacked("picture")

    def rows(blocks: Sequence[range]) -> Iterator[tuple[range, Content]]:
        for items in blocks:  # alike within a block; torch would repeat the later ones
            yield items, {"x": torch.ones(len(items), 1 if items.start else 5)}

    other = ArrayStore(tmp_path, {"name": "rows"}, 4, block=2)
    other.fill(rows, ALONE, unheard, shown=False)
    with pytest.raises(StoreError, match=r"\(1,\) and \(5,\)"):
        other.stacked("x")


@pytest.mark.parametrize("strange", [-1, COUNT])
def test_an_item_that_is_not_there_is_refused(store: ArrayStore, strange: int) -> None:
    with pytest.raises(StoreError, match=f"no item {strange}; use 0 to 9"):
        store.item(strange)
    with pytest.raises(StoreError, match=f"no item {strange}; use 0 to 9"):
        store.gather("vector", np.array([0, strange]))


def test_nothing_is_read_before_the_store_is_filled_and_verified(
    store: ArrayStore, tmp_path: Path
) -> None:
    again = ArrayStore(tmp_path, {"name": "numbers"}, COUNT, block=4)
    for read in (lambda: again.item(0), lambda: again.stacked("vector")):
        with pytest.raises(StoreError, match="call `fill` before"):
            read()
    again.fill(compute, ALONE, unheard, shown=False)
    assert torch.equal(again.stacked("vector"), store.stacked("vector"))
