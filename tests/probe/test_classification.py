"""Classes from one vector a picture: heads fit the training part and are judged on every set."""

import gc
import weakref
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.probe.dense_scenes import context_in
from tests.probe.small_features import CellModel
from tests.probe.small_sets import COLORS, color_set, split_of
from veca.data.images import DataError
from veca.data.listing import TableBuilder
from veca.data.sets.dataset import LabeledDataset, Split
from veca.probe import classification
from veca.probe.classification import ClassProbe, labels_of, run_knn, run_linear, run_logistic
from veca.probe.feature_cache import FeatureCache
from veca.probe.features import CachedFeatures
from veca.probe.heads import LinearHead
from veca.probe.measured import Measured
from veca.probe.metrics import mean_average_precision, metrics
from veca.probe.protocols import KnnProtocol, LinearProtocol
from veca.probe.rows import Setting

SETTINGS = (Setting(2), Setting(8))
KS = KnnProtocol(name="k", ks=(3, 10, 200))
QUICK = LinearProtocol(name="quick", rates=(0.1, 1.0), steps=30, batch=6, selection="held-out")


def probe_of(data: LabeledDataset, folder: Path, **changes: Any) -> ClassProbe:
    """A probe of a small model."""
    usual: dict[str, Any] = {
        "model": CellModel(),
        "settings": SETTINGS,
        "data": data,
        "resolution": 16,
        "ctx": context_in(folder),
    }
    return ClassProbe(**usual | changes)


def only(found: Iterable[Measured]) -> Measured:
    """The single result."""
    (one,) = found
    return one


def uses_head_of(measured: Measured) -> LinearHead:
    """The linear head of a result."""
    assert measured.head is not None
    return LinearHead(**measured.head.tensors)


def brute_votes(train: Tensor, labels: Tensor, test: Tensor, k: int) -> Tensor:
    """Votes by the definition, one picture after the other."""
    votes = torch.zeros(len(test), len(COLORS), dtype=torch.float64)
    train, test = (
        part.double() / part.double().norm(dim=1, keepdim=True) for part in (train, test)
    )
    for row, vector in enumerate(test):
        cosines = [float(vector @ other) for other in train]
        nearest = sorted(range(len(train)), key=lambda place: (-cosines[place], place))[:k]
        for place in nearest:
            votes[row, int(labels[place])] += np.exp(cosines[place] / 0.07)
    return votes


def test_neighbors_vote_as_by_hand_at_every_setting(tmp_path: Path) -> None:
    data = color_set(tmp_path)
    probe = probe_of(data, tmp_path / "kept")
    found = list(run_knn(probe, KS, 5))
    assert [one.setting for one in found] == list(SETTINGS)
    assert data.train is not None
    train, test = (probe.vectors(part, KS.margin) for part in (data.train, data.test))
    truth = labels_of(data.test)
    for one in found:
        assert (one.seed, one.feature, one.protocol) == (5, "image", "k")
        assert one.counts == {"train": 18, "test": 9}
        assert set(one.metrics) == {
            f"{n}_k{k}" for n in ("top1", "mean_per_class") for k in (3, 10)
        }
        for k in (3, 10):
            votes = brute_votes(train[one.setting], labels_of(data.train), test[one.setting], k)
            right = votes.argmax(1) == truth
            assert one.metrics[f"top1_k{k}"] == pytest.approx(100 * float(right.double().mean()))
            assert torch.equal(one.cases[f"correct_k{k}"], right)
        assert one.head is not None
        assert torch.equal(one.head.tensors["features"], train[one.setting])
        assert one.head.facts["neighbors"] == 10


def test_fewer_training_pictures_than_neighbors_are_refused(tmp_path: Path) -> None:
    probe = probe_of(color_set(tmp_path), tmp_path / "kept")
    with pytest.raises(DataError, match=r"18 training pictures, fewer than the 20 .*use logistic"):
        list(run_knn(probe, KnnProtocol(name="k", ks=(20, 100)), 0))


