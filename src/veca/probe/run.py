"""Run one probe job: find its datasets and models, evaluate them, and turn results into rows.

`Evaluator.check` raises every mistake a user can make before anything is computed. Heads and
per-image results are saved as they are found (`heads.py`); the caller writes the report.
"""

import datetime
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, cast

from veca.data.images import DataError
from veca.data.listing import one_line
from veca.data.sets.dataset import Kind, LabeledDataset, check_same_classes
from veca.data.sets.registry import SETS, read_set
from veca.probe.feature_cache import ProbeContext
from veca.probe.heads import save_examples, save_result
from veca.probe.metrics import UNITS
from veca.probe.models import FrozenModel, find_model, time_models
from veca.probe.protocols import ProbeInputs, Protocol, adapt, find_protocol, training_split
from veca.probe.rows import ProbeError, ProbeResult, Role, Row, Setting, Task, Unit
from veca.runtime import VERSION
from veca.runtime.logging import logger


class TaskSpec(NamedTuple):
    """A task: its code, the labels it needs, and its default protocols."""

    module: str
    """Imported when the task runs."""
    function: str
    """Called with `ProbeInputs`."""
    kind: Kind
    """Required labels of the dataset."""
    published: str
    """Default protocol for published datasets."""
    own: str
    """Default protocol for folders of the user."""


TASK_SPECS: Mapping[Task, TaskSpec] = {
    "knn": TaskSpec("classification", "evaluate_knn", "classes", "dinov2", "dinov2"),
    "logistic": TaskSpec("classification", "evaluate_logistic", "classes", "dinov2", "dinov2"),
    "linear": TaskSpec("classification", "evaluate_linear", "classes", "dinov3", "dinov3-small"),
    "segmentation": TaskSpec(
        "segmentation", "evaluate_segmentation", "masks", "dinov3", "dinov3-small"
    ),
    "dense-knn": TaskSpec("knn", "evaluate_dense_knn", "masks", "dense-knn", "dense-knn-small"),
    "depth": TaskSpec("depth", "evaluate_depth", "depth", "dinov3", "dinov3-small"),
}

MAX_MODELS = 4
"""Models that are held in memory; a suite may have many."""

MAX_HASHED_BYTES = 2**28
"""Of masks or depth; of larger splits `SAMPLED_TARGETS` files are hashed."""

SAMPLED_TARGETS = 64


@dataclass(frozen=True, kw_only=True)
class Job:
    """One probe, as `veca probe TASK DATA ...` would run it; None means the command's default."""

    task: Task
    data: str
    """As the command takes it: a folder, or NAME=FOLDER."""
    model: str
    teacher: str | None = None
    baseline: tuple[str, ...] = ()
    """Full-attention models to measure as well, in the order of tables."""
    budgets: tuple[int, ...] | None = None
    ffn: tuple[float, ...] | None = None
    """Shares of the hidden units."""
    resolution: int | None = None
    protocol: str | None = None
    feature: str | None = None
    also: tuple[str, ...] = ()
    """More datasets to evaluate the same heads on, such as ImageNetV2 for ImageNet-1K."""
    seed: int = 0
    allow_partial: bool = False

    @property
    def name(self) -> str:
        """Readable name for logs."""
        side = f" at {self.resolution} px" if self.resolution is not None else ""
        protocol = f", {self.protocol}" if self.protocol is not None else ""
        return f"{self.task} of {self.model} on {self.data}{side}{protocol}, seed {self.seed}"


class Probe(NamedTuple):
    """One model of a job."""

    role: Role
    name: str
    """As the user gave it."""
    model: FrozenModel
    settings: Sequence[Setting]
    protocol: Protocol
    """As used with this model."""
    protocol_sha256: str
    """Of the protocol before it was adapted to the model."""

    @property
    def resolution(self) -> int:
        """Side of what the model sees, in pixels."""
        return self.model.round_down_to_patch(self.protocol.resolution or 0)


