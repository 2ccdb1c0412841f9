"""The test images that a report shows."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from tests.probe.fixtures import CLASSES, class_split, color_set, farm, ramps
from veca.data.sets.dataset import LabeledDataset
from veca.probe.metrics import pixel_counts
from veca.probe.pictures import MISTAKES, THUMBNAIL, examples_of
from veca.probe.rows import ProbeResult, Setting

INFERENCE = {"short_side": 32, "stride": 8}


def result(data: LabeledDataset, budget: int = 8, **changes: Any) -> ProbeResult:
    """A result with nothing that examples ignore."""
    usual: dict[str, Any] = {"metrics": {}, "counts": {}, "facts": {"inference": INFERENCE}}
    return ProbeResult(data=data, setting=Setting(budget), seed=0, **usual | changes)


def pixels(content: Tensor) -> np.ndarray[Any, Any]:
    """A saved picture."""
    with Image.open(io.BytesIO(content.numpy().tobytes())) as picture:
        assert picture.format == "JPEG"
        return np.asarray(picture).astype(int)


def of_classes(data: LabeledDataset, predicted: list[int], confidence: list[float]) -> ProbeResult:
    """A classifier's result."""
    found = {"predicted": torch.tensor(predicted), "confidence": torch.tensor(confidence)}
    return result(data, per_image=found)


def test_mistakes_come_by_confidence_with_prediction_and_label(tmp_path: Path) -> None:
    data = color_set(tmp_path)  # nine images of blue, green, red in turns
    predicted = [0, 2, 2, 1, 1, 0, 0, 1, 2]
    confidence = [0.9, 0.4, 0.9, 0.8, 0.99, 0.6, 0.9, 0.9, 0.9]
    tensors, facts = examples_of([of_classes(data, predicted, confidence)])
    assert [item["title"] for item in facts["items"]] == ["green, 80%", "blue, 60%", "red, 40%"]
    captions = [["labeled blue"], ["labeled red"], ["labeled green"]]
    assert [item["captions"] for item in facts["items"]] == captions
    assert facts["items"][0]["name"] == data.test.keys[3]
    with Image.open(data.test.image(3).name) as picture:
        original = np.asarray(picture.convert("RGB")).astype(int)
    assert np.abs(pixels(tensors["0/0"]) - original).mean() < 25  # by JPEG, of noise
    assert tensors["truth"].tolist() == [0, 1, 2] * 3
    assert tensors["predicted"].tolist() == predicted
    assert facts["classes"] == ["blue", "green", "red"]


def test_of_many_or_large_images_few_and_small_ones_are_kept(tmp_path: Path) -> None:
    test = class_split(tmp_path / "own", "test", np.zeros(MISTAKES + 3, np.int64))
    for place in range(len(test)):
        Image.new("RGB", (400, 300)).save(test.image(place).name)
    data = color_set(tmp_path, test=test)
    tensors, facts = examples_of([of_classes(data, [1] * len(test), [0.5] * len(test))])
    assert len(facts["items"]) == MISTAKES
    assert pixels(tensors["0/0"]).shape == (round(THUMBNAIL * 3 / 4), THUMBNAIL, 3)
    tensors, facts = examples_of([of_classes(data, [0] * len(test), [0.5] * len(test))])
    assert not facts["items"]  # no mistakes


def test_an_image_of_several_classes_is_wrong_if_none_is_named_and_one_without_never(
    tmp_path: Path,
) -> None:
    labels = np.array([[True, True, False], [True, True, False], [False, False, False]])
    data = color_set(tmp_path, test=class_split(tmp_path / "own", "test", labels))
    tensors, facts = examples_of([of_classes(data, [1, 2, 0], [0.5, 0.7, 0.9])])
    assert [item["captions"] for item in facts["items"]] == [["labeled blue, green"]]
    assert "truth" not in tensors  # a confusion matrix needs one class for each image


