"""JSON that comes back as it was given, or is refused with the name of the field.

Python's writer turns a tuple into a list, the key 1 into "1", and writes NaN, which no other reader
of JSON knows. What is saved to continue a run, or to be read years later, must not change so.
"""

import json
import math
from collections.abc import Iterator
from typing import Any


class PlainJsonError(ValueError):
    """A value that JSON cannot hold as it is."""


def plain_json(value: Any, name: str) -> str:  # noqa: ANN401 - anything may come, and be refused
    """The value as one line of JSON; `name` says in an error what the value is."""
    for problem in _problems(value, name):
        raise PlainJsonError(
            f"{problem}, which JSON cannot hold; allowed are finite numbers, text, true, false, "
            "null, and lists and text-keyed dictionaries of them: convert it, or leave it out."
        )
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def _problems(value: Any, name: str) -> Iterator[str]:  # noqa: ANN401 - as above
    """What is wrong with a value and with what is in it, in order."""
    if wrong := _problem(value):
        yield f"{name} {wrong}"
    elif isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _problems(item, f"{name}[{key!r}]")


def _problem(value: Any) -> str | None:  # noqa: ANN401 - as above
    """What is wrong with a value itself."""
    if isinstance(value, float):
        return None if math.isfinite(value) else f"is {value}"
    if isinstance(value, dict):
        odd = [key for key in value if not isinstance(key, str)]
        return f"has the key {odd[0]!r}" if odd else None
    known = value is None or isinstance(value, str | int | list)
    return None if known else f"is of type {type(value).__name__}"
