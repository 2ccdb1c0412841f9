"""Runs probes from names to rows: models and sets are found once, features are kept, heads saved.

What a job asks for is checked before anything is computed, so that a mistake is told at once and
not after the models before it. Heads and cases are written as they are found (`kept_results.py`);
the report is written by who calls (`report.py`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, cast, get_args

from veca.data.labelled import Kind, LabelledSet
from veca.data.sets.find import SETS, read_set
from veca.probe.classification import ClassProbe, run_knn, run_linear, run_logistic
from veca.probe.costs import costs_of
from veca.probe.dense_measured import (
    DenseFeature,
    DenseProbe,
    measure_dense_knn,
    measure_depth,
    measure_segmentation,
)
from veca.probe.features import Place
from veca.probe.kept_results import Origin, keep_result
from veca.probe.linear_protocol import Feature
from veca.probe.measured import Found, Measured, Measurement
from veca.probe.models import ProbeModel, find_probe_model
from veca.probe.protocol_facts import chosen_on, protocol_hash
from veca.probe.protocols import knn_protocol, linear_protocol, logistic_protocol
from veca.probe.rows import Role, Row, Task, Unit
from veca.probe.set_hashes import labels_hash, pictures_hash, said_of
from veca.probe.setting import Setting
from veca.probe.suite import Job

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

Hash = Callable[[LabelledSet], str]

MOST_MODELS = 4
"""Models that are held in memory; a suite may have many."""


class Sets(NamedTuple):
    """The sets of a job."""

    data: LabelledSet
    """To fit and to measure on."""

    also: Sequence[LabelledSet]
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
class Prober:
    """Runs jobs one after the other."""

    place: Place

    out: Path | None
    """Where heads and cases are written; None writes none."""

    command: str = ""

    rounds: int = 7
    """Of the timing; 0 leaves it out."""

    heads: list[tuple[Role, Path]] = field(default_factory=list)
    """Whose heads were written, and where."""

    models: dict[str, ProbeModel] = field(default_factory=dict)
    sets: dict[tuple[str, bool], LabelledSet] = field(default_factory=dict)
    hashes: dict[tuple[int, Hash], str] = field(default_factory=dict)
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
                self.place.tell(f"{one.name} is partial, so rows say so: {'; '.join(one.missing)}.")
        if job.task == "knn" and len(seeds) > 1:
            self.place.tell(f"knn leaves nothing to chance: seed {seeds[0]} stands for all.")
        found = self._found(job, sets, plans)
        # Times are measured in one go so that they can be compared.
        rounds = self.rounds if self.place.workers.first else 0
        costs = costs_of([one for one, _ in found], rounds)
        return [
            replace(row, milliseconds=cost.milliseconds, gflops=cost.gflops)
            for one, rows in found
            for cost in [costs[one.who.asked, one.resolution, one.measured.setting]]
            for row in rows
        ]

    def facts(self, job: Job) -> dict[str, Any]:
        """Hashes of weights, pictures and labels, for a suite to know what is done."""
        sets = self._sets(job)
        plans = self._plans(job, sets, (job.seed,))
        every = (sets.data, *sets.also)
        name = job.protocol or usual_protocol(job.task, job.data)
        protocols = [protocol_hash(job.task, name, sets.data, plan.who.model) for plan in plans]
        # Jobs that were done before there was a choice are fp32, and stay done.
        precision = self.place.precision
        chosen = {} if precision == "fp32" else {"precision": precision}
        return {
            **chosen,
            "models": _digests(plans),
            "pictures": [self._hash(one) for one in every],
            "labels": [self._hash(one, labels_hash) for one in every],
            "protocol": " ".join(dict.fromkeys(protocols)),
        }

    def _found(self, job: Job, sets: Sets, plans: Sequence[Plan]) -> list[tuple[Found, list[Row]]]:
        """What the models of a job are worth; heads and cases are on disk and not in it."""
        found = []
        for plan in plans:
            self.place.tell(plan.words)
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

    def _set(self, text: str, allow_partial: bool) -> LabelledSet:
        """A set, read once."""
        key = (text, allow_partial)
        if key not in self.sets:
            self.sets[key] = read_set(text, allow_partial=allow_partial)
        return self.sets[key]

    def _model(self, name: str) -> ProbeModel:
        """A model; those asked for last stay in memory."""
        found = self.models.pop(name, None)
        if found is None:
            found = find_probe_model(name, self.place.workers.device)
            found.precision = self.place.precision
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
                place=self.place,
            )
            resolution, found = DENSE[job.task](dense, name, seeds)
        words = (
            f"{job.task} of {who.asked} on {sets.data.name} at "
            f"{who.model.fitted_side(resolution)} px "
            f"({', '.join(setting.label for setting in settings)}), protocol {name}."
        )
        return Plan(who, resolution, words, found)

    def _classes(
        self,
        job: Job,
        model: tuple[ProbeModel, Sequence[Setting]],
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
            place=self.place,
        )
        if linear is not None:
            return probe.resolution, run_linear(probe, linear, seeds)
        if job.task == "knn":
            return probe.resolution, run_knn(probe, knn_protocol(name), seeds[0])
        logistic_protocol(name, sets.data, seeds[0])
        return probe.resolution, run_logistic(probe, name, seeds)

    def _keep(self, found: Found, job: Job, sets: Sets, rows: Sequence[Row]) -> None:
        """Write what can be used later; by the first worker alone."""
        if self.out is None or not self.place.workers.first:
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
        side = model.fitted_side(one.resolution)
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
            )
            for metric, value in measured.metrics.items()
        ]

    def _hash(self, data: LabelledSet, hash_of: Hash = pictures_hash) -> str:
        """A hash of a set that `sets` holds."""
        key = (id(data), hash_of)
        if key not in self.hashes:
            self.hashes[key] = hash_of(data)
        return self.hashes[key]


DenseMeasure = Callable[[DenseProbe, str, Sequence[int]], tuple[int, Iterator[Measured]]]

DENSE: Mapping[Task, DenseMeasure] = {
    "segmentation": measure_segmentation,
    "dense-knn": measure_dense_knn,
    "depth": measure_depth,
}


def _digests(plans: Sequence[Plan]) -> dict[str, Any]:
    """The weights of the models of a job by their role, an only one of a role without a list.

    Baselines go by the former name of their role, so that jobs of older suites stay done.
    """
    found: dict[str, list[str | None]] = {}
    for plan in plans:
        role = "control" if plan.who.role == "baseline" else plan.who.role
        found.setdefault(role, []).append(plan.who.model.digest)
    return {role: digests if len(digests) > 1 else digests[0] for role, digests in found.items()}


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
