"""Heads on colors predict classes and depth that are colors; scores are those of their own maps."""

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
    SMALL_DEPTH,
    ColorModel,
    by_setting,
    context_in,
    farm,
    ramp,
    ramps,
    scene,
)
from veca.data.images import DataError
from veca.data.sets.dataset import IGNORE_INDEX, DepthRange, LabeledDataset
from veca.probe import segmentation as module
from veca.probe import transforms
from veca.probe.dense import DenseHead
from veca.probe.depth import DepthBins, DepthTask, evaluate_depth, predict_depth_map
from veca.probe.feature_cache import ProbeContext, Variant
from veca.probe.features import DenseBatch, InferenceConfig, extract_windows, load_image
from veca.probe.metrics import PER_IMAGE, mean_ratio, pixel_counts
from veca.probe.models import FrozenFeatures
from veca.probe.protocols import ProbeInputs
from veca.probe.rows import ProbeResult
from veca.probe.segmentation import SegmentationTask, evaluate_segmentation
from veca.probe.sliding_window import merge_windows, whole_image


@pytest.fixture
def data(tmp_path: Path) -> LabeledDataset:
    return farm(tmp_path / "pictures")


@pytest.fixture
def ctx(tmp_path: Path) -> ProbeContext:
    return context_in(tmp_path / "kept")


def evaluated(
    data: LabeledDataset, ctx: ProbeContext, seed: int = 0, **changes: Any
) -> ProbeResult:
    """The result with all channels."""
    protocol = replace(SMALL, **changes)
    (found,) = evaluate_segmentation(
        ProbeInputs(ColorModel(), (ALL,), data, protocol, (seed,), ctx)
    )
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
    change: dict[str, Any], data: LabeledDataset, ctx: ProbeContext
) -> None:
    protocol = replace(SMALL, **change)
    inputs = ProbeInputs(ColorModel(), (FEW, ALL), data, protocol, (0,), ctx)
    found = by_setting(evaluate_segmentation(inputs))
    few, every = found[FEW, 0], found[ALL, 0]
    assert every.metrics["miou"] > 75
    assert every.metrics["miou"] > few.metrics["miou"] + 5
    assert every.counts == {"train": 9, "test": 5}
    assert every.chosen == {"rate": 0.05, "step": 60}
    assert "iou/barn" in every.metrics


