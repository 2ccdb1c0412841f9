"""Predict on new images with a saved head: labels, masks and depth."""

from pathlib import Path

import torch
from jaxtyping import Float, UInt8
from numpy import ndarray
from PIL import Image
from torch import Tensor

from veca.data.augment import ViewConfig, center_view, min_side
from veca.data.images import DecodedImage, ImageError
from veca.probe.dense import DenseHead
from veca.probe.depth import FLIPS, DepthBins, predict_depth_map
from veca.probe.feature_cache import Variant
from veca.probe.features import InferenceConfig, extract_windows, select_feature
from veca.probe.heads import DENSE_TASKS, SavedHead
from veca.probe.knn import MemoryBank, knn_votes
from veca.probe.linear import LinearHead
from veca.probe.models import FrozenModel, find_model
from veca.probe.pictures import class_palette
from veca.probe.rows import ProbeError
from veca.probe.sliding_window import argmax_pixels


def load_backbone(
    head: SavedHead, device: torch.device, moved_to: str | None = None
) -> FrozenModel:
    """The backbone of a head, verified by its hash; `moved_to` is where it is now."""
    name = moved_to or head.model
    try:
        model = find_model(name, device)
    except (ValueError, OSError) as error:
        if moved_to is not None:
            raise
        raise ProbeError(
            f"the model of the head, {name}, cannot be loaded ({str(error).rstrip('.')}); give its "
            "new place with --model."
        ) from error
    if model.digest != head.weights:
        raise ProbeError(
            f"{name} is not the model that the head was fitted on (its weights hash to "
            f"{str(model.digest)[:12]}, not {str(head.weights)[:12]}); name the right one with "
            "--model, or fit the head again."
        )
    widths = (model.image_width, model.patch_width, model.image_width + model.patch_width)
    width = head.tensors["features" if "features" in head.tensors else "weight"].shape[1]
    if width not in widths:  # of models without a hash
        raise ProbeError(
            f"the head takes features of {width} numbers, but {name} gives {widths[0]} for an "
            f"image and {widths[1]} for a patch; fit the head again."
        )
    model.precision = head.precision
    return model


def decode_side(head: SavedHead, model: FrozenModel) -> int | None:
    """The `min_side` to decode new images with, as test images were; None for dense heads."""
    if head.task in DENSE_TASKS:
        return None
    return min_side(model.round_down_to_patch(head.resolution), _views(head))


def predict_labels(
    model: FrozenModel, head: SavedHead, image: DecodedImage, top: int = 5
) -> list[tuple[str, float]]:
    """The classes of an image with the highest scores, and these, best first."""
    tensors, facts = head.tensors, head.facts
    view = center_view(image, model.round_down_to_patch(head.resolution), _views(head))
    vector = select_feature(model.extract(view[None], head.setting), facts["feature"]).cpu()
    if head.task == "knn":  # scores sum to one, except for images with several labels
        bank, k = (tensors["features"], tensors["labels"]), facts["neighbors"]
        temperature = float(facts["temperature"])
        votes = knn_votes(*bank, vector, len(head.classes), ks=(k,), temperature=temperature)
        scores = votes[k][0]
    else:
        scores = LinearHead(weight=tensors["weight"], bias=tensors["bias"]).probabilities(vector)[0]
    best = scores.sort(descending=True, stable=True)  # ties in class order, as in the metrics
    return [
        (head.classes[index], score)
        for score, index in zip(best.values[:top].tolist(), best.indices.tolist(), strict=False)
    ]


def _views(head: SavedHead) -> ViewConfig:
    """How test images were cropped for a classifier."""
    return ViewConfig(margin=float(head.facts["resize_ratio"]))


@torch.no_grad()
def predict_classes(
    model: FrozenModel, head: SavedHead, image: DecodedImage
) -> UInt8[Tensor, "height width"]:
    """The class index of each pixel, at the image's own size."""
    inference = InferenceConfig(**head.facts["inference"])
    features, layout = extract_windows(model, image, inference, Variant(head.setting))
    if head.task == "segmentation":
        return argmax_pixels(_dense_head(head, model)(features), layout).cpu()
    bank, shares = (head.tensors[name].to(model.device).float() for name in ("features", "shares"))
    votes = MemoryBank(bank, shares, head.facts["neighbors"], float(head.facts["temperature"]))
    return argmax_pixels(votes(features), layout).cpu()


@torch.no_grad()
def predict_depth(
    model: FrozenModel, head: SavedHead, image: DecodedImage
) -> Float[Tensor, "height width"]:
    """Meters of each pixel, at the image's own size; of a KITTI head, at that of its crop.

    An image that is too small for the crop is an ImageError.
    """
    inference, bins = InferenceConfig(**head.facts["inference"]), DepthBins(**head.facts["bins"])
    try:
        inference.crop(image)
    except ValueError as error:
        raise ImageError(str(error)) from error
    views = [
        extract_windows(model, image, inference, Variant(head.setting, flip)) for flip in FLIPS
    ]
    return predict_depth_map(_dense_head(head, model), bins, views).cpu()


def _dense_head(head: SavedHead, model: FrozenModel) -> DenseHead:
    """The linear head of a dense task on the device of its model."""
    weight, bias = head.tensors["weight"], head.tensors["bias"]
    return DenseHead(weight, bias, head.facts["patch_width"]).to(model.device)


def save_mask(classes: UInt8[ndarray, "height width"], path: Path) -> None:
    """Write class indices as a PNG with a palette, which viewers show in colors."""
    mask = Image.fromarray(classes)
    mask.putpalette(class_palette().tobytes())
    mask.save(path)
