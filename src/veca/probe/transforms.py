"""Random training crops of dense tasks, and the crops of NYU and KITTI.

Everything random comes from the `draw` of a crop. Images are resampled as elsewhere
(`data/images.py`), only where they are shown; targets take the nearest pixel, since classes and
depths must not be mixed at edges.
"""

import random

import numpy as np
from jaxtyping import Float32, UInt8
from numpy.typing import NDArray
from PIL import Image

from veca.data.images import Box, DecodedImage
from veca.data.sets.dataset import IGNORE_INDEX, DepthRange, Target
from veca.probe.protocols import DepthAugment, SegmentationAugment
from veca.probe.sliding_window import Sides, eight_bit

PADDING = (124, 116, 104)
"""ImageNet's mean color, which most models normalize to 0."""

HUE_STEPS = 255
"""Of a full turn in Pillow's HSV."""

Cut = tuple[int, int, int, int]
"""Left, top, right and bottom in pixels; the last two are exclusive."""

KITTI_CROP = (352, 1216)
"""Height and width at the bottom center of a KITTI image."""

NYU_SIDES = (480, 640)

NYU_FRAME: Cut = (43, 45, 608, 472)
"""What is inside the white border of an NYU image."""


def segmentation_crop(
    picture: DecodedImage,
    mask: Target,
    draw: random.Random,
    *,
    side: int,
    augment: SegmentationAugment,
) -> tuple[UInt8[np.ndarray, "3 {side} {side}"], UInt8[np.ndarray, "{side} {side}"]]:
    """A square crop at a random scale, flipped and distorted; padded at the right and bottom."""
    short = side * _uniform(augment.scales, draw)
    scaled = _scaled(picture.sides, short / min(picture.sides))
    corner, part = _balanced_part(mask, scaled, side, draw, augment)
    height, width = part.shape
    shown = picture.resampled((height, width), _source_box(picture.sides, scaled, corner, part))
    image = Image.fromarray(eight_bit(shown).permute(1, 2, 0).numpy())
    if draw.random() < augment.flip:
        image, part = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT), part[:, ::-1]
    pixels = np.full((side, side, 3), PADDING, np.uint8)
    pixels[:height, :width] = np.asarray(photometric_distortion(image, draw, augment))
    target = np.full((side, side), IGNORE_INDEX, np.uint8)
    target[:height, :width] = part
    return pixels.transpose(2, 0, 1), target


def photometric_distortion(
    image: Image.Image, draw: random.Random, augment: SegmentationAugment
) -> Image.Image:
    """Random brightness, contrast, saturation and hue, as in MMSegmentation."""
    applied = [draw.random() < augment.distortion for _ in range(4)]
    contrast_first = draw.random() < 0.5
    brightness = _uniform((-augment.brightness, augment.brightness), draw)
    contrast = _uniform(augment.contrast, draw)
    saturation = _uniform(augment.saturation, draw)
    hue_turn = _uniform((-augment.hue, augment.hue), draw)
    if applied[0]:
        image = _linear(image, 1.0, brightness)
    if applied[1] and contrast_first:
        image = _linear(image, contrast, 0.0)
    if applied[2] or applied[3]:
        hue, color, value = image.convert("HSV").split()
        if applied[2]:
            color = color.point([min(255, round(level * saturation)) for level in range(256)])
        if applied[3]:
            steps = round(hue_turn * HUE_STEPS)
            hue = hue.point([(level + steps) % HUE_STEPS for level in range(256)])
        image = Image.merge("HSV", (hue, color, value)).convert("RGB")
    if applied[1] and not contrast_first:
        image = _linear(image, contrast, 0.0)
    return image


def depth_crop(  # noqa: PLR0913
    picture: DecodedImage,
    depth: Target,
    draw: random.Random,
    *,
    short_side: int,
    multiple: int,
    augment: DepthAugment,
    facts: DepthRange,
) -> tuple[UInt8[np.ndarray, "3 height width"], Float32[np.ndarray, "height width"]]:
    """A crop at the scale of test images or larger, rotated, flipped and colored."""
    left, top, right, bottom = kitti_benchmark_crop(picture.sides, facts)
    scale = short_side / min(bottom - top, right - left)
    cut = nyu_border_crop(picture.sides, facts)
    image, meters = _rotate_and_flip(
        crop_image(picture, cut), crop_target(depth.astype(np.float32), cut), draw, augment
    )
    down, across = (max(1, round(side * short_side / multiple)) * multiple for side in augment.crop)
    scale = max(scale, down / meters.shape[0], across / meters.shape[1])
    scaled = _scaled(image.sides, scale)
    corner = _random_corner(scaled, (down, across), draw)
    target = nearest_part(meters, scaled, corner, (down, across))
    shown = image.resampled((down, across), _source_box(image.sides, scaled, corner, target))
    return _color(eight_bit(shown).numpy(), draw, augment), target


