"""Safetensors files that verify themselves: atomic to write, checked to read.

The header's metadata holds `"format": "pt"`, our own metadata as JSON under `veca`, and two hashes:
`data_sha256` over the bytes of the tensors, and `sha256` over the header, in which its own 64
digits count as zeros. So the header is checked whenever a file is opened, which costs next to
nothing, and a full verification detects any changed byte. Equal tensors and metadata give equal
files, and `sha256` identifies them.

The safetensors library would write from a second copy of all tensors, order metadata at random and
not fsync; so the layout is written here.
"""

import hashlib
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor

from veca.runtime import VecaError
from veca.runtime.files import TEMPORARY_SUFFIX, dumps_strict, make_folder, write_atomic

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
"""The tensors start at a multiple of this many bytes."""

METADATA = "__metadata__"
"""The entry of the header that is not a tensor."""

METADATA_KEY = "veca"
"""The entry of the header's metadata that holds ours."""

Tensors = Mapping[str, Tensor] | Mapping[str, NDArray[Any]]
Rows = Sequence[int] | NDArray[np.int64]

MAX_HEADER_BYTES = 100_000_000
"""As in the safetensors library."""

_NO_DIGEST = "0" * 64
_DIGEST_FIELD = re.compile(rb'\{"__metadata__":\{"format":"pt","sha256":"([0-9a-f]{64})"')


