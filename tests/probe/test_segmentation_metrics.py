"""Counts of pixels and what is made of them, against slow loops and torchmetrics."""

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from veca.data.sets.dataset import IGNORE_INDEX
from veca.probe.metrics import (
    MaskObjects,
    confusion,
    connected_parts,
    intersections,
    mean_iou,
    segmentation_metrics,
    size_recalls,
    unions,
)

NAMES = ("a", "b", "c", "d")


def counted(labels: NDArray[np.uint8], found: NDArray[np.uint8], classes: int) -> list[list[int]]:
    """The confusion matrix, pixel by pixel."""
    counts = [[0] * classes for _ in range(classes)]
    for label, told in zip(labels.ravel().tolist(), found.ravel().tolist(), strict=True):
        if label != IGNORE_INDEX:
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
        labels[:] = IGNORE_INDEX
    elif kind == 1:
        labels[draw.random(sides) < 0.5] = IGNORE_INDEX
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
    labels[:5] = IGNORE_INDEX
    oracle = torchmetrics.JaccardIndex("multiclass", num_classes=4, ignore_index=IGNORE_INDEX)
    counts = confusion(labels, found, 4)
    assert float(mean_iou(intersections(counts), unions(counts))) == pytest.approx(
        100 * float(oracle(found, labels)), rel=1e-6
    )


@pytest.mark.parametrize(("label", "told"), [(2, 0), (0, 2)])
def test_classes_beyond_the_last_are_refused(label: int, told: int) -> None:
    with pytest.raises(ValueError, match="there are 2 classes"):
        confusion(torch.tensor([[label]]), torch.tensor([[told]]), 2)


def flooded(mask: NDArray[np.uint8]) -> list[set[tuple[int, int]]]:
    """Parts of one value that touch by their sides, by walking through each of them."""
    found, seen = [], set[tuple[int, int]]()
    for start in np.ndindex(*mask.shape):
        if start in seen:
            continue
        part, todo = set[tuple[int, int]](), [start]
        while todo:
            row, column = todo.pop()
            inside = 0 <= row < mask.shape[0] and 0 <= column < mask.shape[1]
            if inside and (row, column) not in part and mask[row, column] == mask[start]:
                part.add((row, column))
                todo += [(row + 1, column), (row - 1, column), (row, column + 1), (row, column - 1)]
        found.append(part)
        seen |= part
    return found


def test_parts_of_random_masks_are_those_of_a_walk_through_them() -> None:
    draw = np.random.default_rng(3)
    for _ in range(200):
        sides = tuple(draw.integers(1, 14, 2))
        mask = draw.integers(0, int(draw.integers(1, 4)), sides).astype(np.uint8)
        wanted = np.empty(sides, int)
        for number, part in enumerate(flooded(mask)):
            for place in part:
                wanted[place] = number
        assert np.array_equal(connected_parts(mask), wanted)


def test_a_winding_part_is_one() -> None:
    mask = np.zeros((41, 41), np.uint8)
    mask[1::4, :-1] = mask[3::4, 1:] = 1
    mask[2::4, -2] = mask[4::4, 1] = 1  # a snake through all rows
    mask[2::4, -1] = mask[4::4, 0] = 0
    assert len(np.unique(connected_parts(mask)[mask == 1])) == 1


def test_objects_are_counted_one_by_one_without_specks_and_ignored_pixels() -> None:
    mask = np.zeros((50, 50), np.uint8)
    mask[5:15, 5:15] = 1
    mask[20:24, 20:25] = mask[30:32, 30:40] = 2
    mask[40:50] = IGNORE_INDEX
    mask[0, 0] = mask[0, 2] = 1  # below a thousandth of 2,500 pixels
    found = mask.copy()
    found[5:10, 5:15] = 0
    found[30:32, 30:40] = 1
    told = MaskObjects(torch.from_numpy(mask)).told(torch.from_numpy(found)).tolist()
    background = int((mask == 0).sum())
    assert sorted(told) == [
        [0, background, background, 2500],
        [1, 100, 50, 2500],
        [2, 20, 0, 2500],
        [2, 20, 20, 2500],
    ]


def test_recall_by_size_is_the_mean_over_each_third_of_the_objects() -> None:
    draw = np.random.default_rng(0)
    objects = [
        [picture, int(draw.integers(0, 4)), area, int(draw.integers(0, area + 1)), 1000]
        for picture, area in enumerate(draw.permutation(np.arange(10, 100)).tolist())
    ]
    names = ("background", "b", "c", "d")
    kept = sorted(one[2:4] for one in objects if one[1] in {1, 2})
    third = len(kept) / 3
    wanted = {}
    for place, name in enumerate(("small", "medium", "large")):
        some = kept[math.ceil(place * third) : math.ceil((place + 1) * third)]
        wanted[f"recall/{name}"] = 100 * sum(right / area for area, right in some) / len(some)
    assert size_recalls(torch.tensor(objects), names, (0, 1, 2)) == pytest.approx(wanted)


def test_the_size_of_an_object_is_its_share_of_the_picture() -> None:
    objects = torch.tensor([[0, 0, 50, 50, 100], [1, 0, 60, 30, 1000], [2, 0, 70, 0, 10000]])
    assert size_recalls(objects, NAMES) == {
        "recall/large": 100.0,
        "recall/medium": 50.0,
        "recall/small": 0.0,
    }


def test_without_objects_there_is_no_recall() -> None:
    assert size_recalls(torch.zeros(0, 5).long(), NAMES) == {}
    one = torch.tensor([[0, 0, 50, 25, 100]])
    assert size_recalls(one, ("background", "b")) == {}
    assert size_recalls(one, NAMES) == {"recall/small": 50.0}
