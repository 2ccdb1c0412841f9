"""The weights file: safetensors whose header holds the configuration and a hash.

The header's metadata has our entry, a JSON object with format version, configuration and a SHA-256
over the configuration and the names, types, shapes and bytes of the tensors; and `"format": "pt"`,
which transformers and others require. It has no date and no path, so equal models give equal files,
byte for byte.

A file may come from anyone. Nothing in it is executed, and nothing is allocated for its
configuration before the file has shown tensors that fit.
"""

import hashlib
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from veca.backbone.config import BackboneConfig
from veca.backbone.cost import parameters
from veca.backbone.model import VECA
from veca.runtime import VecaError
from veca.runtime.tensors import DTYPES as ALL_DTYPES
from veca.runtime.tensors import bytes_of, tensor_pieces, type_name

WEIGHTS_NAME = "model.safetensors"
"""The weights; sufficient to load a model."""

CONFIG_NAME = "config.json"
"""Configuration and provenance, for the hub and for people."""

CARD_NAME = "README.md"
"""The model card."""

PREPROCESSOR_NAME = "preprocessor_config.json"
"""How pictures are prepared, for transformers."""

FORMAT = 1
"""Version of our files; it increases when older versions of veca could misread newer files."""

MAX_JSON_BYTES = 1_000_000
"""A configuration has a few hundred bytes."""

MAX_LISTED = 6
"""Names that an error lists before it counts the rest."""

METADATA_KEY = "veca"
"""Our entry of the header's metadata."""

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+", re.ASCII)
FILE_SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")

DTYPES = {code: ALL_DTYPES[code] for code in ("F64", "F32", "F16", "BF16")}
"""The types of weights, by their names in the file."""

CODES = {dtype: code for code, dtype in DTYPES.items()}

FIRST_FIELDS = frozenset(
    {
        "layers", "width", "heads", "ffn_ratio", "patch_size", "in_channels", "budgets",
        "ffn_shares", "attention", "prefix_tokens", "rotary_base", "rotary_still",
        "coordinate_shift", "coordinate_rescale",
    }
)  # fmt: skip
"""Fields that every hash covers. A later one is covered only where it differs from its default, so
that models stored before it keep their hashes; the default of such a field can never change."""


class WeightsError(VecaError, ValueError):
    """Weights that cannot be read or written."""


def listed(names: Iterable[str], most: int = MAX_LISTED) -> str:
    """The first few names and the number of the others, escaped since they come from a file."""
    names = list(names)
    shown = ", ".join(
        ascii(name if len(name) <= 60 else f"{name[:60]}...") for name in names[:most]
    )
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def is_hub_id(name: str) -> bool:
    """Whether a name has the form of a model on the hub, owner/name, and not of a file."""
    return HUB_ID.fullmatch(name) is not None and not name.endswith(FILE_SUFFIXES)


def stored_fields(config: BackboneConfig) -> dict[str, Any]:
    """The fields of a configuration that files and hashes contain."""
    later = {item.name: item.default for item in fields(config) if item.name not in FIRST_FIELDS}
    return {
        name: value
        for name, value in asdict(config).items()
        if name not in later or value != later[name]
    }


def config_to_json(config: BackboneConfig) -> str:
    """The canonical JSON of a configuration, the same on every machine."""
    return json.dumps(stored_fields(config), sort_keys=True, separators=(",", ":"))


def preprocessor_json(config: BackboneConfig) -> bytes:
    """How transformers prepares pictures: as a centered square, so that batches stack."""
    content = {
        "image_processor_type": "VecaImageProcessor",
        "size": 256,
        "fit": "crop",
        "patch_size": config.patch_size,
    }
    return f"{json.dumps(content, indent=2)}\n".encode()


