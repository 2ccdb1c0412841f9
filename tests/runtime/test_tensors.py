"""Files of tensors are written atomically, come back bit for bit, and detect every damage."""

import errno
import json
import os
import pickle
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.torch import load as read_by_library
from safetensors.torch import load_file, save_file
from safetensors.torch import save as write_by_library
from torch import Tensor

from veca.runtime.tensors import (
    ALIGNMENT,
    DTYPES,
    DamagedFileError,
    TensorFile,
    load_tensors,
    read_tensors,
    save_tensors,
    tensor_pieces,
)

METADATA: dict[str, Any] = {"name": 'ä"\n', "step": 2**70, "loss": 0.1 + 0.2, "list": [1, {}, None]}


def sample(seed: int = 0) -> dict[str, Tensor]:
    """Tensors of several types and shapes, with some bytes that make up text."""
    draw = torch.Generator().manual_seed(seed)
    return {
        "b/rows": torch.randint(-128, 128, (7, 3, 2), generator=draw).to(torch.int8),
        "a": torch.randn(5, 4, generator=draw),
        "scalar": torch.tensor(seed + 3),
        "none": torch.zeros(0, 3, dtype=torch.bfloat16),
    }


def equal(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> bool:
    """Whether names, types, shapes and numbers agree."""
    return found.keys() == wanted.keys() and all(
        found[name].dtype == tensor.dtype and torch.equal(found[name], tensor)
        for name, tensor in wanted.items()
    )


def test_tensors_and_metadata_come_back(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "file.safetensors"
    digest = save_tensors(path, sample(), METADATA)
    tensors, metadata = load_tensors(path)
    assert equal(tensors, sample())
    assert metadata == METADATA
    with TensorFile(path) as file:
        assert (file.sha256, file.metadata) == (digest, METADATA)
        assert equal({name: file.read(name) for name in file.specs}, sample())


def test_damage_found_on_rank_0_can_be_sent_to_the_other_ranks() -> None:
    error = DamagedFileError(Path("file"), "it was cut short")
    sent = pickle.loads(pickle.dumps(error))
    assert (str(sent), sent.path, sent.reason) == (str(error), error.path, error.reason)


def test_the_safetensors_library_reads_our_files(tmp_path: Path) -> None:
    save_tensors(tmp_path / "file", sample(), METADATA)
    assert equal(load_file(tmp_path / "file"), sample())
    content = (tmp_path / "file").read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    assert header["__metadata__"]["format"] == "pt"  # transformers asks for it


def test_equal_input_gives_equal_files_and_other_input_another_hash(tmp_path: Path) -> None:
    digests = {
        save_tensors(tmp_path / "a", sample(), {"x": 1, "y": 2}),
        save_tensors(tmp_path / "b", dict(reversed(sample().items())), {"y": 2, "x": 1}),
    }
    assert len(digests) == 1
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    digests.add(save_tensors(tmp_path / "c", sample(), {"x": 1, "y": 3}))
    digests.add(save_tensors(tmp_path / "c", sample(1), {"x": 1, "y": 2}))
    digests.add(save_tensors(tmp_path / "c", {"renamed": torch.zeros(2)}, {"x": 1, "y": 2}))
    digests.add(save_tensors(tmp_path / "c", {"renamed": torch.zeros(2, 1)}, {"x": 1, "y": 2}))
    assert len(digests) == 5


@pytest.mark.parametrize("value", [float("nan"), (1, 2), {1: 2}, torch.zeros(1)], ids=str)
def test_metadata_that_json_would_change_is_refused_by_name(value: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="metadata"):
        save_tensors(tmp_path / "file", {}, {"outer": {"inner": value}})
    assert not list(tmp_path.iterdir())


def test_writing_needs_no_second_copy(tmp_path: Path) -> None:
    arrays = {str(index): np.zeros(1_000_000) for index in range(4)}
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        save_tensors(tmp_path / "file", arrays)
        assert tracemalloc.get_traced_memory()[1] - before < 200_000
    finally:
        tracemalloc.stop()


@given(rows=st.lists(st.integers(0, 6), max_size=9))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
def test_rows_are_those_of_the_whole_tensor(rows: list[int], tmp_path: Path) -> None:
    path = tmp_path / "file"
    if not path.exists():
        save_tensors(path, sample())
    whole = sample()["b/rows"]
    with TensorFile(path) as file:
        out = torch.zeros(9, 3, 2, dtype=torch.int8)
        file.read_into(out, "b/rows", rows, range(9 - len(rows), 9))
        assert torch.equal(out[9 - len(rows) :], whole[rows])
        assert not out[: 9 - len(rows)].any()


def test_a_missing_file_is_a_missing_file(tmp_path: Path) -> None:
    for read in (load_tensors, TensorFile):
        with pytest.raises(FileNotFoundError, match="file"):
            read(tmp_path / "file")


# Every damage: changed, cut, zeroed, inserted and exchanged bytes, and other metadata.


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file, and beside it another of the same size."""
    folder = tmp_path_factory.mktemp("written")
    save_tensors(folder / "file", sample(), METADATA)
    save_tensors(folder / "other", sample(1), METADATA)
    return folder / "file"


def flipped(content: bytearray, place: int, number: int) -> bytes:
    content[place] ^= number
    return bytes(content)


def problem_of(path: Path) -> None:
    """Fail unless every way to read a whole file finds the damage."""
    with pytest.raises(DamagedFileError, match=r"is damaged: .*; restore a copy"):
        load_tensors(path)
    with pytest.raises(DamagedFileError):
        verify(path)


def verify(path: Path) -> None:
    with TensorFile(path) as file:
        file.verify()


def test_flips_zeros_insertions_and_cuts_at_any_place_are_found(written: Path) -> None:
    content, path = written.read_bytes(), written.with_name("damaged")
    for place in range(0, len(content), 7):
        damages = (
            content[:place],
            content[:place] + b"\0" + content[place:],
            content[:place] + bytes([content[place] ^ 32]) + content[place + 1 :],
            (content[:place] + bytes(99) + content[place + 99 :])[: len(content)],
        )
        for damaged in damages:
            path.write_bytes(damaged)
            with pytest.raises(DamagedFileError):
                verify(path)


@pytest.mark.parametrize("part", ["header", "tensors"])
def test_the_header_of_one_file_and_the_tensors_of_another_are_no_file(
    part: str, written: Path
) -> None:
    one, other = written.read_bytes(), written.with_name("other").read_bytes()
    end = 8 + int.from_bytes(one[:8], "little")
    path = written.with_name("damaged")
    path.write_bytes(one[:end] + other[end:] if part == "header" else other[:end] + one[end:])
    problem_of(path)


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff" * 100, bytes(100), b"PK\x03\x04" * 9],
    ids=["empty", "bytes", "zeros", "zip"],
)
def test_other_files_are_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(content)
    problem_of(tmp_path / "file")


def test_safetensors_of_others_are_refused(tmp_path: Path) -> None:
    save_file(sample(), tmp_path / "file", {"format": "pt"})
    with pytest.raises(DamagedFileError, match="its header has no SHA-256"):
        load_tensors(tmp_path / "file")


def test_a_file_that_is_cut_while_it_is_open_raises_and_does_not_crash(tmp_path: Path) -> None:
    path = tmp_path / "file"
    save_tensors(path, {"x": torch.zeros(100_000)})
    with TensorFile(path) as file:
        os.truncate(path, 4096)
        with pytest.raises(DamagedFileError, match="it was cut short"):
            file.read("x")
        with pytest.raises(DamagedFileError, match="do not match their SHA-256"):
            file.verify()


# Writing: whatever fails, the old file or the new one is there.


@pytest.fixture
def filling_disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets how many more bytes the disk takes."""
    room, real = 0, os.write

    def write(file: int, data: memoryview) -> int:
        nonlocal room
        if not room:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = real(file, data[:room])
        room -= taken
        return taken

    def leave(count: int) -> None:
        nonlocal room
        room = count

    monkeypatch.setattr(os, "write", write)
    monkeypatch.setattr(os, "fsync", lambda _: None)
    return leave


def test_a_disk_that_becomes_full_at_any_byte_leaves_the_old_file(
    tmp_path: Path, written: Path, filling_disk: Callable[[int], None]
) -> None:
    path = tmp_path / "file"
    shutil.copyfile(written, path)
    size = path.stat().st_size
    for room in range(0, size, 37):
        filling_disk(room)
        with pytest.raises(OSError, match=f"No space left on device: .*{tmp_path.name}/file"):
            save_tensors(path, sample(1), METADATA)
        assert path.read_bytes() == written.read_bytes()
        assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
    filling_disk(size)
    save_tensors(path, sample(1), METADATA)
    assert path.read_bytes() == written.with_name("other").read_bytes()


# The layout of the file, against the library's.

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


def test_views_and_arrays_of_numpy_are_written_as_their_copies() -> None:
    rows = torch.randn(4, 6)
    array = rows.t().numpy()
    array.flags.writeable = False
    assert file_of({"x": rows.t()}) == file_of({"x": rows.t().contiguous().requires_grad_()})
    assert b"".join(tensor_pieces({"x": array})) == file_of({"x": rows.t()})


def test_tensors_that_were_read_do_not_depend_on_the_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(file_of({"x": torch.arange(1000.0)}))
    found = read_tensors(path)["x"]
    with path.open("r+b") as file:
        file.write(bytes(path.stat().st_size))
    assert torch.equal(found, torch.arange(1000.0))


def test_an_incomplete_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(file_of({"x": torch.zeros(3)})[:-1])
    with pytest.raises(SafetensorError):
        read_tensors(path)
