"""Stores are filled in one pass, with what they lack and no more, whatever happened before."""

import subprocess
import sys
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.probe.small_features import ALONE, unheard
from veca.probe import feature_cache as filling
from veca.probe.feature_cache import (
    ArrayStore,
    BlockFolder,
    Content,
    Missing,
    StoreError,
    fill_stores,
)
from veca.runtime.distributed import Ranks

COUNT = 11
BLOCK = 3


class Squares:
    """Computes the square of each item, times 10 for the second store, two items at a time."""

    def __init__(self, fail_at: int | None = None) -> None:
        self.asked: list[Missing] = []
        self.done: list[int] = []
        self.fail_at = fail_at
        self.closed = False

    def __call__(self, missing: Sequence[Missing]) -> Iterator[tuple[range, Mapping[int, Content]]]:
        self.asked = list(missing)
        try:
            for wanted in missing:
                for start in range(wanted.items.start, wanted.items.stop, 2):
                    items = range(start, min(start + 2, wanted.items.stop))
                    if self.fail_at in items:
                        raise RuntimeError("the model fell ill")
                    self.done.extend(items)
                    yield items, {row: self.tensors(items, row) for row in wanted.stores}
        finally:
            self.closed = True

    @staticmethod
    def tensors(items: range, row: int) -> dict[str, Tensor | list[Tensor]]:
        squares = torch.tensor([float(item**2 * 10**row) for item in items])
        return {"square": squares, "run": [torch.ones(item) for item in items]}


def stores_in(folder: Path, *names: str) -> list[ArrayStore]:
    return [ArrayStore(folder, {"name": name}, COUNT, BLOCK) for name in names]


def filled(stores: Sequence[BlockFolder], squares: Squares | None = None) -> tuple[Squares, str]:
    """Fill stores; what was computed, and what was said."""
    squares, said = squares or Squares(), list[str]()
    fill_stores(stores, squares, ALONE, said.append, shown=False)
    return squares, " ".join(said)


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_all_stores_are_filled_in_one_pass(tmp_path: Path) -> None:
    one, two = stores_in(tmp_path, "one", "two")
    squares, said = filled([one, two])
    assert squares.done == list(range(COUNT))
    assert squares.closed
    assert said == ""
    assert one.stacked("square").tolist() == [item**2 for item in range(COUNT)]
    assert two.stacked("square").tolist() == [10 * item**2 for item in range(COUNT)]


def test_what_is_kept_is_not_computed_again(tmp_path: Path) -> None:
    filled(stores_in(tmp_path, "one", "two"))
    before = files(tmp_path)
    stores = stores_in(tmp_path, "one", "two")
    squares, _ = filled(stores)
    assert (squares.asked, squares.done) == ([], [])
    assert files(tmp_path) == before
    assert stores[1].item(3)["square"] == 90


def test_for_a_store_that_is_added_later_only_that_one_is_asked_for(tmp_path: Path) -> None:
    filled(stores_in(tmp_path, "one"))
    before = files(tmp_path)
    squares, _ = filled(stores_in(tmp_path, "one", "two"))
    assert {wanted.stores for wanted in squares.asked} == {(1,)}
    assert squares.done == list(range(COUNT))
    assert before.items() <= files(tmp_path).items()


