"""What a model card shows of a report: all tasks side by side, one line for each way to run."""

from collections.abc import Collection, Sequence

from veca.probe.averages import Average, number
from veca.probe.markdown import markdown_table, without_empty
from veca.probe.report_text import ROLES, Section, Who, cost_cells, sections
from veca.probe.rows import Row

Way = tuple[Who, int, int | None, float | None]
"""A model, the pixels it sees, its budget and its share of the hidden units."""

NOTE = (
    "Frozen features, by `veca probe`; ± is the standard deviation over seeds. ms: median time of "
    "one picture alone through the backbone, without the head, in turns with all that stand beside "
    "it: compare them within the table, not with other machines. patches/core: patches for each "
    "active core."
)


def card_table(rows: Sequence[Row]) -> str:
    """The leading metric of every task and set, as Markdown.

    Models that are only compared with come last, each with its role.
    """
    found = sections(rows)
    ways: dict[Way, dict[int, Average]] = {}
    for column, section in enumerate(found):
        lead = section.metrics[0]
        for line in section.lines:
            for item in line:
                if item.row.metric == lead:
                    ways.setdefault(_way(item.row), {})[column] = item
    heads = ["model", "cores", "ffn", "px", *map(_title, found), "ms", "GFLOPs", "patches/core"]
    lines = [
        [
            *_who(way, ways),
            *(number(cells[column]) if column in cells else "-" for column in range(len(found))),
            *cost_cells(next(iter(cells.values()))),
        ]
        for way, cells in sorted(ways.items(), key=lambda pair: _order(pair[0]))
    ]
    table = markdown_table(*without_empty(heads, lines))
    commands = dict.fromkeys(f"`{row.command}`" for row in rows if row.command)
    told = [f"Measured by {', '.join(commands)}.", ""] if commands else []
    return "\n".join([*table, "", *map(_protocol, found), "", *told, NOTE, ""])


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


def _who(way: Way, others: Collection[Way]) -> list[str]:
    """Whose line it is; weights tell models of one name apart."""
    who, side, budget, share = way
    name = who.model
    if len({other.weights for other, *_ in others if other[:2] == who[:2]}) > 1:
        name = f"{name} @{(who.weights or 'none')[:8]}"
    name = name if who.role == "model" else f"{name} ({who.role})"
    elastic = any(other == who and part is not None for other, _, _, part in others)
    whole = "1" if elastic else "-"
    return [
        name if who.trained else f"{name}, untrained",
        "-" if budget is None else str(budget),
        whole if share is None else f"{share:g}",
        str(side),
    ]


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
    return (
        f"- {_title(section)}: protocol {row.protocol}, feature {row.feature}; {row.split}, "
        f"{counts}; seeds {', '.join(map(str, seeds))}"
    )
