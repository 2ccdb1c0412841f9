"""The report files of an evaluation: JSON, Markdown and the comparison with baselines.

A comparison with a baseline for people, as a section of a report, and for programs, as JSON.

A report on disk: `report.json` for programs, `report.md` for people, and a plot.

Where a baseline took part and the cases of both are there, `comparison.json` has the model's shares
of the baseline's numbers with their intervals, and the page begins with them.

A folder keeps what was measured before: rows of a new run replace those of the same number, all
others stay (`merge_rows`).
"""

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from veca.probe.bootstrap import (
    CASES_FOLDER,
    CLASS_TASKS,
    LEVEL,
    SEED,
    Comparison,
    LeftOut,
    Line,
    Number,
    Ratio,
    compare,
)
from veca.probe.report_text import (
    Who,
    markdown_table,
    report_markdown,
    share_cell,
    with_shares,
    without_empty,
)
from veca.probe.rows import Row, RowError, merge_rows, row_from_json
from veca.runtime import VecaError
from veca.runtime.files import dumps_strict, make_folder, write_atomic


def comparison_lines(comparison: Comparison) -> Iterator[str]:
    """The section of a report."""
    yield from (f"## Against {comparison.name}", "")
    if comparison.lines:
        yield from _words(comparison)
        yield from ("", *_table(comparison), "")
    if comparison.left_out:
        yield from ("Left out of the comparison:", "")
        yield from (*(f"- {sentence}" for sentence in _left_out(comparison)), "")


def comparisons_as_json(comparisons: Sequence[Comparison]) -> str:
    """A list with an object for each baseline, a baseline a line."""
    objects = [dumps_strict(_as_json(one), one.name) for one in comparisons]
    return "[\n" + ",\n".join(objects) + "\n]\n"


def _words(comparison: Comparison) -> Iterator[str]:
    """What the numbers of the table are."""
    yield (
        "The model's numbers in percent of the baseline's, errors as ratios; in brackets the "
        f"{100 * LEVEL:g} % interval over {comparison.rounds:,} draws of the test pictures, the "
        "same for both models, all tasks and all seeds of a set. It tells what other test "
        "pictures could have given, not what another training would."
    )
    classes = _labels(comparison, _of_classes)
    if classes:
        yield f"Classes: the mean of {'; '.join(classes)}."
    if _uneven(comparison):
        yield "`numbers`: how many of these a line has; comparison.json tells which."


def _table(comparison: Comparison) -> Iterator[str]:
    """A line for each setting of each model."""
    dense, uneven = _labels(comparison, _dense), _uneven(comparison)
    titles = ["model", "budget", "patches/core", "ffn", "px", "baseline's ffn", "baseline's px",
              "classes, %", "baseline's, %", "share", "numbers", *dense]  # fmt: skip
    lines, elastic = [], _with_shares(comparison)
    for line in comparison.lines:
        row, classes = line.row, line.classes
        cells = [
            line.name,
            "-" if row.budget is None else str(row.budget),
            "-" if row.patches_per_core is None else f"{row.patches_per_core:g}",
            share_cell(row, elastic),
            str(row.resolution),
            _baseline_shares(line, elastic),
            _baseline_sizes(line),
            *(["-"] * 4 if classes is None else [
                f"{classes.model:.2f}", f"{classes.baseline:.2f}", _share(classes.ratio),
                str(len(_of_classes(line))) if uneven else "-",
            ]),
        ]  # fmt: skip
        found = [(_label(comparison, number.pair.row), number) for number in _dense(line)]
        for title in dense:
            told = [_told(number) for label, number in found if label == title]
            cells.append("; ".join(told) or "-")
        lines.append(cells)
    return markdown_table(*without_empty(titles, lines))


def _with_shares(comparison: Comparison) -> set[Who]:
    """The models of a comparison, the baseline among them, that have shares of hidden units."""
    pairs = [number.pair for line in comparison.lines for number in line.numbers]
    return with_shares(average.row for pair in pairs for average in pair)


