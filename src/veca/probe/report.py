"""The report of an evaluation: `report.json`, `report.md`, a plot, and `comparison.json`.

A report is continued: rows of a new run replace those of the same number, all others stay. With
baselines, it begins with the models relative to them. Numbers of the paper on the same datasets
follow in tables of their own. Its content is `report_blocks`, which `report.md` and the page
(`analysis/probe_page.py`) render.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from veca.probe.heads import PER_IMAGE_FOLDER
from veca.probe.rows import (
    CLASS_TASKS,
    ModelKey,
    ProbeError,
    Row,
    Section,
    SeedMean,
    Setting,
    merge_rows,
    reference_of,
    row_from_json,
    sections,
)
from veca.runtime import NO_PLOT
from veca.runtime.files import dumps_strict, in_markdown, make_folder, printable, write_atomic

JSON_NAME = "report.json"
PLOT_NAME = "report.png"
COMPARISON_NAME = "comparison.json"

PUBLISHED = Path(__file__).with_name("published.json")
"""The numbers of the paper."""

MAX_CLASSES = 40
"""Classes whose numbers are listed; those of more are left to the JSON file."""

MODEL_TITLES = ("model", "budget", "ffn", "px")

HASH_DIGITS = 16
"""Of a hash, where a reader compares it by eye."""

LEGEND = (
    "± is the standard deviation over seeds (n - 1). `of` a model: the mean in percent of that "
    "model's, at the same resolution, budget and share where it was measured there; errors are "
    "ratios, so x1.03 means 3 % more error. ms: median time of one image alone through the "
    "backbone; GFLOPs of the same; both without the head. patches/core: patches for each active "
    "core. ffn: share of the hidden units, - for all."
)

Draw = Callable[[Sequence[Row]], bytes | None]
"""A plot of rows as the bytes of a PNG file; None if there is nothing to draw."""


def write_report(rows: Sequence[Row], folder: Path, draw: Draw | None = None) -> list[Path]:
    """Add rows to the report of a folder, which is created if missing; returns what was written.

    One process at a time may call it for a folder. Without `draw`, as without matplotlib, a plot of
    older rows is removed, since it would no longer match the tables, and the page says why.
    """
    merged, compared = add_rows(rows, folder), list[dict[str, Any]]()
    if any(row.role == "baseline" for row in merged):
        from veca.probe.bootstrap import compare_to_baseline  # noqa: PLC0415 - only with baselines

        compared = compare_to_baseline(merged, folder / PER_IMAGE_FOLDER)
    plot = draw(merged) if draw is not None else None
    text = report_markdown(merged, PLOT_NAME if plot is not None else None, compared)
    files = {
        "report.md": (text if draw is not None else f"{text}\n{NO_PLOT}\n").encode(),
        PLOT_NAME: plot,
        COMPARISON_NAME: _json_lines(compared) if compared else None,
    }
    written = [folder / JSON_NAME]
    for name, content in files.items():
        if content is None:
            (folder / name).unlink(missing_ok=True)
        else:
            write_atomic(folder / name, [content])
            written.append(folder / name)
    return written


def add_rows(rows: Sequence[Row], folder: Path) -> list[Row]:
    """Add rows to `report.json` alone; returns all rows of the folder."""
    make_folder(folder)
    merged = merge_rows(read_report(folder), rows)
    write_atomic(folder / JSON_NAME, [_json_lines([row.as_json() for row in merged])])
    return merged


def read_report(folder: Path) -> list[Row]:
    """The rows of a folder; none if it has no report yet."""
    path = folder / JSON_NAME
    return read_rows(path) if path.exists() else []


def read_rows(path: Path) -> list[Row]:
    """The rows of a `report.json`."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ProbeError(
            f"{path} cannot be read ({error}); remove it, or give another folder."
        ) from error
    if not isinstance(found, list):
        raise ProbeError(f"{path} is not a list of rows; remove it, or give another folder.")
    rows = []
    for number, item in enumerate(found):
        try:
            rows.append(row_from_json(item))
        except ProbeError as error:
            raise ProbeError(f"row {number} of {path} cannot be read: {error}") from error
    return rows


def _json_lines(values: Sequence[dict[str, Any]]) -> bytes:
    """A JSON list with a value a line."""
    lines = [dumps_strict(value, f"entry {number}") for number, value in enumerate(values)]
    return ("[\n" + ",\n".join(lines) + "\n]\n" if lines else "[]\n").encode()


