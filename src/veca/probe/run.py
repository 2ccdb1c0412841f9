"""Run one probe job: find its datasets and models, evaluate them, and turn results into rows.

`Evaluator.check` raises every mistake a user can make before anything is computed. Heads and
per-image results are saved as they are found (`predict.py`); the caller writes the report.
"""

import datetime
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, cast

from veca.data.images import DataError
from veca.data.sets.dataset import Kind, LabeledDataset, check_same_classes
from veca.data.sets.registry import SETS, read_set
from veca.probe.feature_cache import RunContext
from veca.probe.metrics import UNITS
from veca.probe.models import FrozenModel, find_model, time_models
from veca.probe.predict import save_result
from veca.probe.protocols import Protocol, adapt, find_protocol, training_split
from veca.probe.rows import ProbeResult, Role, Row, Setting, Task, Unit
from veca.probe.suite import Job
from veca.runtime import VERSION

TASKS: Mapping[Task, tuple[str, str]] = {
    "knn": ("veca.probe.classification", "evaluate_knn"),
    "logistic": ("veca.probe.classification", "evaluate_logistic"),
    "linear": ("veca.probe.classification", "evaluate_linear"),
    "segmentation": ("veca.probe.segmentation", "evaluate_segmentation"),
    "dense-knn": ("veca.probe.knn", "evaluate_dense_knn"),
    "depth": ("veca.probe.depth", "evaluate_depth"),
}
"""Module and function of a task, imported when it runs. Called with model, settings, dataset,
protocol, seeds and context; classification tasks also with further datasets to test on."""

KINDS: Mapping[Task, Kind] = {
    "knn": "classes", "logistic": "classes", "linear": "classes",
    "segmentation": "masks", "dense-knn": "masks", "depth": "depth",
}  # fmt: skip
"""What a dataset must be labeled with for a task."""

DEFAULT_PROTOCOLS: Mapping[Task, tuple[str, str]] = {
    "knn": ("dinov2", "dinov2"),
    "logistic": ("dinov2", "dinov2"),
    "linear": ("dinov3", "dinov3-small"),
    "segmentation": ("dinov3", "dinov3-small"),
    "dense-knn": ("dense-knn", "dense-knn-small"),
    "depth": ("dinov3", "dinov3-small"),
}
"""For published datasets, and for folders of the user."""

MAX_MODELS = 4
"""Models that are held in memory; a suite may have many."""

MAX_HASHED_BYTES = 2**28
"""Of masks or depth; of larger splits `SAMPLED_TARGETS` files are hashed."""

SAMPLED_TARGETS = 64


def _evaluation(task: Task) -> Callable[..., Iterator[ProbeResult]]:
    """The function of a task."""
    module, name = TASKS[task]
    return getattr(import_module(module), name)


class Probe(NamedTuple):
    """One model of a job."""

    role: Role
    name: str
    """As the user gave it."""
    model: FrozenModel
    settings: Sequence[Setting]
    protocol: Protocol
    """As used with this model."""

    @property
    def resolution(self) -> int:
        """Side of what the model sees, in pixels."""
        return self.model.round_down_to_patch(self.protocol.resolution or 0)


