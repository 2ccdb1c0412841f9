"""Saved heads predict what was measured, damage to them is refused, and names do not clash."""

import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import load_file

from tests.probe.fixtures import (
    ALL,
    CLASSES,
    SMALL_DEPTH,
    ColorModel,
    color_set,
    context_in,
    evaluator_in,
    ramps,
    use_quick_protocols,
    write_classes,
    write_dense,
    write_model,
)
from tests.probe.made_up_rows import row
from veca.data.images import DecodedImage, ImageError, decode, image_from_array
from veca.data.sets.dataset import IGNORE_INDEX, DepthRange, LabeledDataset
from veca.data.sets.registry import read_set
from veca.probe.depth import DepthBins, evaluate_depth
from veca.probe.features import InferenceConfig
from veca.probe.metrics import confusion_matrix, eval_mask, image_errors, intersections
from veca.probe.models import FrozenModel, PixelModel
from veca.probe.overlay import class_palette, depth_image, overlay, save_mask
from veca.probe.predict import (
    DENSE_TASKS,
    HeadError,
    Prediction,
    SavedHead,
    crop_as_tested,
    head_files,
    load_backbone,
    load_head,
    predict_classes,
    predict_depth,
    predict_labels,
    save_head,
    save_result,
)
from veca.probe.rows import ProbeResult, Row, Setting, row_from_json
from veca.probe.run import Evaluator
from veca.probe.suite import Job
from veca.runtime.tensors import load_tensors, open_tensors, save_tensors

CPU = torch.device("cpu")


def fitted(folder: Path, data: Path, task: str, **changes: Any) -> tuple[Evaluator, Path]:
    """Fit the head of a task; return its file."""
    evaluator = evaluator_in(folder)
    usual: dict[str, Any] = {
        "task": task,
        "data": str(data),
        "model": str(write_model(folder / "model")),
        "budgets": (3,),
        "resolution": 32,
    }
    evaluator.run_job(Job(**usual | changes))
    ((_, head),) = evaluator.heads
    return evaluator, head


def cases_of(head: Path) -> dict[str, torch.Tensor]:
    """The per-image results of a head."""
    return load_file(head.parents[1] / "per_image" / head.name)


def pictures_of(data: LabeledDataset) -> list[DecodedImage]:
    """The test images."""
    return [decode(data.test.image(place).name) for place in range(len(data.test))]


@pytest.mark.parametrize(
    ("task", "changes"),
    [
        ("knn", {}),
        ("logistic", {"feature": "image+patch-mean"}),
        ("linear", {"protocol": "quick", "feature": "patch-mean"}),
    ],
)
def test_labels_agree_with_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str, changes: dict[str, Any]
) -> None:
    use_quick_protocols(monkeypatch)
    folder = write_classes(tmp_path / "photos", train=7, val=4)
    _, path = fitted(tmp_path, folder, task, **changes)
    head, data = load_head(path), read_set(str(folder))
    model = load_backbone(head, CPU)
    (name,) = [name for name in cases_of(path) if name in {"correct", "correct_k20"}]
    assert data.test.labels is not None
    right = []
    for picture, label in zip(pictures_of(data), data.test.labels, strict=True):
        found = predict_labels(model, head, picture, 2)
        assert len(found) == 2
        assert 1 + 1e-6 >= found[0].score >= found[1].score >= 0
        right.append(found[0].label == data.classes[label])
    assert right == cases_of(path)[name].tolist()
    assert 0 < sum(right) < len(right)
    whole = predict_labels(model, head, picture, 9)
    assert {one.label for one in whole} == set(data.classes)
    assert sum(one.score for one in whole) == pytest.approx(1)


@pytest.mark.parametrize("task", ["segmentation", "dense-knn"])
def test_classes_of_pixels_agree_with_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    use_quick_protocols(monkeypatch)
    folder = write_dense(tmp_path / "farm", "masks")
    _, path = fitted(tmp_path, folder, task, protocol="quick")
    head, data = load_head(path), read_set(str(folder))
    model = load_backbone(head, CPU)
    for place, picture in enumerate(pictures_of(data)):
        found = predict_classes(model, head, picture)
        truth = torch.from_numpy(np.array(data.test.target(place)))
        inside = intersections(confusion_matrix(truth, found, len(CLASSES)))
        # Measured on features in half precision, which may flip a pixel at a border.
        difference = (inside - cases_of(path)["intersections"][place]).abs().sum()
        assert difference <= 0.01 * truth.numel()