def test_a_head_of_very_many_neighbors_is_not_kept_and_that_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(classification, "MOST_KEPT_BYTES", 4 * 5 * 18 - 1)
    told: list[str] = []
    ctx = context_in(tmp_path / "kept", log=told.append)
    probe = probe_of(color_set(tmp_path), tmp_path, settings=SETTINGS[:1], ctx=ctx)
    assert only(run_knn(probe, KS, 0)).head is None
    assert "The head is not kept, since its 18 training vectors take more" in told[0]


def test_the_number_of_a_head_is_what_the_kept_head_tells(tmp_path: Path) -> None:
    data = color_set(tmp_path)
    for feature, width in (("image", 5), ("patch-mean", 6), ("image+patch-mean", 11)):
        probe = probe_of(data, tmp_path / "kept", feature=feature, settings=SETTINGS[1:])
        one = only(run_logistic(probe, "dinov2", (0,)))
        test = probe.vectors(data.test, 1.0)[SETTINGS[1]]
        assert test.shape == (9, width)
        scores = uses_head_of(one).scores(test)
        assert one.metrics == metrics(scores, labels_of(data.test))
        assert one.head is not None
        assert one.head.facts == {"margin": 1.0, "feature": feature}
        assert one.chosen["C"] > 0


def test_seeds_put_other_pictures_aside(tmp_path: Path) -> None:
    probe = probe_of(color_set(tmp_path), tmp_path / "kept", settings=SETTINGS[:1])
    found = list(run_logistic(probe, "dinov2", (0, 1, 2)))
    assert [one.seed for one in found] == [0, 1, 2]
    assert len({one.chosen["C"] for one in found}) > 1
    again = list(run_logistic(probe, "dinov2", (0, 1, 2)))
    assert [one.metrics for one in again] == [one.metrics for one in found]


def test_a_set_s_own_part_to_choose_on_is_used_and_counted(tmp_path: Path) -> None:
    own = color_set(tmp_path, val=split_of(tmp_path, "aside", np.arange(6) % 3))
    probe = probe_of(own, tmp_path / "kept", settings=SETTINGS[:1])
    first, second = run_logistic(probe, "dinov2", (0, 1))
    assert first.counts == {"train": 18, "test": 9, "held_out": 6, "fitted": 24}
    assert (first.metrics, first.chosen) == (second.metrics, second.chosen)  # no chance is left
    linear = only(run_linear(probe, QUICK, (0,)))
    assert linear.counts == {**first.counts, "fitted": 18}
    unused = only(run_linear(probe, replace(QUICK, selection="test"), (0,)))
    assert unused.counts == {"train": 18, "test": 9, "fitted": 18}


def test_pictures_put_aside_are_not_counted_as_fitted_on(tmp_path: Path) -> None:
    probe = probe_of(color_set(tmp_path), tmp_path / "kept", settings=SETTINGS[:1])
    for share, fitted in ((0.1, 16), (0.5, 9)):
        one = only(run_linear(probe, replace(QUICK, held_out_share=share), (0,)))
        assert one.counts == {"train": 18, "test": 9, "fitted": fitted}
    again = only(run_logistic(probe, "dinov2", (0,)))  # which fits on all in the end
    assert again.counts == {"train": 18, "test": 9, "fitted": 18}


def watch_reading(patch: pytest.MonkeyPatch) -> list[int]:
    """How many vectors of whole parts were in memory after each that was read."""
    read, living = list[weakref.ref[Tensor]](), list[int]()
    before = CachedFeatures._read

    def watched(self: CachedFeatures, cache: FeatureCache) -> Tensor:
        found = before(self, cache)
        read.append(weakref.ref(found))
        gc.collect()
        living.append(sum(each() is not None for each in read))
        return found

    patch.setattr(CachedFeatures, "_read", watched)
    return living


