"""Metrics are those of scikit-learn, torchmetrics, slow loops, and cases worked by hand."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from veca.data.sets.dataset import IGNORE_INDEX, DepthRange
from veca.probe.metrics import (
    PER_IMAGE,
    UNITS,
    MaskObjects,
    average_precision,
    classification_metrics,
    connected_components,
    correct,
    depth_metrics,
    eval_mask,
    has_label,
    image_errors,
    mean_average_precision,
    mean_per_class,
    mean_ratio,
    pixel_counts,
    segmentation_metrics,
    size_recalls,
    soft_targets,
    target_rank,
    top1,
    top_k,
)

rough = st.sampled_from([-torch.inf, -1.0, 0.0, 0.25, 0.5, 1.0])
"""Scores among which equals are frequent."""


def brute_place(scores: list[float], right: set[int]) -> int:
    """Sort the classes and look where a right one stands."""
    order = sorted(range(len(scores)), key=lambda each: (-scores[each], each))
    return next((place for place, each in enumerate(order) if each in right), len(scores))


@given(st.integers(1, 7), st.data())
def test_places_are_those_of_sorting(classes: int, data: st.DataObject) -> None:
    scores = data.draw(st.lists(rough, min_size=classes, max_size=classes))
    right = data.draw(st.sets(st.integers(0, classes - 1)))
    row = torch.zeros(1, classes, dtype=torch.bool)
    row[0, list(right)] = True
    expected = brute_place(scores, right)
    assert target_rank(torch.tensor([scores]), row).tolist() == [expected]
    for label in right:
        found = target_rank(torch.tensor([scores]), torch.tensor([label]))
        assert found.tolist() == [brute_place(scores, {label})]


def brute_precision(scores: list[float], present: list[bool]) -> float:
    """VOC 2007's definition, threshold by threshold, recalls counted in images."""
    points = []
    for threshold in sorted(set(scores), reverse=True):
        taken = [truth for score, truth in zip(scores, present, strict=True) if score >= threshold]
        points.append((sum(taken), sum(taken) / len(taken)))
    best = [max(p for hits, p in points if hits * 10 >= n * sum(present)) for n in range(11)]
    return sum(best) / 11


@given(st.lists(st.tuples(rough, st.booleans()), min_size=1, max_size=30))
def test_average_precision_follows_its_definition(pairs: list[tuple[float, bool]]) -> None:
    scores, present = [score for score, _ in pairs], [truth for _, truth in pairs]
    if any(present):
        found = average_precision(torch.tensor(scores), torch.tensor(present))
        assert found == pytest.approx(brute_precision(scores, present), abs=1e-12)


def random_scores(rows: int = 400, classes: int = 8) -> tuple[Tensor, Tensor, Tensor]:
    """Scores that know something of the numbers; these; and booleans, some rows of them empty."""
    labels = torch.randint(classes - 1, (rows,))  # the last class has no picture
    scores = torch.randn(rows, classes)
    scores[torch.arange(rows), labels] += 1
    several = torch.rand(rows, classes) < 0.2
    return scores, labels, several


def test_accuracies_are_those_of_scikit_learn() -> None:
    sklearn = pytest.importorskip("sklearn.metrics", reason="scikit-learn is the oracle")
    scores, labels, _ = random_scores()
    told = scores.argmax(dim=1)
    assert top1(scores, labels) == pytest.approx(100 * sklearn.accuracy_score(labels, told))
    five = sklearn.top_k_accuracy_score(labels, scores, k=5, labels=range(8))
    assert top_k(scores, labels, 5) == pytest.approx(100 * five)
    with pytest.warns(UserWarning, match="not in y_true"):
        balanced = sklearn.balanced_accuracy_score(labels, told)
    assert mean_per_class(scores, labels) == pytest.approx(100 * balanced)


def test_pictures_that_do_not_count_for_a_class_are_passed_over() -> None:
    scores, _, several = random_scores()
    counted = torch.rand(several.shape) < 0.7
    expected = [
        average_precision(scores[rows, number], several[rows, number])
        for number in range(8)
        for rows in [counted[:, number]]
    ]
    found = mean_average_precision(scores, several, counted=counted)
    assert found == pytest.approx(100 * sum(expected) / 8)


