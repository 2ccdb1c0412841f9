"""Predictions as pictures, and the test images that a report shows.

Of classifiers these are the most confident mistakes; of masks and depth the best, the median and
the worst image, with predictions at the smallest and the largest budget. They are saved in
`OUT/examples/NAME.safetensors`, as small JPEG files with captions and with one of the rows of their
result, by which `analysis/probe_page.py` finds them: a report is continued without its datasets.
"""

import io
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float32, UInt8
from numpy import ndarray
from PIL import Image
from torch import Tensor

from veca.data.images import DecodedImage
from veca.data.sets.dataset import IGNORE_INDEX, DepthRange
from veca.probe.features import InferenceConfig, load_image
from veca.probe.rows import ProbeResult
from veca.probe.sliding_window import eight_bit
from veca.probe.transforms import crop_target, kitti_benchmark_crop

MISTAKES = 12
"""Shown of a classifier."""

THUMBNAIL, MAP = 192, 320
"""Longer side in pixels of a picture of a class, and of one beside its map."""

MAX_LEGEND = 10
"""Classes that are named beside a mask, the most frequent ones."""

ALPHA = 0.6
"""Opacity of class colors over the image."""

_MAGMA = ((0, 0, 4), (81, 18, 124), (183, 55, 121), (252, 137, 97), (252, 253, 191))
"""Five colors of matplotlib's `magma`, from dark to light."""

UNKNOWN = (128, 128, 128)
"""The color of pixels without depth."""

Mask = UInt8[ndarray, "height width"]
Meters = Float32[ndarray, "height width"]


class Example(NamedTuple):
    """One test image of a report."""

    title: str
    name: str
    """That of the image below the folder of the dataset."""
    pictures: Sequence[tuple[str, Image.Image]]
    """With their captions."""
    legend: Sequence[tuple[str, str]] = ()
    """Classes and their colors."""


