"""Safetensors files, laid out here so that nothing is copied and equal tensors give equal files.

The safetensors library writes from a second copy of all tensors and orders metadata by chance. Here
the header comes first and then one tensor after the other, each fetched when its turn comes.
Reading goes through the library, which checks every offset before anyone sees a tensor.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from torch import Tensor

DTYPES: Mapping[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""Types of numbers by their names in the file."""

ALIGNMENT = 8
"""The tensors start at a multiple of so many bytes."""

METADATA = "__metadata__"
"""The entry of the header that is no tensor."""


def type_name(dtype: torch.dtype | np.dtype[Any]) -> str:
    """The name that torch and numpy share, such as 'float32'."""
    return str(dtype).removeprefix("torch.")


_CODES = {type_name(dtype): code for code, dtype in DTYPES.items()}


def tensor_pieces(
    tensors: Mapping[str, Tensor] | Mapping[str, NDArray[Any]],
    metadata: Mapping[str, str] | None = None,
) -> Iterator[bytes | memoryview]:
    """The file, piece by piece: length of the header, header, tensors.

    The widest numbers come first, so that each tensor is aligned to its own type; tensors of equal
    width follow each other as they are given.
    """
    order = sorted(tensors, key=lambda name: -tensors[name].itemsize)
    header: dict[str, Any] = {} if metadata is None else {METADATA: dict(metadata)}
    end = 0
    for name in order:
        tensor = tensors[name]
        code, start = _code(name, tensor), end
        end += tensor.nbytes
        header[name] = {
            "dtype": code,
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    yield len(text).to_bytes(8, "little")
    yield text
    for name in order:
        yield bytes_of(tensors[name])


def bytes_of(tensor: Tensor | NDArray[Any]) -> memoryview:
    """The numbers of a tensor as they stand in the file, without a copy where it lies in memory."""
    if isinstance(tensor, Tensor):
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        return flat.view(torch.uint8).numpy().data
    return np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).data


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Every tensor of a file, in memory of its own: the file may be changed or removed afterwards.

    What is no whole safetensors file gives the library's own SafetensorError.
    """
    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118


def _code(name: str, tensor: Tensor | NDArray[Any]) -> str:
    """The type of a tensor by its name in the file."""
    if name == METADATA:
        raise ValueError(f"a tensor cannot be called {METADATA!r} in a file; give it another name.")
    kind = type_name(tensor.dtype)
    if isinstance(tensor, Tensor) and (tensor.is_meta or tensor.layout != torch.strided):
        kind = f"{kind} without memory" if tensor.is_meta else f"sparse {kind}"
    if kind not in _CODES:
        raise ValueError(
            f"the tensor {name!r} is {kind}, which a file cannot hold; allowed are dense tensors "
            f"of {', '.join(_CODES)}: convert it first."
        )
    return _CODES[kind]