@dataclass(kw_only=True)
class Evaluator:
    """Runs jobs one after the other; datasets and models are loaded once."""

    ctx: ProbeContext
    out: Path
    """Where heads and per-image results are saved."""
    command: str = ""
    rounds: int = 7
    """Of timing; 0 skips it."""
    heads: list[tuple[Role, Path]] = field(default_factory=list)
    """Saved so far."""
    models: dict[str, FrozenModel] = field(default_factory=dict)
    datasets: dict[tuple[str, bool], LabeledDataset] = field(default_factory=dict)
    hashes: dict[int, str] = field(default_factory=dict)

    def check(self, job: Job) -> None:
        """Load the datasets and models of a job; raise if anything is missing or invalid."""
        self._probes(job, self._datasets(job)[0])

    def run_job(self, job: Job, seeds: Sequence[int] | None = None) -> list[Row]:
        """The rows of a job, for several seeds at once if given."""
        (data, *also), seeds = self._datasets(job), seeds or (job.seed,)
        for dataset in (data, *also):
            if "split" in dataset.facts:
                logger.info("%s: %s.", dataset.name, dataset.facts["split"])
            if dataset.missing:
                logger.warning("%s is partial: %s.", dataset.name, "; ".join(dataset.missing))
        if job.task == "knn" and len(seeds) > 1:
            logger.info("kNN is deterministic; running only seed %d.", seeds[0])
        probes = self._probes(job, data)
        rows = [row for probe in probes for row in self._run_probe(job, probe, data, also, seeds)]
        return with_costs(rows, probes, self.rounds if self.ctx.ranks.is_main else 0)

    def _run_probe(
        self,
        job: Job,
        probe: Probe,
        data: LabeledDataset,
        also: Sequence[LabeledDataset],
        seeds: Sequence[int],
    ) -> list[Row]:
        """The rows of one model; its heads, per-image results and examples are saved."""
        labels = ", ".join(setting.label for setting in probe.settings)
        logger.info(
            "%s of %s on %s at %d px (%s), protocol %s.",
            job.task, probe.name, data.name, probe.resolution, labels, probe.protocol.name,
        )  # fmt: skip
        spec, rows = TASK_SPECS[job.task], list[Row]()
        evaluate = getattr(import_module(f"veca.probe.{spec.module}"), spec.function)
        shown: dict[str, list[tuple[ProbeResult, Row]]] = {}
        inputs = ProbeInputs(
            probe.model, probe.settings, data, probe.protocol, seeds, self.ctx, also
        )
        for result in evaluate(inputs):
            found = self._rows(job, probe, data, result)
            if found and self.ctx.ranks.is_main:
                path = save_result(result, found[0], job.feature, self.out)
                self.heads += [] if path is None else [(probe.role, path)]
                if probe.role == "model" and result.seed == seeds[0]:
                    pair = replace(result, tensors={}), found[0]
                    shown.setdefault(result.data.name, []).append(pair)
            rows += found
        for pairs in shown.values():
            self._save_examples(job, pairs)
        return rows

    def _save_examples(self, job: Job, pairs: list[tuple[ProbeResult, Row]]) -> None:
        """Save what the page shows of a model's results, each with one of its rows."""
        pairs.sort(key=lambda pair: [math.inf if one is None else one for one in pair[0].setting])
        try:
            save_examples([result for result, _ in pairs], pairs[-1][1], job.feature, self.out)
        except (OSError, ValueError) as error:  # the numbers are there
            where = pairs[0][0].data.name
            logger.warning("The page has no pictures of %s (%s).", where, one_line(error))

    def expect(self, job: Job) -> list[dict[str, Any]]:
        """Fields that identify the rows of a job, so that a suite can skip finished jobs."""
        data, *also = self._datasets(job)
        return [
            {"task": job.task, "version": VERSION}
            | self._identity(probe, tested, setting, job.seed)
            for probe in self._probes(job, data)
            for setting in probe.settings
            for tested in (data, *also)
        ]

    def _datasets(self, job: Job) -> list[LabeledDataset]:
        """The dataset of a job, then those of --also; each is read once."""
        for text in (job.data, *job.also):
            if (text, job.allow_partial) not in self.datasets:
                found = read_set(text, allow_partial=job.allow_partial)
                self.datasets[text, job.allow_partial] = found
        data, *also = (self.datasets[text, job.allow_partial] for text in (job.data, *job.also))
        kind = TASK_SPECS[job.task].kind
        if data.kind != kind:
            suited = ", ".join(task for task, spec in TASK_SPECS.items() if spec.kind == data.kind)
            raise DataError(
                f"{data.name} is labeled with {data.kind}, but {job.task} needs {kind}; use "
                f"{suited}, or another dataset."
            )
        if also and kind != "classes":
            raise DataError(
                f"--also is only available for classification, not for {job.task}; leave it out."
            )
        training_split(data)
        for other in also:
            check_same_classes(other, data)
        return [data, *also]

    def _model(self, name: str) -> FrozenModel:
        """Load a model; the most recently used ones stay in memory."""
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
        if job.resolution is not None and job.resolution < 1:
            raise ProbeError(f"resolution is {job.resolution}; it must be >= 1.")
        models: list[tuple[Role, str]] = [("model", job.model)]
        models += [] if job.teacher is None else [("teacher", job.teacher)]
        models += [("baseline", name) for name in job.baseline]
        named = job.protocol or default_protocol(job.task, job.data)
        protocol, found = find_protocol(job.task, named, data), []
        for role, name in models:
            model = self._model(name)
            settings = model.settings(job.budgets, job.ffn)
            adapted = adapt(protocol, model, job.resolution, job.feature)
            found.append(Probe(role, name, model, settings, adapted, protocol.sha256()))
        return found

    def _identity(
        self, probe: Probe, tested: LabeledDataset, setting: Setting, seed: int
    ) -> dict[str, Any]:
        """Fields of a row that do not depend on the result."""
        if id(tested) not in self.hashes:  # once, since a dataset may have millions of images
            self.hashes[id(tested)] = data_hash(tested)
        return {
            "role": probe.role,
            "model": probe.name,
            "weights": probe.model.digest,
            "budget": setting.budget,
            "ffn": setting.ffn,
            "resolution": probe.resolution,
            "precision": probe.model.precision,
            "data": tested.name,
            "data_sha256": self.hashes[id(tested)],
            "protocol_sha256": probe.protocol_sha256,
            "feature": probe.protocol.feature,
            "seed": seed,
        }

    def _rows(self, job: Job, probe: Probe, data: LabeledDataset, result: ProbeResult) -> list[Row]:
        """A row for each metric of a result, without costs."""
        model, protocol, tested = probe.model, probe.protocol, result.data
        on = {} if protocol.chosen_on is None else {"on": protocol.chosen_on}
        patches, budget = (probe.resolution // model.stride) ** 2, result.setting.budget
        facts = dict(tested.facts)
        if tested.eval_classes is not None:
            facts["scored"] = [tested.classes[index] for index in tested.eval_classes]
        shared = self._identity(probe, tested, result.setting, result.seed)
        return [
            Row(
                **shared,
                task=job.task,
                metric=metric,
                value=value,
                unit=cast(Unit, UNITS.get(metric, "%")),
                trained=model.trained,
                split=tested.test.name,
                counts=dict(result.counts),
                data_facts=facts,
                protocol=protocol.name,
                # A head that was fitted on a partial dataset is partial wherever it is tested.
                partial=tuple(dict.fromkeys((*data.missing, *tested.missing))),
                chosen={**result.chosen, **on},
                patches_per_core=patches / budget if budget else None,
                command=self.command,
                date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            )
            for metric, value in result.metrics.items()
        ]


def with_costs(rows: Sequence[Row], probes: Sequence[Probe], rounds: int) -> list[Row]:
    """Rows with milliseconds and GFLOPs of one image through the backbone.

    Models at one resolution are timed in turns; 0 rounds leave times out.
    """
    costs: dict[tuple[str, Setting], dict[str, Any]] = {}
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
        for ((name, setting), probe), time in zip(timed.items(), times, strict=True):
            gflops = probe.model.gflops((probe.resolution, probe.resolution), setting)
            costs[name, setting] = {"milliseconds": time, "gflops": gflops}
    return [replace(row, **costs[row.model, row.setting]) for row in rows]


def default_protocol(task: Task, data: str) -> str:
    """The protocol if none is given; `data` is the dataset as the user gave it."""
    name, _, folder = data.partition("=")
    spec = TASK_SPECS[task]
    return spec.published if folder and name in SETS else spec.own


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
