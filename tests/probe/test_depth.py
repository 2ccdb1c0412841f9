"""A head on colors tells depth that is a color; errors are those of its own maps."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.probe.dense_scenes import ALL, FEW, SMALL_DEPTH, ColorModel, context_in, ramp, ramps
from veca.data.images import DataError
from veca.data.sets.dataset import DepthRange, LabeledDataset
from veca.probe.dense import DenseHead
from veca.probe.dense_run import Head, showing_of
from veca.probe.depth import DepthTask, predict_depth_map, run_depth
from veca.probe.depth_scale import DepthScale
from veca.probe.feature_cache import RunContext
from veca.probe.features import Variant, extract_patch_features
from veca.probe.metrics import PER_PICTURE, UNITS
from veca.probe.models import FrozenFeatures
from veca.probe.sliding_window import whole_image


@pytest.fixture
def data(tmp_path: Path) -> LabeledDataset:
    return ramps(tmp_path / "pictures")


@pytest.fixture
def ctx(tmp_path: Path) -> RunContext:
    return context_in(tmp_path / "kept")


def constant_error(data: LabeledDataset) -> float:
    """The root mean square error of the best single depth, as a mean over pictures."""
    told = [ramp(50 + index)[1] for index in range(len(data.test))]
    middle = np.mean([depth[depth > 0].mean() for depth in told])
    return float(np.mean([np.sqrt(((depth - middle)[depth > 0] ** 2).mean()) for depth in told]))


@pytest.mark.parametrize(
    "change", [{}, {"append_image_feature": True, "views": None, "loss_stride": 2}]
)
def test_depth_is_told_from_colors(
    change: dict[str, object], data: LabeledDataset, ctx: RunContext
) -> None:
    protocol = replace(SMALL_DEPTH, **change)  # type: ignore[arg-type]
    found = run_depth(ColorModel(), (FEW, ALL), data, protocol, (0,), ctx)
    result = found[ALL, 0]
    assert set(result.metrics) == set(UNITS)
    assert result.metrics["rmse"] < 0.6 * constant_error(data)
    assert result.metrics["delta1"] > 75
    assert result.counts == {"train": 8, "test": 4, "without_depth": 0}
    assert result.metrics["rmse"] == pytest.approx(result.errors["rmse"].mean())
    assert result.errors["abs_rel"].shape == (4,)


def test_a_seed_gives_the_same_number_again(
    data: LabeledDataset, ctx: RunContext, tmp_path: Path
) -> None:
    first = run_depth(ColorModel(), (ALL,), data, SMALL_DEPTH, (0, 1), ctx)
    again = run_depth(ColorModel(), (ALL,), data, SMALL_DEPTH, (0,), context_in(tmp_path / "new"))
    assert first[ALL, 0].metrics == again[ALL, 0].metrics
    assert first[ALL, 0].metrics != first[ALL, 1].metrics


def test_the_best_step_is_that_with_the_smallest_error(
    data: LabeledDataset, ctx: RunContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge, found = DepthTask.judge, dict[int, float]()

    def each(self: DepthTask, heads: list[Head], *others: Any) -> list[NDArray[np.float64]]:
        judged = [judge(self, [head], *others)[0] for head in heads]
        values = [float(one[:, PER_PICTURE.index("rmse")].mean()) for one in judged]
        found.update(zip(range(10, 61, 10), values, strict=True))
        return judged

    monkeypatch.setattr(DepthTask, "judge", each)
    protocol = replace(SMALL_DEPTH, selection="test-best-step", checks=6, rates=(3.0,))
    best = run_depth(ColorModel(), (ALL,), data, protocol, (0,), ctx)[ALL, 0]
    step = min(found, key=lambda one: found[one])
    assert step != 60  # or the last step would do as well
    assert best.chosen["step"] == step
    assert best.metrics["rmse"] == pytest.approx(min(found.values()))


def test_a_picture_of_a_size_that_cannot_be_cut_is_named(
    data: LabeledDataset, ctx: RunContext
) -> None:
    protocol = replace(SMALL_DEPTH, steps=1)
    facts = {
        r"depth-\d\.png: a picture of 48 x 48 has not the white frame": DepthRange(nyu_crop=True),
        r"depth-\d\.png: a picture of 48 x 48 cannot be cut to KITTI": DepthRange(kb_crop=True),
        r"depth-50\.npy: Eigen's crop of NYU is for pictures": DepthRange(crop="eigen-nyu"),
    }
    for words, depth in facts.items():
        with pytest.raises(DataError, match=words):
            run_depth(ColorModel(), (ALL,), replace(data, depth=depth), protocol, (0,), ctx)
    task = DepthTask(replace(data, depth=DepthRange(kb_crop=True)), protocol)
    shown = showing_of(ColorModel(), protocol)
    features = extract_patch_features(ColorModel(), [Variant(ALL)], data.test, shown, ctx)
    with pytest.raises(DataError, match=r"depth-50\.npy: a picture of 48 x 48 cannot be cut"):
        task.judge([], data.test, features, ctx)
    cut = replace(shown, kb_crop=True)
    with pytest.raises(DataError, match=r"depth-50\.png: a picture of 48 x 48 cannot be cut"):
        extract_patch_features(ColorModel(), [Variant(ALL)], data.test, cut, ctx)


def test_pictures_without_depth_are_counted_and_left_out(
    data: LabeledDataset, ctx: RunContext
) -> None:
    np.save(data.test.targets[1], np.zeros((48, 48), np.float32))
    protocol = replace(SMALL_DEPTH, steps=2)
    result = run_depth(ColorModel(), (ALL,), data, protocol, (0,), ctx)[ALL, 0]
    assert result.counts["without_depth"] == 1
    assert np.isnan(result.errors["rmse"]).tolist() == [False, True, False, False]
    assert result.metrics["rmse"] == pytest.approx(np.nanmean(result.errors["rmse"]))


def test_depth_of_another_size_is_refused(data: LabeledDataset, ctx: RunContext) -> None:
    np.save(data.test.targets[0], np.ones((4, 4), np.float32))
    with pytest.raises(DataError, match=r"depth-50\.npy has not the size of its picture"):
        run_depth(ColorModel(), (ALL,), data, replace(SMALL_DEPTH, steps=1), (0,), ctx)


def test_a_set_without_depth_facts_gets_the_usual_range(
    data: LabeledDataset, ctx: RunContext
) -> None:
    protocol = replace(SMALL_DEPTH, steps=2, flip_average=False)
    plain = replace(data, depth=None)
    result = run_depth(ColorModel(), (ALL,), plain, protocol, (0,), ctx)[ALL, 0]
    assert result.facts["scale"]["most"] == DepthRange().max_depth
    assert result.facts["flip_average"] is False


def test_what_is_told_of_the_mirror_image_is_mirrored_back() -> None:
    scale = DepthScale(least=0.5, most=4.0, bins=2, spacing="linear", upsample=1)
    head = DenseHead(weight=torch.tensor([[0.0], [1.0]]), bias=torch.zeros(2), patch_width=1)
    layout = whole_image((16, 24), 16, 8)
    patches = torch.tensor([0.0, 1.0, 5.0]).expand(1, 1, 2, 3)
    image = torch.zeros(1, 1)
    straight = predict_depth_map(head, scale, [(FrozenFeatures(image, patches), False)], layout)
    mirrored = predict_depth_map(
        head, scale, [(FrozenFeatures(image, patches.flip(-1)), True)], layout
    )
    torch.testing.assert_close(mirrored, straight)
    both = [
        (FrozenFeatures(image, patches), False),
        (FrozenFeatures(image, patches.flip(-1)), True),
    ]
    torch.testing.assert_close(predict_depth_map(head, scale, both, layout), straight)
    assert straight.shape == (16, 24)
    assert (straight.diff(dim=1) >= 0).all()
    assert 0.5 <= float(straight.min()) <= float(straight.max()) <= 4.0
