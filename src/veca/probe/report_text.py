"""Report tables in Markdown.

Tables in Markdown whose columns also line up in a terminal.

A report for people: for each task and set one table over budgets, teacher and baseline in it.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from veca.probe.rows import Average, Row, averages, headline, number, reference_of, retention


def markdown_table(
    titles: Sequence[str], lines: Sequence[Sequence[str]], words: int = 1
) -> Iterator[str]:
    """The lines of a table; the first `words` columns are text, to the left, the rest numbers."""
    cells = [[_cell(text) for text in line] for line in (titles, *lines)]
    widths = [max(3, *(len(line[column]) for line in cells)) for column in range(len(titles))]
    rule = [
        "-" * width if column < words else "-" * (width - 1) + ":"
        for column, width in enumerate(widths)
    ]
    for line in (cells[0], rule, *cells[1:]):
        padded = [
            text.ljust(width) if column < words else text.rjust(width)
            for column, (text, width) in enumerate(zip(line, widths, strict=True))
        ]
        yield f"| {' | '.join(padded)} |"


def without_empty(
    titles: Sequence[str], lines: Sequence[Sequence[str]]
) -> tuple[list[str], list[list[str]]]:
    """A table less the columns in which every line says '-'."""
    kept = [column for column in range(len(titles)) if any(line[column] != "-" for line in lines)]
    return [titles[column] for column in kept], [
        [line[column] for column in kept] for line in lines
    ]


def _cell(text: str) -> str:
    """Text that ends no cell and no line; names of models may be paths of any kind."""
    return " ".join(text.split()).replace("|", "\\|")


ROLES = ("model", "teacher", "baseline")

MOST_PARTS = 40
"""Classes whose numbers are listed; those of more are left to the JSON file."""

HASH_DIGITS = 16
"""Of a hash, where a reader compares it by eye."""

LEGEND = (
    "± is the standard deviation over seeds (n - 1). `of` a model: the mean in percent of that "
    "model's, at the same resolution, budget and share where it was measured there; of an error it "
    "is the ratio, so that x1.03 means 3 % more error. ms: median time of one picture alone "
    "through the backbone; GFLOPs of the same; both without the head. patches/core: patches for "
    "each active core."
)


def report_markdown(rows: Sequence[Row], plot: str | None, before: Sequence[str] = ()) -> str:
    """All rows as a page; `plot` is the file of the plot beside it, if there is one.

    Lines `before` stand above the tables: what sums them up.
    """
    lines = ["# Probes", ""]
    if plot is not None:
        lines += [f"![Quality against budget]({plot})", ""]
    lines += before
    for section in sections(rows):
        lines += [f"## {section.title}", "", *_facts(section), "", *section_table(section), ""]
        lines += [*_other_metrics(section), *_parts(section)]
    return "\n".join([*lines, LEGEND, "", *_models(rows), *_commands(rows)])


def report_tables(rows: Sequence[Row]) -> str:
    """The tables alone, for a terminal."""
    parts = [[section.title, "", *section_table(section)] for section in sections(rows)]
    return "\n\n".join("\n".join(lines) for lines in parts)


class Who(NamedTuple):
    """A model in a role; weights tell models of one name apart."""

    role: str
    model: str
    weights: str | None
    trained: bool

    @classmethod
    def of(cls, row: Row) -> "Who":
        """The model of a row."""
        return cls(row.role, row.model, row.weights, row.trained)


@dataclass(frozen=True)
class Section:
    """Numbers that may stand in one table: one task, set, protocol and feature."""

    averages: Sequence[Average]

    @property
    def row(self) -> Row:
        """One of the rows, to ask for what they share."""
        return self.averages[0].row

    @property
    def title(self) -> str:
        """What the table is about."""
        row = self.row
        found = f"{row.task} on {row.data}, protocol {row.protocol}, feature {row.feature}"
        return f"{found} (PARTIAL)" if row.partial else found

    @property
    def metrics(self) -> list[str]:
        """Every metric, the one that leads first."""
        found = list(dict.fromkeys(item.row.metric for item in self.averages))
        first = headline(found)
        return [first, *(name for name in found if name != first)]

    @property
    def models(self) -> list[Who]:
        """Models, then teachers, then baselines."""
        found = dict.fromkeys(Who.of(item.row) for item in self.averages)
        return sorted(found, key=lambda who: ROLES.index(who.role))

    @property
    def lines(self) -> list[list[Average]]:
        """All metrics of each model, resolution, budget and share, in the order of a table."""
        groups: dict[str, list[Average]] = {}
        for item in self.averages:
            groups.setdefault(item.row.identity("seed", "metric", "unit"), []).append(item)
        models = self.models
        return sorted(groups.values(), key=lambda line: line_place(models, line[0].row))

    def name(self, who: Who) -> str:
        """A name with what a reader must know of it."""
        twins = [other for other in self.models if other[:2] == who[:2]]
        name = f"{who.model} @{(who.weights or 'none')[:8]}" if len(twins) > 1 else who.model
        name = f"{name}, untrained" if not who.trained else name
        return f"{name} ({who.role})" if who.role != "model" else name


def sections(rows: Sequence[Row]) -> list[Section]:
    """The tables of a report, in the order in which their first rows came."""
    own = (
        "seed", "model", "role", "weights", "trained", "budget", "ffn", "resolution", "metric",
        "unit",
    )  # fmt: skip
    groups: dict[str, list[Average]] = {}
    for average in averages(rows):
        groups.setdefault(average.row.identity(*own), []).append(average)
    return [Section(group) for group in groups.values()]


def section_table(section: Section) -> list[str]:
    """The table of the leading metric, with retention and costs."""
    first = section.metrics[0]
    references = [who for who in section.models if who.role != "model"]
    titles = ["model", "budget", "ffn", "px", metric_title(section, first),
              *(f"of {section.name(who)}" for who in references),
              "ms", "GFLOPs", "patches/core"]  # fmt: skip
    lines = []
    for line in section.lines:
        lead = next((item for item in line if item.row.metric == first), None)
        if lead is None:
            continue
        ratios = [_ratio(section, lead, who) for who in references]
        lines.append([*_who_cells(section, lead), number(lead), *ratios, *cost_cells(lead)])
    return list(markdown_table(*without_empty(titles, lines)))


def _other_metrics(section: Section) -> Iterator[str]:
    """The table of all metrics but the leading one, each with its retention in brackets."""
    others = [name for name in section.metrics[1:] if "/" not in name]
    if not others:
        return
    reference = next((who for who in section.models if who.role != "model"), None)
    titles = ["model", "budget", "ffn", "px", *(metric_title(section, name) for name in others)]
    lines = []
    for line in section.lines:
        found = {item.row.metric: item for item in line}
        if found.keys() & set(others):
            cells = [_with_ratio(section, found.get(name), reference) for name in others]
            lines.append([*_who_cells(section, line[0]), *cells])
    suffix = f"; in brackets: of {section.name(reference)}" if reference else ""
    yield from (f"Other metrics{suffix}.", "")
    yield from markdown_table(*without_empty(titles, lines))
    yield ""


def _parts(section: Section) -> Iterator[str]:
    """Numbers of a class or size, such as 'iou/cat': a line for each, a column for each model."""
    parts = [name for name in section.metrics if "/" in name]
    if len(parts) > MOST_PARTS:
        yield from (f"The {len(parts)} numbers for classes and sizes are in report.json.", "")
    elif parts:
        found = [{item.row.metric: item for item in line} for line in section.lines]
        titles = ["", *(", ".join(_who_words(section, line[0])) for line in section.lines)]
        lines = [
            [part, *("-" if part not in line else number(line[part]) for line in found)]
            for part in parts
        ]
        yield from ("For single classes and sizes of objects, in percent.", "")
        yield from (*markdown_table(*without_empty(titles, lines)), "")


def _with_ratio(section: Section, item: Average | None, reference: Who | None) -> str:
    """A number and, if there is one, its share of the reference's."""
    if item is None:
        return "-"
    ratio = "-" if reference is None else _ratio(section, item, reference)
    return number(item) if ratio == "-" else f"{number(item)} ({ratio})"