def config_from_json(value: object, where: str) -> BackboneConfig:
    """The configuration in a JSON object; missing fields have their default."""
    if not isinstance(value, dict):
        raise WeightsError(
            f"{where} has a {type(value).__name__} as its configuration; it must be an object with "
            "the fields of BackboneConfig."
        )
    defaults: dict[str, object] = {item.name: item.default for item in fields(BackboneConfig)}
    if unknown := sorted(set(value) - set(defaults)):
        raise WeightsError(
            f"{where} has unknown fields {listed(unknown)}; allowed are {', '.join(defaults)}: "
            "update veca, or remove them."
        )
    given: dict[str, Any] = {
        name: _typed(name, item, defaults[name], where) for name, item in value.items()
    }
    try:
        config = BackboneConfig(**given)
        _ = config.hidden  # overflows where the ratio is absurd
    except (ValueError, OverflowError, TypeError) as error:
        raise WeightsError(f"{where} has an invalid configuration: {error}") from error
    return config


def _typed(name: str, value: object, default: object, where: str) -> object:
    """The value with the type of the field's default; lists become tuples."""
    if isinstance(default, tuple) and isinstance(value, list):
        return tuple(_typed(name, item, default[0], where) for item in value)
    if isinstance(default, float) and type(value) in {int, float}:
        if abs(cast(float, value)) < sys.float_info.max:  # not NaN, nor integers beyond float
            return float(cast(float, value))
    elif type(value) is type(default) or (default is None and type(value) is int):
        return value
    kinds = {tuple: "a list", float: "a finite number", str: "a string"}
    raise WeightsError(
        f"{where} has {name}={ascii(value)[:80]}, but it must be "
        f"{kinds.get(type(default), 'an integer')}."
    )


