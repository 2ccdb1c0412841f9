"""One evaluation job, from names to rows.

What stands behind the name of a protocol: its content by a hash, and on what it chooses.

Hashes by which a labeled set is known, wherever it lies.

What a picture costs on its way through the backbones of a job.

Dense tasks by the name of a protocol, with results in the form that all tasks share.

Runs probes from names to rows: models and sets are found once, features are kept, heads saved.

What a job asks for is checked before anything is computed, so that a mistake is told at once and
not after the models before it. Heads and cases are written as they are found (`kept_results.py`);
the report is written by who calls (`report.py`).
"""

import datetime
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, cast, get_args

import torch
from torch import Tensor

from veca.data.sets.dataset import Kind, LabeledDataset, Split
from veca.data.sets.registry import SETS, read_set
from veca.probe.classification import ClassProbe, run_knn, run_linear, run_logistic
from veca.probe.depth import DepthResult, run_depth
from veca.probe.feature_cache import RunContext
from veca.probe.knn import run_dense_knn
from veca.probe.measured import FittedHead, Found, Measured, Measurement
from veca.probe.metrics import UNITS
from veca.probe.models import FrozenModel, find_model, time_models
from veca.probe.predict import Origin, keep_result
from veca.probe.protocols import (
    DenseProtocol,
    Feature,
    dense_knn_protocol,
    depth_protocol,
    for_model,
    knn_protocol,
    linear_protocol,
    logistic_protocol,
    segmentation_protocol,
)
from veca.probe.rows import Role, Row, Setting, Task, Unit
from veca.probe.segmentation import SegmentationResult, run_segmentation
from veca.probe.suite import Job
from veca.runtime import VERSION

CHOSEN_ON = {
    "test": "the reported part",
    "test-best-step": "the reported part",
    "held-out": "held-out pictures",
}
"""By the selection of a protocol; what chooses nothing is not here."""


def protocol_hash(
    task: Task, name: str, data: LabeledDataset, model: FrozenModel | None = None
) -> str:
    """SHA-256 over every number of a protocol as it is for a set, since names outlive numbers.

    With a model it is over the numbers for that one, which a row tells as resolution and feature.
    """
    found = _protocol(task, name, data)
    if model is not None and isinstance(found, DenseProtocol):
        found = for_model(found, model)
    content = asdict(found)
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def chosen_on(task: Task, name: str, data: LabeledDataset) -> str | None:
    """What a protocol chooses on: the reported part is a mild optimism; None chooses nothing."""
    if task == "logistic":
        return CHOSEN_ON["held-out"]
    return CHOSEN_ON.get(getattr(_protocol(task, name, data), "selection", "none"))


def _protocol(task: Task, name: str, data: LabeledDataset) -> Any:  # noqa: ANN401 - of six kinds
    """The protocol of a name."""
    if task == "knn":
        return knn_protocol(name)
    if task == "logistic":
        return logistic_protocol(name, data, 0)
    if task == "linear":
        return linear_protocol(name, data)
    if task == "dense-knn":
        return dense_knn_protocol(name)
    return depth_protocol(name, data) if task == "depth" else segmentation_protocol(name, data)


MOST_READ_BYTES = 2**28
"""Masks and depth of a part that are read whole to know them again."""

SAMPLED = 64
"""Files of a larger part that are."""


