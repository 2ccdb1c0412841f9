"""Classification: kNN, logistic regression and linear heads on a dataset."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from veca.data.images import DataError
from veca.data.sets.dataset import LabeledDataset, Split
from veca.probe.feature_cache import RunContext
from veca.probe.features import CachedFeatures, CropConfig, extract_image_features
from veca.probe.heads import LinearHead
from veca.probe.knn import knn
from veca.probe.linear import Judges, LinearFit, fit_linear
from veca.probe.logistic import choose_logistic
from veca.probe.measured import FittedHead, Measured
from veca.probe.metrics import Interpolation, correct, mean_average_precision, metrics
from veca.probe.models import FrozenModel
from veca.probe.protocols import Feature, KnnProtocol, LinearProtocol, logistic_protocol
from veca.probe.rows import Setting
from veca.runtime.logging import progress

MOST_KEPT_BYTES = 256 * 2**20
"""Training vectors of a kNN head that are kept on disk."""

SHOWN_PAIRS = 2**28
"""Comparing fewer pairs of pictures is over before anyone looks."""

INTERPOLATIONS: Mapping[str, Interpolation] = {
    "map": "11-point",
    "map_all_point": "all-point",
    "map_step": "step",
}


@dataclass(frozen=True, kw_only=True)
class ClassProbe:
    """A model on a set of classes."""

    model: FrozenModel

    settings: Sequence[Setting]

    data: LabeledDataset

    also: Sequence[LabeledDataset] = ()
    """Sets without a training part, on which the same heads are measured."""

    resolution: int

    feature: Feature = "image"

    ctx: RunContext

    def __post_init__(self) -> None:
        """Refuse sets that hold no classes, or lack what is needed."""
        if self.data.kind != "classes" or self.data.train is None:
            borrowed = self.data.uses_head_of
            hint = f"name it with --also beside {borrowed}" if borrowed else "use another set"
            raise DataError(
                f"{self.data.name} has {self.data.kind} and "
                f"{'no' if self.data.train is None else 'a'} training part, but classes of "
                f"training pictures are needed; {hint}."
            )
        for other in self.also:
            _check_shared(other, self.data)

    @property
    def train(self) -> Split:
        """The training part, which was checked to be there."""
        if self.data.train is None:
            raise DataError(f"{self.data.name} has no training part.")
        return self.data.train

    @property
    def tests(self) -> list[LabeledDataset]:
        """All sets that are measured."""
        return [self.data, *self.also]

    def vectors(self, split: Split, margin: float, views: int = 0) -> CachedFeatures:
        """The chosen feature of every picture, or of views of it, for all settings."""
        crops = CropConfig(resolution=self.resolution, resize_ratio=margin, num_crops=views)
        found = extract_image_features(self.model, self.settings, split, crops, self.ctx)
        return found.select(self.feature)

    def measured(
        self, data: LabeledDataset, setting: Setting, seed: int, protocol: str
    ) -> Measured:
        """What is known of a measurement before its numbers."""
        return Measured(
            setting=setting,
            seed=seed,
            data=data,
            metrics={},
            counts={"train": len(self.train), "test": len(data.test)},
            protocol=protocol,
            feature=self.feature,
        )


def run_knn(probe: ClassProbe, protocol: KnnProtocol, seed: int) -> Iterator[Measured]:
    """Let neighbors vote; there is no chance in it, so one seed stands for all."""
    train, labels = probe.vectors(probe.train, protocol.margin), labels_of(probe.train)
    for data in probe.tests:
        test, truth = probe.vectors(data.test, protocol.margin), labels_of(data.test)
        for setting in probe.settings:
            found, cases = dict[str, float](), dict[str, Tensor]()
            votes = _votes(probe, train[setting], labels, test[setting], protocol)
            for k, scores in votes.items():
                of_k = class_numbers(scores, truth, data)
                found |= {f"{name}_k{k}": value for name, value in of_k.items() if name != "top5"}
                cases[f"correct_k{k}"] = correct(scores, truth)
            if not found:
                raise DataError(
                    f"{probe.data.name} has {len(labels)} training pictures, fewer than the "
                    f"{min(protocol.ks)} neighbors that vote; use logistic instead."
                )
            own = data is probe.data
            yield replace(
                probe.measured(data, setting, seed, protocol.name),
                metrics=found,
                head=_neighbor_head(probe, train[setting], protocol, max(votes)) if own else None,
                cases=cases,
            )


def run_logistic(probe: ClassProbe, name: str, seeds: Sequence[int]) -> Iterator[Measured]:
    """Fit logistic regressions; the seed puts pictures aside to choose C on."""
    margin = logistic_protocol(name, probe.data, 0).margin
    train, labels = probe.vectors(probe.train, margin), labels_of(probe.train)
    aside = probe.data.val
    own = None if aside is None else probe.vectors(aside, margin)
    tests = [probe.vectors(data.test, margin) for data in probe.tests]
    num_classes = len(probe.data.classes)
    for seed in seeds:
        protocol = logistic_protocol(name, probe.data, seed)
        total = len(probe.settings) * len(protocol.config.strengths)
        with progress(total, "fits", shown=probe.ctx.show_progress) as tracker:
            for setting in probe.settings:
                held = None
                if own is not None and aside is not None:
                    held = own[setting], labels_of(aside)
                chosen = choose_logistic(
                    train[setting],
                    labels,
                    num_classes,
                    protocol.config,
                    held,
                    advance=tracker.advance,
                )
                for data, test in zip(probe.tests, tests, strict=True):
                    found = _judged(
                        probe, data, chosen.head, test[setting],
                        (setting, seed, name, margin), {"C": chosen.strength},
                    )  # fmt: skip
                    yield _with_counts(found, chosen.fitted_on, aside)


def run_linear(
    probe: ClassProbe, protocol: LinearProtocol, seeds: Sequence[int]
) -> Iterator[Measured]:
    """Train linear heads by SGD, those of all rates and of many settings together."""
    train = probe.vectors(probe.train, protocol.margin, protocol.views)
    tests = [probe.vectors(data.test, protocol.margin) for data in probe.tests]
    judges, aside = None, None
    if protocol.selection in {"test", "test-best-step"}:
        judges = tests[0], labels_of(probe.data.test)
    elif protocol.selection == "held-out" and probe.data.val is not None:
        aside = probe.data.val
        judges = probe.vectors(aside, protocol.margin), labels_of(aside)
    for seed in seeds:
        fits = _linear_fits(probe, protocol, train, judges, seed)
        for data, test in zip(probe.tests, tests, strict=True):
            for setting, fit in fits.items():
                found = _judged(
                    probe, data, fit.head, test[setting],
                    (setting, seed, protocol.name, protocol.margin),
                    {"rate": fit.rate, "step": fit.step, "views": protocol.views},
                )  # fmt: skip
                yield _with_counts(found, fit.fitted_on, aside)


def _linear_fits(
    probe: ClassProbe,
    protocol: LinearProtocol,
    train: CachedFeatures,
    judges: tuple[CachedFeatures, Tensor] | None,
    seed: int,
) -> dict[Setting, LinearFit]:
    """The chosen heads of all settings, one setting at a time, since their vectors are large."""
    total, fits = protocol.steps * len(probe.settings), dict[Setting, LinearFit]()
    with progress(total, "steps", shown=probe.ctx.show_progress) as tracker:
        for setting in probe.settings:
            fits |= fit_linear(
                {setting: train[setting]},
                labels_of(probe.train),
                protocol,
                seed,
                num_classes=len(probe.data.classes),
                judges=judges and Judges({setting: judges[0][setting]}, judges[1]),
                device=probe.ctx.ranks.device,
                advance=tracker.advance,
            )
    return fits


def labels_of(split: Split) -> Tensor:
    """The classes of a part, as probes take them."""
    if split.labels is None:
        raise DataError(f"the part {split.name!r} has no classes; use a set for classification.")
    return torch.from_numpy(split.labels)


def class_numbers(scores: Tensor, labels: Tensor, data: LabeledDataset) -> dict[str, float]:
    """The metrics that suit a set."""
    if data.uses_head_of is not None and labels.dtype == torch.bool:
        return metrics(scores, labels, ("top1",))
    found = metrics(scores, labels)
    if data.test.counted is not None:
        counted = torch.from_numpy(data.test.counted)
        for name, interpolation in INTERPOLATIONS.items():
            found[name] = mean_average_precision(scores, labels, interpolation, counted)
    return found


def _check_shared(other: LabeledDataset, data: LabeledDataset) -> None:
    """Refuse a set whose classes are not those of the head that is to be measured on it."""
    if other.kind != "classes":
        raise DataError(
            f"{other.name} tells {other.kind} of its pictures, so that no head of {data.name} can "
            "be measured on it; name a set with the same classes."
        )
    if len(other.classes) != len(data.classes):
        raise DataError(
            f"{other.name} has {len(other.classes)} classes, {data.name} {len(data.classes)}; a "
            "head can be measured on sets with its own classes only."
        )
    if other.uses_head_of not in {None, data.name}:
        raise DataError(
            f"{other.name} is measured with heads of {other.uses_head_of}, not of {data.name}; give "
            f"{other.uses_head_of}=FOLDER as the set to fit on."
        )
    if other.uses_head_of is None and other.classes != data.classes:
        differing = next(
            pair for pair in zip(other.classes, data.classes, strict=True) if pair[0] != pair[1]
        )
        raise DataError(
            f"{other.name} has the class {differing[0]!r} where {data.name} has {differing[1]!r}; "
            "a head can be measured on sets with its own classes only."
        )


def _with_counts(found: Measured, fitted_on: int, aside: Split | None) -> Measured:
    """A result that counts what its head is fitted on, and the set's own part to choose on."""
    own = {} if aside is None else {"held_out": len(aside)}
    return replace(found, counts={**found.counts, **own, "fitted": fitted_on})