class DamagedFileError(VecaError, OSError):
    """A file that is not what `save_tensors` wrote."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"{path} is damaged: {reason}; restore a copy of it, or delete it so that it is "
            "created again."
        )
        self.path = path
        self.reason = reason

    def __reduce__(self) -> tuple[type["DamagedFileError"], tuple[Path, str]]:
        """Arguments for pickling, since rank 0 sends its errors to the other ranks."""
        return type(self), (self.path, self.reason)


def save_tensors(path: Path, tensors: Tensors, metadata: Mapping[str, Any] | None = None) -> str:
    """Write a file atomically and durably, without a second copy of the tensors in memory.

    The folder is created, an existing file is replaced; the metadata is any plain JSON. Returns the
    SHA-256 that identifies tensors and metadata.
    """
    metadata = dict(metadata or {})
    dumps_strict(metadata, "metadata")  # refuses what JSON would change
    ordered: dict[str, Any] = {name: tensors[name] for name in sorted(tensors)}
    about = {
        "format": "pt",  # transformers refuses files without it
        "sha256": _NO_DIGEST,
        "data_sha256": _sha256(islice(tensor_pieces(ordered), 2, None)),
        METADATA_KEY: json.dumps(metadata, sort_keys=True, separators=(",", ":")),
    }
    pieces = tensor_pieces(ordered, about)
    prefix, header = bytes(next(pieces)), bytes(next(pieces))
    digest = _sha256([prefix, header])
    header = header.replace(_NO_DIGEST.encode(), digest.encode(), 1)
    try:
        make_folder(path.parent)
        write_atomic(path, chain([prefix, header], pieces))
    except OSError as error:
        error.filename = error.filename or str(path)  # a full disk does not name its file
        raise
    return digest


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read and verify all tensors of a file of `save_tensors`, and its metadata."""
    with TensorFile(path) as file:
        file.verify()
        return {name: file.read(name) for name in sorted(file.specs)}, file.metadata


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of any safetensors file, copied into memory; no hash is checked.

    A file that is not whole raises the library's own SafetensorError.
    """
    return {name: tensor.clone() for name, tensor in load_file(path).items()}


def remove_temporary_files(folder: Path) -> None:
    """Remove what killed processes left in a folder; nobody else may be writing there."""
    for path in folder.glob(f".*{TEMPORARY_SUFFIX}"):
        path.unlink(missing_ok=True)


class TensorSpec(NamedTuple):
    """Type, shape and place of a tensor in a file."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    """First byte, counted from the first tensor."""


class TensorFile:
    """An open file of `save_tensors`, to read single tensors or rows; use it in a `with` block.

    The header is checked at once. The file is read and not memory-mapped: where it is cut short
    meanwhile, that is an error and not a crash, and pages that the system caches do not count as
    memory of this process.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("rb")
        try:
            self._read_header()
        except BaseException:
            self.close()
            raise

    metadata: dict[str, Any]
    """As it was given to `save_tensors`."""
    specs: dict[str, TensorSpec]
    """The tensors by name, in the order of the file."""
    sha256: str
    """Identifies tensors and metadata."""

    def __enter__(self) -> "TensorFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def read(self, name: str) -> Tensor:
        """A tensor, in memory of its own."""
        spec = self.specs[name]
        out = torch.empty(spec.shape, dtype=spec.dtype)
        self._fill(bytes_of(out), spec.start)
        return out

    def read_into(self, out: Tensor, name: str, rows: Rows, places: Rows) -> None:
        """Read rows into places (entries of the first axis) of a contiguous tensor on the CPU."""
        spec = self.specs[name]
        size = math.prod(spec.shape[1:]) * spec.dtype.itemsize
        buffer = bytes_of(out)
        for row, place in zip(rows, places, strict=True):
            target = buffer[int(place) * size : (int(place) + 1) * size]
            self._fill(target, spec.start + int(row) * size)

    def verify(self) -> None:
        """Compare the tensors with their hash; raises DamagedFileError."""
        self._file.seek(self._data_start)
        if hashlib.file_digest(self._file, "sha256").hexdigest() != self._data_sha256:
            raise self._damaged("its tensors do not match their SHA-256")

    def _fill(self, buffer: memoryview, start: int) -> None:
        """Read bytes of the tensors."""
        self._file.seek(self._data_start + start)
        if self._file.readinto(buffer) < len(buffer):
            raise self._damaged("it was cut short")

    def _read_header(self) -> None:
        """Check the header, and only then believe what it says."""
        size = os.fstat(self._file.fileno()).st_size
        prefix = self._file.read(8)
        length = int.from_bytes(prefix, "little")
        if len(prefix) < 8 or length > min(size - 8, MAX_HEADER_BYTES):
            raise self._damaged("it was cut short, or is not a safetensors file")
        header = self._file.read(length)
        found = _DIGEST_FIELD.match(header)
        if found is None:
            raise self._damaged("its header has no SHA-256")
        self.sha256 = found[1].decode()
        blank = header[: found.start(1)] + _NO_DIGEST.encode() + header[found.end(1) :]
        if _sha256([prefix, blank]) != self.sha256:
            raise self._damaged("its header does not match its SHA-256")
        entries = json.loads(header)
        about = entries.pop(METADATA)
        self.metadata = json.loads(about[METADATA_KEY])
        self._data_sha256 = about["data_sha256"]
        self.specs = {
            name: TensorSpec(DTYPES[one["dtype"]], tuple(one["shape"]), one["data_offsets"][0])
            for name, one in entries.items()
        }
        self._data_start = 8 + length
        end = max((one["data_offsets"][1] for one in entries.values()), default=0)
        if size != self._data_start + end:
            raise self._damaged(f"it has {size:,} bytes instead of {self._data_start + end:,}")

    def _damaged(self, reason: str) -> DamagedFileError:
        return DamagedFileError(self.path, reason)


def _sha256(pieces: Iterable[bytes | memoryview]) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def type_name(dtype: torch.dtype | np.dtype[Any]) -> str:
    """The name that torch and numpy share, such as 'float32'."""
    return str(dtype).removeprefix("torch.")


_CODES = {type_name(dtype): code for code, dtype in DTYPES.items()}


def tensor_pieces(
    tensors: Tensors,
    metadata: Mapping[str, str] | None = None,
) -> Iterator[bytes | memoryview]:
    """The bytes of a safetensors file, piece by piece: length of the header, header, tensors.

    The widest numbers come first, so that each tensor is aligned to its own type; tensors of equal
    width follow each other as they are given.
    """
    order = sorted(tensors, key=lambda name: -tensors[name].itemsize)
    header: dict[str, Any] = {} if metadata is None else {METADATA: dict(metadata)}
    end = 0
    for name in order:
        tensor = tensors[name]
        start, end = end, end + tensor.nbytes
        header[name] = {
            "dtype": _CODES[type_name(tensor.dtype)],
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
    """The bytes of a tensor as in the file, without a copy if it is contiguous on the CPU."""
    if isinstance(tensor, Tensor):
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        return flat.view(torch.uint8).numpy().data
    return np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).data
