"""What a model card shows of a report: all tasks side by side, one line for each way to run."""

from collections.abc import Collection, Iterator, Mapping, Sequence

from veca.probe.report_text import (
    HASH_DIGITS,
    Section,
    Who,
    cost_cells,
    line_place,
    markdown_table,
    metric_title,
    pictures_and_seeds,
    sections,
    share_cell,
    with_shares,
    without_empty,
)
from veca.probe.rows import Average, Row, averages, number

Way = tuple[Who, int, int | None, float | None]
"""A model, the pixels it sees, its budget and its share of the hidden units."""

NOTE = (
    "Frozen features, by `veca probe`; ± is the standard deviation over seeds, a number without it "
    "has one seed. ms: median time of one picture alone through the backbone, without the head, in "
    "turns with all that stand beside it: compare them between lines of one px, not with other "
    "machines. patches/core: patches for each active core."
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
    titles = [_title(section, found) for section in found]
    heads = ["model", "cores", "ffn", "px", *titles, "ms", "GFLOPs", "patches/core"]
    lines, models = [], everyone.models
    for way, cells in sorted(ways.items(), key=lambda way: _place(models, way[1])):
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
    columns = [_protocol(*column) for column in zip(titles, found, strict=True)]
    return "\n".join([*table, "", *columns, "", weights, "", *told, NOTE, ""])


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


def _place(models: Sequence[Who], cells: Mapping[int, Average]) -> tuple[int, int, float, float]:
    """Where a line stands."""
    return line_place(models, next(iter(cells.values())).row)


def _title(section: Section, others: Sequence[Section]) -> str:
    """What a column holds; protocol and feature only where a task on a name has several."""
    row = section.row
    alike = [other for other in others if (other.row.task, other.row.data) == (row.task, row.data)]
    words = [f"{row.data}: {row.task} {metric_title(section, section.metrics[0])}"]
    words += [row.protocol, row.feature] if len(alike) > 1 else []
    return f"{', '.join(words)} (PARTIAL)" if row.partial else ", ".join(words)


def _protocol(title: str, section: Section) -> str:
    """How the numbers of a column were got."""
    row = section.row
    how = f"protocol {row.protocol}, feature {row.feature}"
    return f"- {title}: {how}; {pictures_and_seeds(section)}"
