"""A saved head tells of a new picture what it told of that picture in the test part."""

from pathlib import Path

import pytest
import torch

from tests.probe.dense_scenes import (
    ALL,
    CLASSES,
    SMALL,
    SMALL_DEPTH,
    ColorModel,
    farm,
    place_in,
    ramp,
    ramps,
    scene,
)
from veca.data.images import picture_of_array
from veca.probe.depth import DepthResult, run_depth
from veca.probe.knn import run_dense_knn
from veca.probe.metrics import confusion, picture_errors
from veca.probe.predict import (
    HeadError,
    SavedHead,
    load_head,
    predict_classes,
    predict_depth,
    save_head,
)
from veca.probe.protocols import DenseKnnProtocol
from veca.probe.segmentation import SegmentationResult, run_segmentation


def saved(task: str, result: SegmentationResult | DepthResult, folder: Path) -> SavedHead:
    """The head after a way through files."""
    head = SavedHead(
        task=task,
        data="farm",
        classes=CLASSES,
        model="colors",
        weights="colors",
        setting=ALL,
        resolution=32,
        protocol="small",
        seed=0,
        facts=result.facts,
        tensors=result.tensors,
    )
    save_head(head, folder)
    return load_head(folder)


@pytest.mark.parametrize("task", ["segmentation", "dense-knn"])
def test_classes_of_a_new_picture(task: str, tmp_path: Path) -> None:
    data, place = farm(tmp_path / "pictures"), place_in(tmp_path / "kept")
    if task == "segmentation":
        result = run_segmentation(ColorModel(), (ALL,), data, SMALL, (0,), place)[ALL, 0]
    else:
        near = DenseKnnProtocol(name="near", resolution=32, neighbors=(5,))
        result = run_dense_knn(ColorModel(), (ALL,), data, near, (0,), place)[ALL, 0]
    head = saved(task, result, tmp_path / "head")
    pixels, mask = scene(51)
    found = predict_classes(ColorModel(), head, picture_of_array(pixels))
    assert found.shape == mask.shape
    right = confusion(torch.from_numpy(mask), found, 4).diagonal()
    assert (right - result.intersections[1]).abs().sum() <= 0.02 * mask.size


def test_depth_of_a_new_picture(tmp_path: Path) -> None:
    data, place = ramps(tmp_path / "pictures"), place_in(tmp_path / "kept")
    result = run_depth(ColorModel(), (ALL,), data, SMALL_DEPTH, (0,), place)[ALL, 0]
    head = saved("depth", result, tmp_path / "head")
    pixels, depth = ramp(52)
    found = predict_depth(ColorModel(), head, picture_of_array(pixels))
    told = torch.from_numpy(depth)
    assert picture_errors(found, told, told > 0)[0] == pytest.approx(
        result.errors["rmse"][2], rel=0.01
    )


def test_heads_of_other_tasks_and_models_are_refused(tmp_path: Path) -> None:
    data, place = ramps(tmp_path / "pictures"), place_in(tmp_path / "kept")
    result = run_depth(ColorModel(), (ALL,), data, SMALL_DEPTH, (0,), place)[ALL, 0]
    head = saved("depth", result, tmp_path / "head")
    picture = picture_of_array(ramp(52)[0])
    with pytest.raises(HeadError, match="the task 'depth'; this needs one of segmentation or"):
        predict_classes(ColorModel(), head, picture)
    with pytest.raises(HeadError, match="patches of 8 pixels, but colors has 4"):
        predict_depth(ColorModel(stride=4), head, picture)
