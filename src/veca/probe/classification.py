"""Image classification: kNN, logistic regression and linear classifiers on one vector per image."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from veca.data.images import DataError
from veca.data.sets.dataset import LabeledDataset, Split
from veca.probe.features import CachedFeatures, extract_image_features
from veca.probe.knn import knn_votes
from veca.probe.linear import Fit, train_linear_classifiers
from veca.probe.logistic import sweep_c
from veca.probe.metrics import classification_metrics, correct, top1
from veca.probe.protocols import (
    KnnProtocol,
    LinearProtocol,
    LogisticProtocol,
    ProbeInputs,
    training_split,
)
from veca.probe.rows import ProbeResult
from veca.runtime.logging import logger, progress

MAX_SAVED_BYTES = 256 * 2**20
"""Training features of a kNN head that are saved."""

PREDICT_NEIGHBORS = 20
"""Neighbors that vote in `veca predict`."""

PROGRESS_PAIRS = 2**28
"""Comparing fewer pairs of images takes too little time for a progress bar."""

AnyProtocol = KnnProtocol | LogisticProtocol | LinearProtocol


def evaluate_knn(inputs: ProbeInputs[KnnProtocol]) -> Iterator[ProbeResult]:
    """Classify test images by their nearest training images; deterministic, so one seed is run."""
    data, protocol, fit_on = inputs.data, inputs.protocol, training_split(inputs.data)
    train, labels = features_of(inputs, fit_on), labels_of(fit_on)
    if min(protocol.ks) > len(labels):
        raise DataError(
            f"{data.name} has {len(labels)} training images, but {protocol.name} needs at least "
            f"{min(protocol.ks)} neighbors; use logistic instead."
        )
    for tested in (data, *inputs.also):
        test, truth = features_of(inputs, tested.test), labels_of(tested.test)
        for setting in inputs.settings:
            metrics, per_image = dict[str, float](), dict[str, Tensor]()
            votes = _votes(inputs, train[setting], labels, test[setting])
            for k, scores in votes.items():
                found = metrics_for(scores, truth, tested)
                metrics |= {f"{name}_k{k}": found[name] for name in found if name != "top5"}
                per_image[f"correct_k{k}"] = correct(scores, truth)
            neighbors = min(PREDICT_NEIGHBORS, max(votes))
            yield _result(
                inputs,
                tested,
                setting=setting,
                seed=inputs.seeds[0],
                metrics=metrics,
                tensors=_saved_neighbors(train[setting], labels),
                facts={"temperature": protocol.temperature, "neighbors": neighbors},
                per_image=per_image | predictions(votes[neighbors]),
            )


def evaluate_logistic(inputs: ProbeInputs[LogisticProtocol]) -> Iterator[ProbeResult]:
    """Fit logistic regressions; the seed holds out images to choose C on."""
    return _fitted(inputs, sweep_c, inputs.data.val, 0, len(inputs.protocol.c_values), "fits")


def evaluate_linear(inputs: ProbeInputs[LinearProtocol]) -> Iterator[ProbeResult]:
    """Train linear classifiers by SGD, one setting at a time."""
    data, protocol = inputs.data, inputs.protocol
    val = {"held-out": data.val, "none": None}.get(protocol.selection, data.test)
    fit = partial(train_linear_classifiers, device=inputs.ctx.ranks.device)
    return _fitted(inputs, fit, val, protocol.num_crops, protocol.steps, "steps")


def _fitted(  # noqa: PLR0913, PLR0917
    inputs: ProbeInputs[LogisticProtocol | LinearProtocol],
    fit: Callable[..., Fit],
    val_split: Split | None,
    num_crops: int,
    num_fits: int,
    unit: str,
) -> Iterator[ProbeResult]:
    """Fit a linear head for each seed and setting, and test it on every dataset."""
    data, protocol, fit_on = inputs.data, inputs.protocol, training_split(inputs.data)
    train, labels = features_of(inputs, fit_on, num_crops), labels_of(fit_on)
    tests = [(tested, features_of(inputs, tested.test)) for tested in (data, *inputs.also)]
    val = None if val_split is None else (features_of(inputs, val_split), labels_of(val_split))
    own_val = data.val if protocol.selection == "held-out" else None
    held_out = {} if own_val is None else {"held_out": len(own_val)}
    total, shown = len(inputs.settings) * num_fits, inputs.ctx.show_progress
    for seed in inputs.seeds:
        with progress(total, unit, shown=shown) as tracker:
            for setting in inputs.settings:
                found = fit(  # features are not held here, so that one setting's are in memory
                    train[setting],
                    labels,
                    len(data.classes),
                    protocol,
                    seed,
                    None if val is None else (val[0][setting], val[1]),
                    advance=tracker.advance,
                )
                head, crops = found.head, {"views": num_crops} if "rate" in found.chosen else {}
                for tested, test in tests:
                    truth = labels_of(tested.test)
                    scores = head.scores(test[setting]).cpu()
                    yield _result(
                        inputs,
                        tested,
                        setting=setting,
                        seed=seed,
                        metrics=metrics_for(scores, truth, tested),
                        counts={**held_out, "fitted": found.fitted_on},
                        chosen=found.chosen | crops,
                        tensors={"weight": head.weight.cpu(), "bias": head.bias.cpu()},
                        per_image={"correct": correct(scores, truth)}
                        | predictions(scores.softmax(dim=1)),
                    )


def features_of(
    inputs: ProbeInputs[AnyProtocol], split: Split, num_crops: int = 0
) -> CachedFeatures:
    """Vectors of every image, or of random crops of it, by setting."""
    return extract_image_features(
        inputs.model,
        inputs.settings,
        split,
        inputs.ctx,
        resolution=inputs.protocol.resolution or inputs.model.default_resolution,
        resize_ratio=inputs.protocol.resize_ratio,
        num_crops=num_crops,
        feature=inputs.protocol.feature,
    )


def _result(
    inputs: ProbeInputs[AnyProtocol],
    tested: LabeledDataset,
    *,
    tensors: Mapping[str, Tensor],
    counts: Mapping[str, int] = {},
    facts: Mapping[str, Any] = {},
    **found: Any,  # noqa: ANN401 - further fields
) -> ProbeResult:
    """A result; heads are saved once, with the dataset that they were fitted on."""
    protocol, train = inputs.protocol, training_split(inputs.data)
    return ProbeResult(
        data=tested,
        counts={"train": len(train), "test": len(tested.test), **counts},
        tensors=tensors if tested is inputs.data else {},
        facts={"resize_ratio": protocol.resize_ratio, "feature": protocol.feature, **facts},
        **found,
    )


def labels_of(split: Split) -> Tensor:
    """Class indices (N), or booleans (N, K)."""
    if split.labels is None:
        raise DataError(f"the split {split.name!r} has no classes; use a classification dataset.")
    return torch.from_numpy(split.labels)


def predictions(shares: Tensor) -> dict[str, Tensor]:
    """The predicted class of each image, and its share (N, K) of the probability or votes."""
    confidence, predicted = shares.max(dim=1)
    return {"predicted": predicted.int(), "confidence": confidence.float()}


def metrics_for(scores: Tensor, labels: Tensor, data: LabeledDataset) -> dict[str, float]:
    """The metrics of a dataset; ImageNet-ReaL, whose labels are sets of classes, has top-1 only."""
    if data.uses_head_of is not None and labels.dtype == torch.bool:
        return {"top1": top1(scores, labels)}
    counted = None if data.test.counted is None else torch.from_numpy(data.test.counted)
    return classification_metrics(scores, labels, counted)


def _votes(
    inputs: ProbeInputs[KnnProtocol], train: Tensor, labels: Tensor, test: Tensor
) -> dict[int, Tensor]:
    """Votes for all test images; each rank computes a part."""
    ctx, num_classes = inputs.ctx, len(inputs.data.classes)
    own = torch.arange(ctx.ranks.rank, len(test), ctx.ranks.world_size)
    shown = ctx.show_progress and len(own) * len(train) >= PROGRESS_PAIRS
    with progress(len(own), "images", shown=shown) as tracker:
        found = knn_votes(
            train,
            labels,
            test[own],
            num_classes,
            ks=inputs.protocol.ks,
            temperature=inputs.protocol.temperature,
            advance=tracker.advance,
        )
    whole = {}
    for k, votes in found.items():
        everyone = torch.zeros(len(test), num_classes, dtype=votes.dtype)
        everyone[own] = votes
        whole[k] = ctx.ranks.all_reduce(everyone)
    return whole


def _saved_neighbors(train: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """The training features, unless they are too large."""
    if train.nbytes > MAX_SAVED_BYTES:
        logger.warning(
            "The kNN head is not saved: its %s training features take more than %d MB.",
            f"{len(train):,}", MAX_SAVED_BYTES // 2**20,
        )  # fmt: skip
        return {}
    return {"features": train.float(), "labels": labels}