def test_depth_agrees_with_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_quick_protocols(monkeypatch)
    folder = write_dense(tmp_path / "ramps", "depth")
    _, path = fitted(tmp_path, folder, "depth", protocol="quick")
    head, data = load_head(path), read_set(str(folder))
    assert data.depth is not None
    model = load_backbone(head, CPU)
    for place, picture in enumerate(pictures_of(data)):
        truth = torch.from_numpy(np.array(data.test.target(place)))
        found = predict_depth(model, head, picture)
        errors = image_errors(found, truth, eval_mask(truth, data.depth))
        assert errors[0] == pytest.approx(float(cases_of(path)["rmse"][place]), rel=1e-2)


def test_a_kitti_head_is_saved_and_used_with_the_crop_it_was_measured_with(tmp_path: Path) -> None:
    numbers = np.random.default_rng(0).integers(0, 256, (375, 1242, 3), np.uint8)
    data = ramps(tmp_path / "pictures", train=2, test=1)
    for path in (tmp_path / "pictures").glob("*.png"):
        Image.fromarray(numbers).save(path)
        np.save(path.with_suffix(".npy"), np.full((375, 1242), 5.0, np.float32))
    data = replace(data, depth=DepthRange(max_depth=80.0, kb_crop=True))
    quick = replace(SMALL_DEPTH, steps=2, batch=2)
    (result,) = evaluate_depth(
        ColorModel(), (ALL,), data, quick, (0,), context_in(tmp_path / "kept")
    )
    head = depth_head(facts=result.facts, tensors=result.tensors)
    save_head(head, tmp_path / "head.safetensors")
    head, picture = load_head(tmp_path / "head.safetensors"), image_from_array(numbers)
    found = predict_depth(ColorModel(), head, picture)
    assert found.shape == (352, 1216) == crop_as_tested(head, picture).sides
    plain = replace(
        head, facts=head.facts | {"inference": head.facts["inference"] | {"kb_crop": False}}
    )
    cropped = image_from_array(np.ascontiguousarray(numbers[23:, 13:1229]))
    assert torch.equal(found, predict_depth(ColorModel(), plain, cropped))
    with pytest.raises(ImageError, match="100 x 90 is too small"):
        crop_as_tested(head, image_from_array(numbers[:100, :90].copy()))


def pixel_head(**changes: Any) -> SavedHead:
    """A classifier on raw pixels, which needs no model."""
    usual: dict[str, Any] = {
        "task": "logistic",
        "data": "none",
        "classes": ("a", "b", "c"),
        "model": "pixels",
        "weights": PixelModel(CPU).digest,
        "setting": Setting(),
        "resolution": 16,
        "protocol": "dinov2",
        "seed": 0,
        "facts": {"resize_ratio": 1.0, "feature": "image"},
        "metrics": {"top1": 75.0},
        "tensors": {"weight": torch.zeros(3, 768), "bias": torch.tensor([0.0, -torch.inf, 0.0])},
    }
    return SavedHead(**usual | changes)


def dense_head(**changes: Any) -> SavedHead:
    """A segmentation head on colors."""
    inference = asdict(InferenceConfig(short_side=32, stride=8))
    usual: dict[str, Any] = {
        "task": "segmentation",
        "model": "colors",
        "weights": "colors",
        "resolution": 32,
        "facts": {"patch_width": 6, "inference": inference},
        "tensors": {"weight": torch.randn(3, 6), "bias": torch.zeros(3)},
    }
    return pixel_head(**usual | changes)


def depth_head(**changes: Any) -> SavedHead:
    """A depth head on colors."""
    bins = DepthBins(min_depth=0.001, max_depth=10.0, bins=8, upsample=2)
    facts = {**dense_head().facts, "bins": asdict(bins)}
    usual: dict[str, Any] = {
        "task": "depth",
        "classes": (),
        "facts": facts,
        "tensors": {"weight": torch.randn(8, 6), "bias": torch.zeros(8)},
    }
    return dense_head(**usual | changes)


