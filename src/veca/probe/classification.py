"""Image classification: kNN, logistic regression and linear classifiers on one vector per image."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from veca.data.images import DataError
from veca.data.sets.dataset import LabeledDataset, Split
from veca.probe.feature_cache import RunContext
from veca.probe.features import CachedFeatures, extract_image_features
from veca.probe.knn import knn_votes
from veca.probe.linear import Fit, train_linear_classifiers
from veca.probe.logistic import sweep_c
from veca.probe.metrics import classification_metrics, correct, top1
from veca.probe.models import FrozenModel
from veca.probe.protocols import (
    KnnProtocol,
    LinearProtocol,
    LogisticProtocol,
    training_split,
)
from veca.probe.rows import ProbeResult, Setting
from veca.runtime.logging import progress

MAX_SAVED_BYTES = 256 * 2**20
"""Training features of a kNN head that are saved."""

PREDICT_NEIGHBORS = 20
"""Neighbors that vote in `veca predict`."""

PROGRESS_PAIRS = 2**28
"""Comparing fewer pairs of images takes too little time for a progress bar."""

AnyProtocol = KnnProtocol | LogisticProtocol | LinearProtocol


class ClassificationProbe:
    """Features and labels of a dataset, and of others whose images its heads are tested on."""

    def __init__(  # noqa: PLR0913, PLR0917
        self,
        model: FrozenModel,
        settings: Sequence[Setting],
        data: LabeledDataset,
        protocol: AnyProtocol,
        ctx: RunContext,
        also: Sequence[LabeledDataset],
    ) -> None:
        self.model, self.settings, self.protocol, self.ctx = model, settings, protocol, ctx
        self.data, self.tests = data, (data, *also)
        self.train = training_split(data)

    def features(self, split: Split, num_crops: int = 0) -> CachedFeatures:
        """Vectors of every image, or of random crops of it, by setting."""
        return extract_image_features(
            self.model,
            self.settings,
            split,
            self.ctx,
            resolution=self.protocol.resolution or self.model.default_resolution,
            resize_ratio=self.protocol.resize_ratio,
            num_crops=num_crops,
            feature=self.protocol.feature,
        )

    def result(self, data: LabeledDataset, **found: Any) -> ProbeResult:  # noqa: ANN401
        """A result; heads are saved once, with the dataset that they were fitted on."""
        found["counts"] = {"train": len(self.train), "test": len(data.test)} | found["counts"]
        facts = {"resize_ratio": self.protocol.resize_ratio, "feature": self.protocol.feature}
        found["facts"] = facts | found["facts"]
        if data is not self.data:
            found["tensors"] = {}
        return ProbeResult(data=data, **found)

    def linear_results(  # noqa: PLR0913, PLR0917
        self,
        seeds: Sequence[int],
        fit: Callable[..., Fit],
        val_split: Split | None,
        num_crops: int,
        num_fits: int,
        unit: str,
    ) -> Iterator[ProbeResult]:
        """Fit a linear head for each seed and setting, and test it on every dataset."""
        train, labels = self.features(self.train, num_crops), labels_of(self.train)
        tests = [self.features(tested.test) for tested in self.tests]
        val = None if val_split is None else (self.features(val_split), labels_of(val_split))
        own_val = self.data.val if self.protocol.selection == "held-out" else None
        held_out = {} if own_val is None else {"held_out": len(own_val)}
        total, shown = len(self.settings) * num_fits, self.ctx.show_progress
        for seed in seeds:
            with progress(total, unit, shown=shown) as tracker:
                for setting in self.settings:
                    found = fit(  # features are not held here, so that one setting's are in memory
                        train[setting],
                        labels,
                        len(self.data.classes),
                        self.protocol,
                        seed,
                        None if val is None else (val[0][setting], val[1]),
                        advance=tracker.advance,
                    )
                    crops = {"views": num_crops} if "rate" in found.chosen else {}
                    for tested, test in zip(self.tests, tests, strict=True):
                        truth = labels_of(tested.test)
                        scores = found.head.scores(test[setting]).cpu()
                        yield self.result(
                            tested,
                            setting=setting,
                            seed=seed,
                            metrics=metrics_for(scores, truth, tested),
                            counts={**held_out, "fitted": found.fitted_on},
                            chosen=found.chosen | crops,
                            tensors={
                                "weight": found.head.weight.cpu(),
                                "bias": found.head.bias.cpu(),
                            },
                            facts={},
                            per_image={"correct": correct(scores, truth)},
                        )


def evaluate_knn(  # noqa: PLR0913, PLR0917
    model: FrozenModel,
    settings: Sequence[Setting],
    data: LabeledDataset,
    protocol: KnnProtocol,
    seeds: Sequence[int],
    ctx: RunContext,
    also: Sequence[LabeledDataset] = (),
) -> Iterator[ProbeResult]:
    """Classify test images by their nearest training images; deterministic, so one seed is run."""
    probe = ClassificationProbe(model, settings, data, protocol, ctx, also)
    train, labels = probe.features(probe.train), labels_of(probe.train)
    if min(protocol.ks) > len(labels):
        raise DataError(
            f"{data.name} has {len(labels)} training images, but {protocol.name} needs at least "
            f"{min(protocol.ks)} neighbors; use logistic instead."
        )
    for tested in probe.tests:
        test, truth = probe.features(tested.test), labels_of(tested.test)
        for setting in settings:
            metrics, per_image = dict[str, float](), dict[str, Tensor]()
            votes = _votes(train[setting], labels, test[setting], len(data.classes), protocol, ctx)
            for k, scores in votes.items():
                found = metrics_for(scores, truth, tested)
                metrics |= {f"{name}_k{k}": found[name] for name in found if name != "top5"}
                per_image[f"correct_k{k}"] = correct(scores, truth)
            neighbors = min(PREDICT_NEIGHBORS, max(votes))
            yield probe.result(
                tested,
                setting=setting,
                seed=seeds[0],
                metrics=metrics,
                counts={},
                tensors=_saved_neighbors(train[setting], labels, ctx),
                facts={"temperature": protocol.temperature, "neighbors": neighbors},
                per_image=per_image,
            )


def evaluate_logistic(  # noqa: PLR0913, PLR0917
    model: FrozenModel,
    settings: Sequence[Setting],
    data: LabeledDataset,
    protocol: LogisticProtocol,
    seeds: Sequence[int],
    ctx: RunContext,
    also: Sequence[LabeledDataset] = (),
) -> Iterator[ProbeResult]:
    """Fit logistic regressions; the seed holds out images to choose C on."""
    probe = ClassificationProbe(model, settings, data, protocol, ctx, also)
    return probe.linear_results(seeds, sweep_c, data.val, 0, len(protocol.c_values), "fits")


def evaluate_linear(  # noqa: PLR0913, PLR0917
    model: FrozenModel,
    settings: Sequence[Setting],
    data: LabeledDataset,
    protocol: LinearProtocol,
    seeds: Sequence[int],
    ctx: RunContext,
    also: Sequence[LabeledDataset] = (),
) -> Iterator[ProbeResult]:
    """Train linear classifiers by SGD, one setting at a time."""
    probe = ClassificationProbe(model, settings, data, protocol, ctx, also)
    val = {"held-out": data.val, "none": None}.get(protocol.selection, data.test)
    fit = partial(train_linear_classifiers, device=ctx.ranks.device)
    return probe.linear_results(seeds, fit, val, protocol.num_crops, protocol.steps, "steps")


def labels_of(split: Split) -> Tensor:
    """Class indices (N), or booleans (N, K)."""
    if split.labels is None:
        raise DataError(f"the split {split.name!r} has no classes; use a classification dataset.")
    return torch.from_numpy(split.labels)


def metrics_for(scores: Tensor, labels: Tensor, data: LabeledDataset) -> dict[str, float]:
    """The metrics of a dataset; ImageNet-ReaL, whose labels are sets of classes, has top-1 only."""
    if data.uses_head_of is not None and labels.dtype == torch.bool:
        return {"top1": top1(scores, labels)}
    counted = None if data.test.counted is None else torch.from_numpy(data.test.counted)
    return classification_metrics(scores, labels, counted)


def _votes(  # noqa: PLR0913, PLR0917
    train: Tensor,
    labels: Tensor,
    test: Tensor,
    num_classes: int,
    protocol: KnnProtocol,
    ctx: RunContext,
) -> dict[int, Tensor]:
    """Votes for all test images; each rank computes a part."""
    own = torch.arange(ctx.ranks.rank, len(test), ctx.ranks.world_size)
    shown = ctx.show_progress and len(own) * len(train) >= PROGRESS_PAIRS
    with progress(len(own), "images", shown=shown) as tracker:
        found = knn_votes(
            train,
            labels,
            test[own],
            num_classes,
            ks=protocol.ks,
            temperature=protocol.temperature,
            advance=tracker.advance,
        )
    whole = {}
    for k, votes in found.items():
        everyone = torch.zeros(len(test), num_classes, dtype=votes.dtype)
        everyone[own] = votes
        whole[k] = ctx.ranks.all_reduce(everyone)
    return whole


def _saved_neighbors(train: Tensor, labels: Tensor, ctx: RunContext) -> dict[str, Tensor]:
    """The training features, unless they are too large."""
    if train.nbytes > MAX_SAVED_BYTES:
        ctx.log(
            f"The kNN head is not saved: its {len(train):,} training features take more than "
            f"{MAX_SAVED_BYTES // 2**20} MB."
        )
        return {}
    return {"features": train.float(), "labels": labels}