def published_rows(rows: Sequence[Row]) -> list[Row]:
    """The paper's numbers for the tasks and datasets of these rows; doubtful ones are marked."""
    content = json.loads(PUBLISHED.read_text("utf-8"))
    measured = {(row.task, row.data, row.metric) for row in rows if not row.partial}
    return [
        Row(
            **{name: column[name] for name in ("task", "data", "metric")},
            **{name: line[name] for name in ("budget", "resolution")},
            model=line["model"] + (" (?)" if column["name"] in line.get("doubtful", ()) else ""),
            value=float(value),
            unit="m" if column["task"] == "depth" else "%",
            role="published",
            split="as published",
            counts={},
            protocol=f"of Table {table['table']}",
            feature="as published",
            data_facts={"source": content["source"]},
            version="",
        )
        for table in content["tables"]
        for line in table["lines"]
        for column, value in zip(table["columns"], line["values"], strict=True)
        if (column["task"], column["data"], column["metric"]) in measured
    ]


class Heading(NamedTuple):
    """The title of a part."""

    text: str


class Table(NamedTuple):
    """A table; the first column has names, the others numbers."""

    titles: Sequence[str]
    lines: Sequence[Sequence[str]]

    def without_empty(self) -> "Table":
        """Without columns that contain '-' only."""
        used = [at for at in range(len(self.titles)) if any(line[at] != "-" for line in self.lines)]
        titles, *lines = ([line[at] for at in used] for line in (self.titles, *self.lines))
        return Table(titles, lines)


class Items(NamedTuple):
    """A list."""

    texts: Sequence[str]


class Code(NamedTuple):
    """Commands."""

    lines: Sequence[str]


Block = Heading | Table | Items | Code | Section | str
"""A part of a report; a `Section` is where a page shows charts and pictures of it, a text is a
paragraph."""


def report_blocks(
    rows: Sequence[Row], compared: Sequence[Mapping[str, Any]] = ()
) -> Iterator[Block]:
    """All that a report says; `compared` is of `compare_to_baseline`."""
    for comparison in compared:
        yield from comparison_blocks(comparison)
    for section in sections(rows):
        yield Heading(section.title)
        yield from _facts(section)
        yield section_table(section)
        yield section
        yield from _other_metrics(section)
        yield from _classes(section)
    for section in sections(published_rows(rows)):
        yield Heading(f"Published: {section.title}")
        yield f"Not measured here: {section.row.data_facts['source']}. (?): probably a typo."
        yield section_table(section)
    yield LEGEND
    yield from _origins(rows)


def report_markdown(
    rows: Sequence[Row], plot: str | None = None, compared: Sequence[Mapping[str, Any]] = ()
) -> str:
    """The report in Markdown; `plot` is the name of a file."""
    lines = ["# Probes", ""]
    if plot is not None:
        lines += [f"![Quality against budget]({plot})", ""]
    for block in report_blocks(rows, compared):
        if not isinstance(block, Section):
            lines += [*_markdown(block), ""]
    return "\n".join(lines)


def _markdown(block: Heading | Table | Items | Code | str) -> Iterator[str]:
    """The lines of a block."""
    match block:
        case Heading():
            yield f"## {in_markdown(block.text)}"
        case Table():
            yield from markdown_table(block)
        case Items():
            yield from (f"- {in_markdown(text)}" for text in block.texts)
        case Code():
            yield from ("```bash", *map(printable, block.lines), "```")
        case str():
            yield in_markdown(block)


def report_tables(rows: Sequence[Row]) -> str:
    """The tables alone, for a terminal."""
    parts = [
        [printable(section.title), "", *markdown_table(section_table(section))]
        for section in sections(rows)
    ]
    return "\n\n".join("\n".join(lines) for lines in parts)


def markdown_table(table: Table) -> Iterator[str]:
    """A table that lines up in a terminal too."""
    table = table.without_empty()
    # Names of models may be any path; they must not end a cell.
    cells = [
        [in_markdown(cell).replace("|", "\\|") for cell in line]
        for line in (table.titles, *table.lines)
    ]
    widths = [max(3, *map(len, column)) for column in zip(*cells, strict=True)]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    for first, *others in (cells[0], rule, *cells[1:]):
        right = [text.rjust(width) for text, width in zip(others, widths[1:], strict=True)]
        yield f"| {' | '.join([first.ljust(widths[0]), *right])} |"


