"""Results of an evaluation: one row for each number.

How much of an elastic model a feature was computed with.

One number of a report, with all that it takes to know what it is and to get it again.

Rows of several seeds as one number with its spread, and how much of another model's it is.
"""

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

from veca.runtime import VERSION, VecaError
from veca.runtime.device import ResolvedPrecision
from veca.runtime.files import dumps_strict


class Setting(NamedTuple):
    """Cores and share of the hidden units; both None for a model without such a choice."""

    budget: int | None = None

    ffn: float | None = None

    @property
    def label(self) -> str:
        """Short and fit for a file name: 'c8', 'c64-f0.5', 'whole'."""
        parts = [f"c{self.budget}"] if self.budget is not None else []
        parts += [f"f{self.ffn:g}"] if self.ffn is not None else []
        return "-".join(parts) or "whole"


Task = Literal["linear", "knn", "logistic", "dense-knn", "segmentation", "depth"]
TASKS: tuple[Task, ...] = get_args(Task)

Role = Literal["model", "teacher", "baseline"]
"""What a model is compared as; a baseline is a full-attention model of the same size."""

FORMER_ROLES = {"control": "baseline"}
"""Roles by the names that reports of older versions have."""

Unit = Literal["%", "m", ""]
"""Percent of what was told right, of which more is better; anything else is an error, of which less
is better: meters, or a bare number."""

MEASURED = ("value", "milliseconds", "gflops", "patches_per_core", "chosen", "version", "command")
"""Fields that do not say which number it is: results, and how they were got."""

HEADLINES = ("map_k20", "top1_k20", "map", "top1", "miou", "rmse")
"""Metrics that a set is known by; of those measured the first one leads its table."""


class RowError(VecaError, ValueError):
    """A row that cannot be: what was got, what is allowed, what to do."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One metric of one model, at one budget and resolution, with one seed."""

    task: Task

    model: str
    """As it was asked for."""

    data: str
    """Name of the set."""

    budget: int | None = None
    """Cores that were used; None for a model without such a choice."""

    resolution: int
    """Pixels, of the side or the short side of what the model saw."""

    metric: str
    """Such as top1_k20, miou, rmse."""

    value: float

    unit: Unit

    seed: int = 0

    role: Role = "model"

    weights: str | None = None
    """SHA-256 of what decides the features; None where nothing can tell."""

    trained: bool = True
    """Whether the weights are more than random numbers."""

    ffn: float | None = None
    """Share of the hidden units; None for all of them, and for a model without such a choice."""

    precision: ResolvedPrecision = "fp32"
    """What the backbone computed with; rows of before there was a choice are fp32."""

    split: str
    """The part of the set that the number is measured on."""

    counts: Mapping[str, int]
    """Pictures of each part that was used, by 'train' and 'test'; for classes 'fitted' has how many
    the head was fitted on, less than 'train' where some were put aside."""

    data_sha256: str | None = None
    """Over names and sizes of those pictures."""

    data_facts: Mapping[str, Any] = field(default_factory=dict)
    """What else is to be known of the set: which list was used, which classes are scored."""

    protocol: str

    protocol_sha256: str | None = None
    """Over every number of the protocol: a name may stand for others in another version."""

    feature: str
    """What of the model's output the head sees."""

    partial: Sequence[str] = ()
    """Sentences on what the set lacks; not empty means that the number must not be compared."""

    chosen: Mapping[str, Any] = field(default_factory=dict)
    """What was selected, such as a rate, and 'on' which pictures: on the reported part it is a mild
    optimism."""

    patches_per_core: float | None = None

    milliseconds: float | None = None
    """Of one picture through the backbone, alone in its batch."""

    gflops: float | None = None
    """Of one picture through the backbone."""

    command: str = ""

    version: str = VERSION

    def __post_init__(self) -> None:
        """Refuse numbers that no reader of JSON or of a table could use."""
        if not math.isfinite(self.value):
            raise RowError(
                f"{self.metric} of {self.model} on {self.data} is {self.value}, which is no "
                "number to report; look for features or targets that are not finite."
            )

    @property
    def setting(self) -> Setting:
        """How much of the model was used."""
        return Setting(self.budget, self.ffn)

    @property
    def more_is_better(self) -> bool:
        """Whether the metric tells what is right; else it is an error."""
        return self.unit == "%"

    def identity(self, *apart: str) -> str:
        """Text that is the same for rows of one number, however often measured.

        Fields named in `apart` are left out too, such as the seed to find rows to average.
        """
        left_out = {*MEASURED, *apart}
        kept = {name: value for name, value in self.as_json().items() if name not in left_out}
        kept.get("counts", {}).pop(
            "fitted", None
        )  # follows from protocol and parts; older rows lack it
        return dumps_strict(kept, "row")

    def as_json(self) -> dict[str, Any]:
        """The row as plain values, its fields in their order here."""
        found = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        for name in ("counts", "chosen", "data_facts"):
            found[name] = dict(found[name])
        return found | {"partial": list(self.partial)}


