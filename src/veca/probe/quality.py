"""Machine-readable measurements of one model: `quality.json` beside its weights.

It is built from reports of `veca probe`. Rows are selected by the hash of the weights, whatever
role and name the model was measured under; numbers of single classes stay in the reports.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from veca.probe.bootstrap import ROUNDS, quantiles, resample_all
from veca.probe.heads import PER_IMAGE_FOLDER
from veca.probe.report import JSON_NAME, read_rows
from veca.probe.rows import ProbeError, Row, mean_over_seeds, merge_rows
from veca.runtime.files import dumps_strict, write_atomic

QUALITY_NAME = "quality.json"

FORMAT = 1

DIGITS = 6
"""After the point: beyond the precision of any number, so that files stay small."""

KEYS = ("task", "data", "split", "protocol", "feature", "metric", "unit", "resolution", "budget",
        "ffn")  # fmt: skip
"""Fields of a row that identify a measurement."""


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
    interval: list[float] | None
    """95 % over other test images, of the mean over seeds; None without per-image results."""
    seeds: list[int]
    count: int
    """Test images."""
    higher_is_better: bool
    partial: bool
    """Whether the dataset was incomplete, so that the value must not be compared."""


@dataclass(frozen=True, kw_only=True)
class Quality:
    """All measurements of one model."""

    model: str
    """The name that was given."""
    weights_sha256: str
    date: str
    """When the file was written, such as 2026-05-12."""
    commands: list[str]
    """Commands that measured the numbers."""
    rows: list[QualityRow]


def report_files(paths: Sequence[Path]) -> tuple[list[Row], list[Path]]:
    """The rows of reports, the later one of each number, and the folders of per-image results.

    A path is a `report.json`, or the folder that contains it.
    """
    if not paths:
        raise ProbeError(f"no report was given; give at least one {JSON_NAME} of veca probe.")
    files = [path / JSON_NAME if path.is_dir() else path for path in paths]
    rows = merge_rows([], [row for path in files for row in read_rows(path)])
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
    """Measurements of the weights with this hash; `folders` hold the per-image results."""
    own = [replace(row, role="model", model=model) for row in rows if row.weights == weights]
    if not own:
        known = dict.fromkeys(f"{row.model} ({(row.weights or 'no hash')[:16]})" for row in rows)
        raise ProbeError(
            f"the reports have no number of {model} with weights {weights[:16]}, but of "
            f"{', '.join(known) or 'nothing'}; measure it with veca probe, or name one of those."
        )
    measured = mean_over_seeds(merge_rows([], [row for row in own if "/" not in row.metric]))
    draws = resample_all(measured, folders, rounds)
    found: dict[tuple[Any, ...], QualityRow] = {}
    for item in measured:
        row = item.row
        keys: dict[str, Any] = {name: getattr(row, name) for name in KEYS}
        place = tuple(math.inf if value is None else value for value in keys.values())
        if place in found:
            raise ProbeError(
                f"the reports have two numbers for {row.metric} of {row.task} on {row.data} at "
                f"{row.resolution} px, budget {row.budget}, on other images or with other values "
                f"of the protocol {row.protocol}; give reports that measure it once."
            )
        drawn = draws.get(row.identity("seed"))
        ends = None if drawn is None else quantiles(drawn)
        found[place] = QualityRow(
            **keys,
            value=round(item.mean, DIGITS),
            interval=ends and [round(end, DIGITS) for end in ends],
            seeds=list(item.seeds),
            count=row.counts["test"],
            higher_is_better=row.more_is_better,
            partial=bool(row.partial),
        )
    return Quality(
        model=model,
        weights_sha256=weights,
        date=date,
        commands=sorted({row.command for row in own if row.command}),
        rows=[found[place] for place in sorted(found)],  # the whole model comes last
    )


def write_quality(quality: Quality, path: Path) -> None:
    """Write the file atomically: equal measurements give equal bytes, a row a line."""
    head = {"format": FORMAT, **vars(quality)}
    del head["rows"]
    lines = [f'"{name}":{dumps_strict(value, name)}' for name, value in head.items()]
    rows = ",\n".join(dumps_strict(vars(row), "a row") for row in quality.rows)
    lines.append(f'"rows":[\n{rows}\n]')
    write_atomic(path, [("{\n" + ",\n".join(lines) + "\n}\n").encode()])


def read_quality(path: Path, weights: str | None = None) -> Quality:
    """The measurements in a file; `weights` is the expected hash of the model."""
    try:
        found = json.loads(path.read_text("utf-8"))
        if (version := found.pop("format")) != FORMAT:
            raise ValueError(f"it has the format {version}, this version of veca reads {FORMAT}")
        rows = [QualityRow(**row) for row in found.pop("rows")]
        quality = Quality(**found, rows=rows)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ProbeError(
            f"{path} cannot be read ({error}); write it again with veca probe quality."
        ) from error
    if weights is not None and quality.weights_sha256 != weights:
        raise ProbeError(
            f"{path} is of the weights {quality.weights_sha256[:16]}, but the model has "
            f"{weights[:16]}; measure the model and write it again with veca probe quality."
        )
    return quality