def test_pictures_without_a_class_are_left_out_of_accuracies() -> None:
    scores = torch.eye(4)
    several = torch.tensor([[1, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 1]]).bool()
    assert correct(scores, several).tolist() == [True, False, True]
    assert top1(scores, several) == pytest.approx(200 / 3)
    # Class 0: one of its two pictures is told right; class 1: one of one; class 3: one of one.
    assert mean_per_class(scores, several) == pytest.approx(100 * (0.5 + 1 + 1) / 3)


def test_a_score_that_is_no_number_is_wrong() -> None:
    scores = torch.tensor([[torch.nan, 0.0], [torch.nan, torch.nan], [0.0, 1.0]])
    for labels in (torch.tensor([0, 1, 1]), torch.ones(3, 2, dtype=torch.bool)):
        assert correct(scores, labels).tolist() == [False, False, True]
    column = torch.tensor([torch.nan, 1.0])
    assert average_precision(column, torch.tensor([True, False])) == 0.5


def test_metrics_suit_the_labels() -> None:
    scores, labels, several = random_scores()
    assert list(classification_metrics(scores, labels)) == ["top1", "top5", "mean_per_class"]
    few = classification_metrics(scores[:, :5], labels.clamp(max=4))
    assert list(few) == ["top1", "mean_per_class"]
    found = classification_metrics(scores, several)
    assert found == {
        "top1": top1(scores, several),
        "map": mean_average_precision(scores, several),
    }


def test_targets_are_shared_evenly_among_the_classes_of_an_image() -> None:
    several = torch.tensor([[1, 0, 1], [0, 0, 0], [0, 1, 0]]).bool()
    assert soft_targets(several, 3).tolist() == [[0.5, 0, 0.5], [0, 0, 0], [0, 1, 0]]
    found = soft_targets(torch.tensor([2, 0]), 3, torch.float64)
    assert found.tolist() == [[0, 0, 1], [1, 0, 0]]
    assert found.dtype == torch.float64
    assert has_label(several).tolist() == [0, 2]
    assert has_label(torch.tensor([5, 5])).tolist() == [0, 1]


NAMES = ("a", "b", "c", "d")


def count_pixels(
    labels: NDArray[np.uint8], found: NDArray[np.uint8], classes: int
) -> list[list[int]]:
    """Correct, predicted or true, and true pixels of each class, pixel by pixel."""
    counts = [[0] * classes for _ in range(3)]
    for label, told in zip(labels.ravel().tolist(), found.ravel().tolist(), strict=True):
        if label != IGNORE_INDEX:
            counts[0][label] += label == told
            for number in {label, told}:
                counts[1][number] += 1
            counts[2][label] += 1
    return counts


def mean_of_ratios(counts: list[list[int]]) -> float:
    """Mean intersection over union in percent, by the definition."""
    ratios = [part / whole for part, whole, _ in zip(*counts, strict=True) if whole]
    return 100 * sum(ratios) / len(ratios) if ratios else math.nan


def random_maps(draw: np.random.Generator) -> tuple[NDArray[np.uint8], NDArray[np.uint8], int]:
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


def test_random_maps_are_counted_as_by_hand() -> None:
    draw = np.random.default_rng(0)
    for _ in range(300):
        labels, found, classes = random_maps(draw)
        counts = pixel_counts(torch.from_numpy(labels), torch.from_numpy(found), classes)
        expected = count_pixels(labels, found, classes)
        assert counts.tolist() == expected
        value = mean_ratio(counts[0], counts[1])
        assert value == pytest.approx(mean_of_ratios(expected), rel=1e-12, nan_ok=True)