def _ratio(section: Section, item: Average, reference: Who) -> str:
    """How much of a reference's number a number is; a model is not compared with itself."""
    if Who.of(item.row) == reference:
        return "-"
    candidates = [other for other in section.averages if Who.of(other.row) == reference]
    return retention(item, reference_of(item, candidates))


def _who_cells(section: Section, item: Average) -> list[str]:
    """Whose number it is."""
    row = item.row
    return [
        section.name(Who.of(row)),
        "-" if row.budget is None else str(row.budget),
        share_cell(row, with_shares(other.row for other in section.averages)),
        str(row.resolution),
    ]


def with_shares(rows: Iterable[Row]) -> set[Who]:
    """The models that were also measured with a part of their hidden units."""
    return {Who.of(row) for row in rows if row.ffn is not None}


def share_cell(row: Row, elastic: Collection[Who]) -> str:
    """The share of the hidden units: of a model that was measured with parts, all is 1."""
    whole = "1" if Who.of(row) in elastic else "-"
    return whole if row.ffn is None else f"{row.ffn:g}"


def _who_words(section: Section, item: Average) -> Iterator[str]:
    """Whose number it is, where a column has that as its title."""
    name, budget, share, side = _who_cells(section, item)
    yield name
    yield from [f"{budget} cores"] if budget != "-" else []
    yield from [f"ffn {share}"] if share != "-" else []
    yield f"{side} px"


