"""Counts of pixels and what is made of them, against slow loops and torchmetrics."""

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from veca.data.labelled import IGNORED
from veca.probe.segmentation_metrics import (
    confusion,
    intersections,
    mean_iou,
    segmentation_metrics,
    unions,
)

NAMES = ("a", "b", "c", "d")


def counted(labels: NDArray[np.uint8], found: NDArray[np.uint8], classes: int) -> list[list[int]]:
    """The confusion matrix, pixel by pixel."""
    counts = [[0] * classes for _ in range(classes)]
    for label, told in zip(labels.ravel().tolist(), found.ravel().tolist(), strict=True):
        if label != IGNORED:
            counts[label][told] += 1
    return counts


def mean_of_ratios(counts: list[list[int]], scored: list[int] | None = None) -> float:
    """Mean intersection over union in percent, by the definition."""
    ratios = []
    for c in scored or range(len(counts)):
        inside = counts[c][c]
        around = sum(counts[c]) + sum(row[c] for row in counts) - inside
        if around:
            ratios.append(inside / around)
    return 100 * sum(ratios) / len(ratios) if ratios else math.nan


def maps(draw: np.random.Generator) -> tuple[NDArray[np.uint8], NDArray[np.uint8], int]:
    """Random classes, some of them absent, ignored or alone."""
    classes = int(draw.integers(1, 6))
    sides = tuple(draw.integers(1, 9, 2))
    labels = draw.integers(0, classes, sides).astype(np.uint8)
    found = draw.integers(0, classes, sides).astype(np.uint8)
    kind = draw.integers(0, 4)
    if kind == 0:
        labels[:] = IGNORED
    elif kind == 1:
        labels[draw.random(sides) < 0.5] = IGNORED
    elif kind == 2:
        labels[labels == classes - 1] = 0
        found[found == classes - 1] = 0
    return labels, found, classes


def test_a_thousand_random_maps_are_counted_as_by_hand() -> None:
    draw = np.random.default_rng(0)
    for _ in range(1_000):
        labels, found, classes = maps(draw)
        counts = confusion(torch.from_numpy(labels), torch.from_numpy(found), classes)
        expected = counted(labels, found, classes)
        assert counts.tolist() == expected
        value = float(mean_iou(intersections(counts), unions(counts)))
        assert value == pytest.approx(mean_of_ratios(expected), rel=1e-12, nan_ok=True)


def test_the_metrics_of_a_worked_example() -> None:
    counts = torch.tensor([[6, 2, 0, 0], [1, 3, 0, 0], [0, 0, 0, 4], [0, 0, 0, 0]])
    found = segmentation_metrics(counts, NAMES)
    assert found["iou/a"] == pytest.approx(100 * 6 / 9)
    assert found["iou/b"] == pytest.approx(100 * 3 / 6)
    assert found["iou/c"] == 0
    assert found["iou/d"] == 0  # told, though not there
    assert found["miou"] == pytest.approx((100 * 6 / 9 + 50) / 4)
    assert found["macc"] == pytest.approx((75 + 75 + 0) / 3)  # d has no pixels
    assert found["aacc"] == pytest.approx(100 * 9 / 16)


def test_classes_that_are_not_scored_stay_in_the_unions() -> None:
    counts = torch.tensor([[6, 2, 5, 0], [1, 3, 0, 0], [7, 0, 0, 4], [0, 0, 0, 0]])
    found = segmentation_metrics(counts, NAMES, scored=(0, 1))
    assert found["miou"] == pytest.approx(mean_of_ratios(counts.tolist(), [0, 1]))
    assert found["iou/a"] == pytest.approx(100 * 6 / 21)
    assert "iou/c" not in found
    assert found["aacc"] == pytest.approx(100 * 9 / 28)


def test_a_class_that_is_neither_there_nor_told_is_left_out() -> None:
    found = segmentation_metrics(torch.tensor([[2, 0], [0, 0]]), ("a", "b"))
    assert found == {"miou": 100.0, "macc": 100.0, "aacc": 100.0, "iou/a": 100.0}
    nothing = segmentation_metrics(torch.zeros(2, 2, dtype=torch.int64), ("a", "b"))
    assert nothing == {}


def test_sums_over_pictures_are_divided_once() -> None:
    first = torch.tensor([[10, 0], [0, 0]])
    second = torch.tensor([[0, 1], [0, 1]])
    both = torch.stack((first, second))
    inside, around = intersections(both), unions(both)
    assert float(mean_iou(inside.sum(0), around.sum(0))) == pytest.approx(
        mean_of_ratios((first + second).tolist())
    )
    assert mean_iou(inside, around).shape == (2,)


def test_miou_is_that_of_torchmetrics() -> None:
    torchmetrics = pytest.importorskip("torchmetrics", reason="an oracle that need not be there")
    draw = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 4, (30, 40), generator=draw)
    found = torch.randint(0, 4, (30, 40), generator=draw)
    labels[:5] = IGNORED
    oracle = torchmetrics.JaccardIndex("multiclass", num_classes=4, ignore_index=IGNORED)
    counts = confusion(labels, found, 4)
    assert float(mean_iou(intersections(counts), unions(counts))) == pytest.approx(
        100 * float(oracle(found, labels)), rel=1e-6
    )


@pytest.mark.parametrize(("label", "told"), [(2, 0), (0, 2)])
def test_classes_beyond_the_last_are_refused(label: int, told: int) -> None:
    with pytest.raises(ValueError, match="there are 2 classes"):
        confusion(torch.tensor([[label]]), torch.tensor([[told]]), 2)
