"""Shares of another model's number over pictures drawn again, against drawing them one by one."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from veca.probe import bootstrap as retained
from veca.probe.bootstrap import MeanIou, PictureMean, Ratio, drawn_again, ratio_of
from veca.probe.metrics import (
    PER_PICTURE,
    depth_metrics,
    intersections,
    segmentation_metrics,
    unions,
)

NAMES = ("a", "b", "c", "d")


def percent(right: Any) -> PictureMean:
    """The accuracy of one seed."""
    return PictureMean(100.0 * np.asarray(right, dtype=np.float64)[None])


def iou(counts: torch.Tensor, scored: list[int]) -> MeanIou:
    """The mean over some classes, from confusion matrices (seeds, pictures, K, K)."""
    inside, around = intersections(counts), unions(counts)
    return MeanIou(inside.double().numpy()[..., scored], around.double().numpy()[..., scored])


def confusions(draw: np.random.Generator, *shape: int) -> torch.Tensor:
    """Counts of pixels; many pictures lack many classes."""
    there = draw.random((*shape, 4, 1)) < 0.4
    return torch.from_numpy(draw.integers(0, 9, (*shape, 4, 4)) * there)


def by_definition(counts: torch.Tensor, drawn: list[int], scored: list[int]) -> float:
    """The mean over seeds of the mean over classes, from the matrices of the pictures drawn."""
    means = []
    for pictures in counts.numpy():
        summed = sum((pictures[place] for place in drawn), np.zeros((4, 4), np.int64)).tolist()
        ratios = []
        for c in scored:
            around = sum(summed[c]) + sum(row[c] for row in summed) - summed[c][c]
            ratios += [summed[c][c] / around] if around else []
        means.append(100 * sum(ratios) / len(ratios) if ratios else math.nan)
    return sum(means) / len(means)


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=12), st.integers(0, 2**32), st.integers(1, 3)
)
def test_a_mean_is_that_of_the_pictures_that_were_drawn(
    times: list[int], seed: int, seeds: int
) -> None:
    draw = np.random.default_rng(seed)
    errors = draw.random((seeds, len(times), len(PER_PICTURE) + 2))
    without = draw.random(len(times)) < 0.3  # no pixel counts, whoever is measured
    errors[:, without] = [np.nan] * len(PER_PICTURE) + [0, 0]
    rmse = PictureMean(errors[:, :, PER_PICTURE.index("rmse")])
    found = rmse.over(np.array([times], dtype=np.float64))[0]
    places = np.repeat(np.arange(len(times)), times)
    if without[places].all():
        assert math.isnan(found)
    else:
        expected = [depth_metrics(one[places])["rmse"] for one in errors]
        assert found == pytest.approx(np.mean(expected), rel=1e-12)


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=8),
    st.integers(0, 2**32),
    st.integers(1, 3),
    st.sampled_from([[0, 1, 2, 3], [0, 2], [3]]),
)
def test_mean_iou_is_that_of_the_pictures_that_were_drawn(
    times: list[int], seed: int, seeds: int, scored: list[int]
) -> None:
    counts = confusions(np.random.default_rng(seed), seeds, len(times))
    found = iou(counts, scored).over(np.array([times], dtype=np.float64))[0]
    drawn = [picture for picture, often in enumerate(times) for _ in range(often)]
    assert found == pytest.approx(by_definition(counts, drawn, scored), rel=1e-12, nan_ok=True)


def test_over_all_pictures_once_they_are_the_numbers_that_are_reported() -> None:
    counts = confusions(np.random.default_rng(3), 1, 30)
    expected = segmentation_metrics(counts[0].sum(0), NAMES, [0, 2])["miou"]
    assert iou(counts, [0, 2]).whole == pytest.approx(expected, rel=1e-12)
    assert percent([True, False, True, True]).whole == 75


def test_an_interval_is_that_of_drawing_pictures_one_by_one() -> None:
    draw = np.random.default_rng(0)
    first, second = confusions(draw, 2, 40), confusions(draw, 2, 40)  # of two seeds each
    models = iou(first, [0, 1, 3]), iou(second, [0, 1, 3])
    drawn = drawn_again(models, "farm", rounds=4000)
    found = ratio_of(models[0].whole, models[1].whole, (drawn[0], drawn[1]))

    ratios = []
    for _ in range(1000):
        places = [int(draw.integers(40)) for _ in range(40)]
        both = [by_definition(counts, places, [0, 1, 3]) for counts in (first, second)]
        ratios.append(both[0] / both[1])
    low, high = np.quantile(ratios, [0.025, 0.975])
    assert found is not None
    assert found.value == pytest.approx(models[0].whole / models[1].whole)
    assert [found.low, found.high] == pytest.approx([low, high], abs=0.12 * (high - low))


def test_a_model_against_itself_is_all_of_it_in_every_draw() -> None:
    right = np.random.default_rng(0).random(50) < 0.6
    drawn = drawn_again([percent(right), percent(right)], "pets", rounds=500)
    assert np.ptp(drawn[0]) > 5
    assert ratio_of(60.0, 60.0, (drawn[0], drawn[1])) == Ratio(1.0, 1.0, 1.0)


def test_sets_are_drawn_each_on_its_own_and_always_alike() -> None:
    right = [percent(np.arange(50) < 30)]
    first = drawn_again(right, "pets", rounds=300)
    assert (drawn_again(right, "pets", rounds=300) == first).all()
    assert (drawn_again(right, "pets", rounds=300, seed=1) != first).any()
    other = drawn_again(right, "dogs", rounds=300)
    assert abs(float(np.corrcoef(first, other)[0, 1])) < 0.2


def test_every_picture_comes_as_often_as_chance_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retained, "DRAWS", 7 * 30)  # blocks that do not end with the rounds
    seen: list[np.ndarray] = []

    class Seen(PictureMean):
        def over(self, counts: Any) -> Any:
            seen.append(counts)
            return super().over(counts)

    found = drawn_again([Seen(np.arange(7.0)[None])], "pets", rounds=2000)
    counts = np.concatenate(seen)
    assert found.shape == (1, 2000)
    assert counts.shape == (2000, 7)
    assert (counts.sum(1) == 7).all()
    assert (found[0] == counts @ np.arange(7) / 7).all()
    assert counts.mean(0) == pytest.approx(np.ones(7), abs=0.1)
    assert counts.var(0) == pytest.approx(np.full(7, 6 / 7), abs=0.15)  # of a binomial of 7 and 1/7


def test_an_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    held = 0
    for trial in range(200):
        draw = np.random.default_rng(trial)
        hard = draw.random(200) < 0.3  # for both models
        models = [percent(~hard & (draw.random(200) < share)) for share in (0.8, 0.9)]
        drawn = drawn_again(models, str(trial), rounds=300)
        found = ratio_of(models[0].whole, models[1].whole, (drawn[0], drawn[1]), level=0.9)
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        held += found.low <= 0.8 / 0.9 <= found.high
    assert 0.83 <= held / 200 <= 0.96


def test_there_is_no_interval_where_a_draw_leaves_nothing_to_divide_by() -> None:
    models = [percent([True, True, False]), percent([False, False, True])]
    drawn = drawn_again(models, "pets", rounds=200)
    assert (drawn[1] == 0).any()
    found = ratio_of(models[0].whole, models[1].whole, (drawn[0], drawn[1]))
    assert found is not None
    assert (found.low, found.high) == (None, None)
    assert found.value == pytest.approx(2.0)
    assert ratio_of(1.0, 0.0, (drawn[0], drawn[1])) is None


def test_numbers_over_other_pictures_are_not_drawn_together() -> None:
    with pytest.raises(ValueError, match=r"numbers over \[2, 3\] pictures cannot be drawn toget"):
        drawn_again([percent([True] * 2), percent([True] * 3)], "pets")
    for nothing in ([], [percent([])]):
        with pytest.raises(ValueError, match="at least one picture"):
            drawn_again(nothing, "pets")