def cost_cells(item: Average) -> list[str]:
    """What the number costs."""
    costs = (item.milliseconds, item.row.gflops, item.row.patches_per_core)
    return ["-" if cost is None else f"{cost:,.{_digits(cost)}f}" for cost in costs]


def _digits(value: float) -> int:
    """Digits after the point that leave about three in all."""
    return 0 if value >= 100 else 1 if value >= 10 else 2


def metric_title(section: Section, metric: str) -> str:
    """Name and unit of a metric."""
    unit = next(item.row.unit for item in section.averages if item.row.metric == metric)
    return f"{metric}, {unit}" if unit else metric


def line_place(models: Sequence[Who], row: Row) -> tuple[int, int, float, float]:
    """Where a line stands in its table."""
    whole = float("inf")
    budget = whole if row.budget is None else float(row.budget)
    return (
        models.index(Who.of(row)),
        row.resolution,
        budget,
        whole if row.ffn is None else row.ffn,
    )


def _said(value: object) -> str:
    """A fact in words."""
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def pictures_and_seeds(section: Section) -> str:
    """What the numbers of a table were measured with."""
    row = section.row
    counts = ", ".join(f"{count:,} {name}" for name, count in row.counts.items())
    seeds = sorted({seed for item in section.averages for seed in item.seeds})
    pictures = f" (sha256 {row.data_sha256[:HASH_DIGITS]})" if row.data_sha256 else ""
    return f"{row.split}; pictures: {counts}{pictures}; seeds: {', '.join(map(str, seeds))}"


def _facts(section: Section) -> Iterator[str]:
    """What holds for all numbers of a table."""
    row = section.row
    yield f"Measured on {pictures_and_seeds(section)}."
    said = [f"{name.replace('_', ' ')}: {_said(value)}" for name, value in row.data_facts.items()]
    if said:
        yield f"Of the set: {'; '.join(said)}."
    if row.chosen.get("on") is not None:
        yield f"Rate, step or strength were chosen on {row.chosen['on']}."
    if row.partial:
        yield ""
        yield "PARTIAL, so not comparable with numbers on the whole set:"
        yield from (f"- {sentence}" for sentence in row.partial)


def _models(rows: Sequence[Row]) -> Iterator[str]:
    """The models by their weights."""
    yield from ("## Models", "")
    for role, model, weights, trained in dict.fromkeys(Who.of(row) for row in rows):
        told = "no stored weights" if weights is None else f"weights sha256 {weights}"
        yield f"- {model} ({role}): {told}{'' if trained else ', untrained'}"
    yield ""


def _commands(rows: Sequence[Row]) -> Iterator[str]:
    """How the numbers were got."""
    yield from ("## Commands", "", "```bash")
    yield from dict.fromkeys(row.command for row in rows if row.command)
    versions = ", ".join(dict.fromkeys(row.version for row in rows))
    yield from ("```", "", f"veca {versions}.", "")
