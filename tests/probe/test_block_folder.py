"""A folder is named after what it depends on, and its blocks hold every item once."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from veca.probe.feature_cache import BlockFolder, StoreError

FACTS: dict[str, Any] = {"model": "abc", "plan": {"side": 32, "margin": 1.125}}


@given(count=st.integers(1, 500), block=st.integers(1, 90))
def test_blocks_hold_every_item_once_and_in_order(count: int, block: int) -> None:
    folder = BlockFolder(Path("there"), FACTS, count, block)
    items = [item for number in range(folder.num_blocks) for item in folder.numbers(number)]
    assert items == list(range(count))
    assert len({folder.path(number) for number in range(folder.num_blocks)}) == folder.num_blocks


def test_the_name_follows_from_facts_count_and_block_and_not_from_their_order() -> None:
    folder = BlockFolder(Path("there"), FACTS, 5, 2)
    turned = {"plan": {"margin": 1.125, "side": 32}, "model": "abc"}
    assert BlockFolder(Path("there"), turned, 5, 2, notes={"by": "me"}).key == folder.key
    assert folder.folder == Path("there", folder.key[:16])
    others = [
        BlockFolder(Path("there"), {**FACTS, "model": "xyz"}, 5, 2),
        BlockFolder(Path("there"), {**FACTS, "plan": {"side": 32, "margin": 1}}, 5, 2),
        BlockFolder(Path("there"), FACTS, 6, 2),
        BlockFolder(Path("there"), FACTS, 5, 3),
    ]
    assert len({folder.key, *(other.key for other in others)}) == 5


def test_facts_that_json_cannot_hold_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot be stored as JSON"):
        BlockFolder(Path("there"), {"margin": float("nan")}, 5)


@pytest.mark.parametrize(("count", "block"), [(0, 1), (1, 0), (-1, 4)])
def test_a_folder_of_nothing_is_refused(count: int, block: int) -> None:
    with pytest.raises(StoreError, match="1 or more of both"):
        BlockFolder(Path("there"), FACTS, count, block)


def test_facts_are_there_in_clear_text_and_leftovers_are_not(tmp_path: Path) -> None:
    folder = BlockFolder(tmp_path, FACTS, 5, 2, notes={"model": "tiny"})
    folder.folder.mkdir()
    (folder.folder / ".block-00000.safetensors.0123.tmp").write_bytes(b"half")
    folder.begin()
    told = json.loads((folder.folder / "facts.json").read_bytes())
    assert told["facts"] == FACTS
    assert (told["count"], told["block"], told["notes"]) == (5, 2, {"model": "tiny"})
    assert [path.name for path in folder.folder.iterdir()] == ["facts.json"]


def test_a_block_of_another_number_or_another_folder_does_not_verify(tmp_path: Path) -> None:
    one, other = (BlockFolder(tmp_path, {"model": name}, 4, 2) for name in ("one", "other"))
    for folder in (one, other):
        folder.folder.mkdir()
        for number in range(2):
            folder.write(number, {"x": [torch.tensor(float(number))] * 2})
            assert folder.problem(number) is None
    other.path(0).write_bytes(one.path(0).read_bytes())
    assert other.problem(0) == "was changed after it was written"
    one.path(1).write_bytes(one.path(0).read_bytes())
    assert one.problem(1) == "was changed after it was written"


def test_a_folder_is_whole_once_every_block_was_seen(tmp_path: Path) -> None:
    folder = BlockFolder(tmp_path, FACTS, 3, 2)
    folder.folder.mkdir()
    folder.write(0, {"x": [torch.ones(1)] * 2})
    with pytest.raises(StoreError, match=r"block-00001.* a folder that all processes share"):
        folder.confirm()
    assert not folder.is_whole
    folder.write(1, {"x": [torch.ones(1)]})
    folder.confirm()
    assert folder.is_whole