def test_the_metrics_of_a_worked_example() -> None:
    counts = torch.tensor([[6, 3, 0, 0], [9, 6, 4, 4], [8, 4, 4, 0]])
    found = segmentation_metrics(counts, NAMES)
    assert found["iou/a"] == pytest.approx(100 * 6 / 9)
    assert found["iou/b"] == pytest.approx(100 * 3 / 6)
    assert found["iou/c"] == 0
    assert found["iou/d"] == 0  # predicted, though not there
    assert found["miou"] == pytest.approx((100 * 6 / 9 + 50) / 4)
    assert found["macc"] == pytest.approx((75 + 75 + 0) / 3)  # d has no pixels
    assert found["aacc"] == pytest.approx(100 * 9 / 16)


def test_classes_that_are_not_scored_count_in_the_accuracy_of_pixels_only() -> None:
    counts = torch.tensor([[6, 3, 0, 0], [21, 6, 16, 4], [13, 4, 11, 0]])
    found = segmentation_metrics(counts, NAMES, eval_classes=(0, 1))
    assert found["miou"] == pytest.approx(50 * (6 / 21 + 3 / 6))
    assert "iou/c" not in found
    assert found["aacc"] == pytest.approx(100 * 9 / 28)


def test_a_class_that_is_neither_there_nor_predicted_is_left_out() -> None:
    found = segmentation_metrics(torch.tensor([[2, 0], [2, 0], [2, 0]]), ("a", "b"))
    assert found == {"miou": 100.0, "macc": 100.0, "aacc": 100.0, "iou/a": 100.0}
    assert segmentation_metrics(torch.zeros(3, 2, dtype=torch.int64), ("a", "b")) == {}


def test_miou_is_that_of_torchmetrics() -> None:
    torchmetrics = pytest.importorskip("torchmetrics", reason="an oracle that need not be there")
    draw = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 4, (30, 40), generator=draw)
    found = torch.randint(0, 4, (30, 40), generator=draw)
    labels[:5] = IGNORE_INDEX
    oracle = torchmetrics.JaccardIndex("multiclass", num_classes=4, ignore_index=IGNORE_INDEX)
    correct_pixels, union, _ = pixel_counts(labels, found, 4)
    expected = 100 * float(oracle(found, labels))
    assert mean_ratio(correct_pixels, union) == pytest.approx(expected, rel=1e-6)


def test_classes_beyond_the_last_are_refused() -> None:
    with pytest.raises(ValueError, match="has class 2, but the dataset has 2, from"):
        pixel_counts(torch.tensor([[2]]), torch.tensor([[0]]), 2)


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
        assert np.array_equal(connected_components(mask), wanted)


def test_a_winding_part_is_one() -> None:
    mask = np.zeros((41, 41), np.uint8)
    mask[1::4, :-1] = mask[3::4, 1:] = 1
    mask[2::4, -2] = mask[4::4, 1] = 1  # a snake through all rows
    mask[2::4, -1] = mask[4::4, 0] = 0
    assert len(np.unique(connected_components(mask)[mask == 1])) == 1