def examples_of(
    results: Sequence[ProbeResult],
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What is saved of the results of a model at rising settings: tensors and metadata."""
    last, tensors = results[-1], dict[str, Tensor]()
    draw = {"classes": _mistakes, "masks": _masks, "depth": _depths}[last.data.kind]
    items = []
    for number, example in enumerate(draw(results)):
        for place, (_, picture) in enumerate(example.pictures):
            buffer = io.BytesIO()
            picture.save(buffer, "JPEG", quality=85)
            tensors[f"{number}/{place}"] = torch.frombuffer(buffer.getbuffer(), dtype=torch.uint8)
        captions = [caption for caption, _ in example.pictures]
        items.append(
            {
                "title": example.title,
                "name": example.name,
                "captions": captions,
                "legend": list(map(list, example.legend)),
            }
        )
    labels = last.data.test.labels
    if last.data.kind == "classes" and labels is not None and labels.ndim == 1:
        truth = torch.from_numpy(labels).int()
        tensors |= {"truth": truth, "predicted": last.per_image["predicted"]}
    return tensors, {"items": items, "classes": list(last.data.classes)}


def _mistakes(results: Sequence[ProbeResult]) -> Iterator[Example]:
    """Images of a wrong class, the most confident first; images without a class are left out."""
    result, split = results[-1], results[-1].data.test
    predicted, confidence = result.per_image["predicted"].long(), result.per_image["confidence"]
    labels = torch.from_numpy(split.labels)
    if labels.ndim == 1:
        labels = torch.nn.functional.one_hot(labels.long(), len(result.data.classes)).bool()
    wrong = ~labels.gather(1, predicted[:, None])[:, 0] & labels.any(1)
    order = confidence.masked_fill(~wrong, -1).sort(descending=True, stable=True).indices
    for index in order[: min(MISTAKES, int(wrong.sum()))].tolist():
        names = [result.data.classes[number] for number in labels[index].nonzero()[:3, 0].tolist()]
        yield Example(
            f"{result.data.classes[predicted[index]]}, {confidence[index]:.0%}",
            split.keys[index],
            [(f"labeled {', '.join(names)}", _reduced(load_image(split, index), THUMBNAIL))],
        )


def _masks(results: Sequence[ProbeResult]) -> Iterator[Example]:
    """Classes of the pixels over the image."""
    last = results[-1]
    data, per_image = last.data, last.per_image
    chosen = slice(None) if data.eval_classes is None else list(data.eval_classes)
    # A class that is neither present nor predicted is 0 / 0.
    iou = 100 * (per_image["intersections"] / per_image["unions"])[:, chosen].nanmean(1)
    for place, index in _best_to_worst(iou):
        picture = _reduced(load_image(data.test, index), MAP)
        masks = {"truth": np.asarray(data.test.target(index), np.uint8)}
        masks |= {name: mask.numpy() for name, mask in _predicted(results, index)}
        small = {
            name: np.asarray(Image.fromarray(mask).resize(picture.size, Image.Resampling.NEAREST))
            for name, mask in masks.items()
        }
        counts = np.bincount(np.stack(list(small.values())).ravel(), minlength=256)
        counts[[IGNORE_INDEX, *_plain(data.classes)]] = 0
        common = np.argsort(-counts, kind="stable")[:MAX_LEGEND].tolist()
        yield Example(
            f"{place}: mean IoU {iou[index]:.1f} %",
            data.test.keys[index],
            [("image", picture)]
            + [(name, overlay(picture, mask, data.classes)) for name, mask in small.items()],
            [(data.classes[one], color_name(one)) for one in common if counts[one]],
        )


def _depths(results: Sequence[ProbeResult]) -> Iterator[Example]:
    """Meters in the colors of one scale, and where the last prediction is wrong."""
    last = results[-1]
    data, facts = last.data, last.data.depth or DepthRange()
    errors = last.per_image["rmse"]
    for place, index in _best_to_worst(-errors):
        image = InferenceConfig(**last.facts["inference"]).crop(load_image(data.test, index))
        truth = np.asarray(data.test.target(index), np.float32)
        truth = crop_target(truth, kitti_benchmark_crop(truth.shape, facts))
        known = (truth > facts.min_depth) & (truth < facts.max_depth)
        found = dict(_predicted(results, index))
        limits = float(truth[known].min()), float(truth[known].max())
        scale = f"truth, {limits[0]:.1f} (light) to {limits[1]:.1f} m"
        drawn = [(scale, depth_image(truth, limits, known))]
        drawn += [(name, depth_image(one.numpy(), limits)) for name, one in found.items()]
        wrong = np.abs(list(found.values())[-1].numpy() - truth)
        most = float(np.quantile(wrong[known], 0.98))
        caption = f"error, 0 (dark) to {most:.2f} m"
        drawn.append((caption, _colored(wrong / max(most, 1e-6), known)))
        picture = _reduced(image, MAP)
        yield Example(
            f"{place}: RMSE {errors[index]:.2f} m",
            data.test.keys[index],
            [("image", picture), *((name, one.resize(picture.size)) for name, one in drawn)],
        )


def _best_to_worst(quality: Float[Tensor, " N"]) -> Iterator[tuple[str, int]]:
    """The best, the median and the worst of the images that have a number; of few, fewer."""
    order = [
        index
        for index in quality.sort(descending=True, stable=True).indices.tolist()
        if not quality[index].isnan()
    ]
    places = {"best": 0, "median": len(order) // 2, "worst": len(order) - 1}
    seen = set[int]()
    for place, rank in places.items():
        if order and rank not in seen:
            seen.add(rank)
            yield place, order[rank]


def _predicted(results: Sequence[ProbeResult], index: int) -> Iterator[tuple[str, Tensor]]:
    """Predictions at the smallest and the largest setting."""
    for result in dict.fromkeys((0, len(results) - 1)):
        one = results[result]
        if one.predict is not None:
            share = "" if one.setting.ffn is None else f", FFN {one.setting.ffn:g}"
            cores = "" if one.setting.budget is None else f", {one.setting.budget} cores"
            yield f"predicted{cores}{share}", one.predict(index)


def _reduced(image: DecodedImage, side: int) -> Image.Image:
    """An image as a picture of at most so many pixels on its longer side."""
    height, width = image.sides
    scale = min(1.0, side / max(height, width))
    sides = max(1, round(height * scale)), max(1, round(width * scale))
    small = image.resampled(sides, (0.0, 0.0, float(width), float(height)))
    return Image.fromarray(eight_bit(small).permute(1, 2, 0).contiguous().numpy())


def class_palette() -> UInt8[ndarray, "256 3"]:
    """The color map of PASCAL VOC: bits of the class index, spread over the three channels."""
    index, colors = np.arange(256), np.zeros((256, 3), np.uint8)
    for bit in range(8):
        for channel in range(3):
            colors[:, channel] |= ((index >> (3 * bit + channel) & 1) << (7 - bit)).astype(np.uint8)
    return colors


def color_name(index: int) -> str:
    """The color of a class, such as '#800000'."""
    return "#" + class_palette()[index].tobytes().hex()


def overlay(image: Image.Image, classes: Mask, names: Sequence[str]) -> Image.Image:
    """The image under the colors of its classes; the class 'background' stays plain."""
    opacity = np.where(np.isin(classes, _plain(names)), 0.0, 255 * ALPHA).astype(np.uint8)
    colors = Image.fromarray(class_palette()[classes])
    return Image.composite(colors, image.convert("RGB"), Image.fromarray(opacity))


def _plain(names: Sequence[str]) -> list[int]:
    """Classes that are not colored."""
    return [index for index, name in enumerate(names) if name == "background"]


def depth_image(
    meters: Meters, limits: tuple[float, float] | None = None, known: ndarray | None = None
) -> Image.Image:
    """Depth in colors, from the nearest (light) to the farthest (dark), of the image or limits."""
    near, far = limits or (float(meters.min()), float(meters.max()))
    return _colored(1 - (meters - near) / max(far - near, 1e-6), known)


def _colored(values: Meters, known: ndarray | None = None) -> Image.Image:
    """Numbers from 0 (dark) to 1 (light) in colors, where they are known."""
    steps = np.linspace(0, 1, len(_MAGMA))
    colors = np.stack([np.interp(values, steps, channel) for channel in np.array(_MAGMA).T], -1)
    if known is not None:
        colors[~known] = UNKNOWN
    return Image.fromarray(colors.round().astype(np.uint8))
