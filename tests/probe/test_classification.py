"""Heads on one vector per image are fitted on the training split and tested on every dataset."""

import weakref
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.probe.fixtures import COLORS, CellModel, by_setting, class_split, color_set, context_in
from veca.data.images import DataError
from veca.data.listing import TableBuilder
from veca.data.sets.dataset import LabeledDataset, Split, check_same_classes
from veca.probe import classification as module
from veca.probe.classification import (
    evaluate_knn,
    evaluate_linear,
    evaluate_logistic,
    labels_of,
)
from veca.probe.feature_cache import ProbeContext
from veca.probe.features import CachedFeatures, extract_image_features
from veca.probe.linear import LinearHead
from veca.probe.metrics import classification_metrics, mean_average_precision
from veca.probe.protocols import (
    LOGISTIC,
    RESIZE_RATIO,
    KnnProtocol,
    LinearProtocol,
    LogisticProtocol,
    ProbeInputs,
)
from veca.probe.rows import ProbeError, ProbeResult, Setting
from veca.runtime.shards import ShardStore

SETTINGS = (Setting(2), Setting(8))
NEAR = KnnProtocol(name="k", resolution=16, ks=(3, 10, 200))
SWEEP = replace(LOGISTIC["dinov2"], resolution=16)
QUICK = LinearProtocol(
    name="quick",
    resolution=16,
    learning_rates=(0.1, 1.0),
    steps=30,
    batch=6,
    selection="held-out",
)
Protocols = KnnProtocol | LogisticProtocol | LinearProtocol


@pytest.fixture
def ctx(tmp_path: Path) -> ProbeContext:
    return context_in(tmp_path / "kept")


@pytest.fixture
def data(tmp_path: Path) -> LabeledDataset:
    return color_set(tmp_path)


def results(
    data: LabeledDataset,
    protocol: Protocols,
    ctx: ProbeContext,
    *,
    settings: tuple[Setting, ...] = SETTINGS,
    seeds: tuple[int, ...] = (0,),
    also: Sequence[LabeledDataset] = (),
    model: CellModel | None = None,
) -> Iterator[ProbeResult]:
    """The results of the task of a protocol."""
    given = (model or CellModel(), settings, data)
    if isinstance(protocol, KnnProtocol):
        return evaluate_knn(ProbeInputs(*given, protocol, seeds, ctx, also))
    if isinstance(protocol, LogisticProtocol):
        return evaluate_logistic(ProbeInputs(*given, protocol, seeds, ctx, also))
    return evaluate_linear(ProbeInputs(*given, protocol, seeds, ctx, also))


def evaluated(
    data: LabeledDataset, protocol: Protocols, ctx: ProbeContext, **more: Any
) -> list[ProbeResult]:
    """All results at once."""
    return list(results(data, protocol, ctx, **more))


def only(data: LabeledDataset, protocol: Protocols, ctx: ProbeContext) -> ProbeResult:
    """The result at the first setting."""
    (found,) = evaluated(data, protocol, ctx, settings=SETTINGS[:1])
    return found


def features_of(
    split: Split, ctx: ProbeContext, protocol: Protocols, feature: Any = "image"
) -> CachedFeatures:
    """The center crops of a split."""
    shown = {"resolution": 16, "resize_ratio": protocol.resize_ratio, "feature": feature}
    return extract_image_features(CellModel(), SETTINGS, split, ctx, **shown)


def brute_votes(train: Tensor, labels: Tensor, test: Tensor, k: int) -> Tensor:
    """Votes by the definition, image by image."""
    votes = torch.zeros(len(test), len(COLORS), dtype=torch.float64)
    train, test = (one.double() / one.double().norm(dim=1, keepdim=True) for one in (train, test))
    for row, vector in enumerate(test):
        cosines = [float(vector @ other) for other in train]
        nearest = sorted(range(len(train)), key=lambda index: (-cosines[index], index))[:k]
        for index in nearest:
            votes[row, int(labels[index])] += np.exp(cosines[index] / 0.07)
    return votes


def test_neighbors_vote_as_by_hand_at_every_setting(
    data: LabeledDataset, ctx: ProbeContext
) -> None:
    found = evaluated(data, NEAR, ctx, seeds=(5, 6))
    assert [one.setting for one in found] == list(SETTINGS)
    assert data.train is not None
    train, test = (features_of(split, ctx, NEAR) for split in (data.train, data.test))
    names = {f"{name}_k{k}" for name in ("top1", "mean_per_class") for k in (3, 10)}
    for one in found:
        assert (one.seed, one.counts) == (5, {"train": 18, "test": 9})
        assert set(one.metrics) == names
        for k in (3, 10):
            votes = brute_votes(train[one.setting], labels_of(data.train), test[one.setting], k)
            right = votes.argmax(1) == labels_of(data.test)
            assert one.metrics[f"top1_k{k}"] == pytest.approx(100 * float(right.double().mean()))
            assert torch.equal(one.per_image[f"correct_k{k}"], right)
        assert torch.equal(one.tensors["features"], train[one.setting])
        assert one.facts == {
            "resize_ratio": RESIZE_RATIO,
            "feature": "image",
            "temperature": 0.07,
            "neighbors": 10,
        }


