"""The weights file: safetensors that describe and verify themselves.

The header's metadata has our entry, a JSON object with the format, the configuration and a SHA-256
over the configuration and the names, types, shapes and bytes of the tensors, and `"format": "pt"`,
which transformers and others look for. There is no date and no path in it, so equal models give
equal files, byte for byte.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from veca.backbone.config import BackboneConfig
from veca.runtime.tensor_files import DTYPES as ALL_DTYPES
from veca.runtime.tensor_files import bytes_of, tensor_pieces, type_name
from veca.weights.configuration import (
    FORMAT,
    canonical,
    check_format,
    config_from_json,
    parse_json,
)
from veca.weights.errors import WeightsError, listed

METADATA_KEY = "veca"
"""Our entry of the header's metadata."""

DTYPES = {code: ALL_DTYPES[code] for code in ("F64", "F32", "F16", "BF16")}
"""The types of numbers a model can have, by their names in the file."""

CODES = {dtype: code for code, dtype in DTYPES.items()}


class WeightsHash:
    """SHA-256 of a model: its configuration, then its tensors in the order of their names."""

    def __init__(self, config: BackboneConfig) -> None:
        self._hash = hashlib.sha256(f"{canonical(config)}\n".encode())

    def add(self, name: str, tensor: Tensor) -> None:
        """Add the next tensor."""
        facts = [name, CODES[tensor.dtype], list(tensor.shape)]
        self._hash.update(f"{json.dumps(facts)}\n".encode())
        self._hash.update(bytes_of(tensor))

    def text(self) -> str:
        """The hash so far in hexadecimal digits."""
        return self._hash.hexdigest()


def weights_hash(config: BackboneConfig, tensors: Mapping[str, Tensor]) -> str:
    """The hash of a model."""
    found = WeightsHash(config)
    for name in sorted(tensors):
        found.add(name, tensors[name])
    return found.text()


def file_pieces(
    config: BackboneConfig, tensors: Mapping[str, Tensor], digest: str
) -> Iterator[bytes | memoryview]:
    """The weights file, piece by piece: length of the header, header, tensors."""
    about = {"config": json.loads(canonical(config)), "format": FORMAT, "sha256": digest}
    ours = json.dumps(about, sort_keys=True, separators=(",", ":"))
    metadata = {"format": "pt", METADATA_KEY: ours}
    return tensor_pieces({name: tensors[name] for name in sorted(tensors)}, metadata)


@dataclass(frozen=True, kw_only=True)
class WeightsFile:
    """An open weights file: what its header says, and its tensors on demand."""

    path: Path
    config: BackboneConfig | None
    """None where veca did not write the file."""
    digest: str | None
    """The hash that the tensors must have."""
    shapes: Mapping[str, tuple[int, ...]]
    dtypes: Mapping[str, torch.dtype]
    handle: Any
    """The library's reader, which keeps the file open even if it is replaced meanwhile."""

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Names and tensors in the order of names; the tensors may be views of the file."""
        for name in sorted(self.shapes):
            try:
                tensor = self.handle.get_tensor(name)
            except SafetensorError as error:
                raise _unreadable(self.path, error) from error
            yield name, tensor


@contextmanager
def open_weights(path: Path) -> Iterator[WeightsFile]:
    """Open a weights file that anyone may have written; nothing in it is run."""
    try:
        opened = safe_open(path, framework="pt")
    except SafetensorError as error:
        raise _unreadable(path, error) from error
    except FileNotFoundError as error:
        raise WeightsError(f"{path} does not exist; check the path.") from error
    with opened as handle:
        slices = {name: handle.get_slice(name) for name in handle.keys()}  # noqa: SIM118
        config, digest = _described(handle.metadata(), path)
        yield WeightsFile(
            path=path,
            config=config,
            digest=digest,
            shapes={name: tuple(item.get_shape()) for name, item in slices.items()},
            dtypes=_dtypes({name: item.get_dtype() for name, item in slices.items()}, path),
            handle=handle,
        )


def _described(
    metadata: Mapping[str, str] | None, path: Path
) -> tuple[BackboneConfig | None, str | None]:
    """Configuration and hash from a header; None and None where veca did not write it."""
    text = (metadata or {}).get(METADATA_KEY)
    if text is None:
        return None, None
    where = f"the header of {path}"
    about = parse_json(text, where)
    check_format(about.get("format"), where)
    digest = about.get("sha256")
    if not isinstance(digest, str):
        raise WeightsError(
            f"{where} has no hash to verify the weights by; it was changed after it was written: "
            "get the file again."
        )
    return config_from_json(about.get("config"), where), digest


def _dtypes(codes: Mapping[str, str], path: Path) -> dict[str, torch.dtype]:
    """Types of the tensors; only floating-point ones make a model."""
    foreign = sorted(name for name, code in codes.items() if code not in DTYPES)
    if foreign:
        raise WeightsError(
            f"{path} holds tensors whose type no model has ({listed(foreign)}); allowed are "
            f"{', '.join(DTYPES)}."
        )
    return {name: DTYPES[code] for name, code in codes.items()}


def names_of_types(dtypes: Iterable[torch.dtype]) -> str:
    """The types in a model as text, such as 'float32'."""
    return ", ".join(sorted({type_name(dtype) for dtype in dtypes}))


def _unreadable(path: Path, error: Exception) -> WeightsError:
    """The error for what is no whole safetensors file."""
    return WeightsError(
        f"{path} is no whole safetensors file ({error}); it was cut short, changed, or never one: "
        "get it again, or read a checkpoint of the authors with veca.load_official."
    )
