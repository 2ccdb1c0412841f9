"""Tensors of every type are written as the safetensors library reads them, without a copy."""

import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.torch import load as read_by_library
from safetensors.torch import save as write_by_library
from torch import Tensor

from veca.runtime.tensor_files import (
    ALIGNMENT,
    DTYPES,
    bytes_of,
    read_tensors,
    tensor_pieces,
    type_name,
)

SHAPES = ((), (0,), (3, 0, 2), (1,), (2, 3), (2, 3, 4))


def filled(dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """A tensor of random bits, so also of NaN with a payload."""
    if dtype == torch.bool:
        return torch.randint(0, 2, shape).bool()
    size = torch.empty(0, dtype=dtype).itemsize
    return torch.randint(0, 256, (*shape, size), dtype=torch.uint8).view(dtype).reshape(shape)


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors agree in type, shape and every bit."""
    bits = [tensor.reshape(-1).view(torch.uint8) for tensor in (one, other)]
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(*bits)


def file_of(tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> bytes:
    return b"".join(tensor_pieces(tensors, metadata))


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_every_type_and_shape_comes_back_bit_for_bit(dtype: torch.dtype, tmp_path: Path) -> None:
    tensors = {str(shape): filled(dtype, shape) for shape in SHAPES}
    content = file_of(tensors)
    (tmp_path / "file").write_bytes(content)
    for found in (read_by_library(content), read_tensors(tmp_path / "file")):
        assert found.keys() == tensors.keys()
        assert all(same_bits(found[name], tensor) for name, tensor in tensors.items())


@given(st.lists(st.tuples(st.sampled_from(sorted(DTYPES)), st.sampled_from(SHAPES)), max_size=8))
def test_types_can_be_mixed_and_each_tensor_is_aligned_to_its_own(
    kinds: list[tuple[str, tuple[int, ...]]],
) -> None:
    tensors = {str(at): filled(DTYPES[code], shape) for at, (code, shape) in enumerate(kinds)}
    content = file_of(tensors, {"about": "ä"})
    found = read_by_library(content)
    assert found.keys() == tensors.keys()
    assert all(same_bits(found[name], tensor) for name, tensor in tensors.items())
    length = int.from_bytes(content[:8], "little")
    assert (8 + length) % ALIGNMENT == 0
    header = json.loads(content[8 : 8 + length])
    assert header.pop("__metadata__") == {"about": "ä"}
    for name, tensor in tensors.items():
        assert header[name]["data_offsets"][0] % tensor.itemsize == 0


def test_the_file_is_the_one_that_the_library_would_write() -> None:
    tensors = {"a": filled(torch.float32, (2, 3)), "b": filled(torch.float32, (4,))}
    tensors |= {"c": filled(torch.int16, (5,)), "d": filled(torch.uint8, (7,))}
    assert file_of(tensors) == write_by_library(tensors)
    assert file_of(tensors, {"k": "v"}) == write_by_library(tensors, {"k": "v"})


def test_tensors_of_equal_width_follow_each_other_as_they_are_given() -> None:
    tensors = {name: torch.zeros(1) for name in ("z", "a", "m")} | {"w": torch.zeros(1).double()}
    content = file_of(tensors)
    assert list(json.loads(content[8:].split(b"}}")[0] + b"}}")) == ["w", "z", "a", "m"]


def test_views_and_arrays_of_numpy_are_written_as_their_copies() -> None:
    rows = torch.randn(4, 6)
    array = rows.t().numpy()
    array.flags.writeable = False
    assert file_of({"x": rows.t()}) == file_of({"x": rows.t().contiguous().requires_grad_()})
    assert b"".join(tensor_pieces({"x": array})) == file_of({"x": rows.t()})


def test_nothing_is_copied() -> None:
    tensor, array = torch.zeros(1000), np.zeros(1000)
    for given_one in (tensor, array):
        np.frombuffer(bytes_of(given_one), np.uint8)[:] = 1
    assert tensor[0] != 0
    assert array[0] != 0


def test_writing_needs_no_memory_beyond_the_header() -> None:
    arrays = {str(index): np.zeros(1_000_000) for index in range(4)}
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in tensor_pieces(arrays):
            pass
        assert tracemalloc.get_traced_memory()[1] - before < 100_000
    finally:
        tracemalloc.stop()


def test_tensors_that_were_read_do_not_depend_on_the_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(file_of({"x": torch.arange(1000.0)}))
    found = read_tensors(path)["x"]
    with path.open("r+b") as file:
        file.write(bytes(path.stat().st_size))
    assert torch.equal(found, torch.arange(1000.0))


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (torch.zeros(1, dtype=torch.complex64), "'x' is complex64, .*allowed are dense tensors of"),
        (torch.zeros(1, device="meta"), "'x' is float32 without memory"),
        (torch.eye(2).to_sparse(), "'x' is sparse float32"),
    ],
)
def test_what_a_file_cannot_hold_is_refused_by_name(tensor: Tensor, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        file_of({"x": tensor})


def test_the_name_of_the_metadata_is_taken() -> None:
    with pytest.raises(ValueError, match="give it another name"):
        file_of({"__metadata__": torch.zeros(1)})


def test_arrays_in_the_byte_order_of_other_machines_are_refused() -> None:
    with pytest.raises(ValueError, match="'x' is >f4"):
        b"".join(tensor_pieces({"x": np.zeros(2, ">f4")}))


def test_what_is_no_whole_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(file_of({"x": torch.zeros(3)})[:-1])
    with pytest.raises(SafetensorError):
        read_tensors(path)


def test_torch_and_numpy_call_types_the_same() -> None:
    for dtype in (torch.float16, torch.int64, torch.bool, torch.uint8):
        assert type_name(dtype) == type_name(torch.zeros(1, dtype=dtype).numpy().dtype)