def section_table(section: Section) -> Table:
    """The table of the primary metric, with retention and costs."""
    first = section.metrics[0]
    references = [key for key in section.models if key.role in {"teacher", "baseline"}]
    titles = [*MODEL_TITLES, _metric_title(section, first),
              *(f"of {section.name(key)}" for key in references),
              "ms", "GFLOPs", "patches/core"]  # fmt: skip
    lines = []
    for line in section.lines:
        lead = next((item for item in line if item.row.metric == first), None)
        if lead is not None:
            ratios = [_retention(section, lead, key) for key in references]
            costs = (lead.milliseconds, lead.row.gflops, lead.row.patches_per_core)
            cells = [*_model_cells(section, lead), format_mean(lead), *ratios]
            lines.append([*cells, *map(_three_digits, costs)])
    return Table(titles, lines)


def _other_metrics(section: Section) -> Iterator[Block]:
    """The table of all metrics but the primary one, each with its retention in brackets."""
    others = [name for name in section.metrics[1:] if "/" not in name]
    reference = next((key for key in section.models if key.role != "model"), None)

    def cell(item: SeedMean | None) -> str:
        if item is None:
            return "-"
        ratio = "-" if reference is None else _retention(section, item, reference)
        return format_mean(item) + (f" ({ratio})" if ratio != "-" else "")

    lines = []
    for line in section.lines:
        found = {item.row.metric: item for item in line}
        if found.keys() & set(others):
            cells = [cell(found.get(name)) for name in others]
            lines.append([*_model_cells(section, line[0]), *cells])
    if lines:
        titles = [*MODEL_TITLES, *(_metric_title(section, name) for name in others)]
        suffix = f"; in brackets: of {section.name(reference)}" if reference else ""
        yield f"Other metrics{suffix}."
        yield Table(titles, lines)


def _classes(section: Section) -> Iterator[Block]:
    """Numbers of a class or size, such as 'iou/cat': a line for each, a column for each model."""
    names = [name for name in section.metrics if "/" in name]
    if len(names) > MAX_CLASSES:
        yield f"The {len(names)} numbers for classes and sizes are in report.json."
    elif names:
        titles, columns = [""], []
        for line in section.lines:
            row, found = line[0].row, {item.row.metric: format_mean(item) for item in line}
            name = section.name(ModelKey.of(row))
            titles.append(f"{name}, {row.setting.label}, {row.resolution} px")
            columns.append([found.get(name, "-") for name in names])
        yield "For single classes and sizes of objects, in percent."
        yield Table(titles, list(zip(names, *columns, strict=True)))


def format_mean(item: SeedMean) -> str:
    """Mean and spread with the digits that papers print: two of percent, four of errors."""
    digits = 2 if item.row.more_is_better else 4
    text = f"{item.mean:.{digits}f}"
    return text if item.std is None else f"{text} ± {item.std:.{digits}f}"


def _ratio_text(found: Mapping[str, Any], *, percent: bool) -> str:
    """A ratio, such as '97.6 %' or 'x1.030' of an error, with its interval if it has one."""
    if found["ratio"] is None:
        return "-"
    scale, digits = (100, 1) if percent else (1, 3)
    ratio, low, high = (
        "" if found[name] is None else f"{scale * found[name]:.{digits}f}"
        for name in ("ratio", "low", "high")
    )
    return (f"{ratio} %" if percent else f"x{ratio}") + (f" [{low}, {high}]" if low else "")


def _retention(section: Section, item: SeedMean, reference: ModelKey) -> str:
    """How much of a reference's mean a mean is; a model is not compared with itself."""
    candidates = [other for other in section.means if ModelKey.of(other.row) == reference]
    found = reference_of(item, candidates)
    if ModelKey.of(item.row) == reference or found is None or found.mean == 0:
        return "-"
    ratio = {"ratio": item.mean / found.mean, "low": None, "high": None}
    return _ratio_text(ratio, percent=item.row.more_is_better)


def _model_cells(section: Section, item: SeedMean) -> list[str]:
    """Model, budget, share and resolution of a line."""
    row = item.row
    budget = "-" if row.budget is None else str(row.budget)
    ffn = "-" if row.ffn is None else f"{row.ffn:g}"
    return [section.name(ModelKey.of(row)), budget, ffn, str(row.resolution)]


def _three_digits(cost: float | None) -> str:
    """A cost with about three digits."""
    if cost is None:
        return "-"
    return f"{cost:,.{0 if cost >= 100 else 1 if cost >= 10 else 2}f}"


def _metric_title(section: Section, metric: str) -> str:
    """Name and unit of a metric."""
    unit = next(item.row.unit for item in section.means if item.row.metric == metric)
    return f"{metric}, {unit}" if unit else metric


