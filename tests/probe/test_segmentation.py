"""A head on colors segments classes that are colors; counts are those of its own maps."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.probe.fixtures import (
    ALL,
    ALONE,
    CLASSES,
    FEW,
    SMALL,
    ColorModel,
    by_setting,
    context_in,
    farm,
    scene,
)
from veca.data.images import DataError
from veca.data.sets.dataset import IGNORE_INDEX, LabeledDataset
from veca.probe import segmentation as module
from veca.probe.dense import DenseHead
from veca.probe.feature_cache import RunContext, Variant
from veca.probe.features import DenseBatch, InferenceConfig, extract_windows, load_image
from veca.probe.metrics import mean_ratio, pixel_counts
from veca.probe.protocols import Evaluation
from veca.probe.rows import ProbeResult
from veca.probe.segmentation import SegmentationTask, evaluate_segmentation
from veca.probe.sliding_window import merge_windows


@pytest.fixture
def data(tmp_path: Path) -> LabeledDataset:
    return farm(tmp_path / "pictures")


@pytest.fixture
def ctx(tmp_path: Path) -> RunContext:
    return context_in(tmp_path / "kept")


def evaluated(data: LabeledDataset, ctx: RunContext, seed: int = 0, **changes: Any) -> ProbeResult:
    """The result with all channels."""
    protocol = replace(SMALL, **changes)
    (found,) = evaluate_segmentation(Evaluation(ColorModel(), (ALL,), data, protocol, (seed,), ctx))
    return found


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"feature": "patches+image", "inference": "slide"},
        {"num_crops": None, "pixel_stride": 4, "dropout": 0.1},
    ],
)
def test_colors_are_segmented_and_better_with_more_channels(
    change: dict[str, Any], data: LabeledDataset, ctx: RunContext
) -> None:
    protocol = replace(SMALL, **change)
    asked = Evaluation(ColorModel(), (FEW, ALL), data, protocol, (0,), ctx)
    found = by_setting(evaluate_segmentation(asked))
    few, every = found[FEW, 0], found[ALL, 0]
    assert every.metrics["miou"] > 75
    assert every.metrics["miou"] > few.metrics["miou"] + 5
    assert every.counts == {"train": 9, "test": 5}
    assert every.chosen == {"rate": 0.05, "step": 60}
    assert "iou/barn" in every.metrics


def test_counts_are_those_of_the_saved_head_on_each_image(
    data: LabeledDataset, ctx: RunContext
) -> None:
    result = evaluated(data, ctx)
    head = DenseHead(**result.tensors, patch_width=result.facts["patch_width"])
    inference = InferenceConfig(**result.facts["inference"])
    hits, union = result.per_image["intersections"], result.per_image["unions"]
    objects = result.per_image["objects"]
    for index in range(5):
        picture = load_image(data.test, index)
        features, grid = extract_windows(ColorModel(), picture, inference, Variant(ALL))
        predicted = merge_windows(head(features), grid).argmax(0)
        counts = pixel_counts(torch.from_numpy(scene(50 + index)[1]), predicted, len(CLASSES))
        near = (hits[index] - counts[0]).abs()
        assert near.sum() <= 0.01 * counts.sum()  # cached features are in half precision
        own = objects[objects[:, 0] == index]  # every object here is large enough to count
        right = [int(own[own[:, 1] == number, 3].sum()) for number in range(len(CLASSES))]
        assert right == hits[index].tolist()
    assert result.metrics["miou"] == mean_ratio(hits.sum(0), union.sum(0))
    assert {"recall/small", "recall/medium", "recall/large"} <= set(result.metrics)
    labeled = sum(int((scene(50 + index)[1] != IGNORE_INDEX).sum()) for index in range(5))
    assert result.metrics["aacc"] == pytest.approx(100 * float(hits.sum()) / labeled)


def test_a_seed_gives_the_same_number_again_and_seeds_differ_little(
    data: LabeledDataset, ctx: RunContext, tmp_path: Path
) -> None:
    first = [evaluated(data, ctx, seed) for seed in (0, 1, 2)]
    again = evaluated(data, context_in(tmp_path / "new"))
    assert first[0].metrics == again.metrics
    assert torch.equal(first[0].tensors["weight"], again.tensors["weight"])
    assert np.std([one.metrics["miou"] for one in first]) < 3
    assert not torch.equal(first[0].tensors["weight"], first[1].tensors["weight"])


def test_heads_are_chosen_by_the_mean_over_evaluated_classes(data: LabeledDataset) -> None:
    task = SegmentationTask(replace(data, eval_classes=(0, 2)), SMALL)
    pixels = torch.tensor([[[3, 9, 1, 0], [6, 9, 4, 0], [5, 9, 2, 0]]])
    scores = {"pixels": pixels.expand(2, 3, 4), "objects": torch.zeros(0, 5, dtype=torch.int64)}
    assert task.selection_metric(scores) == task.metrics(scores)["miou"] == 50 * (3 / 6 + 1 / 4)


def test_evaluated_classes_make_the_mean(data: LabeledDataset, ctx: RunContext) -> None:
    found = evaluated(replace(data, eval_classes=(0, 2)), ctx, steps=5).metrics
    assert found["miou"] == pytest.approx((found["iou/field"] + found["iou/pond"]) / 2)
    assert "iou/barn" not in found


def test_masks_of_another_size_and_too_many_classes_are_refused(
    data: LabeledDataset, ctx: RunContext
) -> None:
    with pytest.raises(DataError, match="has 300 classes"):
        SegmentationTask(replace(data, classes=tuple(map(str, range(300)))), SMALL)
    np.save(data.test.targets[3], np.zeros((4, 4), np.uint8))
    with pytest.raises(DataError, match=r"masks-53\.npy has 4 x 4 pixels"):
        evaluated(data, ctx, steps=1)


def loss_gradient(task: SegmentationTask, maps: Tensor, targets: Tensor, step: int = 0) -> Tensor:
    """The gradient of the loss of a step with respect to a head's maps."""
    maps = maps.clone().requires_grad_()
    batch = DenseBatch({}, targets, slice(0, len(targets)))
    task.loss(batch, step, 7, ALONE)(lambda images: maps[images])
    assert maps.grad is not None
    return maps.grad


