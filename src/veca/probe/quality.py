"""All measurements of one model for programs: `quality.json` beside its weights.

It is made from reports of `veca probe`: of the rows with the hash of these weights, in whatever
role and under whatever name they were measured. Numbers of single classes stay in the reports.
"""

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from veca.probe.bootstrap import PER_IMAGE_FOLDER, ROUNDS, quantiles, resample_all
from veca.probe.report import JSON_NAME, read_rows
from veca.probe.rows import Row, SeedMean, mean_over_seeds, merge_rows
from veca.runtime import VecaError
from veca.runtime.files import dumps_strict, write_atomic

QUALITY_NAME = "quality.json"

FORMAT = 1

DIGITS = 6
"""After the point: beyond the precision of any number, so that files stay small."""

KEYS = ("task", "data", "split", "protocol", "feature", "metric", "unit", "resolution", "budget",
        "ffn")  # fmt: skip
"""Fields of a row that identify a measurement."""


class QualityError(VecaError, ValueError):
    """An invalid file, or reports without numbers of the model."""


@dataclass(frozen=True, kw_only=True)
class QualityRow:
    """One metric at one resolution, budget and share of the hidden units; fields as in `Row`."""

    task: str
    data: str
    split: str
    protocol: str
    feature: str
    metric: str
    unit: str
    resolution: int

    budget: int | None
    """None for full attention."""

    ffn: float | None
    """None for all hidden units."""

    value: float
    """Mean over seeds."""

    interval: tuple[float, float] | None
    """95 % over other test images, of the mean over seeds; None without per-image results."""

    seeds: tuple[int, ...]

    count: int
    """Test images."""

    higher_is_better: bool

    partial: bool
    """Whether the data set was incomplete, so that the value must not be compared."""


@dataclass(frozen=True, kw_only=True)
class Quality:
    """All measurements of one model."""

    model: str
    """As it was asked for."""

    weights_sha256: str

    date: str
    """When the file was written, such as 2026-05-12."""

    commands: tuple[str, ...]
    """Commands that measured the numbers."""

    rows: tuple[QualityRow, ...]


def report_files(paths: Sequence[Path]) -> tuple[list[Row], list[Path]]:
    """The rows of reports, the later one of each number, and the folders of per-image results.

    A path is a `report.json`, or the folder that contains it.
    """
    if not paths:
        raise QualityError(f"no report was given; give at least one {JSON_NAME} of veca probe.")
    rows: list[Row] = []
    files = [path / JSON_NAME if path.is_dir() else path for path in paths]
    for path in files:
        rows = merge_rows(rows, read_rows(path))
    return rows, [path.parent / PER_IMAGE_FOLDER for path in files]


def quality_of(  # noqa: PLR0913 - what the file has besides its rows
    rows: Sequence[Row],
    folders: Sequence[Path],
    *,
    model: str,
    weights: str,
    date: str,
    rounds: int = ROUNDS,
) -> Quality:
    """The measurements of the weights with this hash; `folders` hold their per-image results."""
    own = [replace(row, role="model", model=model) for row in rows if row.weights == weights]
    if not own:
        known = dict.fromkeys(f"{row.model} ({(row.weights or 'no hash')[:16]})" for row in rows)
        raise QualityError(
            f"the reports have no number of {model} with weights {weights[:16]}, but of "
            f"{', '.join(known) or 'nothing'}; measure it with veca probe, or name one of those."
        )
    measured = mean_over_seeds(merge_rows([], [row for row in own if "/" not in row.metric]))
    resampled = resample_all(measured, folders, rounds)
    found: dict[tuple[Any, ...], QualityRow] = {}
    for item in measured:
        drawn = resampled(item)
        ends = None if drawn is None else quantiles(drawn.draws)
        row = _quality_row(item, ends)
        if (place := _place(row)) in found:
            raise QualityError(
                f"the reports have two numbers for {row.metric} of {row.task} on {row.data} at "
                f"{row.resolution} px, budget {row.budget}, on other images or with other values "
                f"of the protocol {row.protocol}; give reports that measure it once."
            )
        found[place] = row
    return Quality(
        model=model,
        weights_sha256=weights,
        date=date,
        commands=tuple(sorted({row.command for row in own if row.command})),
        rows=tuple(found[place] for place in sorted(found)),
    )


def write_quality(quality: Quality, path: Path) -> None:
    """Write the file atomically."""
    write_atomic(path, [quality_as_json(quality).encode()])