HEADS = {
    "logistic": pixel_head(),
    "knn": pixel_head(
        task="knn",
        facts={"resize_ratio": 1.0, "feature": "image", "neighbors": 2, "temperature": 0.07},
        tensors={"features": torch.randn(6, 768), "labels": torch.arange(6) % 3},
    ),
    "segmentation": dense_head(),
    "dense-knn": dense_head(
        task="dense-knn",
        facts={
            "inference": asdict(InferenceConfig(short_side=32, stride=8)),
            "neighbors": 2,
            "temperature": 1,
        },
        tensors={"features": torch.randn(9, 6).half(), "shares": torch.rand(9, 3).half()},
    ),
    "depth": depth_head(),
}


def predict(head: SavedHead) -> None:
    """Use a head in the way of its task."""
    picture = image_from_array(np.full((24, 32, 3), 90, np.uint8))
    model: FrozenModel = ColorModel() if head.task in DENSE_TASKS else PixelModel(CPU)
    if head.task == "depth":
        predict_depth(model, head, picture)
    elif head.task in DENSE_TASKS:
        predict_classes(model, head, picture)
    else:
        predict_labels(model, head, picture)


@pytest.mark.parametrize("task", HEADS)
def test_a_head_is_read_back_as_it_was_saved(tmp_path: Path, task: str) -> None:
    saved, path = HEADS[task], tmp_path / "deep" / "head.safetensors"
    save_head(saved, path)
    content = path.read_bytes()
    save_head(saved, path)
    assert path.read_bytes() == content
    found = load_head(path)
    assert {**vars(found), "tensors": None} == {**vars(saved), "tensors": None}
    assert found.tensors.keys() == saved.tensors.keys()
    assert all(torch.equal(found.tensors[name], saved.tensors[name]) for name in saved.tensors)
    predict(found)


def flipped(content: bytes, at: int, _: int) -> bytes:
    changed = bytearray(content)
    changed[at] ^= 1 << (at % 8)
    return bytes(changed)


def zeroed(content: bytes, at: int, size: int) -> bytes:
    return content[:at] + bytes(len(content[at : at + size])) + content[at + size :]


def swapped(content: bytes, at: int, size: int) -> bytes:
    first, second = content[at : at + size], content[at + size : at + 2 * size]
    return content[:at] + second + first + content[at + 2 * size :]


DAMAGES: dict[str, Callable[[bytes, int, int], bytes]] = {
    "flip": flipped,
    "cut": lambda content, at, _: content[:at],
    "zeros": zeroed,
    "swap": swapped,
    "more": lambda content, at, size: content + content[at : at + size],
}


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.sampled_from(sorted(HEADS)),
    st.sampled_from(sorted(DAMAGES)),
    st.floats(0, 1),
    st.integers(1, 99),
)
def test_no_damaged_head_is_used(
    tmp_path: Path, task: str, damage: str, where: float, size: int
) -> None:
    path = tmp_path / "head.safetensors"
    save_head(HEADS[task], path)
    content = path.read_bytes()
    changed = DAMAGES[damage](content, int(where * (len(content) - 1)), size)
    assume(changed != content)
    path.write_bytes(changed)
    with pytest.raises(HeadError) as error:
        load_head(path)
    assert "\n" not in str(error.value)


ODD = st.sampled_from([None, True, -1, 0, 3, 10**9, 1e300, -0.5, "", "x", [], [1], {}, {"x": 1}])


@pytest.mark.compiled  # without the shape hook, which would refuse odd values first
@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.sampled_from(sorted(HEADS)), st.data())
def test_no_odd_metadata_gives_a_traceback(tmp_path: Path, task: str, data: st.DataObject) -> None:
    path = tmp_path / "head.safetensors"
    save_head(HEADS[task], path)
    tensors, metadata = load_tensors(path)
    at, key = metadata, data.draw(st.sampled_from(sorted(metadata)))
    while isinstance(at[key], dict) and at[key] and data.draw(st.booleans()):
        at = at[key]
        key = data.draw(st.sampled_from(sorted(at)))
    kind = data.draw(st.sampled_from(["change", "remove", "add", "tensor"]))
    if kind == "change":
        at[key] = data.draw(ODD)
    elif kind == "remove":
        del at[key]
    elif kind == "add":
        at["another"] = data.draw(ODD)
    else:
        name = data.draw(st.sampled_from(sorted(tensors)))
        tensors[name] = data.draw(st.sampled_from([tensors[name][:-1], tensors[name][None]]))
    save_tensors(path, tensors, metadata)
    try:
        head = load_head(path)
        if head.weights == HEADS[task].weights:
            predict(head)
    except HeadError as error:
        assert "\n" not in str(error)  # noqa: PT017 - an odd value may also be one that a head can have


