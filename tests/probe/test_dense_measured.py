"""Dense tasks by the name of a protocol, in the form that all tasks share."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.probe.dense_scenes import ALL, CLASSES, FEW, ColorModel, context_in, farm, ramps
from tests.probe.small_sets import use_quick_protocols
from veca.data.sets.dataset import LabeledDataset
from veca.probe import protocols as dense_protocols
from veca.probe.metrics import UNITS
from veca.probe.run import DenseProbe, measure_dense_knn, measure_depth, measure_segmentation


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    use_quick_protocols(monkeypatch)


def probe_of(data: LabeledDataset, folder: Path, **changes: Any) -> DenseProbe:
    """A probe of a small model."""
    usual: dict[str, Any] = {
        "model": ColorModel(),
        "settings": (FEW, ALL),
        "data": data,
        "resolution": None,
        "ctx": context_in(folder),
    }
    return DenseProbe(**usual | changes)


def test_segmentation_tells_classes_in_percent_and_what_became_of_each_picture(
    tmp_path: Path,
) -> None:
    probe = probe_of(farm(tmp_path), tmp_path / "kept")
    resolution, found = measure_segmentation(probe, "quick", (0, 1))
    assert resolution == 32
    results = list(found)
    assert {(one.setting, one.seed) for one in results} == {
        (setting, seed) for setting in (FEW, ALL) for seed in (0, 1)
    }
    for one in results:
        assert (one.protocol, one.feature, one.counts) == (
            "quick",
            "patches",
            {"train": 9, "test": 5},
        )
        assert {"miou", "macc", "aacc", "iou/barn"} <= set(one.metrics)
        assert not one.units
        assert one.head is not None
        # The whole set's number follows from those of its pictures.
        inside, whole = (one.cases[name].sum(0).double() for name in ("intersections", "unions"))
        assert whole.shape == (len(CLASSES),)
        there = whole > 0
        assert one.metrics["miou"] == pytest.approx(100 * float((inside / whole)[there].mean()))


def test_depth_has_units_and_errors_of_each_picture(tmp_path: Path) -> None:
    probe = probe_of(ramps(tmp_path), tmp_path / "kept", settings=(ALL,), resolution=24)
    resolution, found = measure_depth(probe, "quick", (0,))
    assert resolution == 24
    (one,) = found
    assert one.units == UNITS
    assert one.units["rmse"] == "m"
    assert set(one.metrics) == set(UNITS)
    assert one.metrics["rmse"] == pytest.approx(float(one.cases["rmse"].mean()))
    assert one.cases["rmse"].shape == (4,)


def test_neighbors_of_patches_need_nothing_but_labels(tmp_path: Path) -> None:
    probe = probe_of(farm(tmp_path), tmp_path / "kept", settings=(ALL,), feature="patches")
    resolution, found = measure_dense_knn(probe, "quick", (3,))
    (one,) = found
    assert (resolution, one.seed, one.feature) == (32, 3, "patches")
    assert one.metrics["miou"] > 50
    assert one.counts["patches"] > 0
    again = probe_of(farm(tmp_path), tmp_path / "kept", settings=(ALL,), resolution=16)
    assert measure_dense_knn(again, "quick", (3,))[0] == 16


def test_the_image_feature_is_appended_where_that_is_asked_for(tmp_path: Path) -> None:
    widths = {}
    for feature in (None, "patches", "patches+image"):
        probe = probe_of(farm(tmp_path), tmp_path / "kept", settings=(ALL,), feature=feature)
        (one,) = measure_segmentation(probe, "quick", (0,))[1]
        assert one.head is not None
        assert one.feature == (feature or "patches")
        widths[feature] = max(tensor.shape[-1] for tensor in one.head.tensors.values())
        assert all(torch.isfinite(tensor).all() for tensor in one.head.tensors.values())
    assert widths["patches"] == widths[None]
    assert widths["patches+image"] > widths["patches"]
    with pytest.raises(ValueError, match="dense-knn compares patches alone"):
        measure_dense_knn(probe, "quick", (0,))


@pytest.mark.parametrize("measure", [measure_segmentation, measure_depth])
def test_the_papers_sizes_hold_for_patches_of_14_unless_others_are_asked_for(
    tmp_path: Path, measure: Any
) -> None:
    data = farm(tmp_path) if measure is measure_segmentation else ramps(tmp_path)
    for stride, usual in ((14, 518), (8, 512)):
        probe = probe_of(data, tmp_path / "kept", model=ColorModel(stride=stride))
        assert measure(probe, "paper", (0,))[0] == usual
        assert measure(replace(probe, resolution=512), "paper", (0,))[0] == 512
        assert measure(replace(probe, resolution=504), "paper", (0,))[0] == 504


def test_the_papers_heads_see_patches_alone_of_a_model_without_a_class_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = replace(dense_protocols.SEGMENTATION["quick"], name="paper", append_image_feature=True)
    monkeypatch.setitem(dense_protocols.SEGMENTATION, "paper", quick)
    monkeypatch.setattr(dense_protocols, "PAPER_STEPS", {})
    plain, without = ColorModel(), ColorModel()
    without.append_image_feature = False
    seen = {}
    for model, feature in ((plain, None), (without, None), (without, "patches+image")):
        data = farm(tmp_path)
        probe = probe_of(data, tmp_path / "kept", model=model, settings=(ALL,), feature=feature)
        (one,) = measure_segmentation(probe, "paper", (0,))[1]
        seen[model is without, feature] = one.feature
    assert seen == {
        (False, None): "patches+image",
        (True, None): "patches",
        (True, "patches+image"): "patches+image",
    }


def test_nothing_is_computed_before_the_first_result_is_asked_for(tmp_path: Path) -> None:
    model = ColorModel()
    masks = probe_of(farm(tmp_path), tmp_path / "kept", model=model)
    depth = probe_of(ramps(tmp_path), tmp_path / "kept", model=model)
    measure_segmentation(masks, "quick", (0,))
    measure_dense_knn(masks, "quick", (0,))
    measure_depth(depth, "quick", (0,))
    assert not model.asked
    with pytest.raises(ValueError, match="no protocol 'slow'"):
        measure_segmentation(masks, "slow", (0,))
