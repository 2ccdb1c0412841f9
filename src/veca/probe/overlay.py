"""Dense predictions as PNG files: masks with a palette, overlays on the image, colored depth."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float32, UInt8
from numpy import ndarray
from PIL import Image

from veca.data.sets.dataset import IGNORE_INDEX

ALPHA = 0.6
"""Opacity of class colors over the image."""

UNTINTED = "background"
"""A class of this name is left as it is."""

UNKNOWN_COLOR = (160, 160, 160)

_MAGMA = ((0, 0, 4), (81, 18, 124), (183, 55, 121), (252, 137, 97), (252, 253, 191))
"""Five colors of matplotlib's `magma`, from dark to light."""


def class_palette() -> UInt8[ndarray, "256 3"]:
    """The color map of PASCAL VOC: bits of the class index, spread over the three channels."""
    index, colors = np.arange(256), np.zeros((256, 3), np.uint8)
    for bit in range(8):
        for channel in range(3):
            colors[:, channel] |= ((index >> (3 * bit + channel) & 1) << (7 - bit)).astype(np.uint8)
    return colors


def color_name(index: int) -> str:
    """The color of a class, such as '#800000'."""
    return "#" + bytes(class_palette()[index].tolist()).hex()


def save_mask(classes: UInt8[ndarray, "height width"], path: Path) -> None:
    """Write class indices as a PNG with a palette, which viewers show in colors."""
    mask = Image.fromarray(classes)
    mask.putpalette(class_palette().tobytes())
    mask.save(path)


def overlay(
    image: Image.Image, classes: UInt8[ndarray, "height width"], names: Sequence[str]
) -> Image.Image:
    """The image under the colors of its classes."""
    _check_size(image, classes.shape)
    plain = [index for index, name in enumerate(names) if name == UNTINTED] + [IGNORE_INDEX]
    opacity = np.where(np.isin(classes, plain), 0.0, 255 * ALPHA).astype(np.uint8)
    colors = Image.fromarray(class_palette()[classes])
    return Image.composite(colors, image.convert("RGB"), Image.fromarray(opacity))


def depth_image(meters: Float32[ndarray, "height width"]) -> Image.Image:
    """Depth in colors, from the nearest (light) to the farthest (dark); unknown depth is gray."""
    known = np.isfinite(meters) & (meters > 0)
    low, high = (meters[known].min(), meters[known].max()) if known.any() else (0.0, 1.0)
    near = 1 - (np.where(known, meters, low) - low) / max(high - low, 1e-6)
    table = np.stack(
        [np.interp(np.linspace(0, 4, 256), range(5), channel) for channel in np.array(_MAGMA).T], 1
    )
    colors = table[np.rint(255 * near).astype(np.uint8)].astype(np.uint8)
    colors[~known] = UNKNOWN_COLOR
    return Image.fromarray(colors)


def _check_size(image: Image.Image, shape: tuple[int, ...]) -> None:
    """Refuse a map of another image."""
    if (image.height, image.width) != shape:
        raise ValueError(
            f"the image has {image.height} x {image.width} pixels (height x width) and its "
            f"mask {shape[0]} x {shape[1]}; resize the mask to the image first."
        )
