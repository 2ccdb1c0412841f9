"""Patches of like colors have like classes, without any fitting."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.probe.dense_scenes import ALL, FEW, ColorModel, context_in, farm
from veca.data.sets.dataset import LabeledDataset
from veca.probe.feature_cache import RunContext
from veca.probe.knn import run_dense_knn
from veca.probe.metrics import mean_iou
from veca.probe.protocols import DenseKnnProtocol

NEAR = DenseKnnProtocol(name="near", resolution=32, neighbors=(5, 1))


@pytest.fixture
def data(tmp_path: Path) -> LabeledDataset:
    return farm(tmp_path / "pictures")


@pytest.fixture
def ctx(tmp_path: Path) -> RunContext:
    return context_in(tmp_path / "kept")


def test_neighbors_tell_classes(data: LabeledDataset, ctx: RunContext) -> None:
    found = run_dense_knn(ColorModel(), (FEW, ALL), data, NEAR, (0,), ctx)
    every = found[ALL, 0]
    assert every.metrics["miou"] > 60
    assert every.metrics["miou"] > found[FEW, 0].metrics["miou"] + 5
    assert {"miou_k1", "macc_k1", "aacc_k1", "iou/pond"} <= set(every.metrics)
    assert "miou_k5" not in every.metrics  # it leads without a number
    assert every.counts["train"] == 9
    assert every.counts["test"] == 5
    assert every.counts["patches"] == len(every.tensors["features"])
    value = mean_iou(every.intersections.sum(0), every.unions.sum(0))
    assert every.metrics["miou"] == float(value)


def test_the_seed_draws_the_bank_and_nothing_else(data: LabeledDataset, ctx: RunContext) -> None:
    small = replace(NEAR, bank=30)
    found = run_dense_knn(ColorModel(), (ALL,), data, small, (0, 1), ctx)
    again = run_dense_knn(ColorModel(), (ALL,), data, small, (0,), ctx)
    assert found[ALL, 0].metrics == again[ALL, 0].metrics
    assert not torch.equal(found[ALL, 0].tensors["features"], found[ALL, 1].tensors["features"])
    whole = run_dense_knn(ColorModel(), (ALL,), data, NEAR, (0, 1), ctx)
    assert whole[ALL, 0].metrics == whole[ALL, 1].metrics


def test_patches_may_come_from_a_part_of_the_pictures(
    data: LabeledDataset, ctx: RunContext
) -> None:
    few = replace(NEAR, pictures=4)
    found = run_dense_knn(ColorModel(), (ALL,), data, few, (0,), ctx)[ALL, 0]
    assert found.counts["train"] == 4