def check_format(value: object, where: str) -> None:
    """Refuse files that a newer version wrote."""
    if type(value) is not int or value < 1:
        raise WeightsError(f"{where} has format {value!r}; it must be an integer of 1 to {FORMAT}.")
    if value > FORMAT:
        raise WeightsError(
            f"{where} has format {value}, but this veca reads up to {FORMAT}; update veca."
        )


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file."""
    with path.open("rb") as file:
        return parse_json(file.read(MAX_JSON_BYTES + 1), str(path))


def parse_json(text: str | bytes, where: str) -> dict[str, Any]:
    """A JSON object from an untrusted file."""
    if len(text) > MAX_JSON_BYTES:
        raise WeightsError(
            f"{where} has more than {MAX_JSON_BYTES} bytes of JSON: it was not written by veca."
        )
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"{where} is not valid JSON ({error}); get the file again.") from error
    if not isinstance(value, dict):
        raise WeightsError(f"{where} is a JSON {type(value).__name__}; it must be an object.")
    return value


def weights_hash(config: BackboneConfig, tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of a model: its configuration, then its tensors in the order of their names."""
    digest = hashlib.sha256(f"{config_to_json(config)}\n".encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        description = [name, CODES[tensor.dtype], list(tensor.shape)]
        digest.update(f"{json.dumps(description)}\n".encode())
        digest.update(bytes_of(tensor))
    return digest.hexdigest()


def file_pieces(
    config: BackboneConfig, tensors: Mapping[str, Tensor], digest: str
) -> Iterator[bytes | memoryview]:
    """The weights file, piece by piece: length of the header, header, tensors."""
    ours = {"config": json.loads(config_to_json(config)), "format": FORMAT, "sha256": digest}
    text = json.dumps(ours, sort_keys=True, separators=(",", ":"))
    metadata = {"format": "pt", METADATA_KEY: text}
    return tensor_pieces({name: tensors[name] for name in sorted(tensors)}, metadata)


def read_weights(path: Path) -> tuple[dict[str, Tensor], BackboneConfig | None, str | None]:
    """Tensors of an untrusted file, and configuration and hash that its header claims.

    The tensors may be views of the file, and the last two are None if veca did not write it.
    """
    try:
        with safe_open(path, framework="pt") as file:
            codes = {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
            if foreign := sorted(name for name, code in codes.items() if code not in DTYPES):
                raise WeightsError(
                    f"{path} has tensors that are not weights ({listed(foreign)}); allowed are "
                    f"{', '.join(DTYPES)}."
                )
            config, digest = _header_entry(file.metadata(), path)
            return {name: file.get_tensor(name) for name in codes}, config, digest
    except SafetensorError as error:
        raise WeightsError(
            f"{path} is not a complete safetensors file ({error}); get it again, or read a "
            "checkpoint of the authors with veca.load_official."
        ) from error
    except FileNotFoundError as error:
        raise WeightsError(f"{path} does not exist; check the path.") from error


def _header_entry(
    metadata: Mapping[str, str] | None, path: Path
) -> tuple[BackboneConfig | None, str | None]:
    """Configuration and hash in a header; None and None if veca did not write it."""
    text = (metadata or {}).get(METADATA_KEY)
    if text is None:
        return None, None
    where = f"the header of {path}"
    entry = parse_json(text, where)
    check_format(entry.get("format"), where)
    digest = entry.get("sha256")
    if not isinstance(digest, str):
        raise WeightsError(f"{where} has no hash of the weights; get the file again.")
    return config_from_json(entry.get("config"), where), digest


def dtype_names(dtypes: Iterable[torch.dtype]) -> str:
    """The types in a model as text, such as 'float32'."""
    return ", ".join(sorted({type_name(dtype) for dtype in dtypes}))


def expected_shapes(config: BackboneConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the parameters of a configuration."""
    return {name: tuple(tensor.shape) for name, tensor in _meta_model(config).state_dict().items()}


def check_plausible(config: BackboneConfig, tensors: Mapping[str, Tensor], where: str) -> None:
    """Refuse a configuration far larger than the file, before building even a meta model."""
    numbers = sum(tensor.numel() for tensor in tensors.values())
    if parameters(config) > 2 * numbers:  # half of a model may be missing and still be listed
        raise WeightsError(
            f"{where} has {len(tensors)} tensors with {numbers} numbers, too few for its "
            f"configuration ({_short(config)}); get the file again."
        )


def check_shapes(config: BackboneConfig, tensors: Mapping[str, Tensor], where: str) -> None:
    """Require exactly the tensors of the configuration."""
    check_plausible(config, tensors, where)
    expected, shapes = (
        expected_shapes(config),
        {name: tuple(tensors[name].shape) for name in tensors},
    )
    names = {
        "lacks": sorted(expected.keys() - shapes.keys()),
        "has unexpected": sorted(shapes.keys() - expected.keys()),
        "has other shapes:": [
            f"{name} {shapes[name]} instead of {expected[name]}"
            for name in sorted(expected.keys() & shapes.keys())
            if shapes[name] != expected[name]
        ],
    }
    if problems := [f"{problem} {listed(odd)}" for problem, odd in names.items() if odd]:
        raise WeightsError(
            f"{where} {' and '.join(problems)}, so it does not match its configuration "
            f"({_short(config)}); get the file again."
        )


def check_finite(tensors: Mapping[str, Tensor], where: str) -> None:
    """Refuse NaN and infinite values, which would reach every feature."""
    if broken := [name for name, tensor in tensors.items() if not bool(tensor.isfinite().all())]:
        raise WeightsError(
            f"{where} has NaN or infinite values in {listed(broken)}; use an earlier copy of the "
            "weights."
        )


def model_with(config: BackboneConfig, tensors: Mapping[str, Tensor]) -> VECA:
    """A model in evaluation mode whose parameters are these tensors, which stay trainable."""
    model = _meta_model(config)
    model.load_state_dict(dict(tensors), assign=True)
    return model.eval()


def _meta_model(config: BackboneConfig) -> VECA:
    """A model without memory, so that no weights are drawn only to be overwritten."""
    with torch.device("meta"):
        return VECA(config)


def _short(config: BackboneConfig) -> str:
    """The most important sizes, for an error."""
    return f"layers={config.layers}, width={config.width}, budgets={config.budgets}"[:200]
