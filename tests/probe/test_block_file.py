"""A block gives back what was written, item by item, and notices any damage."""

import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from veca.probe import feature_cache as block_file
from veca.probe.feature_cache import (
    StoreError,
    block_problem,
    check_one_shape,
    read_items,
    read_stacked,
    write_block,
)

DTYPES = (torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool)


def content() -> dict[str, list[Tensor]]:
    """Three items: maps of several shapes, vectors, and a number of no axes."""
    return {
        "map": [torch.randn(2, 3 + item, 1).half() for item in range(3)],
        "vector": [torch.randn(5) for _ in range(3)],
        "label": [torch.tensor(7 * item) for item in range(3)],
    }


@pytest.fixture
def block(tmp_path: Path) -> Path:
    path = tmp_path / "block"
    write_block(path, "seal", content())
    return path


def same(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> bool:
    return found.keys() == wanted.keys() and all(
        found[name].dtype == wanted[name].dtype and torch.equal(found[name], wanted[name])
        for name in wanted
    )


def test_items_of_several_shapes_come_back_in_any_order(tmp_path: Path) -> None:
    written, path = content(), tmp_path / "block"
    write_block(path, "seal", written)
    assert block_problem(path, "seal") is None
    for place, found in zip((2, 0, 2), read_items(path, [2, 0, 2]), strict=True):
        assert same(found, {name: items[place] for name, items in written.items()})
    (some,) = read_items(path, [1], ["vector"])
    assert same(some, {"vector": written["vector"][1]})
    assert torch.equal(read_stacked(path, "vector"), torch.stack(written["vector"]))
    assert read_stacked(path, "label").tolist() == [0, 7, 14]


@settings(max_examples=40)
@given(
    shapes=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=5),
    dtype=st.sampled_from(DTYPES),
)
def test_any_shapes_and_types_come_back(
    tmp_path_factory: pytest.TempPathFactory, shapes: list[tuple[int, int]], dtype: torch.dtype
) -> None:
    path = tmp_path_factory.mktemp("any") / "block"
    written = [(100 * torch.rand(shape)).to(dtype) for shape in shapes]
    write_block(path, "", {"x": written})
    assert block_problem(path, "") is None
    for found, wanted in zip(read_items(path, range(len(shapes))), written, strict=True):
        assert same(found, {"x": wanted})
        assert found["x"].shape == wanted.shape


def test_equal_tensors_give_equal_files_whatever_they_are_parts_of(tmp_path: Path) -> None:
    whole = torch.randn(4, 6).t()
    write_block(tmp_path / "one", "seal", {"b": list(whole), "a": list(whole)})
    write_block(tmp_path / "two", "seal", {"a": [row.clone() for row in whole], "b": list(whole)})
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_what_was_read_stays_when_the_file_is_overwritten(block: Path) -> None:
    before = read_items(block, [1])[0]
    kept = {name: tensor.clone() for name, tensor in before.items()}
    block.write_bytes(bytes(block.stat().st_size))
    assert same(before, kept)


def test_any_flipped_byte_is_noticed(block: Path) -> None:
    write_block(block, "seal", {"x": [torch.ones(2), torch.ones(1)]})
    whole = block.read_bytes()
    for place in range(len(whole)):
        block.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert block_problem(block, "seal") is not None, place
    block.write_bytes(whole)
    assert block_problem(block, "seal") is None


def test_a_block_under_another_seal_does_not_verify(block: Path) -> None:
    assert block_problem(block, "another") == "was changed after it was written"


def test_files_that_are_missing_cut_off_longer_or_foreign_are_told(block: Path) -> None:
    whole = block.read_bytes()
    for strange in (whole[:-1], whole + b"\0", whole[:20], b"", b"no tensors at all"):
        block.write_bytes(strange)
        assert str(block_problem(block, "seal")).startswith("cannot be read (")
    block.unlink()
    assert block_problem(block, "seal") == "is missing"
    block.mkdir()
    assert str(block_problem(block, "seal")).startswith("cannot be read (")


def test_tensors_of_another_program_without_a_hash_do_not_verify(block: Path) -> None:
    from safetensors.torch import save_file  # noqa: PLC0415

    save_file({"x": torch.ones(3)}, block)
    assert block_problem(block, "seal") == "was changed after it was written"


@pytest.mark.parametrize("left", [0, 7, 60, -1])
def test_a_block_that_is_cut_off_after_it_was_verified_is_an_error(block: Path, left: int) -> None:
    block.write_bytes(block.read_bytes()[:left])
    with pytest.raises(StoreError, match=r"block cannot be read any more \(.*start again"):
        read_items(block, [2])


def test_a_block_that_vanishes_after_it_was_verified_is_an_error(block: Path) -> None:
    block.unlink()
    with pytest.raises(StoreError, match="cannot be read any more"):
        read_stacked(block, "vector")


def test_a_name_that_is_not_there_is_refused_with_those_that_are(block: Path) -> None:
    with pytest.raises(StoreError, match=r"no tensors 'image'; it has label, map, vector\."):
        read_items(block, [0], ["image"])


def test_tensors_of_several_shapes_are_not_stacked(block: Path) -> None:
    with pytest.raises(StoreError, match=r"such as \(2, 3, 1\) and \(2, 4, 1\)"):
        read_stacked(block, "map")
    check_one_shape("x", [])
    check_one_shape("x", [(2,), (2,)])


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"x": []},
        {"x": [torch.ones(1)], "y": [torch.ones(1), torch.ones(1)]},
        {"x": [torch.ones(1), torch.ones(1).half()]},
        {"x": [torch.ones(1), torch.ones(1, 1)]},
        {"x/y": [torch.ones(1)]},
    ],
)
def test_what_is_no_block_is_refused_and_nothing_is_written(
    tmp_path: Path, wrong: dict[str, list[Tensor]]
) -> None:
    with pytest.raises(StoreError):
        write_block(tmp_path / "block", "seal", wrong)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_the_old_block(block: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, pieces: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(block_file, "write_atomic", full)
    with pytest.raises(StoreError, match="No space left on device"):
        write_block(block, "seal", {"x": [torch.ones(1)]})
    assert block_problem(block, "seal") is None


def test_a_copied_block_is_the_same_block(block: Path, tmp_path: Path) -> None:
    shutil.copy(block, tmp_path / "copy")
    assert block_problem(tmp_path / "copy", "seal") is None
