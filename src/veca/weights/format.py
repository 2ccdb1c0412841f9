"""The weights file: configuration and hash in the header of a safetensors file.

What goes wrong with weights, in words for the person who asked for them.

The files of a model, and what a model can be called.

A backbone's configuration as JSON, and back with every doubt raised.

A file may come from anyone: unknown fields, wrong types and values that cannot be built are
refused in words. Fields that are missing have their default, so that older files can be read.

The weights file: safetensors that describe and verify themselves.

The header's metadata has our entry, a JSON object with the format, the configuration and a SHA-256
over the configuration and the names, types, shapes and bytes of the tensors, and `"format": "pt"`,
which transformers and others look for. There is no date and no path in it, so equal models give
equal files, byte for byte.

A model without memory, that tensors are held against and then put into.

Nothing is allocated for a configuration before the file at hand has shown tensors that fit it, so
an absurd one costs nothing; and no random weights are drawn only to be overwritten.
"""

import hashlib
import json
import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from veca.backbone.config import BackboneConfig
from veca.backbone.cost import parameters
from veca.backbone.model import VECA
from veca.runtime import VecaError
from veca.runtime.tensors import DTYPES as ALL_DTYPES
from veca.runtime.tensors import bytes_of, tensor_pieces, type_name

MOST_NAMES = 6
"""Names that an error lists before it counts the rest."""


class WeightsError(VecaError, ValueError):
    """Weights that cannot be read or written: what was got, what is allowed, what to do."""


def listed(names: Iterable[str], most: int = MOST_NAMES) -> str:
    """The first few names and the number of the others; quoted, since they come from a file."""
    names = list(names)
    shown = ", ".join(_shortened(name) for name in names[:most])
    rest = len(names) - most
    return f"{shown} and {rest} more" if rest > 0 else shown


def _shortened(name: str, most: int = 60) -> str:
    """A name in quotes, without characters that a terminal would act on."""
    return ascii(name if len(name) <= most else f"{name[:most]}...")


WEIGHTS_NAME = "model.safetensors"
"""The weights; alone enough to load."""

CONFIG_NAME = "config.json"
"""What the hub and people read."""

CARD_NAME = "README.md"
"""The model card."""

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+", re.ASCII)
FILE_SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")


def is_hub_id(name: str) -> bool:
    """Whether a name has the form of a model on the hub, owner/name, and not of a file."""
    return HUB_ID.fullmatch(name) is not None and not name.endswith(FILE_SUFFIXES)


FORMAT = 1
"""Version of our files; rises when older versions of veca could misread newer files."""

MOST_BYTES = 1_000_000
"""A configuration has some hundred bytes; what is much larger is none."""


FIRST_FIELDS = frozenset(
    {
        "layers", "width", "heads", "ffn_ratio", "patch_size", "in_channels", "budgets",
        "ffn_shares", "attention", "prefix_tokens", "rotary_base", "rotary_still",
        "coordinate_shift", "coordinate_rescale",
    }
)  # fmt: skip
"""Fields that every hash covers. One that came later is covered where it differs from its default,
so that the models stored before it keep their hashes; such a default can never change."""


def stored_fields(config: BackboneConfig) -> dict[str, Any]:
    """The configuration as files and hashes have it."""
    later = {item.name: item.default for item in fields(config) if item.name not in FIRST_FIELDS}
    return {
        name: value
        for name, value in asdict(config).items()
        if name not in later or value != later[name]
    }


def canonical(config: BackboneConfig) -> str:
    """One text for one configuration, on every machine."""
    return json.dumps(stored_fields(config), sort_keys=True, separators=(",", ":"))


def config_from_json(value: object, where: str) -> BackboneConfig:
    """The configuration that a JSON object describes; `where` is told in errors."""
    if not isinstance(value, dict):
        raise WeightsError(
            f"{where} holds a {type(value).__name__} as its configuration; it must be an object "
            "with the fields of BackboneConfig."
        )
    defaults: dict[str, object] = {item.name: item.default for item in fields(BackboneConfig)}
    unknown = sorted(set(value) - set(defaults))
    if unknown:
        raise WeightsError(
            f"{where} has unknown fields {listed(unknown)}; allowed are {', '.join(defaults)}: "
            "update veca if a newer one wrote it, or remove them."
        )
    read: dict[str, Any] = {
        name: _typed(name, item, defaults[name], where) for name, item in value.items()
    }
    try:
        config = BackboneConfig(**read)
        _ = config.hidden  # overflows where the ratio is absurd
    except (ValueError, OverflowError, TypeError) as error:
        raise WeightsError(f"{where} describes no model that can be built: {error}") from error
    return config