def test_other_files_are_no_heads(tmp_path: Path) -> None:
    with pytest.raises(HeadError, match=r"is no head; give a \.safetensors file below heads/"):
        load_head(tmp_path / "none.safetensors")
    save_tensors(tmp_path / "x.safetensors", {"bias": torch.ones(3)})
    with pytest.raises(HeadError, match="holds other tensors"):
        load_head(tmp_path / "x.safetensors")
    save_tensors(tmp_path / "x.safetensors", {}, {"kind": "head", "format": 1})
    with pytest.raises(HeadError, match="head format 1"):
        load_head(tmp_path / "x.safetensors")


def test_among_equal_scores_the_first_class_wins_as_in_the_metrics() -> None:
    picture = image_from_array(np.full((24, 32, 3), 90, np.uint8))
    found = predict_labels(PixelModel(CPU), pixel_head(), picture, 3)
    assert found == [Prediction("a", 0.5), Prediction("c", 0.5), Prediction("b", 0.0)]


def test_heads_of_other_tasks_and_models_are_refused() -> None:
    picture = image_from_array(np.full((24, 32, 3), 90, np.uint8))
    with pytest.raises(HeadError, match="for depth; use one for segmentation or dense-knn"):
        predict_classes(ColorModel(), depth_head(), picture)
    with pytest.raises(HeadError, match="patches of 8 pixels and 6 channels, but colors has 4"):
        predict_depth(ColorModel(stride=4), depth_head(), picture)


def test_another_model_in_the_place_of_the_head_s_is_refused(tmp_path: Path) -> None:
    folder = write_classes(tmp_path / "photos", train=4, val=1)
    _, path = fitted(tmp_path, folder, "knn")
    head = load_head(path)
    shutil.move(tmp_path / "model", tmp_path / "moved")
    with pytest.raises(HeadError, match=r"model, cannot be loaded .*; give its new place with --m"):
        load_backbone(head, CPU)
    assert load_backbone(head, CPU, str(tmp_path / "moved")).digest == head.weights
    write_model(tmp_path / "model", seed=1)
    for moved in (None, str(tmp_path / "model")):
        with pytest.raises(HeadError, match=f"not {str(head.weights)[:12]}"):
            load_backbone(head, CPU, moved)


def result_of(data: LabeledDataset, **changes: Any) -> ProbeResult:
    """A result of a model."""
    usual: dict[str, Any] = {
        "setting": Setting(8, 0.5),
        "seed": 3,
        "data": data,
        "metrics": {"top1": 50.0},
        "counts": {"train": 18, "test": 9},
        "tensors": {"weight": torch.ones(3, 2), "bias": torch.ones(3)},
        "facts": {"resize_ratio": 1.0, "feature": "image"},
        "per_image": {"correct": torch.ones(9, dtype=torch.bool)},
    }
    return ProbeResult(**usual | changes)


def row_of(**changes: Any) -> Row:
    """A row of the result."""
    usual: dict[str, Any] = {
        "task": "logistic",
        "model": "tiny",
        "weights": "cells",
        "data": "colors",
        "ffn": 0.5,
        "resolution": 64,
        "metric": "top1",
        "seed": 3,
        "data_sha256": "a" * 64,
    }
    return row(**usual | changes)


