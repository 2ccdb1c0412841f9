"""Shards of features: safetensors, written without a second copy and read a part at a time."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from veca.embed.errors import CollectionError
from veca.runtime.tensors import tensor_pieces


def shard_pieces(tensors: Mapping[str, NDArray[Any]]) -> Iterator[bytes | memoryview]:
    """The file, piece by piece; tensors of one type follow each other as they are given."""
    return tensor_pieces(tensors)


@contextmanager
def open_tensor(path: Path, name: str) -> Iterator[Any]:
    """A tensor that is read where it is indexed, `tensor[a:b]`; `get_shape` tells its shape."""
    try:
        with safe_open(path, framework="np") as file:
            yield file.get_slice(name)
    except (SafetensorError, FileNotFoundError) as error:
        raise CollectionError(
            f"{path} is missing or damaged ({error}); restore it, or embed the pictures anew into "
            "another folder."
        ) from error
