"""Results of an evaluation: rows, their means over seeds, and sections that may be compared.

A row is one number with everything needed to interpret and reproduce it; `report.json` is a list of
rows. Rows that differ in their seed only become one `SeedMean`; those of one task, dataset,
protocol and feature form a `Section`, a table of the report.
"""

import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

from torch import Tensor

from veca.data.sets.dataset import LabeledDataset
from veca.runtime import VERSION, VecaError
from veca.runtime.device import ResolvedPrecision


class Setting(NamedTuple):
    """Cores and share of the hidden units; None for a model without that choice."""

    budget: int | None = None
    ffn: float | None = None

    @property
    def label(self) -> str:
        """Short and safe in a file name: 'c8', 'c64-f0.5', 'whole'."""
        parts = [f"c{self.budget}"] if self.budget is not None else []
        parts += [f"f{self.ffn:g}"] if self.ffn is not None else []
        return "-".join(parts) or "whole"


Task = Literal["linear", "knn", "logistic", "dense-knn", "segmentation", "depth"]
TASKS: tuple[Task, ...] = get_args(Task)

CLASS_TASKS: tuple[Task, ...] = ("knn", "logistic", "linear")
"""Tasks whose numbers are averaged in comparisons."""

Role = Literal["model", "teacher", "baseline", "published"]
"""A baseline is a full-attention model of the same size; published numbers are those of a paper."""

Unit = Literal["%", "m", ""]
"""Percent of correct predictions, where higher is better; anything else is an error, where lower is
better: meters, or a bare number."""

MEASURED = ("value", "milliseconds", "gflops", "patches_per_core", "chosen", "version", "command",
            "date")  # fmt: skip
"""Fields that do not identify a number: results, and how and when they were measured."""

PRIMARY_METRICS = ("map_k20", "top1_k20", "map", "top1", "miou", "rmse")
"""The first of these that was measured leads a table."""


@dataclass(frozen=True, kw_only=True)
class ProbeResult:
    """The result of a task for one setting and seed of a model on one test split.

    `counts` and `chosen` are those of its rows.
    """

    data: LabeledDataset
    """The dataset that was tested on: that of the head, or another one with its classes."""
    setting: Setting
    seed: int
    metrics: Mapping[str, float]
    counts: Mapping[str, int]
    chosen: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    """Of the fitted head; empty if it belongs to another dataset or is too large to save."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Plain values that `veca predict` needs besides the tensors."""
    per_image: Mapping[str, Tensor] = field(default_factory=dict)
    """Results of each test image, in the order of the split, for paired comparisons."""
    predict: Callable[[int], Tensor] | None = None
    """Classes or meters of the pixels of a test image; None where images have classes."""


