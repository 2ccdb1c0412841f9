"""Heads are fitted as separate loops over torch's layers fit them, and chosen on the val split."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.probe.fixtures import (
    ALL,
    ALONE,
    FEW,
    SMALL,
    SMALL_DEPTH,
    ColorModel,
    by_setting,
    context_in,
    dense_split,
    farm,
    ramps,
)
from tests.runtime.ranks import run_ranks
from veca.data.sets.dataset import IGNORE_INDEX, LabeledDataset, Split
from veca.probe.dense import (
    Candidate,
    DenseHead,
    NormalizedHead,
    Scores,
    SyncedBatchNorm,
    beta1_at,
    drop_channels,
    fit_and_evaluate,
    fit_heads,
    inference_config,
    lr_at,
)
from veca.probe.depth import evaluate_depth
from veca.probe.feature_cache import ProbeContext
from veca.probe.features import DenseBatch
from veca.probe.knn import evaluate_dense_knn
from veca.probe.models import FrozenFeatures
from veca.probe.protocols import (
    DEPTH_DINOV3,
    SEGMENTATION_DINOV3,
    SEGMENTATION_PAPER,
    DenseKnnProtocol,
    DenseProtocol,
    ProbeInputs,
    SegmentationProtocol,
)
from veca.probe.rows import ProbeResult, Setting
from veca.probe.segmentation import SegmentationTask, evaluate_segmentation
from veca.runtime.device import seed_for
from veca.runtime.distributed import Ranks

NUM_CLASSES, PATCH, IMAGE = 4, 6, 3
"""Classes of `farm`, and widths of `ColorModel`."""

FIT = replace(SMALL, steps=12, learning_rates=(0.01, 0.1), selection="held-out", num_validations=3)


@pytest.fixture
def ctx(tmp_path: Path) -> ProbeContext:
    return context_in(tmp_path / "kept")


@pytest.fixture
def data(tmp_path: Path) -> LabeledDataset:
    return farm(tmp_path / "pictures")


def stream(seed: int = 0) -> Iterator[DenseBatch]:
    """Batches whose classes are part of their features, with other noise at each setting."""
    for step in itertools.count():
        draw = torch.Generator().manual_seed(1000 * seed + step)
        targets = torch.randint(0, NUM_CLASSES, (4, 4, 4), generator=draw)
        features = {}
        for setting in (FEW, ALL):
            patches = torch.randn(4, PATCH, 4, 4, generator=draw)
            patches[:, :NUM_CLASSES] += 3 * F.one_hot(targets, NUM_CLASSES).permute(0, 3, 1, 2)
            image = torch.randn(4, IMAGE, generator=draw)
            features[setting] = FrozenFeatures(image, patches.half())
        large = targets.repeat_interleave(8, 1).repeat_interleave(8, 2).to(torch.uint8)
        large[0, 0] = IGNORE_INDEX
        yield DenseBatch(features, large, slice(0, 4))


def fitted(
    data: LabeledDataset, ctx: ProbeContext, protocol: SegmentationProtocol, seed: int = 0
) -> dict[Candidate, DenseHead]:
    """Heads on made-up features."""
    task = SegmentationTask(data, protocol)
    batches = itertools.islice(stream(), protocol.steps)
    inputs = ProbeInputs(ColorModel(), (FEW, ALL), data, protocol, (seed,), ctx)
    return fit_heads(task, inputs, batches, seed)


def joined(features: FrozenFeatures, append: bool) -> Tensor:
    """The image feature repeated at every patch, after the patch feature."""
    patches = features.patches.float()
    if not append:
        return patches
    image = features.image[..., None, None].expand(-1, -1, *patches.shape[2:])
    return torch.cat((patches, image), 1)


def plain_loop(
    protocol: SegmentationProtocol, setting: Setting, rate: float
) -> tuple[Tensor, Tensor]:
    """Weights and biases of one head trained alone with torch's layers."""
    append = protocol.append_image_feature
    width = PATCH + IMAGE * append
    norm, linear = nn.BatchNorm2d(width), nn.Conv2d(width, NUM_CLASSES, 1)
    assert linear.bias is not None
    start = NormalizedHead(NUM_CLASSES, width, PATCH, seed_for(0, 0, "dense head")).weight.detach()
    linear.weight.data, linear.bias.data = start[..., None, None].clone(), torch.zeros(NUM_CLASSES)
    parameters = [*norm.parameters(), *linear.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=rate, weight_decay=protocol.weight_decay)
    for step, batch in zip(range(protocol.steps), stream(), strict=False):
        logits = linear(norm(joined(batch.features[setting], append)))
        logits = F.interpolate(logits, (32, 32), mode="bilinear")
        targets = batch.targets.long()
        loss = F.cross_entropy(logits, targets, ignore_index=IGNORE_INDEX, reduction="sum")
        optimizer.zero_grad()
        (loss / targets.numel()).backward()
        if protocol.clip is not None:
            nn.utils.clip_grad_norm_(parameters, protocol.clip)
        for group in optimizer.param_groups:
            group["lr"] = lr_at(protocol, rate, step)
        optimizer.step()
    assert norm.running_var is not None
    assert norm.running_mean is not None
    weight = linear.weight[..., 0, 0] * norm.weight / (norm.running_var + norm.eps).sqrt()
    bias = linear.bias + linear.weight[..., 0, 0] @ norm.bias - weight @ norm.running_mean
    return weight.detach(), bias.detach()