def check_format(value: object, where: str) -> None:
    """Refuse files that a newer version wrote."""
    if type(value) is not int or value < 1:
        raise WeightsError(
            f"{where} says format {value!r}; it must be a whole number from 1 to {FORMAT}."
        )
    if value > FORMAT:
        raise WeightsError(
            f"{where} has the format {value}, but this veca reads up to {FORMAT}; update veca."
        )


def parse_json(text: str | bytes, where: str) -> dict[str, Any]:
    """A JSON object from a file that anyone may have written."""
    if len(text) > MOST_BYTES:
        raise WeightsError(
            f"{where} holds {len(text)} bytes of JSON; a model's has fewer than {MOST_BYTES}: "
            "it was not written by veca."
        )
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WeightsError(
            f"{where} holds no readable JSON ({error}); restore the file as veca wrote it."
        ) from error
    if not isinstance(value, dict):
        raise WeightsError(f"{where} holds a JSON {type(value).__name__}; it must be an object.")
    return value


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file."""
    with path.open("rb") as file:
        return parse_json(file.read(MOST_BYTES + 1), str(path))


def _typed(name: str, value: object, default: object, where: str) -> object:
    """The value with the type of the field's default; lists become tuples."""
    if isinstance(default, tuple):
        if not isinstance(value, list):
            raise _wrong_type(name, value, "a list", where)
        return tuple(_typed(name, item, default[0], where) for item in value)
    if isinstance(default, float):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _wrong_type(name, value, "a number", where)
        number = float(value) if abs(value) < sys.float_info.max else math.inf
        if not math.isfinite(number):
            raise _wrong_type(name, value, "a finite number", where)
        return number
    if default is None and type(value) in {int, type(None)}:  # a count that may be left out
        return value
    if type(value) is not type(default):
        wanted = "text" if isinstance(default, str) else "a whole number"
        raise _wrong_type(name, value, wanted, where)
    return value


def _wrong_type(name: str, value: object, wanted: str, where: str) -> WeightsError:
    """The error for a value of the wrong type."""
    return WeightsError(
        f"{where} has {name}={ascii(value)[:80]}, but {wanted} is needed; restore the file as veca "
        "wrote it."
    )


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


Shapes = Mapping[str, tuple[int, ...]]


def expected_shapes(config: BackboneConfig) -> Shapes:
    """Names and shapes of the parameters that a configuration has."""
    return {name: tuple(tensor.shape) for name, tensor in _skeleton(config).state_dict().items()}


def check_plausible(config: BackboneConfig, shapes: Shapes, where: str) -> None:
    """Refuse a configuration that asks for far more than the file holds, before building it."""
    numbers = sum(math.prod(shape) for shape in shapes.values())
    if parameters(config) > 2 * numbers:  # half of a model may be missing and still be listed
        raise WeightsError(
            f"{where} holds {len(shapes)} tensors with {numbers} numbers, too few for its "
            f"configuration ({_short(config)}); get the file again, or save it again with "
            "veca.save."
        )


def check_fit(config: BackboneConfig, shapes: Shapes, where: str) -> None:
    """Refuse tensors that are not exactly those of the configuration."""
    check_plausible(config, shapes, where)
    wanted = expected_shapes(config)
    missing, extra = sorted(wanted.keys() - shapes.keys()), sorted(shapes.keys() - wanted.keys())
    if missing or extra:
        found = [f"lacks {listed(missing)}"] if missing else []
        found += [f"has {listed(extra)} left over"] if extra else []
        raise WeightsError(
            f"{where} {' and '.join(found)}, so it does not hold the weights of its "
            f"configuration ({_short(config)}); get the file again, or save it again with "
            "veca.save."
        )
    wrong = [
        f"{name} {shapes[name]} instead of {wanted[name]}"
        for name in sorted(wanted)
        if shapes[name] != wanted[name]
    ]
    if wrong:
        raise WeightsError(
            f"{where} has tensors of other shapes than its configuration ({_short(config)}): "
            f"{listed(wrong)}; get the file again, or save it again with veca.save."
        )


def assemble(config: BackboneConfig, tensors: Mapping[str, Tensor]) -> VECA:
    """A model in evaluation mode whose parameters are these tensors; they can be trained on."""
    model = _skeleton(config)
    model.load_state_dict(dict(tensors), assign=True)
    return model.eval()


def _skeleton(config: BackboneConfig) -> VECA:
    """The model of a configuration with shapes and nothing else."""
    with torch.device("meta"):
        return VECA(config)


def _short(config: BackboneConfig) -> str:
    """The sizes that matter most, for an error."""
    return f"layers={config.layers}, width={config.width}, budgets={config.budgets}"[:200]