def of_masks(data: LabeledDataset, masks: list[Tensor], budget: int) -> ProbeResult:
    """A result that predicts these masks."""
    counts = torch.stack([
        pixel_counts(torch.from_numpy(data.test.target(at)), mask, len(CLASSES))
        for at, mask in enumerate(masks)
    ])  # fmt: skip
    found = {"intersections": counts[:, 0], "unions": counts[:, 1]}
    return result(data, budget, per_image=found, predict=masks.__getitem__)


def test_masks_are_shown_for_the_best_the_median_and_the_worst_image(tmp_path: Path) -> None:
    data = farm(tmp_path, train=1, test=5)
    true = [torch.from_numpy(data.test.target(at).copy()) for at in range(5)]
    shares = [0.5, 1.0, 0.2, 0.0, 0.7]  # of the columns that are right
    masks = []
    for mask, share in zip(true, shares, strict=True):
        found = mask.clone()
        found[:, int(share * mask.shape[1]) :] = 3  # a class that never occurs
        masks.append(found)
    nothing = [torch.zeros_like(mask) for mask in true]
    tensors, facts = examples_of([of_masks(data, nothing, 2), of_masks(data, masks, 8)])
    assert [item["name"] for item in facts["items"]] == [data.test.keys[at] for at in (1, 0, 3)]
    titles = [item["title"].partition(":")[0] for item in facts["items"]]
    assert titles == ["best", "median", "worst"]
    assert facts["items"][0]["title"] == "best: mean IoU 100.0 %"
    captions = ["image", "truth", "predicted, 2 cores", "predicted, 8 cores"]
    assert all(item["captions"] == captions for item in facts["items"])
    truth, few, many = (pixels(tensors[f"0/{at}"]) for at in (1, 2, 3))
    assert np.abs(truth - many).mean() < 8 < np.abs(truth - few).mean()
    names = [name for name, _ in facts["items"][2]["legend"]]
    assert set(names) == {"field", "barn", "pond", "never"}


def of_depth(data: LabeledDataset, factors: list[float], budget: int = 8) -> ProbeResult:
    """A result whose predictions are the true depth times a factor."""
    depths = [torch.from_numpy(data.test.target(at)) * one for at, one in enumerate(factors)]
    errors = torch.tensor([abs(one - 1.0) for one in factors])
    return result(data, budget, per_image={"rmse": errors}, predict=depths.__getitem__)


def test_depth_has_one_scale_and_a_map_of_the_errors(tmp_path: Path) -> None:
    data = ramps(tmp_path, train=1, test=4)
    tensors, facts = examples_of([of_depth(data, [1.1, 1.0, float("nan"), 1.4])])
    assert [item["name"] for item in facts["items"]] == [data.test.keys[at] for at in (1, 0, 3)]
    best, _, worst = facts["items"]
    assert best["title"] == "best: RMSE 0.00 m"
    shown = np.unique(data.test.target(1))[1:]  # the first one is 0, which is unknown
    scale = f"truth, {shown[0]:.1f} (light) to {shown[-1]:.1f} m"
    assert best["captions"][:3] == ["image", scale, "predicted, 8 cores"]
    assert worst["captions"][3].startswith("error, 0 (dark) to ")
    known = np.s_[8:, 8:]  # the corner is unknown, and gray in what needs the truth
    truth, predicted, error = (pixels(tensors[f"0/{at}"]) for at in (1, 2, 3))
    assert np.abs(truth - predicted)[known].mean() < 3
    assert error[known].mean() < 10
    assert np.abs(truth[:2, :2] - 128).max() < 30
    assert pixels(tensors["2/3"])[known].mean() > 60


@pytest.mark.parametrize(
    ("errors", "places"), [([0.3], ["best"]), ([0.3, 0.1], ["best", "median"])]
)
def test_few_images_are_shown_once(tmp_path: Path, errors: list[float], places: list[str]) -> None:
    data = ramps(tmp_path, train=1, test=len(errors))
    _, facts = examples_of([of_depth(data, [1 + error for error in errors])])
    assert [item["title"].partition(":")[0] for item in facts["items"]] == places