@pytest.mark.parametrize("change", [{}, {"feature": "patches+image"}, {"clip": 0.05}])
def test_heads_fitted_together_are_those_fitted_alone(
    change: dict[str, Any], data: LabeledDataset, ctx: ProbeContext
) -> None:
    protocol = replace(FIT, **change)
    found = fitted(data, ctx, protocol)
    for setting in (FEW, ALL):
        for rate in protocol.learning_rates:
            head = found[Candidate(setting, rate, 12)]
            weight, bias = plain_loop(protocol, setting, rate)
            torch.testing.assert_close(head.weight.detach(), weight, rtol=1e-3, atol=1e-4)
            torch.testing.assert_close(head.bias.detach(), bias, rtol=1e-3, atol=1e-4)


def test_heads_are_taken_at_every_validation(data: LabeledDataset, ctx: ProbeContext) -> None:
    found = fitted(data, ctx, FIT)
    assert {candidate.step for candidate in found} == {4, 8, 12}
    assert len(found) == 3 * 2 * 2
    constant = replace(FIT, schedule="poly", power=1e-9)
    shorter = fitted(data, ctx, replace(constant, steps=4, num_validations=1))
    longer = fitted(data, ctx, constant)
    first, same, last = (
        heads[Candidate(ALL, 0.1, step)].weight
        for heads, step in ((shorter, 4), (longer, 4), (longer, 12))
    )
    assert torch.equal(first, same)
    assert not torch.equal(first, last)


def test_heads_learn_with_dropout_from_a_part_of_the_pixels(
    data: LabeledDataset, ctx: ProbeContext
) -> None:
    protocol = replace(SMALL, steps=80, dropout=0.1, pixel_stride=4)
    head = fitted(data, ctx, protocol)[Candidate(ALL, 0.05, 80)]
    batch = next(stream(seed=5))
    image, patches = batch.features[ALL]
    found = head(FrozenFeatures(image, patches.float())).argmax(1)
    truth = batch.targets[:, 4::8, 4::8]
    assert (found == truth)[truth != IGNORE_INDEX].float().mean() > 0.9


@pytest.mark.parametrize("append", [False, True])
def test_a_head_predicts_and_learns_as_batch_norm_and_convolution_do(append: bool) -> None:
    width = PATCH + IMAGE * append
    head, norm = NormalizedHead(NUM_CLASSES, width, PATCH, seed=1), SyncedBatchNorm(width, ALONE)
    convolution = nn.Conv2d(width, NUM_CLASSES, 1)
    layers = nn.Sequential(nn.BatchNorm2d(width), convolution)
    convolution.weight.data = head.weight.detach()[..., None, None].clone()
    nn.init.zeros_(convolution.bias)  # type: ignore[arg-type]
    optimizers = [
        torch.optim.AdamW(one.parameters(), lr=0.05, weight_decay=0.1) for one in (head, layers)
    ]
    for step in range(5):
        draw = torch.Generator().manual_seed(step)
        patches = torch.randn(6, PATCH, 3, 4, generator=draw) * 2 + 1
        batch = FrozenFeatures(torch.randn(6, IMAGE, generator=draw) - 2, patches)
        goal = torch.randn(6, NUM_CLASSES, 3, 4)
        inputs = FrozenFeatures(batch.image[:, : IMAGE * append], batch.patches)
        found, expected = head(norm(inputs)), layers(joined(batch, append))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        (found - goal).square().sum().backward()
        (expected - goal).square().sum().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    layers.eval()
    torch.testing.assert_close(
        head.folded(norm)(batch), layers(joined(batch, append)), rtol=1e-4, atol=1e-4
    )