def test_counts_are_those_of_the_saved_head_on_each_image(
    data: LabeledDataset, ctx: ProbeContext
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
    data: LabeledDataset, ctx: ProbeContext, tmp_path: Path
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


def test_evaluated_classes_make_the_mean(data: LabeledDataset, ctx: ProbeContext) -> None:
    found = evaluated(replace(data, eval_classes=(0, 2)), ctx, steps=5).metrics
    assert found["miou"] == pytest.approx((found["iou/field"] + found["iou/pond"]) / 2)
    assert "iou/barn" not in found


def test_masks_of_another_size_and_too_many_classes_are_refused(
    data: LabeledDataset, ctx: ProbeContext
) -> None:
    with pytest.raises(DataError, match="has 300 classes"):
        SegmentationTask(replace(data, classes=tuple(map(str, range(300)))), SMALL)
    np.save(data.test.targets[3], np.zeros((4, 4), np.uint8))
    with pytest.raises(DataError, match=r"masks-53\.npy has 4 x 4 pixels"):
        evaluated(data, ctx, steps=1)


def loss_gradient(
    task: SegmentationTask | DepthTask, maps: Tensor, targets: Tensor, step: int = 0
) -> Tensor:
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


BINS = DepthBins(min_depth=0.001, max_depth=10.0, bins=256, upsample=4)


@pytest.fixture
def slopes(tmp_path: Path) -> LabeledDataset:
    return ramps(tmp_path / "pictures")


def evaluated_depth(
    slopes: LabeledDataset, ctx: ProbeContext, seed: int = 0, **changes: Any
) -> ProbeResult:
    """The result with all channels."""
    protocol = replace(SMALL_DEPTH, **changes)
    inputs = ProbeInputs(ColorModel(), (ALL,), slopes, protocol, (seed,), ctx)
    (found,) = evaluate_depth(inputs)
    return found


def constant_error(slopes: LabeledDataset) -> float:
    """The mean RMSE of the best constant depth."""
    depths = [ramp(50 + index)[1] for index in range(len(slopes.test))]
    middle = np.mean([depth[depth > 0].mean() for depth in depths])
    return float(np.mean([np.sqrt(((depth - middle)[depth > 0] ** 2).mean()) for depth in depths]))


@pytest.mark.parametrize(
    "change", [{}, {"feature": "patches+image", "num_crops": None, "pixel_stride": 2}]
)
def test_depth_is_predicted_from_colors(
    change: dict[str, Any], slopes: LabeledDataset, ctx: ProbeContext
) -> None:
    protocol = replace(SMALL_DEPTH, **change)
    inputs = ProbeInputs(ColorModel(), (FEW, ALL), slopes, protocol, (0,), ctx)
    found = by_setting(evaluate_depth(inputs))
    assert set(found) == {(FEW, 0), (ALL, 0)}
    result = found[ALL, 0]
    assert set(result.metrics) == {*PER_IMAGE, "rmse_pooled"}
    assert result.metrics["rmse"] < 0.6 * constant_error(slopes)
    assert result.metrics["delta1"] > 75
    assert result.counts == {"train": 8, "test": 4, "without_depth": 0}
    assert result.metrics["rmse"] == pytest.approx(float(result.per_image["rmse"].mean()))
    assert result.per_image["abs_rel"].shape == (4,)


def test_a_seed_gives_the_same_depth_again(
    slopes: LabeledDataset, ctx: ProbeContext, tmp_path: Path
) -> None:
    first, other = (evaluated_depth(slopes, ctx, seed) for seed in (0, 1))
    assert first.metrics == evaluated_depth(slopes, context_in(tmp_path / "new")).metrics
    assert first.metrics != other.metrics


def test_the_best_step_is_the_one_with_the_smallest_error(
    slopes: LabeledDataset, ctx: ProbeContext
) -> None:
    constant: dict[str, Any] = {"learning_rates": (3.0,), "schedule": "poly", "power": 1e-9}
    values = {
        step: evaluated_depth(slopes, ctx, steps=step, **constant).metrics["rmse"]
        for step in (20, 40, 60)
    }
    best = evaluated_depth(slopes, ctx, selection="test-best-step", num_validations=3, **constant)
    assert best.metrics["rmse"] == pytest.approx(min(values.values()))
    assert values[best.chosen["step"]] == min(values.values())
    assert len(set(values.values())) > 1


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        (DepthRange(nyu_crop=True), r"depth-\d\.png: an image of 48 x 48 is not an NYU image"),
        (DepthRange(kb_crop=True), r"depth-\d\.png: an image of 48 x 48 is too small for KITTI"),
        (DepthRange(crop="eigen-nyu"), r"depth-50\.npy: Eigen's crop of NYU needs images"),
    ],
)
def test_an_image_that_cannot_be_cropped_is_named(
    facts: DepthRange, message: str, slopes: LabeledDataset, ctx: ProbeContext
) -> None:
    with pytest.raises(DataError, match=message):
        evaluated_depth(replace(slopes, depth=facts), ctx, steps=1)


def test_images_without_depth_are_counted_and_left_out(
    slopes: LabeledDataset, ctx: ProbeContext
) -> None:
    np.save(slopes.test.targets[1], np.zeros((48, 48), np.float32))
    result = evaluated_depth(slopes, ctx, steps=2)
    errors = result.per_image["rmse"]
    assert result.counts["without_depth"] == 1
    assert errors.isnan().tolist() == [False, True, False, False]
    assert result.metrics["rmse"] == pytest.approx(float(errors.nanmean()))
    np.save(slopes.test.targets[0], np.ones((4, 4), np.float32))
    with pytest.raises(DataError, match=r"depth-50\.npy has 4 x 4 pixels"):
        evaluated_depth(slopes, ctx, steps=2)


def test_a_head_is_saved_with_its_bins_and_the_crop_of_kitti(
    slopes: LabeledDataset, ctx: ProbeContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transforms, "KITTI_CROP", (32, 40))
    found = evaluated_depth(replace(slopes, depth=None), ctx, steps=2).facts
    assert found["bins"] == {"min_depth": 1e-3, "max_depth": 10.0, "bins": 16, "upsample": 2}
    assert found["inference"]["kb_crop"] is False
    cropped = evaluated_depth(replace(slopes, depth=DepthRange(kb_crop=True)), ctx, steps=2)
    assert cropped.facts["inference"]["kb_crop"] is True


