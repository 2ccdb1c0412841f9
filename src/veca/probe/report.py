"""The report of an evaluation: `report.json`, `report.md`, a plot, and `comparison.json`.

A folder keeps what was measured before: rows of a new run replace those of the same number, all
others stay. With baselines, the page begins with the models relative to them. Where a paper has
numbers on the same data set, they follow in a table of their own.
"""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from veca.probe.bootstrap import CLASS_TASKS, PER_IMAGE_FOLDER, compare_to_baseline
from veca.probe.rows import (
    ModelKey,
    Row,
    RowError,
    Section,
    SeedMean,
    merge_rows,
    reference_of,
    row_from_json,
    sections,
)
from veca.runtime import VecaError
from veca.runtime.files import dumps_strict, make_folder, write_atomic

JSON_NAME = "report.json"
TEXT_NAME = "report.md"
PLOT_NAME = "report.png"
COMPARISON_NAME = "comparison.json"

PUBLISHED = Path(__file__).with_name("published.json")
"""The numbers of the paper."""

MAX_CLASSES = 40
"""Classes whose numbers are listed; those of more are left to the JSON file."""

HASH_DIGITS = 16
"""Of a hash, where a reader compares it by eye."""

LEGEND = (
    "± is the standard deviation over seeds (n - 1). `of` a model: the mean in percent of that "
    "model's, at the same resolution, budget and share where it was measured there; errors are "
    "ratios, so x1.03 means 3 % more error. ms: median time of one image alone through the "
    "backbone; GFLOPs of the same; both without the head. patches/core: patches for each active "
    "core."
)

Draw = Callable[[Sequence[Row]], bytes | None]
"""A plot of rows as the bytes of a PNG file; None if there is nothing to draw."""


class ReportError(VecaError, ValueError):
    """A file that is no report."""


class Written(NamedTuple):
    """What a folder holds now."""

    rows: list[Row]
    """Of this run and of those before."""

    files: list[Path]


def write_report(rows: Sequence[Row], folder: Path, draw: Draw | None = None) -> Written:
    """Add rows to the report of a folder, which is created if missing.

    One process at a time may call it for a folder. Without `draw`, as without matplotlib, a plot of
    older rows is removed, since it would no longer match the tables.
    """
    merged = add_rows(rows, folder)
    plot = draw(merged) if draw is not None else None
    compared = compare_to_baseline(merged, folder / PER_IMAGE_FOLDER)
    text = report_markdown(merged, PLOT_NAME if plot is not None else None, compared)
    files = {
        TEXT_NAME: text.encode(),
        PLOT_NAME: plot,
        COMPARISON_NAME: _json_lines(compared) if compared else None,
    }
    for name, content in files.items():
        if content is None:
            (folder / name).unlink(missing_ok=True)
        else:
            write_atomic(folder / name, [content])
    written = [JSON_NAME, *(name for name, content in files.items() if content is not None)]
    return Written(merged, [folder / name for name in written])


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
        raise ReportError(
            f"{path} cannot be read ({error}); remove it, or give another folder."
        ) from error
    if not isinstance(found, list):
        raise ReportError(f"{path} is no list of rows; remove it, or give another folder.")
    rows = []
    for number, item in enumerate(found):
        try:
            rows.append(row_from_json(item))
        except (RowError, TypeError) as error:
            raise ReportError(f"row {number} of {path} cannot be read: {error}") from error
    return rows


def _json_lines(values: Sequence[dict[str, Any]]) -> bytes:
    """A JSON list with a value a line."""
    lines = [dumps_strict(value, f"entry {number}") for number, value in enumerate(values)]
    return ("[\n" + ",\n".join(lines) + "\n]\n" if lines else "[]\n").encode()