def test_dropout_keeps_the_mean_and_follows_from_the_seed() -> None:
    mask = drop_channels(200, 300, 0.1, seed=0)
    assert mask.unique().tolist() == pytest.approx([0, 1 / 0.9])
    assert float(mask.mean()) == pytest.approx(1, abs=0.01)
    assert torch.equal(mask, drop_channels(200, 300, 0.1, seed=0))
    assert not torch.equal(mask, drop_channels(200, 300, 0.1, seed=1))


PAPER, DINOV3 = SEGMENTATION_PAPER, SEGMENTATION_DINOV3


@pytest.mark.parametrize(
    ("protocol", "peak", "step", "expected"),
    [
        (PAPER, 0.01, 0, 0.01),
        (PAPER, 0.01, PAPER.steps // 2, 1e-4 + 0.0099 * 0.5**0.9),
        (PAPER, 0.01, PAPER.steps, 1e-4),
        (PAPER, 1e-5, 0, 1e-5),  # below the end
        (DINOV3, 1e-3, 0, 0),
        (DINOV3, 1e-3, 1_499, 1e-3 * 1_499 / 1_500 * (1 - 1_499 / 40_000)),
        (DINOV3, 1e-3, 1_500, 0.5e-3 * (1 + math.cos(math.pi * 1_501 / 40_000))),
        (DINOV3, 1e-3, 39_999, 0),
        (DEPTH_DINOV3, 3e-4, 0, 3e-7),
        (DEPTH_DINOV3, 3e-4, 6_400, 3e-7 + 0.5 * 3e-4 * (1 + math.cos(math.pi / 6)) * 0.5),
        (DEPTH_DINOV3, 3e-4, 38_400, 3e-4 / 25_000),
    ],
)
def test_learning_rates_follow_the_formulas_of_their_sources(
    protocol: DenseProtocol, peak: float, step: int, expected: float
) -> None:
    assert lr_at(protocol, peak, step) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("protocol", "step", "beta"),
    [
        (SEGMENTATION_DINOV3, 10, 0.9),
        (DEPTH_DINOV3, 12_799, 0.0),
        (DEPTH_DINOV3, 12_800, 0.85),
        (DEPTH_DINOV3, 25_600, 0.90),
        (DEPTH_DINOV3, 38_400, 0.95),
        (replace(DEPTH_DINOV3, warmup=0), 0, 0.85),
    ],
)
def test_only_one_cycle_changes_the_first_beta(
    protocol: DenseProtocol, step: int, beta: float
) -> None:
    assert beta1_at(protocol, step) == pytest.approx(beta)


class FavoriteTask(SegmentationTask):
    """Prefers one of the heads, by the order in which they are validated."""

    def __init__(self, data: LabeledDataset, protocol: SegmentationProtocol, favorite: int) -> None:
        super().__init__(data, protocol)
        self.favorite = favorite
        self.validated: list[int] = []
        """Sizes of the splits that heads were chosen on."""

    def selection_metric(self, scores: Scores) -> float:
        self.validated.append(len(scores["pixels"]))
        return float(len(self.validated) - 1 == self.favorite)


CHOICE = replace(
    SMALL, steps=6, learning_rates=(0.01, 0.1), num_validations=2, selection="held-out"
)


def chosen(
    task: FavoriteTask, ctx: ProbeContext, seeds: Sequence[int] = (0,)
) -> dict[tuple[Setting, int], ProbeResult]:
    inputs = ProbeInputs(ColorModel(), (ALL,), task.data, task.protocol, seeds, ctx)
    return by_setting(fit_and_evaluate(task, inputs))


