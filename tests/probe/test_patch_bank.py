"""Patches are labeled by their pixels, drawn by the seed, and vote as a slow loop says."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.probe.dense_scenes import ALL, CLASSES, ColorModel, context_in, scene, split_of
from veca.data.images import DataError
from veca.data.sets.dataset import IGNORE_INDEX, Split
from veca.probe import knn as patch_bank
from veca.probe.feature_cache import RunContext
from veca.probe.features import InferenceConfig, PatchFeatures, Variant, extract_patch_features
from veca.probe.knn import MemoryBank, Wanted, build_bank, class_shares, unit_patches, votes

KIND = Variant(ALL)


@pytest.fixture
def split(tmp_path: Path) -> Split:
    return split_of(tmp_path / "pictures", "train", "masks", range(5))


@pytest.fixture
def ctx(tmp_path: Path) -> RunContext:
    return context_in(tmp_path / "kept")


def features_of(split: Split, ctx: RunContext) -> PatchFeatures:
    return extract_patch_features(
        ColorModel(), [KIND], split, InferenceConfig(short_side=32, stride=8), ctx
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
    with pytest.raises(DataError, match="the class 7, but there are 3 classes"):
        class_shares(np.full((4, 4), 7, np.uint8), (2, 2), 3)


def test_a_small_bank_holds_every_patch_that_counts(split: Split, ctx: RunContext) -> None:
    features = features_of(split, ctx)
    bank = build_bank(split, features, KIND, Wanted(len(CLASSES), 10_000, 0), ctx)
    vectors, shares = [], []
    for index in range(5):
        observed, _ = features(index, KIND)
        rows, columns = observed.patches.shape[2:]
        told = class_shares(scene(index)[1], (rows, columns), len(CLASSES))
        counts = torch.from_numpy(told.any(1))
        vectors.append(unit_patches(observed)[counts])
        shares.append(torch.from_numpy(told)[counts])
    assert torch.equal(bank.features, torch.cat(vectors))
    assert torch.equal(bank.shares, torch.cat(shares))
    torch.testing.assert_close(bank.features.norm(dim=1), torch.ones(len(bank.features)))


def test_a_bounded_bank_is_a_part_of_it_that_the_seed_draws(split: Split, ctx: RunContext) -> None:
    features = features_of(split, ctx)
    every, some, again, other = (
        build_bank(split, features, KIND, Wanted(len(CLASSES), most, seed), ctx)
        for most, seed in ((10_000, 0), (20, 0), (20, 0), (20, 1))
    )
    assert len(some.features) == 20
    assert torch.equal(some.features, again.features)
    assert not torch.equal(some.features, other.features)
    rows = {tuple(row) for row in torch.cat(every, 1).tolist()}
    assert {tuple(row) for row in torch.cat(some, 1).tolist()} <= rows


def test_pixels_that_do_not_count_label_nothing(split: Split, ctx: RunContext) -> None:
    for target in split.targets:
        np.save(target, np.full(np.load(target).shape, IGNORE_INDEX, np.uint8))
    with pytest.raises(DataError, match="no pixel of train counts"):
        build_bank(split, features_of(split, ctx), KIND, Wanted(4, 10, 0), ctx)


def test_a_mask_of_another_size_is_refused(split: Split, ctx: RunContext) -> None:
    np.save(split.targets[2], np.zeros((4, 4), np.uint8))
    with pytest.raises(DataError, match=r"masks-2\.npy has \(4, 4\) pixels"):
        build_bank(split, features_of(split, ctx), KIND, Wanted(4, 10, 0), ctx)


@pytest.mark.parametrize("at_once", [512, 3])
def test_votes_are_those_of_a_slow_loop(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patch_bank, "CELLS_AT_ONCE", at_once)
    cells = torch.nn.functional.normalize(torch.randn(10, 4), dim=1)
    bank = MemoryBank(
        torch.nn.functional.normalize(torch.randn(30, 4), dim=1), torch.rand(30, 3).softmax(1)
    )
    found = votes(cells, bank, (5, 1, 100), 0.1)
    for count, shares in found.items():
        for cell, told in zip(cells.double(), shares, strict=True):
            near = sorted(
                ((float(cell @ other.double()), row) for row, other in enumerate(bank.features)),
                reverse=True,
            )[:count]
            weights = [math.exp(cosine / 0.1) for cosine, _ in near]
            expected = sum(
                weight * bank.shares[row].double()
                for weight, (_, row) in zip(weights, near, strict=True)
            ) / sum(weights)
            torch.testing.assert_close(told.double(), expected, rtol=1e-4, atol=1e-5)
