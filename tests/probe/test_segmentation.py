"""A head on colors tells classes that are colors; the counts are those of its own maps."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.probe.dense_scenes import (
    ALL,
    CLASSES,
    FEW,
    SMALL,
    ColorModel,
    context_in,
    farm,
    scene,
)
from veca.data.images import DataError
from veca.data.sets.dataset import LabeledDataset
from veca.probe.dense import head_from
from veca.probe.dense_run import Head
from veca.probe.feature_cache import RunContext
from veca.probe.features import InferenceConfig, Variant, extract_windows, load_image
from veca.probe.metrics import confusion, mean_iou
from veca.probe.segmentation import (
    JudgedClasses,
    SegmentationTask,
    num_classes,
    run_segmentation,
)
from veca.probe.sliding_window import merge_windows


@pytest.fixture
def data(tmp_path: Path) -> LabeledDataset:
    return farm(tmp_path / "pictures")


@pytest.fixture
def ctx(tmp_path: Path) -> RunContext:
    return context_in(tmp_path / "kept")


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"append_image_feature": True, "inference": "slide"},
        {"views": None, "loss_stride": 4, "denominator": "all", "dropout": 0.1},
    ],
)
def test_colors_are_told_apart_and_more_channels_tell_more(
    change: dict[str, object], data: LabeledDataset, ctx: RunContext
) -> None:
    protocol = replace(SMALL, **change)  # type: ignore[arg-type]
    found = run_segmentation(ColorModel(), (FEW, ALL), data, protocol, (0,), ctx)
    few, every = found[FEW, 0], found[ALL, 0]
    assert every.metrics["miou"] > 75
    assert every.metrics["miou"] > few.metrics["miou"] + 5
    assert every.counts == {"train": 9, "test": 5}
    assert every.chosen == {"rate": 0.05, "step": 60}
    assert "iou/barn" in every.metrics


def test_counts_are_those_of_the_head_on_each_picture(
    data: LabeledDataset, ctx: RunContext
) -> None:
    result = run_segmentation(ColorModel(), (ALL,), data, SMALL, (0,), ctx)[ALL, 0]
    head = head_from(result.tensors, result.facts)
    showing = InferenceConfig(**result.facts["showing"])
    for index in range(5):
        picture = load_image(data.test, index)
        observed, layout = extract_windows(ColorModel(), picture, showing, Variant(ALL))
        told = merge_windows(head.maps(observed), layout).argmax(0)
        counts = confusion(torch.from_numpy(scene(50 + index)[1]), told, len(CLASSES))
        near = (result.intersections[index] - counts.diagonal()).abs()
        assert near.sum() <= 0.01 * counts.sum()  # kept features are in half precision
    assert torch.equal(result.intersections.sum(0), result.confusion.diagonal())
    value = mean_iou(result.intersections.sum(0), result.unions.sum(0))
    assert result.metrics["miou"] == float(value)
    for index in range(5):  # every object of these scenes is large enough to count
        own = result.objects[result.objects[:, 0] == index]
        right = [int(own[own[:, 1] == number, 3].sum()) for number in range(len(CLASSES))]
        assert right == result.intersections[index].tolist()
    assert {"recall/small", "recall/medium", "recall/large"} <= set(result.metrics)
    labeled = sum(int((scene(50 + index)[1] != 255).sum()) for index in range(5))
    assert int(result.confusion.sum()) == labeled


def test_a_seed_gives_the_same_number_again_and_seeds_differ_little(
    data: LabeledDataset, ctx: RunContext, tmp_path: Path
) -> None:
    first = run_segmentation(ColorModel(), (ALL,), data, SMALL, (0, 1, 2), ctx)
    again = run_segmentation(ColorModel(), (ALL,), data, SMALL, (0,), context_in(tmp_path / "new"))
    assert first[ALL, 0].metrics == again[ALL, 0].metrics
    assert torch.equal(first[ALL, 0].tensors["weight"], again[ALL, 0].tensors["weight"])
    values = [first[ALL, seed].metrics["miou"] for seed in (0, 1, 2)]
    assert np.std(values) < 3
    weights = [first[ALL, seed].tensors["weight"] for seed in (0, 1)]
    assert not torch.equal(weights[0], weights[1])


def test_the_best_step_is_that_with_the_highest_miou(
    data: LabeledDataset, ctx: RunContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge, found = SegmentationTask.judge, dict[int, float]()

    def each(self: SegmentationTask, heads: list[Head], *others: Any) -> list[JudgedClasses]:
        judged = [judge(self, [head], *others)[0] for head in heads]
        counts = [one.confusion for one in judged]
        values = [mean_iou(it.diagonal(), it.sum(0) + it.sum(1) - it.diagonal()) for it in counts]
        found.update(zip(range(10, 61, 10), map(float, values), strict=True))
        return judged

    monkeypatch.setattr(SegmentationTask, "judge", each)
    protocol = replace(SMALL, selection="test-best-step", checks=6, rates=(1.0,))
    best = run_segmentation(ColorModel(), (ALL,), data, protocol, (0,), ctx)[ALL, 0]
    step = max(found, key=lambda one: found[one])
    assert step != 60  # or the last step would do as well
    assert best.chosen["step"] == step
    assert best.metrics["miou"] == max(found.values())


def test_scored_classes_make_the_mean(data: LabeledDataset, ctx: RunContext) -> None:
    protocol = replace(SMALL, steps=5)
    found = run_segmentation(
        ColorModel(), (ALL,), replace(data, eval_classes=(0, 2)), protocol, (0,), ctx
    )[ALL, 0].metrics
    assert found["miou"] == pytest.approx((found["iou/field"] + found["iou/pond"]) / 2)
    assert "iou/barn" not in found


def test_a_mask_of_another_size_is_refused(data: LabeledDataset, ctx: RunContext) -> None:
    np.save(data.test.targets[3], np.zeros((4, 4), np.uint8))
    with pytest.raises(DataError, match=r"masks-53\.npy has \(4, 4\) pixels"):
        run_segmentation(ColorModel(), (ALL,), data, replace(SMALL, steps=1), (0,), ctx)


def test_masks_of_eight_bits_hold_a_limited_number_of_classes(data: LabeledDataset) -> None:
    assert num_classes(data) == 4
    with pytest.raises(DataError, match="has 300 classes"):
        num_classes(replace(data, classes=tuple(map(str, range(300)))))