def test_objects_are_counted_one_by_one_without_specks_and_ignored_pixels() -> None:
    mask = np.zeros((50, 50), np.uint8)
    mask[5:15, 5:15] = 1
    mask[20:24, 20:25] = mask[30:32, 30:40] = 2
    mask[40:50] = IGNORE_INDEX
    mask[0, 0] = mask[0, 2] = 1  # below a thousandth of 2,500 pixels
    found = mask.copy()
    found[5:10, 5:15] = 0
    found[30:32, 30:40] = 1
    rows = MaskObjects(mask, image=7).recalled(torch.from_numpy(found)).tolist()
    background = int((mask == 0).sum())
    assert sorted(rows) == [
        [7, 0, background, background, 2500],
        [7, 1, 100, 50, 2500],
        [7, 2, 20, 0, 2500],
        [7, 2, 20, 20, 2500],
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


EVERY = torch.ones(4, 5, dtype=torch.bool)


def errors_of(found: torch.Tensor, depth: torch.Tensor) -> dict[str, float]:
    return depth_metrics(image_errors(found, depth, EVERY)[None])


def test_the_right_depth_has_no_error() -> None:
    depth = torch.rand(4, 5) * 9 + 0.5
    found = errors_of(depth, depth)
    assert set(found) == {*PER_IMAGE, "rmse_pooled"}
    assert set(UNITS) <= set(found)  # the others are percentages
    assert {name for name, value in found.items() if value == 100} == {"delta1", "delta2", "delta3"}
    assert all(value == 0 for name, value in found.items() if not name.startswith("delta"))


def test_twice_the_depth_has_the_known_errors() -> None:
    depth = torch.rand(4, 5) * 4 + 0.5
    found = errors_of(2 * depth, depth)
    exact = depth.double()
    assert found["abs_rel"] == pytest.approx(1)
    assert found["sq_rel"] == pytest.approx(float(exact.mean()))
    assert found["rmse"] == pytest.approx(float(exact.square().mean().sqrt()))
    assert found["log10"] == pytest.approx(math.log10(2))
    assert found["rmse_log"] == pytest.approx(math.log(2))
    assert found["silog"] == pytest.approx(0, abs=1e-5)  # a factor does not count
    assert [found[f"delta{n}"] for n in (1, 2, 3)] == [0, 0, 0]  # 2 > 1.25 ** 3


def test_ratios_are_compared_in_both_directions() -> None:
    depth = torch.full((4, 5), 2.0)
    told = torch.tensor([2.0, 2.6, 2 / 1.3, 3.6, 4.0]).expand(4, 5)
    found = errors_of(told, depth)
    assert [found[f"delta{n}"] for n in (1, 2, 3)] == pytest.approx([20, 60, 80])


def test_silog_is_a_hundred_deviations_of_the_logarithm() -> None:
    depth, told = torch.rand(4, 5) + 1, torch.rand(4, 5) + 1
    spread = (told.double().log() - depth.double().log()).std(correction=0)
    assert errors_of(told, depth)["silog"] == pytest.approx(100 * float(spread))


def test_pictures_count_alike_but_for_the_pooled_error() -> None:
    small, large = torch.full((1, 1), 2.0), torch.full((1, 9), 2.0)
    errors = torch.stack(
        [
            image_errors(small + 1, small, torch.ones(1, 1, dtype=torch.bool)),
            image_errors(large + 3, large, torch.ones(1, 9, dtype=torch.bool)),
        ]
    )
    found = depth_metrics(errors)
    assert found["rmse"] == pytest.approx(2)
    assert found["rmse_pooled"] == pytest.approx(math.sqrt((1 + 9 * 9) / 10))


def test_a_picture_without_known_depth_is_left_out() -> None:
    depth = torch.full((4, 5), 2.0)
    nothing = image_errors(depth, depth, torch.zeros_like(EVERY))
    assert nothing[: len(PER_IMAGE)].isnan().all()
    one = image_errors(depth + 1, depth, EVERY)
    assert depth_metrics(torch.stack([nothing, one])) == depth_metrics(one[None])
    with pytest.raises(ValueError, match="no test image has a pixel"):
        depth_metrics(nothing[None])


def pixels_that_count(sides: tuple[int, int], crop: str) -> torch.Tensor:
    """The mask of an image whose depth is known everywhere."""
    return eval_mask(torch.full(sides, 2.0), DepthRange(crop=crop))  # type: ignore[arg-type]


def test_eigens_crop_of_nyu_has_its_pixels() -> None:
    mask = pixels_that_count((480, 640), "eigen-nyu")
    assert int(mask.sum()) == 426 * 560 == 238_560
    assert mask[45, 41]
    assert mask[470, 600]
    assert not mask[44].any()
    assert not mask[471:].any()
    assert not mask[:, 601].any()
    with pytest.raises(ValueError, match="480 x 640"):
        pixels_that_count((479, 640), "eigen-nyu")


def test_gargs_crop_of_kitti_has_its_pixels() -> None:
    expected = torch.zeros(352, 1216, dtype=torch.bool)
    expected[143:349, 43:1172] = True
    assert torch.equal(pixels_that_count((352, 1216), "garg-kitti"), expected)


def test_depth_counts_strictly_within_its_range() -> None:
    depth = torch.tensor([[0.0, 1e-3, 0.002], [9.99, 10.0, 11.0]])
    assert eval_mask(depth, DepthRange()).tolist() == [[False, False, True], [True, False, False]]