def test_a_result_is_saved_under_what_it_is(tmp_path: Path) -> None:
    some = color_set(tmp_path, eval_classes=(0, 2))
    path = save_result(result_of(some), row_of(command="a 'b'"), None, tmp_path)
    name = "logistic_colors_tiny_c8-f0.5_64px_dinov2_s3.safetensors"
    assert path == tmp_path / "heads" / name
    head = load_head(path)
    assert (head.task, head.data, head.classes) == ("logistic", "colors", ("blue", "green", "red"))
    assert (head.model, head.weights, head.setting) == ("tiny", "cells", Setting(8, 0.5))
    assert (head.resolution, head.seed, head.metrics) == (64, 3, {"top1": 50.0})
    assert load_file(tmp_path / "per_image" / name)["correct"].all()
    with open_tensors(tmp_path / "per_image" / name) as file:
        assert row_from_json(file.metadata["row"]) == row_of(command="a 'b'")
        assert file.metadata["eval_classes"] == [0, 2]
    better = result_of(some, metrics={"top1": 60.0})
    assert save_result(better, row_of(), None, tmp_path) == path
    assert load_head(path).metrics == {"top1": 60.0}
    assert head_files(tmp_path) == head_files(tmp_path / "heads") == [path]


def test_without_a_head_only_per_image_results_are_saved(tmp_path: Path) -> None:
    result = result_of(color_set(tmp_path), tensors={})
    assert save_result(result, row_of(), None, tmp_path) is None
    assert len(list((tmp_path / "per_image").iterdir())) == 1
    assert not (tmp_path / "heads").exists()


def test_a_path_is_named_by_its_last_two_folders_and_stored_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my runs" / "best").mkdir(parents=True)
    result = result_of(color_set(tmp_path))
    path = save_result(result, row_of(model="my runs/best"), None, tmp_path)
    assert path is not None
    assert path.stem == "logistic_colors_my-runs-best_c8-f0.5_64px_dinov2_s3"
    assert load_head(path).model == str(tmp_path / "my runs" / "best")
    hub = save_result(result, row_of(model="owner/net:x"), None, tmp_path)
    assert hub is not None
    assert "_owner-net-x_" in hub.name
    assert load_head(hub).model == "owner/net:x"


def test_what_differs_gets_another_name(tmp_path: Path) -> None:
    result = result_of(color_set(tmp_path))

    def path(feature: str | None = None, **changes: Any) -> Path | None:
        return save_result(result, row_of(**changes), feature, tmp_path)

    changes: list[dict[str, Any]] = [
        {},
        {"resolution": 128},
        {"budget": 16},
        {"ffn": None},
        {"seed": 4},
        {"protocol": "paper"},
        {"data": "v2"},
        {"task": "linear"},
        {"weights": "others"},  # of a model of the same name
        {"data_sha256": "b" * 64},  # images of a dataset of the same name
    ]
    paths = [path(**change) for change in changes] + [path("patch-mean")]
    assert len(set(paths)) == 11
    assert path() == paths[0]
    assert path(weights="others") == paths[8]


def test_overlays_blend_classes_and_leave_background_and_unlabeled_pixels(tmp_path: Path) -> None:
    classes = np.array([[0, 1, 2, IGNORE_INDEX]], np.uint8)
    gray = Image.new("RGB", (4, 1), (100, 100, 100))
    drawn = np.asarray(overlay(gray, classes, ["background", "cat", "dog"])).tolist()[0]
    assert drawn[0] == drawn[3] == [100, 100, 100]
    blends = [(0.4 * 100 + 0.6 * class_palette()[index]).tolist() for index in (1, 2)]
    for pixel, blend in zip(drawn[1:3], blends, strict=True):
        assert pixel == pytest.approx(blend, abs=1.5)
    save_mask(classes, tmp_path / "mask.png")
    with Image.open(tmp_path / "mask.png") as mask:
        assert np.array_equal(np.array(mask), classes)  # indices, as readers of masks take them
        assert mask.convert("RGB").getpixel((1, 0)) == (128, 0, 0)  # VOC's first color
    with pytest.raises(ValueError, match=r"1 x 4 pixels .* mask 2 x 2; resize"):
        overlay(gray, np.zeros((2, 2), np.uint8), ["a"])


def test_depth_is_light_where_it_is_near_and_gray_where_it_is_unknown() -> None:
    meters = np.array([[1.0, 2.0, 3.0, 0.0, np.nan, np.inf]], np.float32)
    drawn = np.asarray(depth_image(meters)).astype(int)[0]
    brightness = drawn.sum(1)
    assert brightness[0] > brightness[1] > brightness[2]
    assert (drawn[3:] == 160).all()
    assert (np.asarray(depth_image(np.zeros((2, 2), np.float32))) == 160).all()