def data_hash(data: LabeledDataset) -> str:
    """SHA-256 over the names and sizes of all images, their labels, and which classes count.

    Masks and depth are read if they are few; many are identified by their sizes and a sample.
    """
    found = hashlib.sha256("\n".join(data.classes).encode("utf-8", "surrogateescape"))
    found.update(f"{data.eval_classes} {data.depth}".encode())
    for part in _parts(data):
        found.update(f"\0{part.name} {part.fingerprint()}".encode())
        for values in (part.labels, part.counted):
            found.update(b"\0" if values is None else values.tobytes())
        sizes = [Path(target).stat().st_size for target in part.targets]
        found.update(repr(sizes).encode())
        whole = sum(sizes) <= MOST_READ_BYTES
        for target in part.targets[:: 1 if whole else max(1, len(sizes) // SAMPLED)]:
            found.update(hashlib.sha256(Path(target).read_bytes()).digest())
    return found.hexdigest()


def said_of(data: LabeledDataset) -> dict[str, Any]:
    """What a report should say of a set besides its name: which list, which classes count."""
    if data.eval_classes is None:
        return dict(data.facts)
    return {**data.facts, "scored": [data.classes[number] for number in data.eval_classes]}


def _parts(data: LabeledDataset) -> list[Split]:
    """The parts that a set has."""
    return [part for part in (data.train, data.val, data.test) if part is not None]


class Cost(NamedTuple):
    """Of one picture through a backbone."""

    milliseconds: float | None
    gflops: float | None


def costs_of(found: Sequence[Found], rounds: int) -> dict[tuple[str, int, Setting], Cost]:
    """By model, resolution and setting; times are taken in turns, and none with 0 rounds."""
    costs: dict[tuple[str, int, Setting], Cost] = {}
    for resolution in dict.fromkeys(one.resolution for one in found):
        wanted = {
            (one.who.asked, resolution, one.measured.setting): one.who.model
            for one in found
            if one.resolution == resolution
        }
        pairs = [(model, key[2]) for key, model in wanted.items()]
        times: Sequence[float | None] = [None] * len(pairs)
        if rounds:
            times = time_models(pairs, (resolution, resolution), rounds)
        for (key, model), time in zip(wanted.items(), times, strict=True):
            side = model.round_down_to_patch(resolution)
            costs[key] = Cost(time, model.gflops((side, side), key[2]))
    return costs


DenseFeature = Literal["patches", "patches+image"]
"""What a dense head sees: each patch feature, alone or followed by the image feature."""

Chosen = TypeVar("Chosen", bound=DenseProtocol)

Results = (
    Mapping[tuple[Setting, int], SegmentationResult] | Mapping[tuple[Setting, int], DepthResult]
)


@dataclass(frozen=True, kw_only=True)
class DenseProbe:
    """A model on a set of masks or depth."""

    model: FrozenModel

    settings: Sequence[Setting]

    data: LabeledDataset

    resolution: int | None
    """Short side of test pictures; None leaves it to protocol and model."""

    feature: DenseFeature | None = None
    """None leaves it to protocol and model."""

    ctx: RunContext


def measure_segmentation(
    probe: DenseProbe, name: str, seeds: Sequence[int]
) -> tuple[int, Iterator[Measured]]:
    """The resolution, and the numbers of every setting and seed, once they are asked for."""
    protocol = _adjusted(segmentation_protocol(name, probe.data), probe)
    run = partial(
        run_segmentation, probe.model, probe.settings, probe.data, protocol, seeds, probe.ctx
    )
    return protocol.resolution, _all(probe, run, protocol.name, _feature(protocol))


def measure_depth(
    probe: DenseProbe, name: str, seeds: Sequence[int]
) -> tuple[int, Iterator[Measured]]:
    """The resolution, and the numbers of every setting and seed, once they are asked for."""
    protocol = _adjusted(depth_protocol(name, probe.data), probe)
    run = partial(run_depth, probe.model, probe.settings, probe.data, protocol, seeds, probe.ctx)
    return protocol.resolution, _all(probe, run, protocol.name, _feature(protocol))


def measure_dense_knn(
    probe: DenseProbe, name: str, seeds: Sequence[int]
) -> tuple[int, Iterator[Measured]]:
    """The resolution, and the numbers of every setting and seed, once they are asked for."""
    protocol = dense_knn_protocol(name)
    if probe.feature not in {None, "patches"}:
        raise ValueError(f"dense-knn compares patches alone, not {probe.feature}; drop --feature.")
    if probe.resolution is not None:
        protocol = replace(protocol, resolution=probe.resolution)
    run = partial(
        run_dense_knn, probe.model, probe.settings, probe.data, protocol, seeds, probe.ctx
    )
    return protocol.resolution, _all(probe, run, protocol.name, "patches")


def _adjusted(protocol: Chosen, probe: DenseProbe) -> Chosen:
    """A protocol as it is for the model, with what the probe asks for instead."""
    protocol = for_model(protocol, probe.model)
    if probe.resolution is not None:
        protocol = replace(protocol, resolution=probe.resolution)
    if probe.feature is None:
        return protocol
    return replace(protocol, append_image_feature=probe.feature == "patches+image")


def _feature(protocol: DenseProtocol) -> DenseFeature:
    """What the heads of a protocol see."""
    return "patches+image" if protocol.append_image_feature else "patches"


def _all(
    probe: DenseProbe, run: Callable[[], Results], protocol: str, feature: str
) -> Iterator[Measured]:
    """Results in the shared form; the run begins when the first one is asked for."""
    for (setting, seed), result in run().items():
        depth = isinstance(result, DepthResult)
        yield Measured(
            setting=setting,
            seed=seed,
            data=probe.data,
            metrics=result.metrics,
            units=UNITS if depth else {},
            counts=result.counts,
            protocol=protocol,
            feature=feature,
            chosen=result.chosen,
            head=FittedHead(tensors=result.tensors, facts=result.facts),
            cases=_cases(result),
        )


def _cases(result: SegmentationResult | DepthResult) -> dict[str, Tensor]:
    """What became of each picture."""
    if isinstance(result, SegmentationResult):
        names = ("intersections", "unions", "objects")
        return {name: getattr(result, name) for name in names}
    return {name: torch.from_numpy(values) for name, values in result.errors.items()}


KINDS: Mapping[Task, Kind] = {
    "knn": "classes", "logistic": "classes", "linear": "classes",
    "segmentation": "masks", "dense-knn": "masks", "depth": "depth",
}  # fmt: skip
"""What a set must tell for a task."""

PROTOCOLS: Mapping[Task, tuple[str, str]] = {
    "knn": ("dinov2", "dinov2"),
    "logistic": ("dinov2", "dinov2"),
    "linear": ("dinov3", "dinov3-small"),
    "segmentation": ("dinov3", "dinov3-small"),
    "dense-knn": ("dense-knn", "dense-knn-small"),
    "depth": ("dinov3", "dinov3-small"),
}
"""The protocols where none is named: of published sets, and of folders of one's own."""

MOST_MODELS = 4
"""Models that are held in memory; a suite may have many."""


class Sets(NamedTuple):
    """The sets of a job."""

    data: LabeledDataset
    """To fit and to measure on."""

    also: Sequence[LabeledDataset]
    """To measure on."""


class Plan(NamedTuple):
    """A model of a job, all that it asks for checked."""

    who: Measurement

    resolution: int

    words: str
    """What will be done, for people."""

    found: Iterator[Measured]
    """Begins to compute when it is asked for the first result."""


@dataclass(kw_only=True)
class Evaluator:
    """Runs jobs one after the other."""

    ctx: RunContext

    out: Path | None
    """Where heads and cases are written; None writes none."""

    command: str = ""

    rounds: int = 7
    """Of the timing; 0 leaves it out."""

    heads: list[tuple[Role, Path]] = field(default_factory=list)
    """Whose heads were written, and where."""

    models: dict[str, FrozenModel] = field(default_factory=dict)
    sets: dict[tuple[str, bool], LabeledDataset] = field(default_factory=dict)
    hashes: dict[int, str] = field(default_factory=dict)
    """Of sets, each made once: their pictures may be millions."""

    def check(self, job: Job) -> None:
        """Find all that a job needs, and refuse what cannot be run; nothing is computed."""
        self._plans(job, self._sets(job), (job.seed,))

    def rows(self, job: Job, seeds: Sequence[int] | None = None) -> list[Row]:
        """The rows of a job, for several seeds at once where they are given."""
        sets, seeds = self._sets(job), seeds or (job.seed,)
        plans = self._plans(job, sets, seeds)
        for one in (sets.data, *sets.also):
            if one.missing:
                self.ctx.log(f"{one.name} is partial, so rows say so: {'; '.join(one.missing)}.")
        if job.task == "knn" and len(seeds) > 1:
            self.ctx.log(f"knn leaves nothing to chance: seed {seeds[0]} stands for all.")
        found = self._found(job, sets, plans)
        # Times are measured in one go so that they can be compared.
        rounds = self.rounds if self.ctx.ranks.is_main else 0
        costs = costs_of([one for one, _ in found], rounds)
        return [
            replace(row, milliseconds=cost.milliseconds, gflops=cost.gflops)
            for one, rows in found
            for cost in [costs[one.who.asked, one.resolution, one.measured.setting]]
            for row in rows
        ]

    def expect(self, job: Job) -> list[dict[str, Any]]:
        """Fields that identify the rows of a job, so that a suite can skip what is done."""
        sets = self._sets(job)
        name = job.protocol or usual_protocol(job.task, job.data)
        content = protocol_hash(job.task, name, sets.data)
        return [
            {
                "task": job.task,
                "role": plan.who.role,
                "model": plan.who.asked,
                "weights": plan.who.model.digest,
                "budget": setting.budget,
                "ffn": setting.ffn,
                "resolution": plan.who.model.round_down_to_patch(plan.resolution),
                "precision": plan.who.model.precision,
                "data": data.name,
                "data_sha256": self._hash(data),
                "protocol_sha256": content,
                "feature": job.feature or _usual_feature(job.task, name, sets.data, plan.who.model),
                "seed": job.seed,
                "version": VERSION,
            }
            for plan in self._plans(job, sets, (job.seed,))
            for setting in plan.who.model.settings(job.budgets, job.ffn)
            for data in (sets.data, *sets.also)
        ]

    def _found(self, job: Job, sets: Sets, plans: Sequence[Plan]) -> list[tuple[Found, list[Row]]]:
        """What the models of a job are worth; heads and cases are on disk and not in it."""
        found = []
        for plan in plans:
            self.ctx.log(plan.words)
            for measured in plan.found:
                one = Found(plan.who, plan.resolution, measured)
                rows = self._rows(job, sets, one)
                self._keep(one, job, sets, rows)
                # What is on disk need not stay in memory until all models are done.
                light = replace(measured, head=None, cases={})
                found.append((one._replace(measured=light), rows))
        return found

    def _sets(self, job: Job) -> Sets:
        """The sets of a job, of the kind that its task needs."""
        data = self._set(job.data, job.allow_partial)
        if data.kind != KINDS[job.task]:
            fitting = ", ".join(task for task, kind in KINDS.items() if kind == data.kind)
            raise ValueError(
                f"{data.name} tells {data.kind} of its pictures, but {job.task} needs "
                f"{KINDS[job.task]}; use {fitting}, or another set."
            )
        if job.also and data.kind != "classes":
            raise ValueError(
                f"--also got {', '.join(job.also)}, but only heads of classes are measured on "
                f"further sets, and {job.task} has none; leave it out."
            )
        return Sets(data, [self._set(text, job.allow_partial) for text in job.also])

    def _set(self, text: str, allow_partial: bool) -> LabeledDataset:
        """A set, read once."""
        key = (text, allow_partial)
        if key not in self.sets:
            self.sets[key] = read_set(text, allow_partial=allow_partial)
        return self.sets[key]

    def _model(self, name: str) -> FrozenModel:
        """A model; those asked for last stay in memory."""
        found = self.models.pop(name, None)
        if found is None:
            found = find_model(name, self.ctx.ranks.device)
            found.precision = self.ctx.precision
        self.models[name] = found
        for oldest in list(self.models)[:-MOST_MODELS]:
            del self.models[oldest]
        return found

    def _plans(self, job: Job, sets: Sets, seeds: Sequence[int]) -> list[Plan]:
        """What is to be done for each model of a job."""
        asked: list[tuple[Role, str | None]] = [
            ("model", job.model), ("teacher", job.teacher),
            *(("baseline", name) for name in job.baseline),
        ]  # fmt: skip
        found = [
            Measurement(role, name, self._model(name)) for role, name in asked if name is not None
        ]
        return [self._plan(job, who, sets, seeds) for who in found]

    def _plan(self, job: Job, who: Measurement, sets: Sets, seeds: Sequence[int]) -> Plan:
        """What is to be done for one model."""
        settings = who.model.settings(job.budgets, job.ffn)
        name = job.protocol or usual_protocol(job.task, job.data)
        if sets.data.kind == "classes":
            resolution, found = self._classes(job, (who.model, settings), sets, name, seeds)
        else:
            dense = DenseProbe(
                model=who.model,
                settings=settings,
                data=sets.data,
                resolution=job.resolution,
                feature=cast(DenseFeature | None, _checked(job.feature, DenseFeature)),
                ctx=self.ctx,
            )
            resolution, found = DENSE[job.task](dense, name, seeds)
        words = (
            f"{job.task} of {who.asked} on {sets.data.name} at "
            f"{who.model.round_down_to_patch(resolution)} px "
            f"({', '.join(setting.label for setting in settings)}), protocol {name}."
        )
        return Plan(who, resolution, words, found)

    def _classes(
        self,
        job: Job,
        model: tuple[FrozenModel, Sequence[Setting]],
        sets: Sets,
        name: str,
        seeds: Sequence[int],
    ) -> tuple[int, Iterator[Measured]]:
        """The resolution, and what a task of classes finds."""
        linear = linear_protocol(name, sets.data) if job.task == "linear" else None
        feature = _checked(job.feature, Feature) or (linear.feature if linear else "image")
        own = linear.resolution if linear else None
        probe = ClassProbe(
            model=model[0],
            settings=model[1],
            data=sets.data,
            also=sets.also,
            resolution=job.resolution or own or model[0].default_resolution,
            feature=cast(Feature, feature),
            ctx=self.ctx,
        )
        if linear is not None:
            return probe.resolution, run_linear(probe, linear, seeds)
        if job.task == "knn":
            return probe.resolution, run_knn(probe, knn_protocol(name), seeds[0])
        logistic_protocol(name, sets.data, seeds[0])
        return probe.resolution, run_logistic(probe, name, seeds)

    def _keep(self, found: Found, job: Job, sets: Sets, rows: Sequence[Row]) -> None:
        """Write what can be used later; by the first worker alone."""
        if self.out is None or not self.ctx.ranks.is_main:
            return
        origin = Origin(
            task=job.task,
            data=job.data,
            classes=sets.data.classes,
            feature=job.feature,
            pictures=self._hash(found.measured.data),
            row=rows[0] if rows else None,
        )
        folder = keep_result(found, origin, self.out)
        if folder is not None:
            self.heads.append((found.who.role, folder))

    def _rows(self, job: Job, sets: Sets, one: Found) -> list[Row]:
        """A row for each number that was found, without its costs."""
        model, measured = one.who.model, one.measured
        name = job.protocol or usual_protocol(job.task, job.data)
        content = protocol_hash(job.task, name, sets.data)
        part = chosen_on(job.task, name, sets.data)
        side = model.round_down_to_patch(one.resolution)
        budget, patches = measured.setting.budget, (side // model.stride) ** 2
        return [
            Row(
                task=job.task,
                model=one.who.asked,
                data=measured.data.name,
                budget=budget,
                resolution=side,
                metric=metric,
                value=value,
                unit=cast(Unit, measured.units.get(metric, "%")),
                seed=measured.seed,
                role=one.who.role,
                weights=model.digest,
                trained=model.trained,
                ffn=measured.setting.ffn,
                precision=model.precision,
                split=measured.data.test.name,
                counts=dict(measured.counts),
                data_sha256=self._hash(measured.data),
                data_facts=said_of(measured.data),
                protocol=measured.protocol,
                protocol_sha256=content,
                feature=measured.feature,
                # A head of a part of a set is partial wherever it is measured.
                partial=tuple(dict.fromkeys((*sets.data.missing, *measured.data.missing))),
                chosen={**measured.chosen, **({} if part is None else {"on": part})},
                patches_per_core=patches / budget if budget else None,
                command=self.command,
                date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            )
            for metric, value in measured.metrics.items()
        ]

    def _hash(self, data: LabeledDataset) -> str:
        """The hash of a set that `sets` holds."""
        if id(data) not in self.hashes:
            self.hashes[id(data)] = data_hash(data)
        return self.hashes[id(data)]


DenseMeasure = Callable[[DenseProbe, str, Sequence[int]], tuple[int, Iterator[Measured]]]

DENSE: Mapping[Task, DenseMeasure] = {
    "segmentation": measure_segmentation,
    "dense-knn": measure_dense_knn,
    "depth": measure_depth,
}


def _usual_feature(task: Task, name: str, data: LabeledDataset, model: FrozenModel) -> str:
    """What heads see where a job does not say."""
    if task in {"knn", "logistic"}:
        return "image"
    if task == "dense-knn":
        return "patches"
    protocol = _protocol(task, name, data)
    return protocol.feature if task == "linear" else _feature(for_model(protocol, model))


def usual_protocol(task: Task, data: str) -> str:
    """The protocol where none is named; `data` is the set as it was named."""
    name, _, folder = data.partition("=")
    official, own = PROTOCOLS[task]
    return official if folder and name in SETS else own


def _checked(feature: str | None, kind: object) -> str | None:
    """A feature that heads of a task can see, or None where none was named."""
    allowed = get_args(kind)
    if feature is not None and feature not in allowed:
        raise ValueError(f"--feature got {feature!r}; this task knows {', '.join(allowed)}.")
    return feature