def _baseline_shares(line: Line, elastic: Collection[Who]) -> str:
    """The shares of the baseline that a line is compared with."""
    baselines = [number.pair.baseline.row for number in line.numbers]
    return "; ".join(dict.fromkeys(share_cell(row, elastic) for row in baselines))


def _baseline_sizes(line: Line) -> str:
    """The resolutions of the baseline, where they are not that of the line; else '-'."""
    sizes = dict.fromkeys(number.pair.baseline.row.resolution for number in line.numbers)
    return "-" if set(sizes) == {line.row.resolution} else "; ".join(map(str, sizes))


def _uneven(comparison: Comparison) -> bool:
    """Whether the means of some lines go over fewer numbers than there are."""
    counts = {len(_of_classes(line)) for line in comparison.lines if line.classes}
    return len(counts) > 1


def _labels(comparison: Comparison, chosen: Callable[[Line], list[Number]]) -> list[str]:
    """What the numbers of all lines are of, each once."""
    numbers = [number for line in comparison.lines for number in chosen(line)]
    return list(dict.fromkeys(_label(comparison, number.pair.row) for number in numbers))


def _of_classes(line: Line) -> list[Number]:
    """The numbers that the mean of a line goes over."""
    return [number for number in line.numbers if number.pair.row.task in CLASS_TASKS]


def _dense(line: Line) -> list[Number]:
    """The numbers of a line that stand for themselves."""
    return [number for number in line.numbers if number.pair.row.task not in CLASS_TASKS]


def _label(comparison: Comparison, row: Row) -> str:
    """What a number is of; protocol, feature and hash only where a task on a name has several."""
    rows = [number.pair.row for line in comparison.lines for number in line.numbers]
    rows += [item.row for item in comparison.left_out]
    others = [other for other in rows if (other.task, other.data) == (row.task, row.data)]
    alike = {(other.protocol, other.feature) for other in others}
    sets = {other.data_sha256 for other in others}
    data = f"{row.data} {(row.data_sha256 or 'unknown')[:8]}" if len(sets) > 1 else row.data
    words = [f"{row.task} on {data}", row.metric]
    words += [row.protocol, row.feature] if len(alike) > 1 else []
    return f"{', '.join(words)} (PARTIAL)" if row.partial else ", ".join(words)


def _told(number: Number) -> str:
    """The ratio of a number: percent of what is right, else as a factor."""
    if number.pair.row.more_is_better:
        return _share(number.ratio)
    ratio = number.ratio
    if ratio is None:
        return "-"
    return f"x{ratio.value:.3f}{_brackets(ratio, 1, 3)}"


def _share(ratio: Ratio | None) -> str:
    """A ratio in percent."""
    return "-" if ratio is None else f"{100 * ratio.value:.1f} %{_brackets(ratio, 100, 1)}"


def _brackets(ratio: Ratio, scale: int, digits: int) -> str:
    """The interval of a ratio, if it has one."""
    if ratio.low is None or ratio.high is None:
        return ""
    return f" [{scale * ratio.low:.{digits}f}, {scale * ratio.high:.{digits}f}]"


def _left_out(comparison: Comparison) -> Iterator[str]:
    """What was left out and why, told once for all lines."""

    def told(item: LeftOut) -> tuple[str, str]:
        return _label(comparison, item.row), item.reason

    for (label, reason), count in Counter(map(told, comparison.left_out)).items():
        yield f"{label}, {count} {'line' if count == 1 else 'lines'}: {reason}."


def _as_json(comparison: Comparison) -> dict[str, Any]:
    """A comparison as plain values."""
    return {
        "baseline": comparison.baseline.model,
        "weights": comparison.baseline.weights,
        "level": LEVEL,
        "rounds": comparison.rounds,
        "seed": SEED,
        "lines": [_line_as_json(line) for line in comparison.lines],
        "left_out": list(_left_out(comparison)),
    }


def _line_as_json(line: Line) -> dict[str, Any]:
    """A line as plain values."""
    row, classes = line.row, line.classes
    return {
        "model": row.model,
        "weights": row.weights,
        "resolution": row.resolution,
        "budget": row.budget,
        "ffn": row.ffn,
        "patches_per_core": row.patches_per_core,
        "classes": None if classes is None else {
            "numbers": len(_of_classes(line)), "model": classes.model, "baseline": classes.baseline,
            **_ratio_as_json(classes.ratio),
        },
        "numbers": [_number_as_json(number) for number in line.numbers],
    }  # fmt: skip