def published_rows(rows: Sequence[Row]) -> list[Row]:
    """The paper's numbers for the tasks and data sets of these rows; doubtful ones are marked."""
    content = json.loads(PUBLISHED.read_text("utf-8"))
    measured = {(row.task, row.data, row.metric) for row in rows if not row.partial}
    doubtful = [note for note in content["notes"] if note.get("doubtful")]
    found = []
    for table in content["tables"]:
        for line in table["lines"]:
            for column, value in zip(table["columns"], line["values"], strict=True):
                if (column["task"], column["data"], column["metric"]) not in measured:
                    continue
                facts = {"table": table["table"], "column": column["name"], **line}
                mark = " (?)" if any(_applies(note, facts) for note in doubtful) else ""
                found.append(
                    Row(
                        **{name: column[name] for name in ("task", "data", "metric")},
                        **{name: line[name] for name in ("budget", "resolution")},
                        model=f"{line['model']}{mark}",
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
                )
    return found


def _applies(note: Mapping[str, Any], facts: Mapping[str, Any]) -> bool:
    """Whether a note is about a number; what it leaves open fits every number."""
    return all(note.get(name) in (None, fact) for name, fact in facts.items())


def report_markdown(
    rows: Sequence[Row], plot: str | None = None, compared: Sequence[Mapping[str, Any]] = ()
) -> str:
    """All rows as a page.

    Args:
        rows: what was measured.
        plot: file name of the plot beside the page, if there is one.
        compared: what `compare_to_baseline` returned.
    """
    lines = ["# Probes", ""]
    if plot is not None:
        lines += [f"![Quality against budget]({plot})", ""]
    for comparison in compared:
        lines += comparison_lines(comparison)
    for section in sections(rows):
        lines += [f"## {section.title}", "", *_facts(section), "", *section_table(section), ""]
        lines += [*_other_metrics(section), *_classes(section)]
    for section in sections(published_rows(rows)):
        source = f"Not measured here: {section.row.data_facts['source']}. (?): looks like a slip."
        lines += [f"## Published: {section.title}", "", source, "", *section_table(section), ""]
    return "\n".join([*lines, LEGEND, "", *_models(rows), *_commands(rows)])


def report_tables(rows: Sequence[Row]) -> str:
    """The tables alone, for a terminal."""
    parts = [[section.title, "", *section_table(section)] for section in sections(rows)]
    return "\n\n".join("\n".join(lines) for lines in parts)


def markdown_table(
    titles: Sequence[str], lines: Sequence[Sequence[str]], left: int = 1
) -> Iterator[str]:
    """A table without columns that contain '-' only; they line up in a terminal too.

    The first `left` columns are text and aligned to the left.
    """
    kept = [column for column in range(len(titles)) if any(line[column] != "-" for line in lines)]
    cells = [[_cell(line[column]) for column in kept] for line in (titles, *lines)]
    widths = [max(3, *map(len, column)) for column in zip(*cells, strict=True)]
    rule = [
        "-" * width if column < left else "-" * (width - 1) + ":"
        for column, width in enumerate(widths)
    ]
    for line in (cells[0], rule, *cells[1:]):
        padded = [
            text.ljust(width) if column < left else text.rjust(width)
            for column, (text, width) in enumerate(zip(line, widths, strict=True))
        ]
        yield f"| {' | '.join(padded)} |"


def _cell(text: str) -> str:
    """Text that ends no cell and no line; names of models may be any path."""
    return " ".join(text.split()).replace("|", "\\|")


def section_table(section: Section) -> list[str]:
    """The table of the primary metric, with retention and costs."""
    first = section.metrics[0]
    references = [key for key in section.models if key.role in {"teacher", "baseline"}]
    titles = ["model", "budget", "ffn", "px", _metric_title(section, first),
              *(f"of {section.name(key)}" for key in references),
              "ms", "GFLOPs", "patches/core"]  # fmt: skip
    lines = []
    for line in section.lines:
        lead = next((item for item in line if item.row.metric == first), None)
        if lead is not None:
            ratios = [_retention_of(section, lead, key) for key in references]
            cells = [*_model_cells(section, lead), format_mean(lead), *ratios]
            lines.append([*cells, *_cost_cells(lead)])
    return list(markdown_table(titles, lines))


def _other_metrics(section: Section) -> Iterator[str]:
    """The table of all metrics but the primary one, each with its retention in brackets."""
    others = [name for name in section.metrics[1:] if "/" not in name]
    if not others:
        return
    reference = next((key for key in section.models if key.role != "model"), None)
    titles = ["model", "budget", "ffn", "px", *(_metric_title(section, name) for name in others)]
    lines = []
    for line in section.lines:
        found = {item.row.metric: item for item in line}
        if found.keys() & set(others):
            cells = [_with_retention(section, found.get(name), reference) for name in others]
            lines.append([*_model_cells(section, line[0]), *cells])
    suffix = f"; in brackets: of {section.name(reference)}" if reference else ""
    yield from (f"Other metrics{suffix}.", "", *markdown_table(titles, lines), "")


def _classes(section: Section) -> Iterator[str]:
    """Numbers of a class or size, such as 'iou/cat': a line for each, a column for each model."""
    names = [name for name in section.metrics if "/" in name]
    if len(names) > MAX_CLASSES:
        yield from (f"The {len(names)} numbers for classes and sizes are in report.json.", "")
    elif names:
        found = [{item.row.metric: item for item in line} for line in section.lines]
        titles = ["", *(_model_title(section, line[0]) for line in section.lines)]
        lines = [
            [name, *("-" if name not in line else format_mean(line[name]) for line in found)]
            for name in names
        ]
        yield "For single classes and sizes of objects, in percent."
        yield from ("", *markdown_table(titles, lines), "")


def retention(item: SeedMean, reference: SeedMean | None) -> str:
    """Mean over mean: '97.6 %' of correct predictions, 'x1.03' of an error; '-' if unknown."""
    if reference is None or reference.mean == 0:
        return "-"
    return _ratio_text(item.mean / reference.mean, percent=item.row.more_is_better)


def format_mean(item: SeedMean) -> str:
    """Mean and spread with the digits that papers print: two of percent, four of errors."""
    digits = 2 if item.row.more_is_better else 4
    text = f"{item.mean:.{digits}f}"
    return text if item.std is None else f"{text} ± {item.std:.{digits}f}"


def _ratio_text(
    ratio: float, low: float | None = None, high: float | None = None, *, percent: bool
) -> str:
    """A ratio with its interval, if it has one."""
    if percent:
        text, ends = f"{100 * ratio:.1f} %", " [{:.1f}, {:.1f}]"
    else:
        text, ends = f"x{ratio:.3f}", " [{:.3f}, {:.3f}]"
    scale = 100 if percent else 1
    return text if low is None or high is None else text + ends.format(scale * low, scale * high)


def _with_retention(section: Section, item: SeedMean | None, reference: ModelKey | None) -> str:
    """A number and, if there is one, its share of the reference's."""
    if item is None:
        return "-"
    ratio = "-" if reference is None else _retention_of(section, item, reference)
    return format_mean(item) if ratio == "-" else f"{format_mean(item)} ({ratio})"


def _retention_of(section: Section, item: SeedMean, reference: ModelKey) -> str:
    """How much of a reference's number a number is; a model is not compared with itself."""
    if ModelKey.of(item.row) == reference:
        return "-"
    candidates = [other for other in section.means if ModelKey.of(other.row) == reference]
    return retention(item, reference_of(item, candidates))


def _model_cells(section: Section, item: SeedMean) -> list[str]:
    """Model, budget, share and resolution of a line."""
    row = item.row
    elastic = {ModelKey.of(other.row) for other in section.means if other.row.ffn is not None}
    return [
        section.name(ModelKey.of(row)),
        "-" if row.budget is None else str(row.budget),
        _share_cell(row.ffn, ModelKey.of(row) in elastic),
        str(row.resolution),
    ]


def _share_cell(ffn: float | None, elastic: bool) -> str:
    """The share of the hidden units: of a model that was measured with parts, all of them is 1."""
    whole = "1" if elastic else "-"
    return whole if ffn is None else f"{ffn:g}"


def _model_title(section: Section, item: SeedMean) -> str:
    """Model, budget, share and resolution as the title of a column."""
    name, budget, share, side = _model_cells(section, item)
    parts = [name, *([f"{budget} cores"] if budget != "-" else [])]
    return ", ".join([*parts, *([f"ffn {share}"] if share != "-" else []), f"{side} px"])


def _cost_cells(item: SeedMean) -> list[str]:
    """Milliseconds, GFLOPs and patches per core."""
    costs = (item.milliseconds, item.row.gflops, item.row.patches_per_core)
    return ["-" if cost is None else f"{cost:,.{_digits(cost)}f}" for cost in costs]


def _digits(value: float) -> int:
    """Digits after the point that leave about three in all."""
    return 0 if value >= 100 else 1 if value >= 10 else 2


def _metric_title(section: Section, metric: str) -> str:
    """Name and unit of a metric."""
    unit = next(item.row.unit for item in section.means if item.row.metric == metric)
    return f"{metric}, {unit}" if unit else metric


def _facts(section: Section) -> Iterator[str]:
    """What holds for all numbers of a table."""
    row = section.row
    counts = ", ".join(f"{count:,} {name}" for name, count in row.counts.items())
    seeds = sorted({seed for item in section.means for seed in item.seeds})
    images = f" (sha256 {row.data_sha256[:HASH_DIGITS]})" if row.data_sha256 else ""
    yield (
        f"Measured on {row.split}; images: {counts}{images}; seeds: {', '.join(map(str, seeds))}."
    )
    facts = [
        f"{name.replace('_', ' ')}: {', '.join(map(str, value)) if _is_list(value) else value}"
        for name, value in row.data_facts.items()
    ]
    if facts:
        yield f"Data set: {'; '.join(facts)}."
    if row.chosen.get("on") is not None:
        yield f"Hyperparameters were selected on {row.chosen['on']}."
    if row.partial:
        yield from ("", "PARTIAL, so not comparable with numbers on the whole data set:")
        yield from (f"- {sentence}" for sentence in row.partial)


def _is_list(value: object) -> bool:
    return isinstance(value, list | tuple)


def _models(rows: Sequence[Row]) -> Iterator[str]:
    """The models by their weights."""
    yield from ("## Models", "")
    for role, model, weights, trained in dict.fromkeys(ModelKey.of(row) for row in rows):
        text = "no stored weights" if weights is None else f"weights sha256 {weights}"
        yield f"- {model} ({role}): {text}{'' if trained else ', untrained'}"
    yield ""


def _commands(rows: Sequence[Row]) -> Iterator[str]:
    """How and when the numbers were measured."""
    yield from ("## Commands", "", "```bash")
    yield from dict.fromkeys(row.command for row in rows if row.command)
    versions = ", ".join(dict.fromkeys(row.version for row in rows))
    days = sorted({row.date[:10] for row in rows if row.date})
    dates = f", {' to '.join(dict.fromkeys((days[0], days[-1])))}" if days else ""
    yield from ("```", "", f"veca {versions}{dates}.", "")


def comparison_lines(comparison: Mapping[str, Any]) -> Iterator[str]:
    """The section of a report on one baseline, from an entry of `compare_to_baseline`."""
    lines = comparison["lines"]
    yield from (f"## Against {comparison['name']}", "")
    if lines:
        yield (
            "The model's numbers in percent of the baseline's, errors as ratios; in brackets the "
            f"{100 * comparison['level']:g} % interval over {comparison['rounds']:,} draws of the "
            "test images, the same for both models, all tasks and all seeds of a data set. It "
            "shows what other test images could have given, not what another training run would."
        )
        classes = _labels(comparison, in_mean=True)
        if classes:
            yield f"Classes: the mean of {'; '.join(classes)}."
        if _uneven(lines):
            yield "`numbers`: how many of these a line has; comparison.json lists them."
        yield from ("", *_comparison_table(comparison), "")
    if comparison["left_out"]:
        yield from ("Left out of the comparison:", "")
        yield from (*(f"- {sentence}" for sentence in comparison["left_out"]), "")


def _comparison_table(comparison: Mapping[str, Any]) -> Iterator[str]:
    """A line for each setting of each model."""
    lines, dense = comparison["lines"], _labels(comparison, in_mean=False)
    titles = ["model", "budget", "patches/core", "ffn", "px", "baseline's ffn", "baseline's px",
              "classes, %", "baseline's, %", "share", "numbers", *dense]  # fmt: skip
    elastic = {line["name"] for line in lines if line["ffn"] is not None}
    twin = any(one["baseline_ffn"] is not None for line in lines for one in line["numbers"])
    table = []
    for line in lines:
        numbers, classes = line["numbers"], line["classes"]
        sizes = _unique(one["baseline_resolution"] for one in numbers)
        cells = [
            line["name"],
            "-" if line["budget"] is None else str(line["budget"]),
            "-" if line["patches_per_core"] is None else f"{line['patches_per_core']:g}",
            _share_cell(line["ffn"], line["name"] in elastic),
            str(line["resolution"]),
            _unique(_share_cell(one["baseline_ffn"], twin) for one in numbers),
            "-" if sizes == str(line["resolution"]) else sizes,
            *(["-"] * 4 if classes is None else [
                f"{classes['model']:.2f}", f"{classes['baseline']:.2f}", _share(classes, "%"),
                str(classes["numbers"]) if _uneven(lines) else "-",
            ]),
        ]  # fmt: skip
        found = [(_label(comparison, one), _share(one, one["unit"])) for one in numbers]
        cells += ["; ".join(text for label, text in found if label == title) or "-"
                  for title in dense]  # fmt: skip
        table.append(cells)
    return markdown_table(titles, table)


def _unique(values: Iterable[object]) -> str:
    """Different values, each once."""
    return "; ".join(dict.fromkeys(map(str, values)))


def _share(found: Mapping[str, Any], unit: str) -> str:
    """A ratio of a comparison with its interval."""
    if found["ratio"] is None:
        return "-"
    return _ratio_text(found["ratio"], found["low"], found["high"], percent=unit == "%")


def _uneven(lines: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the means of some lines are over fewer numbers than others."""
    return len({line["classes"]["numbers"] for line in lines if line["classes"]}) > 1


def _labels(comparison: Mapping[str, Any], *, in_mean: bool) -> Collection[str]:
    """The names of the numbers of all lines, each once: those of the mean, or all others."""
    numbers = [one for line in comparison["lines"] for one in line["numbers"]]
    chosen = [one for one in numbers if (one["task"] in CLASS_TASKS) == in_mean]
    return dict.fromkeys(_label(comparison, one) for one in chosen)


def _label(comparison: Mapping[str, Any], number: Mapping[str, Any]) -> str:
    """The name of a number; with protocol, feature or hash only if a task has several."""
    numbers = [one for line in comparison["lines"] for one in line["numbers"]]
    same = [
        one for one in numbers if (one["task"], one["data"]) == (number["task"], number["data"])
    ]
    several_sets = len({one["data_sha256"] for one in same}) > 1
    data = number["data"] + (f" {(number['data_sha256'] or '?')[:8]}" if several_sets else "")
    parts = [f"{number['task']} on {data}", number["metric"]]
    if len({(one["protocol"], one["feature"]) for one in same}) > 1:
        parts += [number["protocol"], number["feature"]]
    return ", ".join(parts) + (" (PARTIAL)" if number["partial"] else "")
