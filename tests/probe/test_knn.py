"""Neighbors vote as brute force in double precision does, however the work is divided."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.probe.fixtures import (
    ALL,
    CLASSES,
    FEW,
    ColorModel,
    by_setting,
    context_in,
    dense_split,
    farm,
    scene,
)
from veca.data.images import DataError
from veca.data.sets.dataset import IGNORE_INDEX, LabeledDataset, Split
from veca.probe import knn as knn_module
from veca.probe.feature_cache import ProbeContext, Variant
from veca.probe.features import InferenceConfig, PatchFeatures, extract_patch_features
from veca.probe.knn import (
    MemoryBank,
    build_memory_bank,
    class_shares,
    evaluate_dense_knn,
    knn_votes,
    nearest,
)
from veca.probe.metrics import mean_ratio
from veca.probe.models import FrozenFeatures
from veca.probe.protocols import DenseKnnProtocol, ProbeInputs
from veca.probe.rows import ProbeResult, Setting

KS = (10, 20, 100, 200)
NUM_CLASSES = 10


def brute_force(
    train: Tensor, labels: Tensor, test: Tensor, ks: Sequence[int], temperature: float = 0.07
) -> dict[int, Tensor]:
    """Every pair compared in double precision, neighbors sorted by (similarity, row)."""
    memory, wanted = (
        np.asarray(torch.nn.functional.normalize(each.double())) for each in (train, test)
    )
    votes = {k: torch.zeros(len(test), NUM_CLASSES, dtype=torch.float64) for k in ks}
    for row, vector in enumerate(wanted):
        # One product at a time, so that equal pictures are equally similar to the last bit.
        similarities = (memory * vector).sum(axis=1).tolist()
        order = sorted(range(len(memory)), key=lambda each: (-similarities[each], each))
        weights = [math.exp(similarities[each] / temperature) for each in order[: max(ks)]]
        for k in ks:
            for each, weight in zip(order[:k], weights, strict=False):
                votes[k][row, labels[each]] += weight / math.fsum(weights[:k])
    return votes


def random_set(rows: int, width: int = 16) -> tuple[Tensor, Tensor]:
    """Features with some structure, of many lengths."""
    labels = torch.randint(NUM_CLASSES, (rows,))
    centers = torch.randn(NUM_CLASSES, width, generator=torch.Generator().manual_seed(1))
    features = (torch.randn(rows, width) + 0.4 * centers[labels]) * (0.1 + 9 * torch.rand(rows, 1))
    return features, labels


def agree(found: dict[int, Tensor], expected: dict[int, Tensor]) -> None:
    """Fail unless all 200 images get the same class by nearly the same votes."""
    for k, votes in expected.items():
        torch.testing.assert_close(found[k], votes, rtol=0, atol=1e-6)
        assert int((found[k].argmax(1) == votes.argmax(1)).sum()) == 200


def with_copies(features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Every picture four times, in places far apart and with labels of their own."""
    quarter = features[: len(features) // 4]
    return quarter.repeat(4, 1), labels


def test_all_predictions_are_those_of_brute_force() -> None:
    train, labels = random_set(1000)
    test, _ = random_set(200)
    votes = knn_votes(train, labels, test, NUM_CLASSES)
    assert tuple(votes) == KS
    agree(votes, brute_force(train, labels, test, KS))


def test_equally_near_pictures_are_taken_in_the_order_of_the_training_set() -> None:
    train, labels = with_copies(*random_set(1000))
    test, _ = random_set(200)
    ks = (10, 21)  # both cut through the copies of one picture
    agree(knn_votes(train, labels, test, NUM_CLASSES, ks=ks), brute_force(train, labels, test, ks))


@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize(("test_rows", "train_rows"), [(1, 997), (7, 64), (1000, 5)])
def test_chunks_change_no_bit(
    test_rows: int, train_rows: int, copies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, labels = random_set(1000)
    if copies:
        train, labels = with_copies(train, labels)
    test = random_set(23)[0]
    whole = knn_votes(train, labels, test, NUM_CLASSES)
    monkeypatch.setattr(knn_module, "TEST_ROWS", test_rows)
    monkeypatch.setattr(knn_module, "TRAIN_ROWS", train_rows)
    cut = knn_votes(train, labels, test, NUM_CLASSES)
    assert all(torch.equal(whole[k], cut[k]) for k in KS)


def test_the_order_of_summation_changes_no_similarity() -> None:
    train, test = random_set(200, width=300)[0], random_set(40, width=300)[0]
    order = torch.randperm(300)
    plain, shuffled = nearest(train, test, 9), nearest(train[:, order], test[:, order], 9)
    assert torch.equal(plain[0], shuffled[0])
    assert torch.equal(plain[1], shuffled[1])
    exact = (
        torch.nn.functional.normalize(train.double())
        @ torch.nn.functional.normalize(test.double()).T
    )
    torch.testing.assert_close(plain[0], exact.T.topk(9).values, rtol=0, atol=4e-8)


@given(st.lists(st.sampled_from([-1.0, -0.0, 0.0, 0.5, 1.0]), min_size=1, max_size=40), st.data())
def test_the_largest_come_first_and_equals_in_order(
    values: list[float], data: st.DataObject
) -> None:
    k = data.draw(st.integers(1, len(values)))
    found = knn_module._stable_topk(torch.tensor([values], dtype=torch.float64), k)
    expected = sorted(range(len(values)), key=lambda each: (-values[each], each))[:k]
    assert found[0].tolist() == expected


def test_a_k_above_the_training_set_is_left_out() -> None:
    train, labels = random_set(20)
    assert list(knn_votes(train, labels, train, NUM_CLASSES)) == [10, 20]
    assert knn_votes(train[:5], labels[:5], train, NUM_CLASSES) == {}


def test_votes_of_each_k_add_up_to_one_and_do_not_depend_on_the_other_ks() -> None:
    train, labels = random_set(300)
    test = random_set(9)[0]
    together = knn_votes(train, labels, test, NUM_CLASSES, ks=(200, 10))
    assert list(together) == [200, 10]
    for k, votes in together.items():
        torch.testing.assert_close(votes.sum(dim=1), torch.ones(9, dtype=torch.float64))
        assert torch.equal(votes, knn_votes(train, labels, test, NUM_CLASSES, ks=(k,))[k])


def test_a_neighbor_with_several_classes_votes_for_each() -> None:
    train, labels = random_set(200)
    test = random_set(9)[0]
    single = torch.nn.functional.one_hot(labels, NUM_CLASSES).bool()
    plain, several = (
        knn_votes(train, labels, test, NUM_CLASSES),
        knn_votes(train, single, test, NUM_CLASSES),
    )
    assert all(torch.equal(plain[k], several[k]) for k in KS)
    everything = knn_votes(train, torch.ones_like(single), test, NUM_CLASSES, ks=(7,))[7]
    assert torch.equal(everything, torch.ones_like(everything))


def test_the_temperature_decides_how_much_nearer_ones_weigh() -> None:
    train = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.6, -0.8]])
    labels, test = torch.tensor([0, 1, 1]), torch.tensor([[2.0, 0.0]])
    for temperature, winner in ((0.07, 0), (10.0, 1)):
        votes = knn_votes(train, labels, test, 2, ks=(3,), temperature=temperature)[3]
        weight = math.exp(-0.4 / temperature)
        assert votes[0].tolist() == pytest.approx(
            [1 / (1 + 2 * weight), 2 * weight / (1 + 2 * weight)]
        )
        assert int(votes.argmax()) == winner