def test_predictions_for_the_mirror_image_are_mirrored_back() -> None:
    bins = DepthBins(min_depth=0.5, max_depth=4.0, bins=2, upsample=1)
    head = DenseHead(torch.tensor([[0.0], [1.0]]), torch.zeros(2), patch_width=1)
    grid = whole_image((16, 24), 16, 8)
    patches, image = torch.tensor([0.0, 1.0, 5.0]).expand(1, 1, 2, 3), torch.zeros(1, 1)
    views = [(FrozenFeatures(image, one), grid) for one in (patches, patches.flip(-1))]
    found = predict_depth_map(head, bins, views)
    assert found.shape == (16, 24)
    assert (found.diff(dim=1) >= 0).all()
    assert 0.5 <= float(found.min()) <= float(found.max()) <= 4.0
    symmetric = predict_depth_map(head, bins, [views[0], views[0]])
    torch.testing.assert_close(symmetric, symmetric.flip(-1))


def test_zeros_are_the_middle_of_the_range_and_a_large_output_its_own_bin() -> None:
    found = BINS.meters(torch.zeros(1, 256, 2, 3))
    assert found.shape == (1, 1, 8, 12)
    torch.testing.assert_close(found, torch.full_like(found, (0.001 + 10) / 2))
    for number in (0, 100, 255):
        outputs = torch.full((1, 256, 2, 2), -5.0)
        outputs[:, number] = 1e6
        expected = torch.full((1, 1, 8, 8), float(BINS.centers()[number]))
        torch.testing.assert_close(BINS.meters(outputs), expected, rtol=0.01, atol=0.001)


def test_meters_are_the_weighted_mean_of_upsampled_outputs() -> None:
    outputs = torch.randn(2, 256, 3, 4)
    larger = F.interpolate(outputs, scale_factor=4, mode="bilinear", align_corners=False)
    weights = larger.clamp(min=0) + 0.1
    centers = torch.linspace(0.001, 10, 256)[:, None, None]
    expected = (weights / weights.sum(1, keepdim=True) * centers).sum(1, keepdim=True)
    torch.testing.assert_close(BINS.meters(outputs), expected, rtol=1e-4, atol=1e-4)


def random_depths() -> Tensor:
    targets = torch.rand(6, 24, 40) * 8 + 0.5
    targets[:, :4] = 0  # unknown
    targets[:, 4] = 11  # out of range
    return targets


@pytest.mark.parametrize("step", [0, 4, 5, 50])
def test_the_loss_has_the_gradient_of_its_formula(slopes: LabeledDataset, step: int) -> None:
    task, targets = DepthTask(slopes, SMALL_DEPTH), random_depths()
    maps = torch.randn(6, SMALL_DEPTH.bins, 3, 5)
    leaf = maps.clone().requires_grad_()
    meters = task.bins.meters(leaf)
    found = F.interpolate(meters, targets.shape[1:], mode="bilinear", align_corners=False)[:, 0]
    known = (targets > 0.001) & (targets < 10)
    errors = ((found[known] + 1e-3).log() - (targets[known] + 1e-3).log()).double()
    mean = 0.15 * errors.mean().square()
    warmup = step < SMALL_DEPTH.warmup_iters
    (mean.sqrt() if warmup else (errors.var() + mean).sqrt()).backward()
    assert leaf.grad is not None
    assert leaf.grad.abs().max() > 0
    torch.testing.assert_close(
        loss_gradient(task, maps, targets, step), leaf.grad, rtol=1e-4, atol=1e-7
    )


def test_unknown_and_exact_depths_have_finite_gradients(slopes: LabeledDataset) -> None:
    task = DepthTask(slopes, replace(SMALL_DEPTH, upsample=1))
    maps = torch.zeros(2, SMALL_DEPTH.bins, 3, 5)
    assert not loss_gradient(task, maps, torch.zeros(2, 24, 40), 9).any()
    middle = torch.full((2, 24, 40), (task.bins.min_depth + task.bins.max_depth) / 2)
    assert loss_gradient(task, maps, middle, 9).isfinite().all()
