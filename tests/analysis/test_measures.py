"""Measures of cores, against maps of known extent, brute force, scipy and scikit-learn."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from sklearn.neighbors import NearestNeighbors

from veca.analysis.measures import (
    View,
    agreement,
    best_overlap,
    effective_rank,
    knn_hits,
    map_area,
    map_overlap,
    map_roundness,
    matched_miou,
    objects_of,
    pair_cosine,
    path_lengths,
    rank_correlation,
)


def block(rows: int, columns: int, grid: tuple[int, int] = (12, 16)) -> torch.Tensor:
    """A map that reads a block of patches evenly."""
    found = torch.zeros(grid)
    found[3 : 3 + rows, 5 : 5 + columns] = 0.3
    return found


def test_the_area_of_an_even_map_is_its_share_of_the_image() -> None:
    maps = torch.stack((block(1, 1), block(4, 6), torch.ones(12, 16)))
    expected = torch.tensor([1 / 192, 24 / 192, 1.0], dtype=torch.float64)
    torch.testing.assert_close(map_area(maps), expected)
    torch.testing.assert_close(map_area(5 * maps), expected)


def test_roundness_is_the_ratio_of_the_sides_of_a_block() -> None:
    maps = torch.stack((block(1, 1), block(5, 5), block(2, 8), block(8, 2)))
    expected = torch.tensor([1, 1, 0.25, 0.25], dtype=torch.float64)
    torch.testing.assert_close(map_roundness(maps), expected)
    diagonal = torch.eye(9)[None]
    assert map_roundness(diagonal).item() < 0.2


def test_overlap_is_one_for_equal_and_zero_for_separate_maps() -> None:
    halves = torch.zeros(2, 4, 4)
    halves[0, :2], halves[1, 2:] = 1.0, 3.0
    assert map_overlap(halves) == 0
    assert map_overlap(halves[:1].repeat(3, 1, 1)) == pytest.approx(1)
    assert map_overlap(torch.stack((halves[0], torch.ones(4, 4)))) == pytest.approx(0.5)


def test_redundancy_of_equal_and_of_orthogonal_states() -> None:
    same, apart = torch.ones(4, 8) * torch.arange(1, 5)[:, None], torch.eye(4, 8) * 7
    assert effective_rank(same) == pytest.approx(1 / 4)
    assert effective_rank(apart) == pytest.approx(1)
    assert pair_cosine(same) == pytest.approx(1)
    assert pair_cosine(apart) == pytest.approx(0)


def test_the_effective_rank_is_the_entropy_of_the_singular_values() -> None:
    torch.manual_seed(0)
    states = torch.randn(5, 9).double()
    unit = (states / states.norm(dim=1, keepdim=True)).numpy()
    shares = np.sqrt(np.linalg.eigvalsh(unit @ unit.T))
    shares /= shares.sum()
    expected = math.exp(-(shares * np.log(shares)).sum()) / 5
    assert effective_rank(states) == pytest.approx(expected)


def random_view(count: int = 4) -> View:
    torch.manual_seed(count)
    return View(torch.rand(count, 5, 6), torch.rand(count, 2) * 2 - 1, torch.randn(count, 7))


def test_a_view_agrees_with_itself_perfectly() -> None:
    found = agreement(random_view(), random_view())
    assert found == pytest.approx((1.0, 0.0, 1.0, 1.0))


def test_cores_that_changed_places_are_matched_but_not_kept() -> None:
    view = random_view()
    order = [1, 0, 2, 3]
    found = agreement(view, View(*(part[order] for part in view)))
    assert found == pytest.approx((0.5, 0.0, 1.0, 1.0))


def test_the_matching_is_the_best_of_all_permutations() -> None:
    one, other = random_view(4), random_view(5)  # which has a core more
    flat = [np.asarray(view.maps.flatten(1)) for view in (one, other)]
    best = max(
        sum(np.corrcoef(flat[0][i], flat[1][j])[0, 1] for i, j in enumerate(order)) / 4
        for order in itertools.permutations(range(5), 4)
    )
    assert agreement(one, other).correlation == pytest.approx(best, rel=1e-6)


def test_displacement_is_in_image_sides_and_leaves_out_points_outside() -> None:
    view = random_view(2)
    points = torch.tensor([[0.0, 0.0], [1.5, 0.0]])  # the second one was cropped away
    moved = view._replace(points=torch.tensor([[0.6, 0.8], [0.0, 0.0]]))
    assert agreement(view._replace(points=points), moved).displacement == pytest.approx(0.5)


def test_path_lengths_add_the_steps() -> None:
    paths = torch.tensor([[[0.0, 0.0]], [[0.6, 0.8]], [[0.0, 0.0]]])
    assert path_lengths(paths).tolist() == pytest.approx([1.0])


def test_rank_correlation_is_that_of_scipy_ties_included() -> None:
    torch.manual_seed(0)
    for values in (torch.randn(20), torch.tensor([3.0, 1.0, 1.0, 5.0, 5.0, 5.0])):
        expected = spearmanr(range(len(values)), values.numpy()).statistic
        assert rank_correlation(values) == pytest.approx(expected)
    assert rank_correlation(torch.ones(4)) == 0


def test_objects_are_the_large_components_of_each_class() -> None:
    mask = np.zeros((10, 10), np.uint8)
    mask[0:4, 0:4], mask[0:4, 6:10], mask[6:10, 0:8] = 3, 3, 5
    mask[9, 9], mask[5] = 5, 255  # a pixel apart, and a border
    found = objects_of(mask, ignore=255, min_share=0.05)
    assert sorted(int(part.sum()) for part in found) == [16, 16, 32]
    assert len(objects_of(mask, ignore=255, min_share=0.01)) == 4


def test_best_overlap_is_the_greatest_iou_of_all_segments() -> None:
    generator = np.random.default_rng(0)
    segments = generator.integers(0, 5, (9, 9))
    objects = [generator.random((9, 9)) < 0.4 for _ in range(3)]
    counted = generator.random((9, 9)) < 0.9
    expected = [
        max(
            ((segments == s) & part & counted).sum() / (((segments == s) | part) & counted).sum()
            for s in range(5)
        )
        for part in objects
    ]
    assert best_overlap(segments, objects, counted) == pytest.approx(expected)


def test_matched_miou_is_the_best_of_all_assignments() -> None:
    torch.manual_seed(0)
    confusion = torch.randint(0, 50, (4, 4))
    ious = [
        [
            float(confusion[i, j] / (confusion[i].sum() + confusion[:, j].sum() - confusion[i, j]))
            for j in range(4)
        ]
        for i in range(4)
    ]
    best = max(
        sum(ious[i][j] for i, j in enumerate(order)) for order in itertools.permutations(range(4))
    )
    assert matched_miou(confusion) == pytest.approx(100 * best / 4, rel=1e-5)
    assert matched_miou(torch.eye(3, dtype=torch.int64)[[2, 0, 1]]) == pytest.approx(100)


def test_knn_leaves_out_the_own_row_and_votes_like_scikit_learn() -> None:
    torch.manual_seed(0)
    labels = torch.randint(0, 3, (30,))
    bank = torch.randn(30, 6) + 2 * torch.eye(3, 6)[labels]
    unit = (bank / bank.norm(dim=1, keepdim=True)).numpy()
    distances, rows = NearestNeighbors(n_neighbors=6, metric="cosine").fit(unit).kneighbors(unit)
    expected = []
    for own in range(30):
        votes = np.zeros(3)
        for distance, row in zip(distances[own], rows[own], strict=True):
            if row != own:
                votes[labels[row]] += np.exp((1 - distance) / 0.07)
        expected.append(bool(votes.argmax() == labels[own]))
    found = knn_hits(bank, labels, bank, torch.arange(30), k=5)
    assert found.tolist() == expected
    part = torch.tensor([4, 9])
    assert knn_hits(bank, labels, bank[part], part, k=5).tolist() == [expected[4], expected[9]]
