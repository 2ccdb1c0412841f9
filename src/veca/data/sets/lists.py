"""The text files in which makers of sets say what belongs where."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from veca.data.sets.counts import SetError


def lines(path: Path) -> Iterator[str]:
    """The lines of a file that are not empty, without white space around them."""
    with path.open(encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            if text := line.strip():
                yield text


def rows(path: Path, columns: int) -> Iterator[list[str]]:
    """The lines cut at white space; the last column keeps what it has of it."""
    for line in lines(path):
        row = line.split(None, columns - 1)
        if len(row) != columns:
            raise SetError(
                f"{path} has the line {line[:80]!r}, which are not {columns} columns; get it again."
            )
        yield row


def whole(text: str, path: Path) -> int:
    """A number of a list."""
    try:
        return int(text)
    except ValueError as error:
        raise SetError(
            f"{path} has {text[:80]!r} where a whole number belongs; get it again."
        ) from error


def read_json(path: Path) -> Any:  # noqa: ANN401 - whatever the file says
    """The content of a JSON file."""
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:
        raise SetError(f"{path} is no JSON file ({error}); get it again.") from error