def _judged(  # noqa: PLR0913, PLR0917 - what is known of a head
    probe: ClassProbe,
    data: LabeledDataset,
    head: LinearHead,
    test: Tensor,
    who: tuple[Setting, int, str, float],
    chosen: Mapping[str, object],
) -> Measured:
    """What a linear head is worth on a test part."""
    setting, seed, protocol, margin = who
    scores, truth = head.scores(test).cpu(), labels_of(data.test)
    facts = {"margin": margin, "feature": probe.feature}
    own = FittedHead(tensors={"weight": head.weight.cpu(), "bias": head.bias.cpu()}, facts=facts)
    return replace(
        probe.measured(data, setting, seed, protocol),
        metrics=class_numbers(scores, truth, data),
        chosen=chosen,
        head=own if data is probe.data else None,
        cases={"correct": correct(scores, truth)},
    )


def _votes(
    probe: ClassProbe, train: Tensor, labels: Tensor, test: Tensor, protocol: KnnProtocol
) -> dict[int, Tensor]:
    """Votes of all test pictures, of which each worker has a part counted."""
    workers, num_classes = probe.ctx.ranks, len(probe.data.classes)
    mine = torch.arange(workers.rank, len(test), workers.world_size)
    shown = probe.ctx.show_progress and len(mine) * len(train) >= SHOWN_PAIRS
    with progress(len(mine), "pictures", shown=shown) as tracker:
        found = knn(
            train, labels, test[mine], num_classes,
            ks=protocol.ks, temperature=protocol.temperature, advance=tracker.advance,
        )  # fmt: skip
    whole = {}
    for k, votes in found.items():
        every = torch.zeros(len(test), num_classes, dtype=votes.dtype)
        every[mine] = votes
        whole[k] = workers.all_reduce(every)
    return whole


def _neighbor_head(
    probe: ClassProbe, train: Tensor, protocol: KnnProtocol, most: int
) -> FittedHead | None:
    """The training vectors themselves, where they are not too many."""
    if train.nbytes > MOST_KEPT_BYTES:
        probe.ctx.log(
            f"The head is not kept, since its {len(train):,} training vectors take more than "
            f"{MOST_KEPT_BYTES // 2**20} MB."
        )
        return None
    return FittedHead(
        tensors={"features": train.float(), "labels": labels_of(probe.train)},
        facts={
            "margin": protocol.margin,
            "feature": probe.feature,
            "temperature": protocol.temperature,
            "neighbors": min(20, most),
        },
    )