def kitti_benchmark_crop(sides: Sides, facts: DepthRange) -> Cut:
    """The part of an image that is used, in training and evaluation."""
    height, width = sides
    if not facts.kb_crop:
        return 0, 0, width, height
    down, across = KITTI_CROP
    if height < down or width < across:
        raise ValueError(
            f"an image of {height} x {width} is too small for KITTI's benchmark crop of {down} x "
            f"{across} pixels; use the images as published."
        )
    left = (width - across) // 2
    return left, height - down, left + across, height


def nyu_border_crop(sides: Sides, facts: DepthRange) -> Cut:
    """The part of an image from which training crops are taken."""
    if not facts.nyu_crop:
        return kitti_benchmark_crop(sides, facts)
    if sides != NYU_SIDES:
        raise ValueError(
            f"an image of {sides[0]} x {sides[1]} is not an NYU image of 480 x 640 pixels with a "
            "white border; use the images as published."
        )
    return NYU_FRAME


def crop_image(picture: DecodedImage, cut: Cut) -> DecodedImage:
    """A part of an image."""
    return DecodedImage(tuple(band.crop(cut) for band in picture.bands))


def crop_target(target: NDArray[np.float32], cut: Cut) -> NDArray[np.float32]:
    """The same part of its depth."""
    left, top, right, bottom = cut
    return target[top:bottom, left:right]


def nearest_part(target: Target, scaled: Sides, corner: Sides, part: Sides) -> Target:
    """A part of a scaled target: the pixel under the center of each new one."""
    rows, columns = (
        (2 * np.arange(start, start + count) + 1) * side // (2 * length)
        for side, length, start, count in zip(target.shape, scaled, corner, part, strict=True)
    )
    return target[rows][:, columns]


def _uniform(ends: tuple[float, float], draw: random.Random) -> float:
    return ends[0] + (ends[1] - ends[0]) * draw.random()


def _scaled(sides: Sides, scale: float) -> Sides:
    height, width = (max(1, round(side * scale)) for side in sides)
    return height, width


def _source_box(sides: Sides, scaled: Sides, corner: Sides, part: NDArray[np.generic]) -> Box:
    """Where a part of the scaled image lies on the original."""
    (top, bottom), (left, right) = (
        (start * side / length, (start + count) * side / length)
        for side, length, start, count in zip(sides, scaled, corner, part.shape, strict=True)
    )
    return left, top, right, bottom


def _random_corner(scaled: Sides, part: Sides, draw: random.Random) -> Sides:
    top, left = (
        int(draw.random() * (length - count + 1))
        for length, count in zip(scaled, part, strict=True)
    )
    return top, left


def _balanced_part(
    mask: Target,
    scaled: Sides,
    side: int,
    draw: random.Random,
    augment: SegmentationAugment,
) -> tuple[Sides, NDArray[np.uint8]]:
    """A random corner and the mask from there, no class above `cat_max_ratio` if possible."""
    sides = min(side, scaled[0]), min(side, scaled[1])
    for _ in range(max(1, augment.max_tries)):
        corner = _random_corner(scaled, sides, draw)
        part = nearest_part(mask, scaled, corner, sides)
        pixels = np.bincount(part.ravel(), minlength=IGNORE_INDEX + 1)[:IGNORE_INDEX]
        if pixels.max() < augment.cat_max_ratio * pixels.sum():
            break
    return corner, part.astype(np.uint8, copy=False)


def _linear(image: Image.Image, factor: float, shift: float) -> Image.Image:
    """Scale and shift all levels."""
    levels = [min(255, max(0, round(level * factor + shift))) for level in range(256)]
    return image.point(levels * 3)


def _rotate_and_flip(
    picture: DecodedImage, depth: NDArray[np.float32], draw: random.Random, augment: DepthAugment
) -> tuple[DecodedImage, NDArray[np.float32]]:
    """Both alike; depth rotated in from outside is unknown."""
    image = Image.fromarray(eight_bit(picture).permute(1, 2, 0).numpy())
    rotate, flip = draw.random() < augment.rotate, draw.random() < augment.flip
    degrees = _uniform((-augment.rotation, augment.rotation), draw)
    if rotate:
        image = image.rotate(degrees, Image.Resampling.BICUBIC, fillcolor=PADDING)
        rotated = Image.fromarray(depth).rotate(degrees, Image.Resampling.NEAREST, fillcolor=0)
        depth = np.array(rotated, np.float32)
    if flip:
        image, depth = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT), depth[:, ::-1]
    return DecodedImage((image,)), depth


def _color(
    pixels: NDArray[np.uint8], draw: random.Random, augment: DepthAugment
) -> NDArray[np.uint8]:
    """Random gamma, brightness and channel factors of an image (3, height, width)."""
    applied = draw.random() < augment.color
    gamma, brightness = _uniform(augment.gamma, draw), _uniform(augment.brightness, draw)
    factors = [brightness * _uniform(augment.channels, draw) for _ in range(3)]
    if not applied:
        return pixels
    levels = 255 * (np.arange(256) / 255) ** gamma
    changed = [
        np.clip(np.rint(levels * factor), 0, 255).astype(np.uint8)[plane]
        for factor, plane in zip(factors, pixels, strict=True)
    ]
    return np.stack(changed)