def expected_gradient(maps: Tensor, targets: Tensor) -> Tensor:
    """By resizing the maps, and torch's loss."""
    maps = maps.clone().requires_grad_()
    logits = F.interpolate(maps, targets.shape[1:], mode="bilinear", align_corners=False)
    loss = F.cross_entropy(logits, targets.long(), ignore_index=IGNORE_INDEX, reduction="sum")
    (loss / targets.numel()).backward()
    assert maps.grad is not None
    return maps.grad


def random_masks() -> Tensor:
    targets = torch.randint(0, len(CLASSES), (6, 24, 40), dtype=torch.uint8)
    targets[:, :8] = IGNORE_INDEX
    return targets


@pytest.mark.parametrize("logits", [1 << 26, 1])
def test_the_loss_is_the_cross_entropy_of_resized_logits(
    data: LabeledDataset, logits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_LOGITS", logits)
    maps, targets = torch.randn(6, len(CLASSES), 3, 5), random_masks()
    found = loss_gradient(SegmentationTask(data, SMALL), maps, targets)
    torch.testing.assert_close(found, expected_gradient(maps, targets))


def test_a_part_of_the_pixels_is_an_unbiased_sample(data: LabeledDataset) -> None:
    maps, targets = torch.randn(6, len(CLASSES), 3, 5), random_masks()
    task = SegmentationTask(data, replace(SMALL, pixel_stride=4))
    parts: dict[tuple[float, ...], Tensor] = {}
    for step in range(400):
        gradient = loss_gradient(task, maps, targets, step)
        parts[tuple(gradient.flatten()[:3].tolist())] = gradient
    assert len(parts) == 16  # every offset came
    total = torch.stack(list(parts.values())).sum(0)
    expected = expected_gradient(maps, targets)
    torch.testing.assert_close(total / 16, expected, rtol=1e-4, atol=1e-7)
