"""A saved head tells of a picture what it told of it when it was measured."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.probe.dense_scenes import CLASSES
from tests.probe.small_sets import (
    prober_in,
    use_quick_protocols,
    write_classes,
    write_dense,
    write_model,
)
from veca.data.images import Picture, decode
from veca.data.sets.dataset import LabeledDataset
from veca.data.sets.registry import read_set
from veca.probe.metrics import confusion, counted, intersections, picture_errors
from veca.probe.models import PixelModel
from veca.probe.predict import (
    HeadError,
    SavedHead,
    Told,
    heads_below,
    load_head,
    model_of,
    predict_classes,
    predict_depth,
    predict_labels,
)
from veca.probe.rows import Setting
from veca.probe.run import Evaluator
from veca.probe.suite import Job

CPU = torch.device("cpu")


def fitted(folder: Path, data: Path, task: str, **changes: Any) -> tuple[Evaluator, Path]:
    """Fit the head of a task, and say where it is."""
    prober = prober_in(folder)
    usual: dict[str, Any] = {
        "task": task,
        "data": str(data),
        "model": str(write_model(folder / "model")),
        "budgets": (3,),
        "resolution": 32,
    }
    prober.rows(Job(**usual | changes))
    ((_, head),) = prober.heads
    return prober, head


def cases_of(head: Path) -> dict[str, torch.Tensor]:
    """What became of each picture."""
    return load_file(head.parents[1] / "cases" / f"{head.name}.safetensors")


def pictures_of(data: LabeledDataset) -> list[Picture]:
    """The test pictures."""
    return [decode(data.test.picture(place).name) for place in range(len(data.test))]


@pytest.mark.parametrize(
    ("task", "changes"),
    [
        ("knn", {}),
        ("logistic", {"feature": "image+patch-mean"}),
        ("linear", {"protocol": "quick"}),
        ("linear", {"protocol": "quick", "feature": "patch-mean"}),
    ],
)
def test_labels_agree_with_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str, changes: dict[str, Any]
) -> None:
    use_quick_protocols(monkeypatch)
    folder = write_classes(tmp_path / "photos", train=7, val=4)
    _, place = fitted(tmp_path, folder, task, **changes)
    head, data = load_head(place), read_set(str(folder))
    model = model_of(head, CPU)
    (name,) = [name for name in cases_of(place) if name in {"correct", "correct_k20"}]
    assert data.test.labels is not None
    right = []
    for picture, label in zip(pictures_of(data), data.test.labels, strict=True):
        told = predict_labels(model, head, picture, 2)
        assert len(told) == 2
        assert 1 + 1e-6 >= told[0].share >= told[1].share >= 0
        right.append(told[0].label == data.classes[label])
    assert right == cases_of(place)[name].tolist()
    assert 0 < sum(right) < len(right)
    whole = predict_labels(model, head, picture, 9)
    assert {one.label for one in whole} == set(data.classes)
    assert sum(one.share for one in whole) == pytest.approx(1)


@pytest.mark.parametrize("task", ["segmentation", "dense-knn"])
def test_classes_of_pixels_agree_with_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    use_quick_protocols(monkeypatch)
    folder = write_dense(tmp_path / "farm", "masks")
    _, place = fitted(tmp_path, folder, task, protocol="quick")
    head, data = load_head(place), read_set(str(folder))
    model = model_of(head, CPU)
    for row, picture in enumerate(pictures_of(data)):
        found = predict_classes(model, head, picture)
        truth = torch.from_numpy(np.array(data.test.target(row)))
        inside = intersections(confusion(truth, found, len(CLASSES)))
        # Measured on features in half precision, which may turn a pixel at a border.
        difference = (inside - cases_of(place)["intersections"][row]).abs().sum()
        assert difference <= 0.01 * truth.numel()


def test_depth_agrees_with_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_quick_protocols(monkeypatch)
    folder = write_dense(tmp_path / "ramps", "depth")
    _, place = fitted(tmp_path, folder, "depth", protocol="quick")
    head, data = load_head(place), read_set(str(folder))
    assert data.depth is not None
    model = model_of(head, CPU)
    for row, picture in enumerate(pictures_of(data)):
        truth = torch.from_numpy(np.array(data.test.target(row)))
        found = predict_depth(model, head, picture)
        errors = picture_errors(found, truth, counted(truth, data.depth))
        assert errors[0] == pytest.approx(float(cases_of(place)["rmse"][row]), rel=1e-2)


def made_up(**changes: Any) -> SavedHead:
    """A head of raw pixels, so that no model is needed."""
    usual: dict[str, Any] = {
        "task": "logistic",
        "data": "none",
        "classes": ("a", "b", "c"),
        "model": "pixels",
        "weights": None,
        "setting": Setting(),
        "resolution": 16,
        "protocol": "dinov2",
        "seed": 0,
        "facts": {"margin": 1.0, "feature": "image"},
        "tensors": {"weight": torch.zeros(3, 768), "bias": torch.tensor([0.0, -torch.inf, 0.0])},
    }
    return SavedHead(**usual | changes)


def test_of_equally_likely_classes_the_first_is_told_as_the_metrics_have_it(
    tmp_path: Path,
) -> None:
    folder = write_classes(tmp_path / "photos", train=1, val=1)
    picture = decode(str(folder / "val" / "red" / "0.png"))
    told = predict_labels(PixelModel(CPU), made_up(), picture, 3)
    assert told == [Told("a", 0.5), Told("c", 0.5), Told("b", 0.0)]


def test_another_model_in_the_place_of_the_head_s_is_refused(tmp_path: Path) -> None:
    folder = write_classes(tmp_path / "photos", train=4, val=1)
    _, place = fitted(tmp_path, folder, "knn")
    head = load_head(place)
    shutil.move(tmp_path / "model", tmp_path / "moved")
    with pytest.raises(HeadError, match=r"model, cannot be had .*; say with --model where it is"):
        model_of(head, CPU)
    assert model_of(head, CPU, str(tmp_path / "moved")).digest == head.weights
    write_model(tmp_path / "model", seed=1)
    for moved in (None, str(tmp_path / "model")):
        with pytest.raises(HeadError, match=f"not {str(head.weights)[:12]}"):
            model_of(head, CPU, moved)
    with pytest.raises(ValueError, match="'nothing' is no model"):
        model_of(head, CPU, "nothing")


def test_heads_are_found_in_a_report_and_in_its_folder_of_heads(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / "heads" / name).mkdir(parents=True)
        (tmp_path / "heads" / name / "head.json").write_text("{}")
    (tmp_path / "heads" / "c").mkdir()
    wanted = [tmp_path / "heads" / "a", tmp_path / "heads" / "b"]
    assert heads_below(tmp_path) == heads_below(tmp_path / "heads") == wanted
    assert heads_below(tmp_path / "heads" / "a") == []