def test_a_picture_without_direction_is_similar_to_nothing() -> None:
    train = torch.tensor([[-1.0, 0.0], [0.0, 0.0], [1.0, 0.0]])
    similarities, rows = nearest(train, torch.ones(1, 2), 3)
    assert rows.tolist() == [[2, 1, 0]]
    assert similarities[0, 1] == 0


def test_half_precision_and_no_test_pictures_are_fine() -> None:
    train, labels = random_set(50)
    assert knn_votes(train.half(), labels, train[:0].half(), NUM_CLASSES, ks=(3,))[3].shape == (
        0,
        NUM_CLASSES,
    )
    assert nearest(train.half(), train.half(), 1)[1].flatten().tolist() == list(range(50))


VARIANT = Variant(ALL)
NEAR = DenseKnnProtocol(name="near", resolution=32, k=5)


@pytest.fixture
def split(tmp_path: Path) -> Split:
    return dense_split(tmp_path / "pictures", "train", "masks", range(5))


@pytest.fixture
def ctx(tmp_path: Path) -> ProbeContext:
    return context_in(tmp_path / "kept")


def features_of(split: Split, ctx: ProbeContext) -> PatchFeatures:
    return extract_patch_features(
        ColorModel(), [VARIANT], split, InferenceConfig(short_side=32, stride=8), ctx
    )


