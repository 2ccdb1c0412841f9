"""A backbone's configuration as JSON, and back with every doubt raised.

A file may come from anyone: unknown fields, wrong types and values that cannot be built are
refused in words. Fields that are missing have their default, so that older files can be read.
"""

import json
import math
import sys
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from veca.backbone.config import BackboneConfig
from veca.weights.errors import WeightsError, listed

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
