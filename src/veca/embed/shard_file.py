"""Shards of features: safetensors, written without a second copy and read a part at a time."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from veca.embed.errors import CollectionError

CODES = {"float16": "F16", "float32": "F32"}
"""Types of numbers by their names in the file."""

ALIGNMENT = 8
"""Tensors start at a multiple of so many bytes."""


def shard_pieces(tensors: Mapping[str, NDArray[Any]]) -> Iterator[bytes | memoryview]:
    """The file, piece by piece; tensors of one type follow each other as they are given."""
    header: dict[str, Any] = {}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.nbytes
        header[name] = {
            "dtype": CODES[tensor.dtype.name],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    yield len(text).to_bytes(8, "little")
    yield text
    for tensor in tensors.values():
        yield np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).data


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