def test_each_part_has_the_vectors_of_one_setting_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tuple(Setting(budget) for budget in range(1, 5))
    probe = probe_of(color_set(tmp_path), tmp_path / "kept", settings=settings)
    runs: list[Callable[[], Iterable[Measured]]] = [
        lambda: run_knn(probe, KS, 0),
        lambda: run_logistic(probe, "dinov2", (0,)),
        lambda: run_linear(probe, replace(QUICK, selection="test"), (0, 1)),
    ]
    for run in runs:
        with monkeypatch.context() as patch:
            living = watch_reading(patch)
            for _ in run():
                pass
        assert len(living) >= 2 * len(settings)
        # One of the training part and one of the test part; a result holds one while it is told.
        assert max(living) <= 3


def test_linear_heads_of_all_settings_see_the_views_of_the_protocol(tmp_path: Path) -> None:
    data, model = color_set(tmp_path), CellModel()
    probe = probe_of(data, tmp_path / "kept", model=model)
    found = list(run_linear(probe, replace(QUICK, views=3), (0, 1)))
    assert [(one.seed, one.setting) for one in found] == [
        (seed, setting) for seed in (0, 1) for setting in SETTINGS
    ]
    assert all(one.chosen["views"] == 3 and one.chosen["step"] == 30 for one in found)
    assert {one.chosen["rate"] for one in found} <= {0.1, 1.0}
    test = probe.vectors(data.test, QUICK.margin)
    for one in found:
        assert one.metrics == metrics(
            uses_head_of(one).scores(test[one.setting]), labels_of(data.test)
        )
    # Twelve at a time, the last ones padded; never more often for another seed.
    assert all(18 * 3 + 9 <= asked < 2 * (18 * 3 + 9) for asked in model.asked.values())


def test_the_step_is_chosen_on_the_reported_set_only_where_the_protocol_says_so(
    tmp_path: Path,
) -> None:
    probe = probe_of(color_set(tmp_path), tmp_path / "kept", settings=SETTINGS[:1])
    best = replace(QUICK, rates=(1.0,), validate_every=1, selection="test-best-step")
    last = replace(QUICK, rates=(1.0,), selection="none")
    chosen, plain = (only(run_linear(probe, one, (0,))) for one in (best, last))
    assert chosen.metrics["top1"] >= plain.metrics["top1"]
    assert plain.chosen["step"] == 30


def test_further_sets_are_measured_by_the_same_head(tmp_path: Path) -> None:
    data = color_set(tmp_path)
    second = color_set(tmp_path, name="v2", train=None, uses_head_of="colors",
                        test=split_of(tmp_path, "v2", np.arange(6) % 3))  # fmt: skip
    probe = probe_of(data, tmp_path / "kept", also=[second])
    runs = (
        run_knn(probe, KS, 0),
        run_logistic(probe, "dinov2", (0,)),
        run_linear(probe, replace(QUICK, selection="test"), (0,)),
    )
    for found in map(list, runs):
        assert {(one.data.name, one.setting) for one in found} == {
            (name, setting) for name in ("colors", "v2") for setting in SETTINGS
        }
        assert all((one.head is not None) == (one.data is data) for one in found)
        assert all(one.counts["test"] == len(one.data.test) for one in found)
    heads = {one.setting: uses_head_of(one) for one in found if one.data is data}
    vectors = probe.vectors(second.test, QUICK.margin)
    for one in found:
        if one.data is second:
            scores = heads[one.setting].scores(vectors[one.setting])
            assert one.metrics == metrics(scores, labels_of(second.test))