@given(
    sides=st.tuples(st.integers(1, 20), st.integers(1, 20)),
    grid=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    seed=st.integers(0, 99),
)
def test_shares_are_those_of_the_pixels_whose_centers_lie_in_a_patch(
    sides: tuple[int, int], grid: tuple[int, int], seed: int
) -> None:
    draw = np.random.default_rng(seed)
    mask = draw.choice([0, 1, 2, IGNORE_INDEX], sides).astype(np.uint8)
    expected = np.zeros((*grid, 3))
    for row in range(sides[0]):
        for column in range(sides[1]):
            if mask[row, column] != IGNORE_INDEX:
                down = int((row + 0.5) / sides[0] * grid[0] + 1e-9)
                across = int((column + 0.5) / sides[1] * grid[1] + 1e-9)
                expected[down, across, mask[row, column]] += 1
    expected /= np.maximum(1, expected.sum(2, keepdims=True))
    np.testing.assert_allclose(class_shares(mask, grid, 3), expected.reshape(-1, 3), rtol=1e-6)


def test_unknown_classes_are_refused() -> None:
    with pytest.raises(DataError, match="class 7, but the dataset has 3 classes"):
        class_shares(np.full((4, 4), 7, np.uint8), (2, 2), 3)


def bank_of(split: Split, ctx: ProbeContext, seed: int = 0, **changes: Any) -> MemoryBank:
    """The bank of a split."""
    data = LabeledDataset(name="farm", kind="masks", classes=CLASSES, train=split, test=split)
    inputs = ProbeInputs(ColorModel(), (ALL,), data, replace(NEAR, **changes), (seed,), ctx)
    return build_memory_bank(inputs, split, features_of(split, ctx), VARIANT, seed)


def test_a_bank_with_room_holds_every_labeled_patch(split: Split, ctx: ProbeContext) -> None:
    features, bank = features_of(split, ctx), bank_of(split, ctx)
    vectors, shares = [], []
    for index in range(5):
        found, _ = features(index, VARIANT)
        rows, columns = found.patches.shape[2:]
        told = class_shares(scene(index)[1], (rows, columns), len(CLASSES))
        labeled = torch.from_numpy(told.any(1))
        vectors.append(F.normalize(found.patches[0].flatten(1).T, dim=1)[labeled])
        shares.append(torch.from_numpy(told)[labeled])
    assert torch.equal(bank.features, torch.cat(vectors))
    assert torch.equal(bank.shares, torch.cat(shares))