class ProbeError(VecaError, ValueError):
    """A model, protocol, head, suite or report that cannot be used."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One metric of one model, at one budget and resolution, with one seed."""

    task: Task
    model: str
    """The name that was given."""
    data: str
    budget: int | None = None
    """Cores; None for a model without this choice."""
    resolution: int
    """Side or short side of what the model saw, in pixels."""
    metric: str
    """Such as top1_k20, miou, rmse."""
    value: float
    unit: Unit
    seed: int = 0
    role: Role = "model"
    weights: str | None = None
    """SHA-256 of the weights; None where unknown."""
    trained: bool = True
    """False for random weights."""
    ffn: float | None = None
    """Share of the hidden units; None for all of them, and for a model without this choice."""
    precision: ResolvedPrecision = "fp32"
    """Precision of the backbone; older rows were all fp32."""
    split: str
    counts: Mapping[str, int]
    """Images that were used, by 'train' and 'test'; for classes 'fitted' is the number of images
    that the head was fitted on, less than 'train' where some were held out."""
    data_sha256: str | None = None
    """Over names and sizes of those images."""
    data_facts: Mapping[str, Any] = field(default_factory=dict)
    """More about the dataset: which list was used, which classes are evaluated."""
    protocol: str
    protocol_sha256: str | None = None
    """Over every number of the protocol: a name may have other values in another version."""
    feature: str
    """Which output of the model the head sees."""
    partial: Sequence[str] = ()
    """Sentences on what the dataset lacks; if any, the number must not be compared."""
    chosen: Mapping[str, Any] = field(default_factory=dict)
    """What was selected, such as a learning rate, and 'on' which images: selecting on the reported
    split is slightly optimistic."""
    patches_per_core: float | None = None
    milliseconds: float | None = None
    """Of one image through the backbone, with batch size 1."""
    gflops: float | None = None
    """Of one image through the backbone."""
    command: str = ""
    version: str = VERSION
    date: str = ""
    """When it was measured, in ISO 8601 (UTC); empty in rows of older versions."""

    def __post_init__(self) -> None:
        """Refuse a value that neither JSON nor a table can hold."""
        if not math.isfinite(self.value):
            raise ProbeError(
                f"{self.metric} of {self.model} on {self.data} is {self.value}; a value must be "
                "finite: look for features or targets that are not."
            )

    @property
    def setting(self) -> Setting:
        """Budget and share of the hidden units."""
        return Setting(self.budget, self.ffn)

    @property
    def more_is_better(self) -> bool:
        """Whether the metric counts correct predictions; otherwise it is an error."""
        return self.unit == "%"

    def identity(self, *ignored: str) -> str:
        """Text that is equal for repeated measurements of one number.

        Fields in `ignored` are left out too, such as the seed to find rows to average.
        """
        left_out = {*MEASURED, *ignored}
        found = {name: value for name, value in vars(self).items() if name not in left_out}
        # `fitted` follows from protocol and splits, and older rows lack it.
        found["counts"] = {name: self.counts[name] for name in self.counts if name != "fitted"}
        return json.dumps(found, sort_keys=True)

    def as_json(self) -> dict[str, Any]:
        """The row as plain values."""
        return {**vars(self), "partial": list(self.partial)}


def row_from_json(value: object) -> Row:
    """The row of a JSON object, of this version or an older one."""
    if not isinstance(value, dict):
        raise ProbeError(f"it is {type(value).__name__}; it must be an object with named fields.")
    found = dict(value)
    if found.get("role") == "control":  # in reports of older versions
        found["role"] = "baseline"
    for name in ("task", "role", "unit", "precision"):
        allowed = get_args(Row.__annotations__[name])
        if name in found and found[name] not in allowed:
            raise ProbeError(
                f"{name} of a row is {found[name]!r}; it must be one of "
                f"{', '.join(map(repr, allowed))}."
            )
    try:
        return Row(**found | {"partial": tuple(found.get("partial", ()))})
    except TypeError as error:
        raise ProbeError(
            f"{error}; it was written by another version of veca: measure again into another "
            "folder."
        ) from error


def merge_rows(old: Sequence[Row], new: Sequence[Row]) -> list[Row]:
    """Old rows, each replaced if a new one has its identity, then the remaining new ones."""
    return list({row.identity(): row for row in (*old, *new)}.values())


def primary_metric(metrics: Sequence[str]) -> str:
    """The metric that leads a table of these."""
    return next((name for name in PRIMARY_METRICS if name in metrics), metrics[0])


class SeedMean(NamedTuple):
    """One number over seeds."""

    row: Row
    """That of the first seed; its value is not the mean."""
    mean: float
    std: float | None
    """Standard deviation of a sample, over n - 1; None for one seed."""
    seeds: tuple[int, ...]
    milliseconds: float | None
    """Median over the seeds that were timed."""


