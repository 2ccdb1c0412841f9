"""The paper's numbers, to stand beside ours: facts of its tables, and marks where they are odd.

`published.json` holds each table as lines of values under columns. A value that looks like a slip
of the authors is kept as printed and marked doubtful; where two tables differ, a note says so.
"""

import functools
import json
from pathlib import Path
from typing import Any, NamedTuple

from veca.probe.rows import Task, Unit

FILE = Path(__file__).with_suffix(".json")


class Column(NamedTuple):
    """What a column of a table holds."""

    name: str
    """As printed in the paper."""

    task: Task
    data: str
    """The set by our name."""

    metric: str

    @property
    def unit(self) -> Unit:
        """Depth has errors in meters, all else is percent."""
        return "m" if self.task == "depth" else "%"


class PublishedRow(NamedTuple):
    """One number of the paper."""

    table: str
    model: str
    """As the table names it."""

    budget: int | None
    resolution: int
    column: Column
    value: float
    doubtful: bool
    """Whether it looks like a slip of the authors."""

    note: str
    """What is odd about it; empty for most."""

    def as_json(self) -> dict[str, Any]:
        """The number as plain values, with names like those of our own rows."""
        column = self.column
        return {
            "published": True,
            "table": self.table,
            "task": column.task,
            "model": self.model,
            "data": column.data,
            "budget": self.budget,
            "resolution": self.resolution,
            "metric": column.metric,
            "value": self.value,
            "unit": column.unit,
            "doubtful": self.doubtful,
            "note": self.note,
        }


class PublishedTable(NamedTuple):
    """A table of the paper."""

    table: str
    """Its number, such as 'S.10'."""

    title: str
    remarks: tuple[str, ...]
    """What the paper does not tell, or must be known to read it."""

    columns: tuple[Column, ...]
    rows: tuple[PublishedRow, ...]


@functools.cache
def published_tables() -> tuple[PublishedTable, ...]:
    """All tables, in the order of the paper."""
    content = json.loads(FILE.read_text("utf-8"))
    return tuple(_table(table, content["notes"]) for table in content["tables"])


@functools.cache
def published_source() -> str:
    """Where the numbers are from."""
    return json.loads(FILE.read_text("utf-8"))["source"]


def published_rows() -> list[PublishedRow]:
    """All numbers; some stand in several tables."""
    return [row for table in published_tables() for row in table.rows]


def _table(content: dict[str, Any], notes: list[dict[str, Any]]) -> PublishedTable:
    """One table of the file."""
    columns = tuple(Column(**column) for column in content["columns"])
    rows = []
    for line in content["lines"]:
        for column, value in zip(columns, line["values"], strict=True):
            note = _note(notes, content["table"], line, column)
            rows.append(
                PublishedRow(
                    table=content["table"],
                    model=line["model"],
                    budget=line["budget"],
                    resolution=line["resolution"],
                    column=column,
                    value=float(value),
                    doubtful=note.get("doubtful", False),
                    note=note.get("text", ""),
                )
            )
    return PublishedTable(
        content["table"], content["title"], tuple(content["remarks"]), columns, tuple(rows)
    )


def _note(
    notes: list[dict[str, Any]], table: str, line: dict[str, Any], column: Column
) -> dict[str, Any]:
    """What the file says about a value; what a note leaves open fits every value."""
    facts = {"table": table, "column": column.name} | line
    for note in notes:
        named = {key: value for key, value in note.items() if key in facts and value is not None}
        if all(facts[key] == value for key, value in named.items()):
            return note
    return {}
