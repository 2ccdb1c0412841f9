"""Shards are safetensors that the library itself reads."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from veca.embed.errors import CollectionError
from veca.embed.shard_file import open_tensor, shard_pieces


def write(path: Path, tensors: dict[str, np.ndarray]) -> Path:
    path.write_bytes(b"".join(bytes(piece) for piece in shard_pieces(tensors)))
    return path


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_tensors_of_any_shape_come_back_from_the_library(dtype: str, tmp_path: Path) -> None:
    numbers = np.random.default_rng(0).normal(size=(3, 5, 7)).astype(dtype)
    tensors = {"whole": numbers, "turned": numbers.transpose(2, 0, 1), "none": numbers[:0]}
    found = load_file(write(tmp_path / "s", tensors))
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == dtype
        np.testing.assert_array_equal(found[name], tensor)


def test_numbers_start_at_a_multiple_of_eight_bytes(tmp_path: Path) -> None:
    content = write(tmp_path / "s", {"a": np.zeros((1, 3), np.float16)}).read_bytes()
    assert (len(content) - 6) % 8 == 0


def test_a_part_of_a_tensor_can_be_read(tmp_path: Path) -> None:
    numbers = np.arange(12, dtype=np.float32).reshape(4, 3)
    path = write(tmp_path / "s", {"a": numbers})
    with open_tensor(path, "a") as tensor:
        assert tensor.get_shape() == [4, 3]
        np.testing.assert_array_equal(tensor[1:3], numbers[1:3])


def test_a_missing_or_damaged_file_is_told_in_words(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with pytest.raises(CollectionError, match="is missing or damaged"), open_tensor(path, "a"):
        pass
    write(path, {"a": np.zeros(9, np.float32)})
    with pytest.raises(CollectionError, match="is missing or damaged"), open_tensor(path, "b"):
        pass
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CollectionError, match="is missing or damaged"), open_tensor(path, "a"):
        pass