def mean_over_seeds(rows: Sequence[Row]) -> list[SeedMean]:
    """Rows that differ in their seed only become one; in the order of their first rows."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.identity("seed"), []).append(row)
    found = []
    for group in groups.values():
        values = {row.seed: row.value for row in group}
        times = [row.milliseconds for row in group if row.milliseconds is not None]
        found.append(
            SeedMean(
                row=group[0],
                mean=statistics.fmean(values.values()),
                std=statistics.stdev(values.values()) if len(values) > 1 else None,
                seeds=tuple(sorted(values)),
                milliseconds=statistics.median(times) if times else None,
            )
        )
    return found


def reference_of(item: SeedMean, candidates: Sequence[SeedMean]) -> SeedMean | None:
    """The number of a reference model that a number is compared with.

    It has the same precision, resolution, budget and share of hidden units, as far as the reference
    was measured with these: a baseline with shares but without budgets is compared at the same
    share, and a reference that was measured in one way only is used for all. None if ambiguous.
    """
    found = [other for other in candidates if other.row.metric == item.row.metric]
    for name in ("precision", "resolution", "setting", "budget", "ffn"):
        own = getattr(item.row, name)
        found = [other for other in found if getattr(other.row, name) == own] or found
    return found[0] if len(found) == 1 else None


class ModelKey(NamedTuple):
    """A model in a role; weights distinguish models of one name."""

    role: Role
    model: str
    weights: str | None
    trained: bool

    @classmethod
    def of(cls, row: Row) -> "ModelKey":
        """That of a row."""
        return cls(row.role, row.model, row.weights, row.trained)


@dataclass(frozen=True)
class Section:
    """Numbers that may be compared: one task, dataset, protocol and feature."""

    means: Sequence[SeedMean]

    @property
    def row(self) -> Row:
        """One of the rows, for what they share."""
        return self.means[0].row

    @property
    def title(self) -> str:
        """Title of the table."""
        row = self.row
        found = f"{row.task} on {row.data}, protocol {row.protocol}, feature {row.feature}"
        return f"{found} (PARTIAL)" if row.partial else found

    @property
    def metrics(self) -> list[str]:
        """Every metric, the primary one first."""
        found = list(dict.fromkeys(item.row.metric for item in self.means))
        first = primary_metric(found)
        return [first, *(name for name in found if name != first)]

    @property
    def models(self) -> list[ModelKey]:
        """Models, then teachers, baselines and published ones."""
        found = dict.fromkeys(ModelKey.of(item.row) for item in self.means)
        return sorted(found, key=lambda key: get_args(Role).index(key.role))

    @property
    def lines(self) -> list[list[SeedMean]]:
        """All metrics of each model, resolution, budget and share, in the order of a table."""
        groups: dict[str, list[SeedMean]] = {}
        for item in self.means:
            groups.setdefault(item.row.identity("seed", "metric", "unit"), []).append(item)
        models = self.models
        return sorted(groups.values(), key=lambda line: table_order(models, line[0].row))

    def name(self, key: ModelKey) -> str:
        """The name of a model with role and, if needed, its weights."""
        same = [other for other in self.models if other[:2] == key[:2]]
        name = f"{key.model} @{(key.weights or 'none')[:8]}" if len(same) > 1 else key.model
        name = f"{name}, untrained" if not key.trained else name
        return f"{name} ({key.role})" if key.role != "model" else name


def sections(rows: Sequence[Row]) -> list[Section]:
    """The tables of a report, in the order of their first rows."""
    own = (
        "seed", "model", "role", "weights", "trained", "budget", "ffn", "resolution", "metric",
        "unit",
    )  # fmt: skip
    groups: dict[str, list[SeedMean]] = {}
    for item in mean_over_seeds(rows):
        groups.setdefault(item.row.identity(*own), []).append(item)
    return [Section(group) for group in groups.values()]


def table_order(models: Sequence[ModelKey], row: Row) -> tuple[int, int, float, float]:
    """Sort key of a line: by model, resolution, budget and share; the whole model comes last."""
    budget = math.inf if row.budget is None else float(row.budget)
    ffn = math.inf if row.ffn is None else row.ffn
    return models.index(ModelKey.of(row)), row.resolution, budget, ffn