def quality_as_json(quality: Quality) -> str:
    """The text of the file: equal measurements give equal bytes, a row a line."""
    head = {"format": FORMAT, **vars(quality), "commands": list(quality.commands)}
    del head["rows"]
    lines = [f'"{name}":{dumps_strict(value, name)}' for name, value in head.items()]
    rows = [dumps_strict(_row_as_json(row), "row") for row in quality.rows]
    text = ",\n".join([*lines, '"rows":[\n' + ",\n".join(rows) + "\n]"])
    return f"{{\n{text}\n}}\n"


def read_quality(path: Path, weights: str | None = None) -> Quality:
    """The measurements in a file; `weights` is the expected hash of the model."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise QualityError(
            f"{path} cannot be read ({error}); write it again with veca probe quality."
        ) from error
    found = _checked(content, _FILE, str(path))
    if found.pop("format") != FORMAT:
        raise QualityError(
            f"{path} has the format {content['format']}, but this version of veca reads {FORMAT}; "
            "write it again with veca probe quality."
        )
    rows = [
        QualityRow(**_checked(row, _ROW, f"row {number} of {path}"))
        for number, row in enumerate(found.pop("rows"))
    ]
    quality = Quality(**found, rows=tuple(rows))
    if weights is not None and quality.weights_sha256 != weights:
        raise QualityError(
            f"{path} is of the weights {quality.weights_sha256[:16]}, but the model has "
            f"{weights[:16]}; measure the model and write it again with veca probe quality."
        )
    return quality


def _quality_row(item: SeedMean, ends: tuple[float, float] | None) -> QualityRow:
    """A mean as it stands in the file."""
    return QualityRow(
        **{name: getattr(item.row, name) for name in KEYS},
        value=round(item.mean, DIGITS),
        interval=None if ends is None else (round(ends[0], DIGITS), round(ends[1], DIGITS)),
        seeds=item.seeds,
        count=item.row.counts["test"],
        higher_is_better=item.row.more_is_better,
        partial=bool(item.row.partial),
    )


def _place(row: QualityRow) -> tuple[Any, ...]:
    """What identifies a measurement, and its sort key: the whole model comes last."""
    values = (getattr(row, name) for name in KEYS)
    return tuple(math.inf if value is None else value for value in values)


def _row_as_json(row: QualityRow) -> dict[str, Any]:
    """A row as plain values."""
    found = dataclasses.asdict(row)
    interval = None if row.interval is None else list(row.interval)
    return found | {"interval": interval, "seeds": list(row.seeds)}


Rule = tuple[Callable[[Any], bool], str]


def _checked(value: object, rules: Mapping[str, Rule], where: str) -> dict[str, Any]:
    """An object whose fields are what the rules allow, lists as tuples."""
    if not isinstance(value, dict) or value.keys() != rules.keys():
        got = sorted(value) if isinstance(value, dict) else type(value).__name__
        raise QualityError(
            f"{where} has {got}; it must be an object with {', '.join(rules)}: write it again with "
            "veca probe quality."
        )
    for name, (fits, allowed) in rules.items():
        if not fits(value[name]):
            raise QualityError(
                f"{where}: {name} is {value[name]!r}; it must be {allowed}: write it again with "
                "veca probe quality."
            )
    return {name: tuple(item) if isinstance(item, list) else item for name, item in value.items()}


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _or_null(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or fits(value)


def _list_of(fits: Callable[[Any], bool], length: int | None = None) -> Callable[[Any], bool]:
    def is_list(value: object) -> bool:
        if not isinstance(value, list) or length not in {None, len(value)}:
            return False
        return all(map(fits, value))

    return is_list


_TEXT: Rule = (_is_text, "text")
_WHOLE: Rule = (_is_whole, "a whole number from 0")
_NUMBER: Rule = (_is_number, "a number")
_BOOLEAN: Rule = (lambda value: isinstance(value, bool), "true or false")

_FILE: dict[str, Rule] = {
    "format": _WHOLE,
    "model": _TEXT,
    "weights_sha256": _TEXT,
    "date": _TEXT,
    "commands": (_list_of(_is_text), "a list of texts"),
    "rows": (_list_of(lambda row: isinstance(row, dict)), "a list of objects"),
}
_ROW: dict[str, Rule] = {
    **dict.fromkeys(("task", "data", "split", "protocol", "feature", "metric", "unit"), _TEXT),
    "resolution": _WHOLE,
    "budget": (_or_null(_is_whole), "a whole number or null"),
    "ffn": (_or_null(_is_number), "a number or null"),
    "value": _NUMBER,
    "interval": (_or_null(_list_of(_is_number, 2)), "two numbers or null"),
    "seeds": (_list_of(_is_whole), "a list of whole numbers"),
    "count": _WHOLE,
    "higher_is_better": _BOOLEAN,
    "partial": _BOOLEAN,
}
"""What the fields of the file and of its rows may be, and in words."""
