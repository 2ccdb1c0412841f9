"""Protocols of classes have the numbers of their sources, and names that say which are ours."""

from pathlib import Path

import numpy as np
import pytest

from tests.probe.small_sets import color_set, split_of
from veca.probe.protocols import (
    DINO_RATES,
    KNN,
    LINEAR,
    LOGISTIC,
    MOST_VIEWS,
    PAPER,
    knn_protocol,
    linear_protocol,
    logistic_protocol,
)


def test_the_paper_s_probe_has_the_numbers_of_its_appendix() -> None:
    assert (PAPER.rates, PAPER.momentum, PAPER.weight_decay) == ((0.05,), 0.9, 0.0)
    assert (PAPER.batch, PAPER.steps, PAPER.schedule) == (128, 12_500, "cosine")
    assert not PAPER.scale_rates
    assert PAPER.judged_steps == tuple(range(1250, 12_501, 1250))


def test_the_grid_has_the_thirteen_rates_of_dinov2() -> None:
    wanted = [1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1]
    assert list(DINO_RATES) == pytest.approx(wanted, rel=1e-12)
    grid = LINEAR["dinov3"]
    assert grid.rate_at(0.1, 0) == pytest.approx(0.1 * 128 / 256)
    assert (grid.feature, grid.selection) == ("image+patch-mean", "held-out")
    assert LINEAR["dinov3-test"].selection == "test"


def test_only_small_protocols_take_fewer_steps() -> None:
    for name, found in LINEAR.items():
        assert found.name == name
        assert found.steps == (1_000 if name.endswith("-small") else 12_500)
    assert [found.name for found in KNN.values()] == list(KNN)
    assert [found.name for found in LOGISTIC.values()] == list(LOGISTIC)


def test_neighbors_and_strengths_are_those_of_dinov2() -> None:
    assert (knn_protocol("dinov2").ks, knn_protocol("dinov2").temperature) == (
        (10, 20, 100, 200),
        0.07,
    )
    strengths = LOGISTIC["dinov2"].config.strengths
    np.testing.assert_allclose(strengths, 10 ** np.linspace(-6, 5, 45))


def test_views_are_as_many_as_a_fit_has_epochs_within_bounds(tmp_path: Path) -> None:
    few = color_set(tmp_path)
    assert linear_protocol("dinov3", few).views == MOST_VIEWS
    assert linear_protocol("dinov3-small", few).views == 4
    assert linear_protocol("paper", few).views == 0
    assert few.train is not None
    many = split_of(tmp_path, "train", np.zeros(1, int))
    object.__setattr__(many, "images", _Long())
    assert linear_protocol("dinov3", color_set(tmp_path, train=many)).views == 2


class _Long:
    """Stands for the pictures of a set with more of them than a fit sees."""

    def __len__(self) -> int:
        return 2_000_000


def test_the_strength_is_chosen_by_what_a_set_is_known_for(tmp_path: Path) -> None:
    plain = color_set(tmp_path)
    assert logistic_protocol("dinov2", plain, 3).config.metric == "top1"
    assert logistic_protocol("dinov2", plain, 3).config.seed == 3
    by_class = color_set(tmp_path, per_class=True)
    assert logistic_protocol("dinov2", by_class, 0).config.metric == "mean_per_class"
    several = split_of(tmp_path, "test", np.eye(3, dtype=np.bool_))
    for per_class in (False, True):
        found = color_set(tmp_path, test=several, per_class=per_class)
        assert logistic_protocol("dinov2", found, 0).config.metric == "map"


def test_an_unknown_protocol_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no protocol 'dino' .*use paper, dinov3, "):
        linear_protocol("dino", color_set(tmp_path))
    with pytest.raises(ValueError, match=r"use dinov2\."):
        knn_protocol("paper")
    with pytest.raises(ValueError, match=r"use dinov2\."):
        logistic_protocol("paper", color_set(tmp_path), 0)
