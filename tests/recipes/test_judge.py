"""The judge: nearest neighbors against brute force, and models on generated pictures."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from veca.backbone.config import BackboneConfig
from veca.backbone.model import VECA
from veca.data.generated import LABELS
from veca.recipes import judge as module
from veca.recipes.judge import (
    image_features,
    judge,
    judged_pictures,
    nearest_neighbor_accuracy,
    raw_pixels,
)

TINY = BackboneConfig(layers=2, width=32, heads=2, budgets=(2, 4))


def brute_force(features: np.ndarray, labels: np.ndarray) -> float:
    """Percentage of right neighbors, pair by pair."""
    centered = features.astype(np.float64) - features.astype(np.float64).mean(axis=0)
    right = 0
    for this, one in enumerate(centered):
        best, found = -2.0, -1
        for that, other in enumerate(centered):
            cosine = one @ other / max(np.linalg.norm(one) * np.linalg.norm(other), 1e-30)
            if that != this and cosine > best + 1e-12:
                best, found = cosine, that
        right += labels[found] == labels[this]
    return 100 * right / len(labels)


@given(st.integers(2, 40), st.integers(1, 9), st.integers(1, 4), st.integers(0, 1000))
def test_accuracy_equals_brute_force(count: int, width: int, kinds: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    labels = draw.integers(kinds, size=count)
    features = draw.standard_normal((count, max(width, 2))) + 3 * labels[:, None]
    found = nearest_neighbor_accuracy(torch.from_numpy(features), torch.from_numpy(labels))
    assert found == pytest.approx(brute_force(features, labels))


def test_accuracy_does_not_depend_on_how_many_are_compared_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    features, labels = torch.randn(50, 8), torch.arange(50) % 4
    expected = brute_force(features.numpy(), labels.numpy())
    for block in (1, 7, 50, 64):
        monkeypatch.setattr(module, "BLOCK", block)
        assert nearest_neighbor_accuracy(features, labels) == pytest.approx(expected)


def test_small_differences_beside_a_large_mean_still_count() -> None:
    """In single precision the mean, ten thousand times as large, would round them away."""
    angles = torch.arange(12).double() * 0.1 + (torch.arange(12) % 2) * 2.5
    features = torch.stack((angles.cos(), angles.sin()), dim=1) * 1e-4 + 1.0
    assert nearest_neighbor_accuracy(features, torch.arange(12) % 2) == 100.0
    assert nearest_neighbor_accuracy(features.float() * 1e30, torch.arange(12) % 2) == 100.0


def test_a_picture_is_not_its_own_neighbor() -> None:
    features = torch.eye(4).repeat_interleave(2, dim=0)
    assert nearest_neighbor_accuracy(features, torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])) == 100.0
    assert nearest_neighbor_accuracy(features, torch.arange(8)) == 0.0


@pytest.mark.parametrize(
    "features", [torch.randn(1, 4), torch.full((3, 4), torch.nan), torch.full((3, 4), torch.inf)]
)
def test_what_has_no_neighbors_is_refused(features: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="two or more and finite"):
        nearest_neighbor_accuracy(features, torch.zeros(len(features), dtype=torch.int64))


def test_raw_pixels_do_not_know_the_mean_color() -> None:
    pictures, _ = judged_pictures(0, 5)
    pixels = raw_pixels(pictures)
    assert pixels.shape == (5, 3 * 32 * 32)
    assert pixels.unflatten(1, (3, -1)).mean(dim=2).abs().max() < 1e-5
    assert pixels.std(dim=1).min() > 0.05


def test_judged_pictures_show_every_label_alike_and_depend_on_the_seed() -> None:
    count = 3 * len(LABELS)
    pictures, labels = judged_pictures(4, count)
    assert labels.bincount().tolist() == [3] * len(LABELS)
    again, other = judged_pictures(4, count)[0], judged_pictures(5, count)[0]
    assert [each.tobytes() for each in pictures] == [each.tobytes() for each in again]
    assert not {each.tobytes() for each in pictures} & {each.tobytes() for each in other}


def test_features_equal_those_of_single_pictures_and_leave_the_mode_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "BATCH", 3)
    model, images = VECA(TINY).train(), torch.randn(7, 3, 32, 32)
    found = image_features(model, images, 2)
    assert model.training
    model.eval()
    with torch.no_grad():
        expected = torch.cat([model(image[None], 2).image for image in images])
    torch.testing.assert_close(found, expected)
    image_features(model, images, None)
    assert not model.training


def test_each_model_is_judged_at_each_budget_beside_raw_pixels() -> None:
    models = {"untrained": VECA(TINY), "full": VECA(BackboneConfig(
        layers=1, width=32, heads=2, attention="full"))}  # fmt: skip
    rows = judge(models, resolution=32, seed=0, count=33)
    named = [(row["model"], row["budget"]) for row in rows]
    assert named == [("raw pixels", None), ("untrained", 2), ("untrained", 4), ("full", None)]
    assert all(0 <= row["accuracy"] <= 100 for row in rows)
    assert judge(models, resolution=32, seed=0, count=33) == rows


def test_a_model_that_knows_the_labels_is_right_and_raw_pixels_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    count = 8 * len(LABELS)
    _, labels = judged_pictures(0, count)
    known = nn.functional.one_hot(labels).float()

    def features(model: VECA, images: torch.Tensor, budget: int | None) -> torch.Tensor:
        return known

    monkeypatch.setattr(module, "image_features", features)
    pixels, first, second = judge({"knows": VECA(TINY)}, resolution=32, seed=0, count=count)
    assert first["accuracy"] == second["accuracy"] == 100.0
    assert pixels["accuracy"] < 40.0
