"""What a model card shows of a report: all tasks side by side, one line for each way to run."""

from collections.abc import Collection, Iterator, Mapping, Sequence

from veca.probe.averages import Average, averages, number
from veca.probe.markdown import markdown_table, without_empty
from veca.probe.report_text import (
    ROLES,
    Section,
    Who,
    cost_cells,
    sections,
    share_cell,
    with_shares,
)
from veca.probe.rows import Row

Way = tuple[Who, int, int | None, float | None]
"""A model, the pixels it sees, its budget and its share of the hidden units."""

HASH_DIGITS = 16
"""Of a hash, as the pages of reports show it."""

NOTE = (
    "Frozen features, by `veca probe`; ± is the standard deviation over seeds. ms: median time of "
    "one picture alone through the backbone, without the head, in turns with all that stand beside "
    "it: compare them between lines of one px, not with other machines. patches/core: patches for "
    "each active core."
)


def card_table(rows: Sequence[Row]) -> str:
    """The leading metric of every task and set, as Markdown.

    Models that are only compared with come last, each with its role.
    """
    found, everyone = sections(rows), Section(averages(rows))
    ways: dict[Way, dict[int, Average]] = {}
    for column, section in enumerate(found):
        lead = section.metrics[0]
        for item in section.averages:
            if item.row.metric == lead:
                ways.setdefault(_way(item.row), {})[column] = item
    elastic, timed = with_shares(rows), _by_lines(ways.values())
    heads = ["model", "cores", "ffn", "px", *map(_title, found), "ms", "GFLOPs", "patches/core"]
    lines = []
    for way, cells in sorted(ways.items(), key=lambda pair: _order(pair[0])):
        cost = cells[next(column for column in timed if column in cells)]
        lines.append([
            everyone.name(way[0]),
            "-" if cost.row.budget is None else str(cost.row.budget),
            share_cell(cost.row, elastic),
            str(cost.row.resolution),
            *(number(cells[column]) if column in cells else "-" for column in range(len(found))),
            *cost_cells(cost),
        ])  # fmt: skip
    table = markdown_table(*without_empty(heads, lines))
    commands = dict.fromkeys(f"`{row.command}`" for row in rows if row.command)
    told = [f"Measured by {', '.join(commands)}.", ""] if commands else []
    weights = f"Weights, by their SHA-256: {'; '.join(_weights(everyone))}."
    return "\n".join([*table, "", *map(_protocol, found), "", weights, "", *told, NOTE, ""])


def _by_lines(ways: Collection[Mapping[int, Average]]) -> list[int]:
    """Columns, those that most lines have first, the later of two that have as many.

    Costs are taken from the first that a line has, so that lines share the run they were timed in.
    """
    columns = [column for cells in ways for column in cells]
    return sorted(set(columns), key=lambda column: (columns.count(column), column), reverse=True)


def _weights(everyone: Section) -> Iterator[str]:
    """Every model with what tells its weights."""
    for who in everyone.models:
        digest = "no stored weights" if who.weights is None else who.weights[:HASH_DIGITS]
        yield f"{everyone.name(who)} {digest}"


def _way(row: Row) -> Way:
    """The line that a row belongs to."""
    return Who.of(row), row.resolution, row.budget, row.ffn


def _order(way: Way) -> tuple[int, str, int, float, float]:
    """Models before those that they are compared with; small sizes, budgets and shares first."""
    who, side, budget, share = way
    most = float("inf")
    return (
        ROLES.index(who.role),
        who.model,
        side,
        most if budget is None else float(budget),
        most if share is None else float(share),
    )


def _title(section: Section) -> str:
    """What a column holds."""
    row, metric = section.row, section.metrics[0]
    unit = next(item.row.unit for item in section.averages if item.row.metric == metric)
    return f"{row.data}: {row.task} {metric}{f', {unit}' if unit else ''}"


def _protocol(section: Section) -> str:
    """How the numbers of a column were got."""
    row = section.row
    counts = ", ".join(f"{count:,} {name}" for name, count in row.counts.items())
    seeds = sorted({seed for item in section.averages for seed in item.seeds})
    pictures = f" (sha256 {row.data_sha256[:HASH_DIGITS]})" if row.data_sha256 else ""
    return (
        f"- {_title(section)}: protocol {row.protocol}, feature {row.feature}; {row.split}, "
        f"{counts}{pictures}; seeds {', '.join(map(str, seeds))}"
    )