@pytest.mark.parametrize("fail_at", [0, 4, 10])
def test_a_run_that_failed_goes_on_at_its_block_and_ends_with_the_same_bytes(
    tmp_path: Path, fail_at: int
) -> None:
    filled(stores_in(tmp_path / "straight", "one", "two"))
    ill = Squares(fail_at)
    with pytest.raises(RuntimeError, match="fell ill"):
        filled(stores_in(tmp_path / "broken", "one", "two"), ill)
    assert ill.closed

    squares, said = filled(stores_in(tmp_path / "broken", "one", "two"))
    assert squares.done == list(range(fail_at // BLOCK * BLOCK, COUNT))
    assert said == ""
    assert files(tmp_path / "broken") == files(tmp_path / "straight")


def test_a_damaged_block_is_told_of_and_computed_again_in_its_store_alone(tmp_path: Path) -> None:
    one, two = stores_in(tmp_path, "one", "two")
    filled([one, two])
    before = files(tmp_path)
    damaged = bytearray(two.path(2).read_bytes())
    damaged[-1] ^= 4
    two.path(2).write_bytes(damaged)

    squares, said = filled(stores_in(tmp_path, "one", "two"))
    assert squares.asked == [Missing(range(6, 9), (1,))]
    assert said == f"{two.path(2)} was changed after it was written; it is computed again."
    assert files(tmp_path) == before


def test_no_more_than_one_block_is_in_memory(tmp_path: Path) -> None:
    living: weakref.WeakSet[Tensor] = weakref.WeakSet()
    most = 0

    def compute(missing: Sequence[Missing]) -> Iterator[tuple[range, Mapping[int, Content]]]:
        nonlocal most
        for wanted in missing:
            for item in wanted.items:
                batch = torch.zeros(1, 1000)
                living.add(batch)
                yield range(item, item + 1), {0: {"x": batch}}
                most = max(most, len(living))

    held: list[int] = []

    class Watched(ArrayStore):
        def write(self, block: int, content: Mapping[str, Sequence[Tensor]]) -> None:
            # Parts of a batch would hold all of it.
            held.extend(tensor.untyped_storage().nbytes() for tensor in content["x"])
            super().write(block, content)

    store = Watched(tmp_path, {}, 40, 4)
    fill_stores([store], compute, ALONE, unheard, shown=False)
    assert most <= 2  # this part, and the one before it
    assert set(held) == {4000}
    assert store.stacked("x").shape == (40, 1000)


def test_parts_that_are_missing_or_out_of_order_are_refused(tmp_path: Path) -> None:
    def parts(*ranges: range) -> None:
        def compute(missing: Sequence[Missing]) -> Iterator[tuple[range, Mapping[int, Content]]]:
            return iter([(items, {0: {"x": torch.zeros(len(items))}}) for items in ranges])

        fill_stores([BlockFolder(tmp_path, {}, 4, 2)], compute, ALONE, unheard, shown=False)

    for wrong in ([], [range(1, 2)], [range(4)], [range(2), range(3, 4)], [range(1), range(1)]):
        with pytest.raises(StoreError, match="were awaited; compute all items, in their order"):
            parts(*wrong)
    parts(range(2, 4))  # the first two were kept above


def test_as_many_tensors_as_items_are_asked_for(tmp_path: Path) -> None:
    def compute(missing: Sequence[Missing]) -> Iterator[tuple[range, Mapping[int, Content]]]:
        yield range(2), {0: {"x": torch.zeros(3)}}

    with pytest.raises(StoreError, match="3 tensors 'x' came for 2 items"):
        fill_stores([BlockFolder(tmp_path, {}, 2)], compute, ALONE, unheard, shown=False)


def test_stores_of_other_items_are_not_filled_together(tmp_path: Path) -> None:
    stores = [BlockFolder(tmp_path, {}, 4, 2), BlockFolder(tmp_path, {}, 5, 2)]
    with pytest.raises(StoreError, match="the same items and blocks"):
        fill_stores(stores, Squares(), ALONE, unheard)
    with pytest.raises(StoreError, match="the same items and blocks"):
        fill_stores([], Squares(), ALONE, unheard)


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError, match=r"features cannot be kept .*on a disk with room"):
        filled(stores_in(tmp_path / "file", "one"))


def test_a_process_that_does_not_see_what_the_others_wrote_is_told(tmp_path: Path) -> None:
    # The second of two, whose share is nothing but the blocks of the other one.
    second = Ranks(rank=1, world_size=2, device=torch.device("cpu"))
    squares = Squares()
    with pytest.raises(StoreError, match=r"block-00000.* a folder that all processes share"):
        fill_stores([BlockFolder(tmp_path, {}, 4, 2)], squares, second, unheard)
    assert squares.done == []


def test_progress_of_filling_and_of_a_long_verification_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_stores(stores_in(tmp_path, "one"), Squares(), ALONE, unheard)
    assert f"{COUNT} of {COUNT} images" in capsys.readouterr().err
    fill_stores(stores_in(tmp_path, "one"), Squares(), ALONE, unheard)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(filling, "SHOWN_BYTES", 1)
    fill_stores(stores_in(tmp_path, "one"), Squares(), ALONE, unheard)
    assert "4 of 4 blocks verified" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such locks")
def test_a_store_that_another_process_fills_is_left_to_it(tmp_path: Path) -> None:
    (store,) = stores_in(tmp_path, "one")
    store.folder.mkdir()
    hold = f"""
import fcntl, sys
file = open({str(store.folder / ".lock")!r}, "w")
fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(StoreError, match="another process is writing into"):
            filled([store])
        other.communicate("")
    filled([store])
