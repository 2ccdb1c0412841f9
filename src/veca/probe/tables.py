"""The paper's tables for the sets that were measured, ours beside the published numbers.

Our rows of a set go into every table that has the set, at whatever resolution and budget they were
measured; what is published stands in italics, and says so, so that nobody takes it for ours.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from veca.probe.models import PATCH_14
from veca.probe.published import (
    Column,
    PublishedRow,
    PublishedTable,
    published_source,
    published_tables,
)
from veca.probe.report_text import Who, markdown_table
from veca.probe.rows import Average, Row, averages, number

BY_RESOLUTION = frozenset({"S.10", "S.11", "S.12"})
BY_BUDGET = frozenset({"S.15", "S.16"})

ALIKE = {
    "voc2012": ("voc2012", "voc2012-aug"),
    "pascal-context-60": ("pascal-context-60", "pascal-context-59"),
}
"""Our sets that may stand in a column of the paper, which does not tell them apart."""

NEAR = {own: usual for usual, own in PATCH_14.items()}
"""Resolutions for patches of 14 pixels, and the column in which they stand."""


class Entry(NamedTuple):
    """The numbers of one model at one budget and resolution."""

    name: str
    budget: int | None
    resolution: int
    cells: dict[str, str]
    """By the name of the column."""


def rebuild_tables(rows: Sequence[Row], published: Sequence[PublishedTable] | None = None) -> str:
    """The tables as a page of Markdown."""
    lines = [
        "# The paper's tables, rebuilt",
        "",
        f"*Italics, and the word published: {published_source()}; not measured here.* All other "
        "numbers are measured here, by the protocol in brackets behind the model, and compare with "
        "the published ones as far as the protocols and the sets agree. (?): looks like a slip of "
        "the authors.",
        "",
    ]
    found = averages(rows)
    left_out = []
    for table in published_tables() if published is None else published:
        columns = [column for column in table.columns if any(_fits(column, it) for it in found)]
        if columns:
            lines += [*_rebuilt(table, columns, found), ""]
        else:
            left_out.append(table.table)
    if left_out:
        lines.append(f"Not rebuilt, since none of their sets was measured: {', '.join(left_out)}.")
    return "\n".join(lines).rstrip() + "\n"


def _rebuilt(
    table: PublishedTable, columns: Sequence[Column], found: Sequence[Average]
) -> Iterator[str]:
    """One table of the paper, of which these columns were measured."""
    yield from (f"## Table {table.table}: {table.title}", "")
    names = [column.name for column in columns]
    theirs = _published_entries(row for row in table.rows if row.column.name in names)
    ours = _our_entries(columns, found)
    if table.table in BY_RESOLUTION:
        yield from _by_resolution(columns, _at_most_cores(ours), theirs)
    elif table.table in BY_BUDGET:
        yield from _by_budget(columns, [entry for entry in ours if entry.budget], theirs)
    else:
        yield from _plain(columns, ours, theirs)
    absent = [column.name for column in table.columns if column not in columns]
    if absent:
        yield from ("", f"Not measured here: {', '.join(absent)}.")
    notes = [*table.remarks, *_notes(row for row in table.rows if row.column.name in names)]
    yield from ("", *(f"- {note}" for note in notes)) if notes else ()


def _plain(
    columns: Sequence[Column], ours: Sequence[Entry], theirs: Sequence[Entry]
) -> Iterator[str]:
    """A line for each entry, a column for each set."""
    titles = ["model", "budget", "px", *(_title(column) for column in columns)]
    lines = [
        [entry.name, str(entry.budget or "-"), str(entry.resolution)]
        + [entry.cells.get(column.name, "-") for column in columns]
        for entry in (*ours, *theirs)
    ]
    yield from markdown_table(titles, lines)


def _by_resolution(
    columns: Sequence[Column], ours: Sequence[Entry], theirs: Sequence[Entry]
) -> Iterator[str]:
    """A line for each model, a column for each resolution."""
    entries = (*ours, *theirs)
    sides = sorted({NEAR.get(entry.resolution, entry.resolution) for entry in entries})
    models = dict.fromkeys((entry.name, entry.budget) for entry in entries)
    cells = {
        (entry.name, entry.budget, NEAR.get(entry.resolution, entry.resolution)): entry
        for entry in entries
    }
    yield from (_order(columns), "")
    yield from markdown_table(
        ["model", "budget", *(f"{side} px" for side in sides)],
        [
            [name, str(budget or "-")]
            + [_joined(columns, cells.get((name, budget, side))) for side in sides]
            for name, budget in models
        ],
    )


def _by_budget(
    columns: Sequence[Column], ours: Sequence[Entry], theirs: Sequence[Entry]
) -> Iterator[str]:
    """A line for each budget, a column for each model."""
    entries = (*ours, *theirs)
    budgets = sorted({entry.budget or 0 for entry in entries}, reverse=True)
    models = dict.fromkeys((entry.name, entry.resolution) for entry in entries)
    cells = {(entry.name, entry.resolution, entry.budget): entry for entry in entries}
    yield from (_order(columns), "")
    yield from markdown_table(
        ["cores", *(f"{name}, {side} px" for name, side in models)],
        [
            [str(budget)]
            + [_joined(columns, cells.get((name, side, budget))) for name, side in models]
            for budget in budgets
        ],
    )


def _our_entries(columns: Sequence[Column], found: Sequence[Average]) -> list[Entry]:
    """What was measured here of these columns."""
    entries: dict[tuple[str, int | None, int], Entry] = {}
    for average in found:
        row = average.row
        for column in columns:
            if _fits(column, average):
                key = (_name(row), row.budget, row.resolution)
                cells = entries.setdefault(key, Entry(*key, {})).cells
                told = number(average) if row.data == column.data else _named(average)
                before = cells.get(column.name, "").split("; ")
                # A model may have been measured twice, as a teacher and for itself.
                cells[column.name] = "; ".join(dict.fromkeys([*filter(None, before), told]))
    return list(entries.values())


def _published_entries(rows: Iterator[PublishedRow]) -> list[Entry]:
    """What the paper has of these columns, in its order."""
    entries: dict[tuple[str, int | None, int], Entry] = {}
    for row in rows:
        key = (f"*{row.model} (published)*", row.budget, row.resolution)
        digits = 2 if row.column.unit == "%" else 4
        told = f"*{row.value:.{digits}f}*{' (?)' if row.doubtful else ''}"
        entries.setdefault(key, Entry(*key, {})).cells[row.column.name] = told
    return list(entries.values())


def _at_most_cores(entries: Sequence[Entry]) -> list[Entry]:
    """Entries at the largest budget of each model and resolution.

    The paper's tables by resolution have 64 cores everywhere; where ours differ from resolution to
    resolution, each budget gets a line, which tells it.
    """
    most: dict[tuple[str, int], int] = {}
    for entry in entries:
        place = _place(entry)
        most[place] = max(most.get(place, 0), entry.budget or 0)
    return [entry for entry in entries if (entry.budget or 0) == most[_place(entry)]]


def _place(entry: Entry) -> tuple[str, int]:
    """Model and column of an entry in a table by resolution."""
    return entry.name, NEAR.get(entry.resolution, entry.resolution)


def _fits(column: Column, average: Average) -> bool:
    """Whether a number of ours may stand in a column."""
    row = average.row
    return (
        row.task == column.task
        and row.metric == column.metric
        and row.data in ALIKE.get(column.data, (column.data,))
    )


def _name(row: Row) -> str:
    """A model of ours with what decides its number besides budget and resolution."""
    who = Who.of(row)
    facts = [row.protocol, row.feature]
    facts += [f"ffn {row.ffn:g}"] if row.ffn is not None else []
    facts += [] if who.trained else ["untrained"]
    facts += ["PARTIAL"] if row.partial else []
    digest = f" @{who.weights[:8]}" if who.weights else ""
    return f"{who.model}{digest} [{', '.join(facts)}]"


def _named(average: Average) -> str:
    """A number with its set, where the paper's column does not tell sets apart."""
    return f"{number(average)} ({average.row.data})"


def _title(column: Column) -> str:
    """Name and unit of a column."""
    return f"{column.name}, {column.unit}"


def _order(columns: Sequence[Column]) -> str:
    """Which number of a cell is which."""
    return f"In each cell: {' / '.join(_title(column) for column in columns)}."


def _joined(columns: Sequence[Column], entry: Entry | None) -> str:
    """The numbers of an entry in one cell."""
    if entry is None:
        return "-"
    return " / ".join(entry.cells.get(column.name, "-") for column in columns)


def _notes(rows: Iterator[PublishedRow]) -> list[str]:
    """What is odd about published numbers; a note that fits several values is told once."""
    told: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row.note:
            budget = f" with {row.budget} cores" if row.budget else ""
            who = f"{row.model}{budget} at {row.resolution} px"
            told.setdefault((who, row.note), []).append(row.column.name)
    return [f"{who}, {', '.join(names)}: {note}." for (who, note), names in told.items()]