def row_from_json(value: object) -> Row:
    """The row that was written so."""
    if not isinstance(value, dict):
        raise RowError(f"a row is {type(value).__name__}; it must be an object with named fields.")
    known = {item.name: item for item in dataclasses.fields(Row)}
    required = [
        name
        for name, item in known.items()
        if item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING
    ]
    missing = [name for name in required if name not in value]
    if missing or value.keys() - known.keys():
        raise RowError(
            f"a row lacks {missing} and has the unknown fields {sorted(value.keys() - known)}; "
            "it was written by another version of veca: measure again into another folder."
        )
    if value.get("role") in FORMER_ROLES:
        value = value | {"role": FORMER_ROLES[value["role"]]}
    for name, allowed in _CHOICES.items():
        if value.get(name, allowed[0]) not in allowed:
            raise RowError(
                f"{name} of a row is {value[name]!r}; it must be one of "
                f"{', '.join(map(repr, allowed))}."
            )
    return Row(**{name: _read(name, item) for name, item in value.items()})


def merge_rows(old: Sequence[Row], new: Sequence[Row]) -> list[Row]:
    """Old rows, each replaced where there is a new one of the same identity, then what is new."""
    found = {row.identity(): row for row in old}
    found.update((row.identity(), row) for row in new)
    return list(found.values())


def headline(metrics: Sequence[str]) -> str:
    """The metric that leads a table of these."""
    return next((name for name in HEADLINES if name in metrics), metrics[0])


_CHOICES: dict[str, tuple[str, ...]] = {
    "task": TASKS,
    "role": get_args(Role),
    "unit": get_args(Unit),
    "precision": get_args(ResolvedPrecision),
}
_NUMBERS = ("value", "ffn", "patches_per_core", "milliseconds", "gflops")


def _read(name: str, value: Any) -> Any:  # noqa: ANN401 - what JSON holds
    """A field as its type wants it; JSON may tell 1.0 as 1."""
    if name in _NUMBERS and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    return tuple(value) if name == "partial" else value


class Average(NamedTuple):
    """One number over seeds."""

    row: Row
    """That of the first seed; its value is not the mean."""

    mean: float

    deviation: float | None
    """Standard deviation of a sample, over n - 1; None for one seed."""

    seeds: tuple[int, ...]

    milliseconds: float | None
    """Median over the seeds that were timed."""


def averages(rows: Sequence[Row]) -> list[Average]:
    """Rows that differ in nothing but their seed become one; in the order of their first rows."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.identity("seed"), []).append(row)
    return [_average(group) for group in groups.values()]


def reference_of(average: Average, candidates: Sequence[Average]) -> Average | None:
    """The number of a reference model that a number is compared with.

    It is the one in the same precision, at the same resolution, budget and share where there is
    one, or else at the same one of these: a twin with shares but without budgets is taken at the
    same share. A reference without such a choice, or that was measured in one way only, serves for
    all; None where it is not clear.
    """
    row = average.row
    found = [other for other in candidates if other.row.metric == row.metric]
    for name in ("precision", "resolution", "setting", "budget", "ffn"):
        own = getattr(row, name)
        found = [other for other in found if getattr(other.row, name) == own] or found
    return found[0] if len(found) == 1 else None


def retention(average: Average, reference: Average | None) -> str:
    """Mean over mean: '97.6 %' of what is right, 'x1.03' of an error; '-' where there is none."""
    if reference is None or reference.mean == 0:
        return "-"
    ratio = average.mean / reference.mean
    return f"{100 * ratio:.1f} %" if average.row.more_is_better else f"x{ratio:.3f}"


def number(average: Average) -> str:
    """Mean and spread with the digits that papers print: two of percent, four of errors."""
    digits = 2 if average.row.more_is_better else 4
    told = f"{average.mean:.{digits}f}"
    return told if average.deviation is None else f"{told} ± {average.deviation:.{digits}f}"


def _average(rows: Sequence[Row]) -> Average:
    """The rows of one number; each seed counts once."""
    values = {row.seed: row.value for row in rows}
    times = [row.milliseconds for row in rows if row.milliseconds is not None]
    return Average(
        row=rows[0],
        mean=statistics.fmean(values.values()),
        deviation=statistics.stdev(values.values()) if len(values) > 1 else None,
        seeds=tuple(sorted(values)),
        milliseconds=statistics.median(times) if times else None,
    )
