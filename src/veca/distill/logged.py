"""What a run wrote down, read back for its summary.

A resumed run takes some steps again and writes their rows again; of rows about the same thing the
last one counts. Rows are read one by one into columns, so that a long log takes little memory.
"""

import json
import math
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64, Int64
from numpy import ndarray

from veca.distill.losses import PARTS

PLACE = ("step", "resolution", "ffn", "budget")
"""Fields that say which row of its kind it is."""

FIELDS: Mapping[str, tuple[str, ...]] = {
    "train": (*PLACE, "loss", *PARTS, "learning_rate", "gradient_norm"),
    "validation": (*PLACE, "loss"),
    "baseline": ("resolution", "loss"),
    "resume": ("step",),
    "speed": ("step", "images_per_second", "data_wait", "memory_mb"),
}
"""Kinds of rows and their numbers; what a row does not hold is not a number (NaN)."""

GETTERS = {kind: itemgetter(*names) for kind, names in FIELDS.items()}

ABSENT = -1.0
"""Stands for a missing place where places are compared."""

Columns = Mapping[str, Float64[ndarray, " _"]]


class Score(NamedTuple):
    """The validation losses of one image size, share of hidden units and budget."""

    resolution: int | None
    ffn: float | None
    budget: int | None
    """None where the log names none."""
    steps: Float64[ndarray, " n"]
    losses: Float64[ndarray, " n"]
    constant: float | None
    """Loss of the best constant predictor."""

    @property
    def name(self) -> str:
        """Such as '64 cores'."""
        return "whole model" if self.budget is None else f"{self.budget} cores"

    @property
    def gain(self) -> float | None:
        """How far the last loss lies below that of the best constant, as a share of it."""
        return 1 - float(self.losses[-1]) / self.constant if self.constant else None


@dataclass(frozen=True)
class Log:
    """All rows of a run, sorted by step."""

    train: Columns
    validation: Columns
    constant: Columns
    resume: Columns
    speed: Columns

    @property
    def skipped(self) -> list[int]:
        """Steps that were skipped: their loss or their gradient is no number."""
        lost = np.isnan(self.train["loss"]) | np.isnan(self.train["gradient_norm"])
        return [int(step) for step in self.train["step"][lost]]

    @property
    def steps(self) -> int:
        """Steps that were taken."""
        return int(self.train["step"].max(initial=-1.0)) + 1

    def scores(self) -> list[Score]:
        """Validation losses by image size, share and budget, all rising, the whole share first."""
        rows, found = self.validation, []
        places = np.stack([_filled(rows[name]) for name in PLACE[1:]], axis=1)
        for place in sorted(set(map(tuple, places.tolist())), key=lambda p: (p[0], -p[1], p[2])):
            own = (places == place).all(axis=1) & np.isfinite(rows["loss"])
            resolution, budget = (None if v == ABSENT else int(v) for v in (place[0], place[2]))
            ffn = None if place[1] == ABSENT else place[1]
            constant = self.constant_at(resolution)
            if own.any():
                curve = rows["step"][own], rows["loss"][own]
                found.append(Score(resolution, ffn, budget, *curve, constant))
        return found

    def constant_at(self, resolution: int | None) -> float | None:
        """The loss of the best constant for images of this size; of another if it is the only."""
        losses = self.constant["loss"]
        same = losses[self.constant["resolution"] == resolution]
        found = same if len(same) else losses
        return float(found[0]) if len(same) or len(losses) == 1 else None


def read_log(folder: Path) -> Log:
    """Read the logs of a run without what does not exist yet and lines that were not finished."""
    kinds = {kind: array("d") for kind in FIELDS}
    for row in _rows(folder / "metrics.jsonl"):
        for part in _by_resolution(row):
            if part.get("kind") in FIELDS:
                kinds[part["kind"]].extend(_numbers(part, part["kind"]))
    for row in _rows(folder / "speed.jsonl"):
        kinds["speed"].extend(_numbers(row, "speed"))
    columns = {kind: _columns(kind, np.array(values)) for kind, values in kinds.items()}
    resumes = columns.pop("resume")
    latest = {kind: _latest(found) for kind, found in columns.items()}
    return Log(resume=resumes, constant=latest.pop("baseline"), **latest)


def _by_resolution(row: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for each image size, where one row tells of several."""
    several = row.get("by_resolution")
    if not isinstance(several, dict):
        return [row]
    return [{**row, "resolution": int(size), "loss": loss} for size, loss in several.items()]


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    """Objects of a file, line by line."""
    if not path.exists():
        return
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if isinstance(row, dict):
                yield row


def _numbers(row: dict[str, Any], kind: str) -> tuple[int | float, ...]:
    """The numbers of a row; most rows hold them all, which is the fast way."""
    try:
        found = GETTERS[kind](row)
    except KeyError:
        found = tuple(map(row.get, FIELDS[kind]))
    values: tuple[Any, ...] = found if isinstance(found, tuple) else (found,)
    return tuple(math.nan if v is None else v for v in values) if None in values else values


def _columns(kind: str, values: Float64[ndarray, " n"]) -> Columns:
    """Numbers of all rows of a kind, by name."""
    names = FIELDS[kind]
    table = values.reshape(-1, len(names))
    return {name: np.ascontiguousarray(table[:, number]) for number, name in enumerate(names)}


def _latest(columns: Columns) -> Columns:
    """Of rows with equal places the last, sorted by place."""
    keys = [_filled(columns[name]) for name in PLACE if name in columns]
    order = _order(keys)
    differ = np.zeros(max(len(order) - 1, 0), dtype=bool)
    for key in keys:
        differ |= np.diff(key[order]) != 0
    last = np.append(differ, True)[: len(order)]  # the last of its group
    return {name: values[order][last] for name, values in columns.items()}


def _filled(values: Float64[ndarray, " rows"]) -> Float64[ndarray, " rows"]:
    """Values that can be compared: what is missing equals what is missing."""
    return np.nan_to_num(values, nan=ABSENT)


def _order(keys: list[Float64[ndarray, " rows"]]) -> Int64[ndarray, " rows"]:
    """Order of rows by their keys, the first key first; equal ones as they were written."""
    return np.lexsort(keys[::-1]).astype(np.int64)