def test_a_small_bank_is_a_part_of_it_that_the_seed_draws(split: Split, ctx: ProbeContext) -> None:
    every, some, again, other = (
        bank_of(split, ctx, seed, max_patches=count)
        for count, seed in ((10_000, 0), (20, 0), (20, 0), (20, 1))
    )
    assert len(some.features) == 20
    assert torch.equal(some.features, again.features)
    assert not torch.equal(some.features, other.features)
    rows = {tuple(row) for row in torch.cat((every.features, every.shares), 1).tolist()}
    assert {tuple(row) for row in torch.cat((some.features, some.shares), 1).tolist()} <= rows


def test_masks_without_labels_or_of_another_size_are_refused(
    split: Split, ctx: ProbeContext
) -> None:
    for target in split.targets:
        np.save(target, np.full(np.load(target).shape, IGNORE_INDEX, np.uint8))
    with pytest.raises(DataError, match="no pixel of train has a class"):
        bank_of(split, ctx)
    np.save(split.targets[2], np.zeros((4, 4), np.uint8))
    with pytest.raises(DataError, match=r"masks-2\.npy has 4 x 4 pixels"):
        bank_of(split, ctx)


@pytest.mark.parametrize("chunk", [512, 3])
@pytest.mark.parametrize("k", [5, 1, 100])
def test_patch_votes_are_those_of_a_slow_loop(
    k: int, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(knn_module, "PATCH_ROWS", chunk)
    bank = MemoryBank(
        F.normalize(torch.randn(30, 4), dim=1), torch.rand(30, 3).softmax(1), k, temperature=0.1
    )
    features = FrozenFeatures(torch.zeros(1, 2), torch.randn(1, 4, 2, 5))
    found = bank(features)
    assert found.shape == (1, 3, 2, 5)
    cells = F.normalize(features.patches[0].flatten(1).T, dim=1)
    for cell, told in zip(cells.double(), found[0].flatten(1).T, strict=True):
        near = sorted(
            ((float(cell @ other.double()), row) for row, other in enumerate(bank.features)),
            reverse=True,
        )[:k]
        weights = [math.exp(cosine / 0.1) for cosine, _ in near]
        expected = sum(
            weight * bank.shares[row].double()
            for weight, (_, row) in zip(weights, near, strict=True)
        ) / sum(weights)
        torch.testing.assert_close(told.double(), expected, rtol=1e-4, atol=1e-5)


def evaluated(
    data: LabeledDataset, ctx: ProbeContext, seeds: Sequence[int] = (0,), **changes: Any
) -> dict[tuple[Setting, int], ProbeResult]:
    """Results of dense kNN at all settings."""
    protocol = replace(NEAR, **changes)
    inputs = ProbeInputs(ColorModel(), (FEW, ALL), data, protocol, seeds, ctx)
    return by_setting(evaluate_dense_knn(inputs))


def test_patches_of_similar_colors_have_the_same_class(tmp_path: Path, ctx: ProbeContext) -> None:
    found = evaluated(farm(tmp_path / "pictures"), ctx)
    every = found[ALL, 0]
    assert every.metrics["miou"] > 60
    assert every.metrics["miou"] > found[FEW, 0].metrics["miou"] + 5
    assert "iou/pond" in every.metrics
    patches = len(every.tensors["features"])
    assert every.counts == {"train": 9, "test": 5, "patches": patches}
    hits, union = (every.per_image[name].sum(0) for name in ("intersections", "unions"))
    assert every.metrics["miou"] == mean_ratio(hits, union)


def test_the_seed_draws_the_bank_and_nothing_else(tmp_path: Path, ctx: ProbeContext) -> None:
    data = farm(tmp_path / "pictures")
    found = evaluated(data, ctx, (0, 1), max_patches=30)
    assert found[ALL, 0].metrics == evaluated(data, ctx, max_patches=30)[ALL, 0].metrics
    features = [found[ALL, seed].tensors["features"] for seed in (0, 1)]
    assert not torch.equal(*features)
    whole = evaluated(data, ctx, (0, 1))
    assert whole[ALL, 0].metrics == whole[ALL, 1].metrics
    assert evaluated(data, ctx, max_images=4)[ALL, 0].counts["train"] == 4
