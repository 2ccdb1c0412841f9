"""Saved heads predict what was measured, damage to them is refused, and names do not clash."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
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
    row,
    use_quick_protocols,
    write_classes,
    write_dense,
    write_model,
)
from veca.data.images import DecodedImage, ImageError, decode, image_from_array
from veca.data.sets.dataset import DepthRange, LabeledDataset
from veca.data.sets.registry import read_set
from veca.probe.depth import evaluate_depth
from veca.probe.heads import SavedHead, load_head, save_head, save_result
from veca.probe.metrics import eval_mask, image_errors, pixel_counts
from veca.probe.models import PixelModel
from veca.probe.pictures import class_palette, depth_image, overlay
from veca.probe.predict import (
    load_backbone,
    predict_classes,
    predict_depth,
    predict_labels,
    save_mask,
)
from veca.probe.protocols import ProbeInputs
from veca.probe.rows import ProbeError, ProbeResult, Row, Setting, row_from_json
from veca.probe.run import Job
from veca.runtime.tensors import TensorFile, save_tensors

CPU = torch.device("cpu")


def fitted(
    folder: Path, data: Path, task: str, **changes: Any
) -> tuple[SavedHead, dict[str, torch.Tensor], LabeledDataset]:
    """Fit the head of a task; return it with its per-image results and its dataset."""
    evaluator, model = evaluator_in(folder), str(write_model(folder / "model"))
    usual: dict[str, Any] = {"task": task, "data": str(data), "model": model}
    evaluator.run_job(Job(**usual | {"budgets": (3,), "resolution": 32} | changes))
    ((_, path),) = evaluator.heads
    per_image = load_file(path.parents[1] / "per_image" / path.name)
    return load_head(path), per_image, read_set(str(data))


def images_of(data: LabeledDataset) -> list[DecodedImage]:
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
    head, per_image, data = fitted(tmp_path, folder, task, **changes)
    model = load_backbone(head, CPU)
    (name,) = [name for name in per_image if name in {"correct", "correct_k20"}]
    assert data.test.labels is not None
    right = []
    for image, label in zip(images_of(data), data.test.labels, strict=True):
        found = predict_labels(model, head, image, 2)
        (best, score), (_, second) = found
        assert 1 + 1e-6 >= score >= second >= 0
        right.append(best == data.classes[label])
    assert right == per_image[name].tolist()
    assert 0 < sum(right) < len(right)
    whole = predict_labels(model, head, image, 9)
    assert {name for name, _ in whole} == set(data.classes)
    assert sum(score for _, score in whole) == pytest.approx(1)


@pytest.mark.parametrize("task", ["segmentation", "dense-knn", "depth"])
def test_pixels_agree_with_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    use_quick_protocols(monkeypatch)
    folder = write_dense(tmp_path / "set", "depth" if task == "depth" else "masks")
    head, per_image, data = fitted(tmp_path, folder, task, protocol="quick")
    model = load_backbone(head, CPU)
    for place, image in enumerate(images_of(data)):
        truth = torch.from_numpy(np.array(data.test.target(place)))
        if data.depth is not None:
            meters = predict_depth(model, head, image)
            errors = image_errors(meters, truth, eval_mask(truth, data.depth))
            assert errors[0] == pytest.approx(float(per_image["rmse"][place]), rel=1e-2)
            continue
        found = predict_classes(model, head, image)
        inside = pixel_counts(truth, found, len(CLASSES))[0]
        # Measured on features in half precision, which may flip a pixel at a border.
        difference = (inside - per_image["intersections"][place]).abs().sum()
        assert difference <= 0.01 * truth.numel()


def test_a_kitti_head_is_saved_and_used_with_the_crop_it_was_measured_with(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (375, 1242, 3), np.uint8)
    data = ramps(tmp_path / "images", train=2, test=1)
    for path in (tmp_path / "images").glob("*.png"):
        Image.fromarray(pixels).save(path)
        np.save(path.with_suffix(".npy"), np.full((375, 1242), 5.0, np.float32))
    data = replace(data, depth=DepthRange(max_depth=80.0, kb_crop=True))
    quick = replace(SMALL_DEPTH, steps=2, batch=2)
    context = context_in(tmp_path / "features")
    (result,) = evaluate_depth(ProbeInputs(ColorModel(), (ALL,), data, quick, (0,), context))
    head = pixel_head(task="depth", classes=(), facts=result.facts, tensors=result.tensors)
    save_head(head, tmp_path / "x.safetensors")
    head, image = load_head(tmp_path / "x.safetensors"), image_from_array(pixels)
    found = predict_depth(ColorModel(), head, image)
    assert found.shape == (352, 1216)
    plain = replace(
        head, facts=head.facts | {"inference": head.facts["inference"] | {"kb_crop": False}}
    )
    cropped = image_from_array(np.ascontiguousarray(pixels[23:, 13:1229]))
    assert torch.equal(found, predict_depth(ColorModel(), plain, cropped))
    with pytest.raises(ImageError, match="100 x 90 is too small"):
        predict_depth(ColorModel(), head, image_from_array(pixels[:100, :90].copy()))


def pixel_head(**changes: Any) -> SavedHead:
    """A classifier on raw pixels, which needs no model."""
    usual: dict[str, Any] = {
        "task": "logistic", "data": "none", "classes": ("a", "b", "c"), "model": "pixels",
        "weights": PixelModel(CPU).digest, "setting": Setting(), "resolution": 16,
        "protocol": "dinov2", "seed": 0, "facts": {"resize_ratio": 1.0, "feature": "image"},
        "metrics": {"top1": 75.0},
        "tensors": {"weight": torch.zeros(3, 768), "bias": torch.tensor([0.0, -torch.inf, 0.0])},
    }  # fmt: skip
    return SavedHead(**usual | changes)


GRAY = image_from_array(np.full((24, 32, 3), 90, np.uint8))


def test_a_head_is_read_back_as_it_was_saved(tmp_path: Path) -> None:
    saved, path = pixel_head(setting=Setting(8, 0.5)), tmp_path / "deep" / "head.safetensors"
    save_head(saved, path)
    content = path.read_bytes()
    save_head(saved, path)
    assert path.read_bytes() == content
    found = load_head(path)
    assert {**vars(found), "tensors": None} == {**vars(saved), "tensors": None}
    assert found.tensors.keys() == saved.tensors.keys()
    assert all(torch.equal(found.tensors[name], saved.tensors[name]) for name in saved.tensors)


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({}, "holds other tensors; give a head that veca probe wrote"),
        ({"kind": "head", "format": 1}, "has head format 1, but this version of veca reads 2"),
    ],
)
def test_other_files_are_not_heads(tmp_path: Path, metadata: dict[str, Any], words: str) -> None:
    save_tensors(tmp_path / "x.safetensors", {"bias": torch.ones(3)}, metadata)
    with pytest.raises(ProbeError, match=words):
        load_head(tmp_path / "x.safetensors")
    with pytest.raises(
        ProbeError, match=r"none\.safetensors does not exist; give the --out folder"
    ):
        load_head(tmp_path / "none.safetensors")
    with pytest.raises(
        ProbeError, match=r"is a folder; .* or a .safetensors file below its heads/"
    ):
        load_head(tmp_path)


def test_among_equal_scores_the_first_class_wins_as_in_the_metrics() -> None:
    found = predict_labels(PixelModel(CPU), pixel_head(), GRAY, 3)
    assert found == [("a", 0.5), ("c", 0.5), ("b", 0.0)]


def test_a_backbone_with_other_weights_is_refused(tmp_path: Path) -> None:
    folder = write_classes(tmp_path / "photos", train=4, val=1)
    head, _, _ = fitted(tmp_path, folder, "knn")
    shutil.move(tmp_path / "model", tmp_path / "moved")
    with pytest.raises(
        ProbeError, match=r"model, cannot be loaded .*; give its new place with --m"
    ):
        load_backbone(head, CPU)
    assert load_backbone(head, CPU, str(tmp_path / "moved")).digest == head.weights
    write_model(tmp_path / "model", seed=1)
    for moved in (None, str(tmp_path / "model")):
        with pytest.raises(ProbeError, match=f"not {str(head.weights)[:12]}"):
            load_backbone(head, CPU, moved)
    wide = replace(pixel_head(), tensors={"weight": torch.zeros(3, 5), "bias": torch.zeros(3)})
    with pytest.raises(ProbeError, match="of 5 numbers, but pixels gives 768 for an image"):
        load_backbone(wide, CPU)


def result_of(data: LabeledDataset, **changes: Any) -> ProbeResult:
    """A result of a model."""
    usual: dict[str, Any] = {
        "setting": Setting(8, 0.5), "seed": 3, "data": data, "metrics": {"top1": 50.0},
        "counts": {"train": 18, "test": 9},
        "tensors": {"weight": torch.ones(3, 2), "bias": torch.ones(3)},
        "facts": {"resize_ratio": 1.0, "feature": "image"},
        "per_image": {"correct": torch.ones(9, dtype=torch.bool)},
    }  # fmt: skip
    return ProbeResult(**usual | changes)


def row_of(**changes: Any) -> Row:
    """A row of the result."""
    usual: dict[str, Any] = {
        "task": "logistic", "model": "tiny", "weights": "cells", "data": "colors", "ffn": 0.5,
        "resolution": 64, "metric": "top1", "seed": 3, "data_sha256": "a" * 64,
    }  # fmt: skip
    return row(**usual | changes)


def test_a_result_is_saved_under_a_name_that_describes_it(tmp_path: Path) -> None:
    some = color_set(tmp_path, eval_classes=(0, 2))
    path = save_result(result_of(some), row_of(command="a 'b'"), None, tmp_path)
    name = "logistic_colors_tiny_c8-f0.5_64px_dinov2_s3.safetensors"
    assert path == tmp_path / "heads" / name
    head = load_head(path)
    assert (head.task, head.data, head.classes) == ("logistic", "colors", ("blue", "green", "red"))
    assert (head.model, head.weights, head.setting) == ("tiny", "cells", Setting(8, 0.5))
    assert (head.resolution, head.seed, head.metrics) == (64, 3, {"top1": 50.0})
    assert load_file(tmp_path / "per_image" / name)["correct"].all()
    with TensorFile(tmp_path / "per_image" / name) as file:
        assert row_from_json(file.metadata["row"]) == row_of(command="a 'b'")
        assert file.metadata["eval_classes"] == [0, 2]
    better = result_of(some, metrics={"top1": 60.0})
    assert save_result(better, row_of(), None, tmp_path) == path
    assert load_head(path).metrics == {"top1": 60.0}
    headless = tmp_path / "headless"
    assert save_result(result_of(some, tensors={}), row_of(), None, headless) is None
    assert [path.name for path in headless.rglob("*.safetensors")] == [name]
    assert not (headless / "heads").exists()


def test_the_name_of_a_head_has_the_last_two_folders_of_a_path(
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


def test_results_that_differ_have_different_names(tmp_path: Path) -> None:
    result = result_of(color_set(tmp_path))

    def path(feature: str | None = None, **changes: Any) -> Path | None:
        return save_result(result, row_of(**changes), feature, tmp_path)

    changes: list[dict[str, Any]] = [
        {}, {"resolution": 128}, {"budget": 16}, {"ffn": None}, {"seed": 4}, {"protocol": "paper"},
        {"data": "v2"}, {"task": "linear"},
        {"weights": "others"},  # of a model of the same name
        {"data_sha256": "b" * 64},  # images of a dataset of the same name
    ]  # fmt: skip
    paths = [path(**change) for change in changes] + [path("patch-mean")]
    assert len(set(paths)) == 11
    assert path() == paths[0]
    assert path(weights="others") == paths[8]


def test_overlays_blend_classes_and_leave_background(tmp_path: Path) -> None:
    classes = np.array([[0, 1, 2]], np.uint8)
    gray = Image.new("RGB", (3, 1), (100, 100, 100))
    drawn = np.asarray(overlay(gray, classes, ["background", "cat", "dog"])).tolist()[0]
    assert drawn[0] == [100, 100, 100]
    for pixel, color in zip(drawn[1:], class_palette()[1:3], strict=True):
        assert pixel == pytest.approx((0.4 * 100 + 0.6 * color).tolist(), abs=1.5)
    save_mask(classes, tmp_path / "mask.png")
    with Image.open(tmp_path / "mask.png") as mask:
        assert np.array_equal(np.array(mask), classes)  # indices, as readers of masks take them
        assert mask.convert("RGB").getpixel((1, 0)) == (128, 0, 0)  # VOC's first color


def test_depth_is_light_where_it_is_near() -> None:
    drawn = np.asarray(depth_image(np.array([[1.0, 2.0, 3.0]], np.float32))).astype(int)[0]
    assert drawn.tolist() == [[252, 253, 191], [183, 55, 121], [0, 0, 4]]
    assert depth_image(np.ones((2, 2), np.float32)).getcolors() == [(4, (252, 253, 191))]
