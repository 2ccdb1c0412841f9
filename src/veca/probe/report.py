"""A report on disk: `report.json` for programs, `report.md` for people, and a plot.

Where a baseline took part and the cases of both are there, `comparison.json` has the model's shares
of the baseline's numbers with their intervals, and the page begins with them.

A folder keeps what was measured before: rows of a new run replace those of the same number, all
others stay (`merge_rows`).
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from veca.probe.case_files import CASES_FOLDER
from veca.probe.comparison import compare
from veca.probe.comparison_text import comparison_lines, comparisons_as_json
from veca.probe.report_text import report_markdown
from veca.probe.rows import Row, RowError, merge_rows, row_from_json
from veca.runtime.files import make_folder, replace_file
from veca.runtime.plain_json import plain_json

JSON_NAME = "report.json"
TEXT_NAME = "report.md"
PLOT_NAME = "report.png"
COMPARISON_NAME = "comparison.json"

Draw = Callable[[Sequence[Row]], bytes | None]
"""A plot of rows as the bytes of a PNG file; None where they give nothing to draw."""


class ReportError(ValueError):
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
            replace_file(folder / name, [content])
    return Written(merged, [folder / name for name, it in files.items() if it is not None])


def read_report(folder: Path) -> list[Row]:
    """The rows of a folder; none where there is no report yet."""
    path = folder / JSON_NAME
    if not path.exists():
        return []
    return rows_from_json(path.read_text("utf-8"), str(path))


def rows_as_json(rows: Sequence[Row]) -> str:
    """A list of rows, a row a line."""
    lines = [plain_json(row.as_json(), f"row {number}") for number, row in enumerate(rows)]
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