def test_what_is_chosen_does_not_depend_on_further_sets(tmp_path: Path) -> None:
    data = color_set(tmp_path)
    wrong = split_of(tmp_path, "test", np.arange(9) % 3)
    second = color_set(tmp_path, test=replace(wrong, labels=(np.arange(9) + 1) % 3))
    rates = replace(QUICK, selection="test", rates=(1e-6, 1e-3, 0.1, 1.0))
    alone, beside = (
        [one for one in run_linear(probe, rates, (0, 1)) if one.data is data]
        for probe in (
            probe_of(data, tmp_path / "kept"),
            probe_of(data, tmp_path / "kept", also=[second]),
        )
    )
    assert [one.chosen for one in alone] == [one.chosen for one in beside]
    assert [one.metrics for one in alone] == [one.metrics for one in beside]


def test_several_right_labels_without_a_head_of_their_own_are_judged_by_top1_alone(
    tmp_path: Path,
) -> None:
    labels = np.eye(3, dtype=np.bool_)[np.arange(6) % 3] | np.eye(3, dtype=np.bool_)[0]
    real = color_set(tmp_path, name="real", train=None, uses_head_of="colors",
                      test=split_of(tmp_path, "real", labels))  # fmt: skip
    probe = probe_of(color_set(tmp_path), tmp_path / "kept", also=[real])
    found = [one for one in run_logistic(probe, "dinov2", (0,)) if one.data is real]
    assert [set(one.metrics) for one in found] == [{"top1"}] * 2


def voc(folder: Path, counted: bool) -> LabeledDataset:
    """A set whose pictures show several classes; some objects of the test part may not count."""
    parts = {}
    for name, count in (("train", 18), ("test", 9)):
        labels = np.random.default_rng(len(name)).random((count, 3)) < 0.4
        labels[:, 0] |= ~labels.any(1)
        marks = np.random.default_rng(7).random((count, 3)) < 0.8
        parts[name] = split_of(folder, name, labels, counted=marks if counted else None)
    return color_set(folder, name="voc", **parts)


def test_average_precision_passes_over_what_does_not_count(tmp_path: Path) -> None:
    found = {}
    for counted in (False, True):
        data = voc(tmp_path, counted)
        probe = probe_of(data, tmp_path / "kept", settings=SETTINGS[:1])
        one = only(run_logistic(probe, "dinov2", (0,)))
        scores = uses_head_of(one).scores(probe.vectors(data.test, 1.0)[SETTINGS[0]])
        marks = None if data.test.counted is None else torch.from_numpy(data.test.counted)
        for name, kind in classification.INTERPOLATIONS.items():
            wanted = mean_average_precision(scores, labels_of(data.test), kind, marks)
            assert one.metrics[name] == wanted
        found[counted] = one.metrics["map"]
    assert found[False] != found[True]
    knn = only(run_knn(probe, KS, 0))
    assert {"top1_k10", "map_k10", "map_all_point_k10", "map_step_k10"} <= set(knn.metrics)
    assert set(only(run_linear(probe, QUICK, (0,))).metrics) == set(one.metrics)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"train": None}, "colors has classes and no training part.*use another set"),
        ({"train": None, "uses_head_of": "big"}, "name it with --also beside big"),
        ({"kind": "masks"}, "colors has masks and a training part"),
    ],
)
def test_a_set_that_no_head_can_be_fitted_on_is_refused(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(DataError, match=words):
        probe_of(color_set(tmp_path, **changes), tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"classes": ("a", "b")}, "second has 2 classes, colors 3"),
        ({"kind": "depth", "classes": ()}, "second tells depth of its pictures"),
        ({"uses_head_of": "big"}, "measured with heads of big, not of colors; give big=FOLDER"),
        ({"classes": ("blue", "pink", "red")}, "the class 'pink' where colors has 'green'"),
    ],
)
def test_a_further_set_with_other_classes_is_refused(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    other = color_set(tmp_path, name="second", **changes)
    with pytest.raises(DataError, match=words):
        probe_of(color_set(tmp_path), tmp_path, also=[other])


def test_a_part_without_classes_is_refused() -> None:
    part = Split(name="train", images=TableBuilder().table(), keys=())
    with pytest.raises(DataError, match="the part 'train' has no classes"):
        labels_of(part)