def _facts(section: Section) -> Iterator[Block]:
    """Facts shared by all numbers of a table."""
    row = section.row
    counts = ", ".join(f"{count:,} {name}" for name, count in row.counts.items())
    seeds = sorted({seed for item in section.means for seed in item.seeds})
    images = f" (sha256 {row.data_sha256[:HASH_DIGITS]})" if row.data_sha256 else ""
    lines = [
        f"Measured on {row.split}; images: {counts}{images}; seeds: {', '.join(map(str, seeds))}."
    ]
    facts = [
        f"{name.replace('_', ' ')}: "
        f"{', '.join(map(str, value)) if isinstance(value, list | tuple) else value}"
        for name, value in row.data_facts.items()
    ]
    if facts:
        lines.append(f"Dataset: {'; '.join(facts)}.")
    if row.chosen.get("on") is not None:
        lines.append(f"Hyperparameters were selected on {row.chosen['on']}.")
    yield "\n".join(lines)
    if row.partial:
        yield "PARTIAL, so not comparable with numbers on the whole dataset:"
        yield Items(row.partial)


def _origins(rows: Sequence[Row]) -> Iterator[Block]:
    """The models by their weights, and how and when the numbers were measured."""
    models = []
    for role, model, weights, trained in dict.fromkeys(ModelKey.of(row) for row in rows):
        text = "no stored weights" if weights is None else f"weights sha256 {weights}"
        models.append(f"{model} ({role}): {text}{'' if trained else ', untrained'}")
    yield Heading("Models")
    yield Items(models)
    yield Heading("Commands")
    yield Code(list(dict.fromkeys(row.command for row in rows if row.command)))
    versions = ", ".join(dict.fromkeys(row.version for row in rows))
    days = sorted({row.date[:10] for row in rows if row.date})
    dates = f", {' to '.join(dict.fromkeys((days[0], days[-1])))}" if days else ""
    yield f"veca {versions}{dates}."


def comparison_blocks(comparison: Mapping[str, Any]) -> Iterator[Block]:
    """The section of a report on one baseline, from an entry of `compare_to_baseline`."""
    yield Heading(f"Against {comparison['name']}")
    if comparison["lines"]:
        yield (
            "The model's numbers in percent of the baseline's, errors as ratios; in brackets the "
            f"{100 * comparison['level']:g} % interval over {comparison['rounds']:,} draws of the "
            "test images, the same for both models, all tasks and all seeds of a dataset. It "
            "shows what other test images could have given, not what another training run would. "
            f"`classes`: the mean of the numbers of {', '.join(CLASS_TASKS)}."
        )
        yield _comparison_table(comparison["lines"])
    if comparison["left_out"]:
        yield "Left out of the comparison:"
        yield Items(comparison["left_out"])


def _comparison_table(lines: Sequence[Mapping[str, Any]]) -> Table:
    """A line for each setting of each model, a column for the mean of classes and each number."""
    numbers = [one for line in lines for one in line["numbers"]]
    columns = dict.fromkeys(_number_title(one, numbers) for one in numbers)
    titles = [*MODEL_TITLES, "patches/core", "baseline at", "classes", *columns]
    table = []
    for line in lines:
        known = [line[name] for name in ("budget", "ffn", "resolution", "patches_per_core")]
        where, cells = list[str](), dict.fromkeys(columns, "-")
        for one in line["numbers"]:
            setting = Setting(one["baseline_budget"], one["baseline_ffn"])
            where.append(f"{setting.label} {one['baseline_resolution']} px")
            title = _number_title(one, numbers)
            cells[title] = _ratio_text(one, percent=one["unit"] == "%")
        classes = "-" if line["classes"] is None else _ratio_text(line["classes"], percent=True)
        texts = ["-" if value is None else f"{value:g}" for value in known]
        baselines = "; ".join(dict.fromkeys(where))
        table.append([line["name"], *texts, baselines, classes, *cells.values()])
    return Table(titles, table)


def _number_title(number: Mapping[str, Any], numbers: Sequence[Mapping[str, Any]]) -> str:
    """The name of a number; with protocol, feature and data hash only if a task has several."""
    same = [one for one in numbers if all(one[name] == number[name] for name in ("task", "data"))]
    title = f"{number['task']} on {number['data']}, {number['metric']}"
    for name in ("protocol", "feature", "data_sha256"):
        if len({one[name] for one in same}) > 1:
            title += f", {str(number[name])[:HASH_DIGITS]}"
    return title + (" (PARTIAL)" if number["partial"] else "")