def test_too_few_training_images_for_knn_are_refused(
    data: LabeledDataset, ctx: ProbeContext
) -> None:
    with pytest.raises(DataError, match=r"18 training images, but k needs at least 20 .*logistic"):
        evaluated(data, replace(NEAR, ks=(20, 100)), ctx)
    with pytest.raises(ProbeError, match="colors has no training split"):
        evaluated(replace(data, train=None), NEAR, ctx)


def test_a_large_knn_head_is_not_saved(
    data: LabeledDataset,
    ctx: ProbeContext,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(module, "MAX_SAVED_BYTES", 4 * 5 * 18 - 1)
    assert not only(data, NEAR, ctx).tensors
    assert "The kNN head is not saved: its 18 training features take more" in caplog.text


@pytest.mark.parametrize(
    ("feature", "width"), [("image", 5), ("patch-mean", 6), ("image+patch-mean", 11)]
)
def test_a_number_is_that_of_the_saved_head(
    data: LabeledDataset, ctx: ProbeContext, feature: str, width: int
) -> None:
    one = only(data, replace(SWEEP, feature=feature), ctx)
    test = features_of(data.test, ctx, SWEEP, feature)[SETTINGS[0]]
    assert test.shape == (9, width)
    scores = LinearHead(**one.tensors).scores(test)
    assert one.metrics == classification_metrics(scores, labels_of(data.test))
    assert one.facts == {"resize_ratio": 1.0, "feature": feature}
    assert one.chosen["C"] > 0


def test_images_that_heads_are_fitted_and_chosen_on_are_counted(
    data: LabeledDataset, ctx: ProbeContext, tmp_path: Path
) -> None:
    plain = {"train": 18, "test": 9}
    for share, fitted in ((0.1, 16), (0.5, 9)):
        protocol = replace(QUICK, held_out_share=share)
        assert only(data, protocol, ctx).counts == {**plain, "fitted": fitted}
    assert only(data, SWEEP, ctx).counts == {**plain, "fitted": 18}  # C is fitted again on all
    val = replace(data, val=class_split(tmp_path, "aside", np.arange(6) % 3))
    assert only(val, SWEEP, ctx).counts == {**plain, "held_out": 6, "fitted": 24}
    assert only(val, QUICK, ctx).counts == {**plain, "held_out": 6, "fitted": 18}
    assert only(val, replace(QUICK, selection="test"), ctx).counts == {**plain, "fitted": 18}
    first, second = evaluated(val, SWEEP, ctx, settings=SETTINGS[:1], seeds=(0, 1))
    assert (first.metrics, first.chosen) == (second.metrics, second.chosen)  # nothing is random


@pytest.mark.parametrize("protocol", [NEAR, SWEEP, replace(QUICK, selection="test")])
def test_each_split_has_the_features_of_one_setting_in_memory(
    data: LabeledDataset, ctx: ProbeContext, protocol: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, alive = list[weakref.ref[Tensor]](), list[int]()
    reads = CachedFeatures._read

    def watched(self: CachedFeatures, cache: ShardStore) -> Tensor:
        found = reads(self, cache)
        read.append(weakref.ref(found))
        alive.append(sum(each() is not None for each in read))
        return found

    monkeypatch.setattr(CachedFeatures, "_read", watched)
    settings = tuple(Setting(budget) for budget in range(1, 5))
    for _ in results(data, protocol, ctx, settings=settings):
        pass
    assert len(alive) >= 2 * len(settings)
    assert max(alive) <= 3  # training, validation and test features


def test_linear_classifiers_see_the_crops_of_the_protocol(
    data: LabeledDataset, ctx: ProbeContext
) -> None:
    model = CellModel()
    found = evaluated(data, replace(QUICK, num_crops=3), ctx, seeds=(0, 1), model=model)
    assert [(one.seed, one.setting) for one in found] == [
        (seed, setting) for seed in (0, 1) for setting in SETTINGS
    ]
    assert all(one.chosen["views"] == 3 and one.chosen["step"] == 30 for one in found)
    assert {one.chosen["rate"] for one in found} <= {0.1, 1.0}
    test = features_of(data.test, ctx, QUICK)
    for one in found:
        scores = LinearHead(**one.tensors).scores(test[one.setting])
        assert one.metrics == classification_metrics(scores, labels_of(data.test))
    # The last group is padded; another seed computes nothing.
    assert all(18 * 3 + 9 <= asked < 2 * (18 * 3 + 9) for asked in model.asked.values())


def test_the_step_is_chosen_on_the_test_split_only_if_the_protocol_says_so(
    data: LabeledDataset, ctx: ProbeContext
) -> None:
    best = replace(QUICK, learning_rates=(1.0,), validate_every=1, selection="test-best-step")
    last = replace(QUICK, learning_rates=(1.0,), selection="none")
    chosen, plain = (only(data, protocol, ctx) for protocol in (best, last))
    assert chosen.metrics["top1"] >= plain.metrics["top1"]
    assert plain.chosen["step"] == 30


@pytest.mark.parametrize("protocol", [NEAR, SWEEP, replace(QUICK, selection="test")])
def test_further_datasets_are_tested_with_the_same_head(
    data: LabeledDataset, ctx: ProbeContext, tmp_path: Path, protocol: Any
) -> None:
    test = class_split(tmp_path, "v2", np.arange(6) % 3)
    second = replace(data, name="v2", train=None, uses_head_of="colors", test=test)
    found = evaluated(data, protocol, ctx, also=[second])
    own = by_setting(one for one in found if one.data is data)
    other = by_setting(one for one in found if one.data is second)
    assert own.keys() == other.keys() == {(setting, 0) for setting in SETTINGS}
    assert all(one.counts["test"] == len(one.data.test) for one in found)
    assert all(one.tensors for one in own.values())
    assert not any(one.tensors for one in other.values())
    if protocol is not NEAR:
        vectors = features_of(second.test, ctx, protocol)
        for key, one in other.items():
            scores = LinearHead(**own[key].tensors).scores(vectors[one.setting])
            assert one.metrics == classification_metrics(scores, labels_of(second.test))
    alone = by_setting(evaluated(data, protocol, ctx))
    assert [one.metrics for one in alone.values()] == [one.metrics for one in own.values()]
    assert [one.chosen for one in alone.values()] == [one.chosen for one in own.values()]


def test_label_sets_of_another_dataset_s_classes_give_top1_only(
    data: LabeledDataset, ctx: ProbeContext, tmp_path: Path
) -> None:
    labels = np.eye(3, dtype=np.bool_)[np.arange(6) % 3] | np.eye(3, dtype=np.bool_)[0]
    test = class_split(tmp_path, "real", labels)
    real = replace(data, name="real", train=None, uses_head_of="colors", test=test)
    found = [one for one in evaluated(data, SWEEP, ctx, also=[real]) if one.data is real]
    assert [set(one.metrics) for one in found] == [{"top1"}] * 2


@pytest.mark.parametrize("counted", [False, True])
def test_average_precision_leaves_out_what_does_not_count(
    tmp_path: Path, ctx: ProbeContext, counted: bool
) -> None:
    splits = {}
    for name, count in (("train", 18), ("test", 9)):
        labels = np.random.default_rng(len(name)).random((count, 3)) < 0.4
        labels[:, 0] |= ~labels.any(1)
        marks = np.random.default_rng(7).random((count, 3)) < 0.8 if counted else None
        splits[name] = class_split(tmp_path, name, labels, counted=marks)
    data = color_set(tmp_path, name="voc", **splits)
    one = only(data, replace(SWEEP, metric="map"), ctx)
    scores = LinearHead(**one.tensors).scores(features_of(data.test, ctx, SWEEP)[SETTINGS[0]])
    given = data.test.counted
    expected = mean_average_precision(
        scores, labels_of(data.test), None if given is None else torch.from_numpy(given)
    )
    assert one.metrics["map"] == expected
    assert set(only(data, QUICK, ctx).metrics) == {"top1", "map"}
    assert {"top1_k10", "map_k10"} <= set(only(data, NEAR, ctx).metrics)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"classes": ("a", "b")}, "second has 2 classes of classes, colors has 3"),
        ({"kind": "depth", "classes": ()}, "second has 0 classes of depth"),
        ({"uses_head_of": "big"}, "tested with heads of big, not of colors; use big=FOLDER"),
        ({"classes": ("blue", "pink", "red")}, "the class 'pink' where colors has 'green'"),
    ],
)
def test_further_datasets_must_have_the_same_classes(
    data: LabeledDataset, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        check_same_classes(replace(data, name="second", **changes), data)


def test_a_split_without_classes_is_refused() -> None:
    split = Split(name="train", images=TableBuilder().table(), keys=())
    with pytest.raises(DataError, match="the split 'train' has no classes"):
        labels_of(split)
