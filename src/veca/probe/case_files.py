"""Cases on disk, found by the rows of a report that they belong to.

A file of cases carries one of the rows of its result, and which classes of its set are scored.
Files of older versions lack both: they stay readable for people, but belong to no row.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open
from torch import Tensor

from veca.probe.averages import Average
from veca.probe.retained import MeanIou, Numbers, PictureMean, Statistic
from veca.probe.rows import Row, row_from_json
from veca.runtime.plain_json import plain_json
from veca.runtime.tensor_files import read_tensors

CASES_FOLDER = "cases"

ROW, SCORED = "row", "scored"
"""What a file says of itself."""

CLOSE = 1e-9
"""Relative difference of a number and the same number made from its cases: that of rounding."""


class CasesError(ValueError):
    """Why cases cannot stand for a number, in words that go on a sentence."""


class CaseFile(NamedTuple):
    """The cases of one result."""

    path: Path

    scored: Sequence[int] | None
    """Classes that means go over; None for all."""


def case_facts(row: Row, scored: Sequence[int] | None) -> dict[str, str]:
    """What a file of cases says of itself; `row` is any row of the result."""
    return {
        ROW: plain_json(row.as_json(), "row"),
        SCORED: plain_json(None if scored is None else list(scored), "scored"),
    }


class KeptCases:
    """The files of cases of some folders."""

    def __init__(self, *folders: Path) -> None:
        self._files = dict(_files(folders))

    def statistic(self, average: Average) -> Statistic:
        """The number of an average over any draw of its pictures, from the cases of all its seeds.

        A CasesError where there are none, or none that give the number that was reported.
        """
        metric = average.row.metric
        if metric not in {"miou", "rmse"} and not metric.startswith("top1"):
            raise CasesError(f"{metric} is no mean over pictures that could be drawn again")
        try:
            found = _statistic(metric, [self._read(average, seed) for seed in average.seeds])
        except CasesError:
            raise
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise CasesError("the cases on disk are not those of the number") from error
        if not math.isclose(found.whole, average.mean, rel_tol=CLOSE, abs_tol=CLOSE):
            raise CasesError("the cases on disk give another number than the report")
        return found

    def _read(self, average: Average, seed: int) -> tuple[CaseFile, Mapping[str, Tensor]]:
        """The cases of one seed."""
        file = self._files.get(_key(replace(average.row, seed=seed)))
        if file is None:
            raise CasesError(
                "no cases on disk belong to it: they are lost, of other pictures or weights, or of "
                "an older version"
            )
        try:
            return file, read_tensors(file.path)
        except (OSError, SafetensorError) as error:
            raise CasesError("its cases on disk cannot be read") from error


def _files(folders: Sequence[Path]) -> Iterator[tuple[str, CaseFile]]:
    """Keys and files, the newest one last: what is measured again may lie under another name."""
    paths = [path for folder in folders for path in folder.glob("*.safetensors")]
    for path in sorted(paths, key=_age):
        try:
            with safe_open(path, "pt") as file:
                facts = file.metadata() or {}
            row = row_from_json(json.loads(facts[ROW]))
            yield _key(row), CaseFile(path, json.loads(facts[SCORED]))
        except (OSError, SafetensorError, KeyError, ValueError, TypeError):
            continue  # damaged, or of another version


def _age(path: Path) -> int:
    """When a file was written; 0 for one that is gone meanwhile."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _key(row: Row) -> str:
    """What rows of one result share, in whatever role and under whatever name it was measured."""
    apart = ["metric", "unit", "role", "trained"]
    return row.identity(*apart, *([] if row.weights is None else ["model"]))


def _statistic(metric: str, seeds: Sequence[tuple[CaseFile, Mapping[str, Tensor]]]) -> Statistic:
    """The number that a metric is, by its definition, from the cases of each seed."""

    def stacked(name: str) -> Numbers:
        return np.stack([cases[name].double().numpy() for _, cases in seeds])

    if metric == "miou":
        scored = seeds[0][0].scored
        chosen = slice(None) if scored is None else list(scored)
        return MeanIou(stacked("intersections")[..., chosen], stacked("unions")[..., chosen])
    if metric == "rmse":
        return PictureMean(stacked("rmse"))
    return PictureMean(100 * stacked(metric.replace("top1", "correct", 1)))