@dataclass(kw_only=True)
class Evaluator:
    """Runs jobs one after the other; datasets and models are loaded once."""

    ctx: RunContext
    out: Path | None
    """Where heads and per-image results are saved; None saves nothing."""
    command: str = ""
    rounds: int = 7
    """Of timing; 0 skips it."""
    heads: list[tuple[Role, Path]] = field(default_factory=list)
    """Saved so far."""
    models: dict[str, FrozenModel] = field(default_factory=dict)
    datasets: dict[tuple[str, bool], LabeledDataset] = field(default_factory=dict)
    hashes: dict[int, str] = field(default_factory=dict)

    def check(self, job: Job) -> None:
        """Find everything a job needs, or raise what is wrong with it."""
        self._probes(job, self._datasets(job)[0])

    def run_job(self, job: Job, seeds: Sequence[int] | None = None) -> list[Row]:
        """The rows of a job, for several seeds at once if given."""
        (data, *also), seeds = self._datasets(job), seeds or (job.seed,)
        for dataset in (data, *also):
            if dataset.missing:
                self.ctx.log(f"{dataset.name} is partial: {'; '.join(dataset.missing)}.")
        if job.task == "knn" and len(seeds) > 1:
            self.ctx.log(f"kNN is deterministic; running only seed {seeds[0]}.")
        probes, rows = self._probes(job, data), list[Row]()
        for probe in probes:
            labels = ", ".join(setting.label for setting in probe.settings)
            self.ctx.log(
                f"{job.task} of {probe.name} on {data.name} at {probe.resolution} px ({labels}), "
                f"protocol {probe.protocol.name}."
            )
            more = {"also": also} if data.kind == "classes" else {}
            evaluate = _evaluation(job.task)
            for result in evaluate(
                probe.model, probe.settings, data, probe.protocol, seeds, self.ctx, **more
            ):
                found = self._rows(job, probe, data, result)
                if found and self.out is not None and self.ctx.ranks.is_main:
                    path = save_result(result, found[0], job.feature, self.out)
                    self.heads += [] if path is None else [(probe.role, path)]
                rows += found
        return with_costs(rows, probes, self.rounds if self.ctx.ranks.is_main else 0)

    def expect(self, job: Job) -> list[dict[str, Any]]:
        """Fields that identify the rows of a job, so that a suite can skip what is done."""
        data, *also = self._datasets(job)
        return [
            {
                "task": job.task,
                "role": probe.role,
                "model": probe.name,
                "weights": probe.model.digest,
                "budget": setting.budget,
                "ffn": setting.ffn,
                "resolution": probe.resolution,
                "precision": probe.model.precision,
                "data": tested.name,
                "data_sha256": self._hash(tested),
                "protocol_sha256": _named_protocol(job, data).sha256(),
                "feature": probe.protocol.feature,
                "seed": job.seed,
                "version": VERSION,
            }
            for probe in self._probes(job, data)
            for setting in probe.settings
            for tested in (data, *also)
        ]

    def _datasets(self, job: Job) -> list[LabeledDataset]:
        """The dataset of a job, then those of --also."""
        data, *also = (self._dataset(text, job.allow_partial) for text in (job.data, *job.also))
        if data.kind != KINDS[job.task]:
            suited = ", ".join(task for task, kind in KINDS.items() if kind == data.kind)
            raise DataError(
                f"{data.name} is labeled with {data.kind}, but {job.task} needs {KINDS[job.task]}; "
                f"use {suited}, or another dataset."
            )
        if also and data.kind != "classes":
            raise DataError(
                f"--also is only available for classification, not for {job.task}; leave it out."
            )
        training_split(data)
        for other in also:
            check_same_classes(other, data)
        return [data, *also]

    def _dataset(self, text: str, allow_partial: bool) -> LabeledDataset:
        """A dataset, read once."""
        key = (text, allow_partial)
        if key not in self.datasets:
            self.datasets[key] = read_set(text, allow_partial=allow_partial)
        return self.datasets[key]

    def _model(self, name: str) -> FrozenModel:
        """A model; the ones used last stay in memory."""
        found = self.models.pop(name, None)
        if found is None:
            found = find_model(name, self.ctx.ranks.device)
            found.precision = self.ctx.precision
        self.models[name] = found
        for oldest in list(self.models)[:-MAX_MODELS]:
            del self.models[oldest]
        return found

    def _probes(self, job: Job, data: LabeledDataset) -> list[Probe]:
        """The models of a job with their protocols."""
        asked: list[tuple[Role, str | None]] = [
            ("model", job.model), ("teacher", job.teacher),
            *(("baseline", name) for name in job.baseline),
        ]  # fmt: skip
        protocol = _named_protocol(job, data)
        found = []
        for role, name in asked:
            if name is not None:
                model = self._model(name)
                settings = model.settings(job.budgets, job.ffn)
                adapted = adapt(protocol, model, job.resolution, job.feature)
                found.append(Probe(role, name, model, settings, adapted))
        return found

    def _rows(self, job: Job, probe: Probe, data: LabeledDataset, result: ProbeResult) -> list[Row]:
        """A row for each metric of a result, without costs."""
        model, protocol, tested = probe.model, probe.protocol, result.data
        on = {} if protocol.chosen_on is None else {"on": protocol.chosen_on}
        patches, budget = (probe.resolution // model.stride) ** 2, result.setting.budget
        return [
            Row(
                task=job.task,
                model=probe.name,
                data=tested.name,
                budget=budget,
                resolution=probe.resolution,
                metric=metric,
                value=value,
                unit=cast(Unit, UNITS.get(metric, "%")),
                seed=result.seed,
                role=probe.role,
                weights=model.digest,
                trained=model.trained,
                ffn=result.setting.ffn,
                precision=model.precision,
                split=tested.test.name,
                counts=dict(result.counts),
                data_sha256=self._hash(tested),
                data_facts=_data_facts(tested),
                protocol=protocol.name,
                protocol_sha256=_named_protocol(job, data).sha256(),
                feature=protocol.feature,
                # A head that was fitted on a partial dataset is partial wherever it is tested.
                partial=tuple(dict.fromkeys((*data.missing, *tested.missing))),
                chosen={**result.chosen, **on},
                patches_per_core=patches / budget if budget else None,
                command=self.command,
                date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            )
            for metric, value in result.metrics.items()
        ]

    def _hash(self, data: LabeledDataset) -> str:
        """The hash of a dataset, computed once, since it may have millions of images."""
        if id(data) not in self.hashes:
            self.hashes[id(data)] = data_hash(data)
        return self.hashes[id(data)]


def with_costs(rows: Sequence[Row], probes: Sequence[Probe], rounds: int) -> list[Row]:
    """Rows with milliseconds and GFLOPs of one image through the backbone.

    Models that were asked for at one resolution are timed in turns; 0 rounds leave times out.
    """
    costs: dict[tuple[str, Setting], tuple[float | None, float | None]] = {}
    for resolution in dict.fromkeys(probe.protocol.resolution or 0 for probe in probes):
        timed = {
            (probe.name, setting): probe
            for probe in probes
            if probe.protocol.resolution == resolution
            for setting in probe.settings
        }
        times: Sequence[float | None] = [None] * len(timed)
        if rounds:
            pairs = [(probe.model, setting) for (_, setting), probe in timed.items()]
            times = time_models(pairs, (resolution, resolution), rounds)
        for (key, probe), time in zip(timed.items(), times, strict=True):
            sides = (probe.resolution, probe.resolution)
            costs[key] = time, probe.model.gflops(sides, key[1])
    return [
        replace(row, milliseconds=milliseconds, gflops=gflops)
        for row in rows
        for milliseconds, gflops in [costs[row.model, row.setting]]
    ]


def default_protocol(task: Task, data: str) -> str:
    """The protocol if none is given; `data` is the dataset as the user gave it."""
    name, _, folder = data.partition("=")
    published, own = DEFAULT_PROTOCOLS[task]
    return published if folder and name in SETS else own


def _named_protocol(job: Job, data: LabeledDataset) -> Protocol:
    """The protocol of a job before it is adapted to a model."""
    return find_protocol(job.task, job.protocol or default_protocol(job.task, job.data), data)


def data_hash(data: LabeledDataset) -> str:
    """SHA-256 over the names and sizes of all images, their labels, and which classes count.

    Masks and depth are read if they are few; many are identified by their sizes and a sample.
    """
    found = hashlib.sha256("\n".join(data.classes).encode("utf-8", "surrogateescape"))
    found.update(f"{data.eval_classes} {data.depth}".encode())
    for split in (data.train, data.val, data.test):
        if split is None:
            continue
        found.update(f"\0{split.name} {split.fingerprint()}".encode())
        for values in (split.labels, split.counted):
            found.update(b"\0" if values is None else values.tobytes())
        sizes = [Path(target).stat().st_size for target in split.targets]
        found.update(repr(sizes).encode())
        every = 1 if sum(sizes) <= MAX_HASHED_BYTES else max(1, len(sizes) // SAMPLED_TARGETS)
        for target in split.targets[::every]:
            found.update(hashlib.sha256(Path(target).read_bytes()).digest())
    return found.hexdigest()


def _data_facts(data: LabeledDataset) -> dict[str, Any]:
    """More about a dataset for reports: which list was used, which classes are evaluated."""
    if data.eval_classes is None:
        return dict(data.facts)
    return {**data.facts, "scored": [data.classes[index] for index in data.eval_classes]}