def _number_as_json(number: Number) -> dict[str, Any]:
    """A number as plain values, with what tells it from others."""
    row, baseline = number.pair.row, number.pair.baseline
    return {
        "task": row.task,
        "data": row.data,
        "metric": row.metric,
        "unit": row.unit,
        "protocol": row.protocol,
        "feature": row.feature,
        "partial": list(row.partial),
        "data_sha256": row.data_sha256,
        "pictures": number.pictures,
        "seeds": list(number.pair.model.seeds),
        "model": number.pair.model.mean,
        "baseline": baseline.mean,
        "baseline_resolution": baseline.row.resolution,
        "baseline_budget": baseline.row.budget,
        "baseline_ffn": baseline.row.ffn,
        "baseline_seeds": list(baseline.seeds),
        **_ratio_as_json(number.ratio),
    }


def _ratio_as_json(ratio: Ratio | None) -> dict[str, float | None]:
    """A ratio, which is 1 where both are the same, and its interval."""
    if ratio is None:
        return {"ratio": None, "low": None, "high": None}
    return {"ratio": ratio.value, "low": ratio.low, "high": ratio.high}


JSON_NAME = "report.json"
TEXT_NAME = "report.md"
PLOT_NAME = "report.png"
COMPARISON_NAME = "comparison.json"

Draw = Callable[[Sequence[Row]], bytes | None]
"""A plot of rows as the bytes of a PNG file; None where they give nothing to draw."""


class ReportError(VecaError, ValueError):
    """A file that is no report."""


class Written(NamedTuple):
    """What a folder holds now."""

    rows: list[Row]
    """Of this run and of those before."""

    files: list[Path]


def write_report(rows: Sequence[Row], folder: Path, draw: Draw | None = None) -> Written:
    """Add rows to the report of a folder, which is made where it is missing.

    One process at a time may call it for a folder. Without `draw`, as where matplotlib is not
    installed, a plot of older rows is removed, since it would no longer belong to the tables.
    """
    make_folder(folder)
    merged = merge_rows(read_report(folder), rows)
    plot = draw(merged) if draw is not None else None
    compared = compare(merged, folder / CASES_FOLDER)
    above = [line for one in compared for line in comparison_lines(one)]
    text = report_markdown(merged, PLOT_NAME if plot is not None else None, above)
    files = {
        JSON_NAME: rows_as_json(merged).encode(),
        TEXT_NAME: text.encode(),
        PLOT_NAME: plot,
        COMPARISON_NAME: comparisons_as_json(compared).encode() if compared else None,
    }
    for name, content in files.items():
        if content is None:
            (folder / name).unlink(missing_ok=True)
        else:
            write_atomic(folder / name, [content])
    return Written(merged, [folder / name for name, it in files.items() if it is not None])


def read_report(folder: Path) -> list[Row]:
    """The rows of a folder; none where there is no report yet."""
    path = folder / JSON_NAME
    if not path.exists():
        return []
    return rows_from_json(path.read_text("utf-8"), str(path))


def rows_as_json(rows: Sequence[Row]) -> str:
    """A list of rows, a row a line."""
    lines = [dumps_strict(row.as_json(), f"row {number}") for number, row in enumerate(rows)]
    return "[\n" + ",\n".join(lines) + "\n]\n" if lines else "[]\n"


def rows_from_json(text: str, source: str) -> list[Row]:
    """The rows of such a list; `source` says in an error where the text is from."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ReportError(
            f"{source} is no JSON ({error}); it was damaged or changed: remove it, or give another "
            "folder."
        ) from error
    if not isinstance(found, list):
        raise ReportError(f"{source} is no list of rows; remove it, or give another folder.")
    rows = []
    for number, item in enumerate(found):
        try:
            rows.append(row_from_json(item))
        except (RowError, TypeError) as error:
            raise ReportError(f"row {number} of {source} cannot be read: {error}") from error
    return rows