@pytest.mark.parametrize(
    ("favorite", "rate", "step"), [(0, 0.01, 3), (1, 0.1, 3), (2, 0.01, 6), (3, 0.1, 6)]
)
def test_the_paper_chooses_the_step_on_the_test_split(
    favorite: int, rate: float, step: int, data: LabeledDataset, ctx: ProbeContext
) -> None:
    task = FavoriteTask(data, replace(CHOICE, selection="test-best-step"), favorite)
    found = chosen(task, ctx)[ALL, 0]
    assert task.validated == [5] * 4
    assert found.chosen == {"rate": rate, "step": step}
    assert found.counts["train"] == 9


def test_learning_rates_are_chosen_on_training_images_that_the_head_never_sees(
    data: LabeledDataset, ctx: ProbeContext
) -> None:
    task = FavoriteTask(data, replace(CHOICE, held_out_share=0.3), 3)
    found = chosen(task, ctx)[ALL, 0]
    assert task.validated == [3] * 4
    assert found.chosen == {"rate": 0.1, "step": 6}
    assert found.counts["train"] == 6


def test_a_validation_split_is_chosen_on_if_there_is_one(
    data: LabeledDataset, ctx: ProbeContext, tmp_path: Path
) -> None:
    val: Split = dense_split(tmp_path / "pictures", "dev", "masks", range(80, 82))
    task = FavoriteTask(replace(data, val=val), CHOICE, 0)
    assert chosen(task, ctx)[ALL, 0].counts["train"] == 9
    assert task.validated == [2] * 4


def test_without_a_selection_the_last_step_is_reported(
    data: LabeledDataset, ctx: ProbeContext
) -> None:
    task = FavoriteTask(data, replace(SMALL, steps=6, num_validations=2), 0)
    found = chosen(task, ctx, (0, 1))
    assert not task.validated
    assert {one.chosen["step"] for one in found.values()} == {6}


def test_settings_do_not_change_each_other(data: LabeledDataset, ctx: ProbeContext) -> None:
    inputs = ProbeInputs(ColorModel(), (FEW, ALL, ALL), data, SMALL, (0,), ctx)
    both = by_setting(evaluate_segmentation(inputs))
    alone = by_setting(evaluate_segmentation(replace(inputs, settings=(ALL,))))
    assert set(both) == {(FEW, 0), (ALL, 0)}
    assert both[ALL, 0].metrics == alone[ALL, 0].metrics


def test_images_are_seen_at_whole_patches() -> None:
    protocol = replace(SMALL, inference="slide", resolution=45)
    found = inference_config(ColorModel(), protocol)
    assert (found.short_side, found.window_stride) == (40, 27)
    assert inference_config(ColorModel(), replace(protocol, inference="whole")).window_stride == 0


def numbers_of(folder: Path, ranks: Ranks) -> list[float]:
    """Pixels that were counted, and a metric of each task."""
    if ranks.is_main:
        farm(folder / "farm")
        ramps(folder / "ramps")
    ranks.barrier()
    ctx, model = context_in(folder / "kept", ranks), ColorModel()
    fields, slopes = farm(folder / "farm"), ramps(folder / "ramps")
    fresh = replace(SMALL, num_crops=None, steps=20, dropout=0.1)
    near = DenseKnnProtocol(name="near", resolution=32, k=3, max_patches=60)
    (cached,) = evaluate_segmentation(ProbeInputs(model, (ALL,), fields, SMALL, (0,), ctx))
    (drawn,) = evaluate_segmentation(ProbeInputs(model, (ALL,), fields, fresh, (0,), ctx))
    (depth,) = evaluate_depth(ProbeInputs(model, (ALL,), slopes, SMALL_DEPTH, (0,), ctx))
    (voted,) = evaluate_dense_knn(ProbeInputs(model, (ALL,), fields, near, (0,), ctx))
    pixels = sum(float(cached.per_image[name].sum()) for name in ("intersections", "objects"))
    ious = [found.metrics["miou"] for found in (cached, drawn, voted)]
    return [pixels, *ious, depth.metrics["rmse"]]


@pytest.mark.workers
def test_two_ranks_count_each_image_once_and_find_what_one_does(tmp_path: Path) -> None:
    alone = numbers_of(tmp_path / "one", ALONE)

    def work(ranks: Ranks) -> None:
        np.testing.assert_allclose(numbers_of(tmp_path / "two", ranks), alone, rtol=2e-3)

    run_ranks(work, tmp_path)
