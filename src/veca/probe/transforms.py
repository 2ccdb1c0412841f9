"""Crops and color changes for dense tasks.

Training views of a picture together with the classes or the depth of its pixels.

A view follows from its draw alone. Pictures are resampled as everywhere (`data/picture.py`), and
only the part that is shown; targets take the pixel under the center of each new one, since classes
and depths at an edge must not be mixed.

Training views of a picture and its depth, and the cuts that depth sets are known with.
"""

import random
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Shaped, UInt8
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from veca.data.images import Box, DecodedImage
from veca.data.sets.dataset import IGNORE_INDEX, DepthRange, Target
from veca.probe.protocols import DepthAugment, SegmentationAugment
from veca.probe.sliding_window import Sides, eight_bit

PADDING = (124, 116, 104)
"""The color around a picture that is smaller than its view: ImageNet's mean, which most models
normalize to 0."""

HUES = 255
"""Steps of a turn in Pillow's HSV."""


class DenseCrop(NamedTuple):
    """What a model is shown, and what is to be told of each pixel of it."""

    image: UInt8[Tensor, "3 height width"]

    target: Shaped[Tensor, "height width"]
    """Classes (uint8) or meters (float32)."""


def segmentation_crop(
    picture: DecodedImage,
    mask: NDArray[np.uint8],
    side: int,
    draw: random.Random,
    augment: SegmentationAugment,
) -> DenseCrop:
    """A square of the picture at a random scale, mirrored and distorted at random.

    Where the scaled picture is smaller than the square it is padded on the right and below.
    """
    short = side * between(augment.scales, draw)
    scaled = scaled_sides(picture.sides, short / min(picture.sides))
    corner, part = _drawn_part(mask, scaled, side, draw, augment)
    image = Image.fromarray(
        eight_bit(picture.resampled(_sides(part), part_box(picture.sides, scaled, corner, part)))
        .permute(1, 2, 0)
        .numpy()
    )
    if draw.random() < augment.flip:
        image, part = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT), part[:, ::-1]
    pixels = np.empty((side, side, 3), np.uint8)
    pixels[:] = PADDING
    pixels[: part.shape[0], : part.shape[1]] = np.asarray(distorted(image, draw, augment))
    target = np.full((side, side), IGNORE_INDEX, np.uint8)
    target[: part.shape[0], : part.shape[1]] = part
    return DenseCrop(
        torch.from_numpy(pixels).permute(2, 0, 1).contiguous(), torch.from_numpy(target)
    )


def distorted(image: Image.Image, draw: random.Random, augment: SegmentationAugment) -> Image.Image:
    """Change brightness, contrast, saturation and hue, each by chance."""
    applied = [draw.random() < augment.distorted for _ in range(4)]
    contrast_first = draw.random() < 0.5
    brightness = between((-augment.brightness, augment.brightness), draw)
    contrast = between(augment.contrast, draw)
    saturation = between(augment.saturation, draw)
    turn = between((-augment.hue, augment.hue), draw)
    if applied[0]:
        image = _linear(image, 1.0, brightness)
    if applied[1] and contrast_first:
        image = _linear(image, contrast, 0.0)
    if applied[2] or applied[3]:
        hue, color, value = image.convert("HSV").split()
        if applied[2]:
            color = color.point([min(255, round(level * saturation)) for level in range(256)])
        if applied[3]:
            steps = round(turn * HUES)
            hue = hue.point([(level + steps) % HUES for level in range(256)])
        image = Image.merge("HSV", (hue, color, value)).convert("RGB")
    if applied[1] and not contrast_first:
        image = _linear(image, contrast, 0.0)
    return image


def between(ends: tuple[float, float], draw: random.Random) -> float:
    """A number between two others, all equally likely."""
    return ends[0] + (ends[1] - ends[0]) * draw.random()


def scaled_sides(sides: Sides, scale: float) -> Sides:
    """Height and width of a scaled picture, in whole pixels."""
    height, width = (max(1, round(side * scale)) for side in sides)
    return height, width


def part_box(sides: Sides, scaled: Sides, corner: Sides, part: NDArray[np.generic]) -> Box:
    """Where a part of the scaled picture, from its upper left corner on, lies on the original."""
    (top, bottom), (left, right) = (
        (start * side / length, (start + count) * side / length)
        for side, length, start, count in zip(sides, scaled, corner, part.shape, strict=True)
    )
    return left, top, right, bottom


def nearest_part(target: Target, scaled: Sides, corner: Sides, part: Sides) -> Target:
    """A part of a scaled target: the pixel under the center of each new one."""
    rows, columns = (
        (2 * np.arange(start, start + count) + 1) * side // (2 * length)
        for side, length, start, count in zip(target.shape, scaled, corner, part, strict=True)
    )
    return target[rows][:, columns]


def drawn_corner(scaled: Sides, part: Sides, draw: random.Random) -> Sides:
    """Upper left corner of a part, all places equally likely."""
    top, left = (
        int(draw.random() * (length - count + 1))
        for length, count in zip(scaled, part, strict=True)
    )
    return top, left


def _drawn_part(
    mask: NDArray[np.uint8],
    scaled: Sides,
    side: int,
    draw: random.Random,
    augment: SegmentationAugment,
) -> tuple[Sides, NDArray[np.uint8]]:
    """The corner of a part in which no class rules, if one is found, and its classes."""
    sides = min(side, scaled[0]), min(side, scaled[1])
    for _ in range(max(1, augment.tries)):
        corner = drawn_corner(scaled, sides, draw)
        part = nearest_part(mask, scaled, corner, sides)
        pixels = np.bincount(part.ravel(), minlength=IGNORE_INDEX + 1)[:IGNORE_INDEX]
        if pixels.max() < augment.category_share * pixels.sum():
            break
    return corner, part.astype(np.uint8, copy=False)


def _linear(image: Image.Image, factor: float, shift: float) -> Image.Image:
    """Each level times a factor and shifted, within 0..255."""
    levels = [min(255, max(0, round(level * factor + shift))) for level in range(256)]
    return image.point(levels * 3)


def _sides(part: NDArray[np.generic]) -> Sides:
    """Height and width of an array."""
    height, width = part.shape
    return height, width


Cut = tuple[int, int, int, int]
"""Left, top, right and bottom in pixels, the last two not included."""

KITTI_SIDES = (352, 1216)
"""What is kept of a KITTI picture: of the bottom and the middle."""

NYU_SIDES = (480, 640)
NYU_FRAME: Cut = (43, 45, 608, 472)
"""What is within the white frame of an NYU picture."""


def kitti_benchmark_crop(sides: Sides, facts: DepthRange) -> Cut:
    """What of a picture is used at all."""
    height, width = sides
    if not facts.kb_crop:
        return 0, 0, width, height
    down, across = KITTI_SIDES
    if height < down or width < across:
        raise ValueError(
            f"a picture of {height} x {width} cannot be cut to KITTI's {down} x {across} pixels; "
            "use the pictures as published, or set kb_crop=False."
        )
    left = (width - across) // 2
    return left, height - down, left + across, height


def nyu_border_crop(sides: Sides, facts: DepthRange) -> Cut:
    """What of a picture training views are taken from."""
    if not facts.nyu_crop:
        return kitti_benchmark_crop(sides, facts)
    if sides != NYU_SIDES:
        raise ValueError(
            f"a picture of {sides[0]} x {sides[1]} has not the white frame of NYU's pictures of "
            "480 x 640; use the pictures as published, or set nyu_crop=False."
        )
    return NYU_FRAME


def crop_image(picture: DecodedImage, cut: Cut) -> DecodedImage:
    """A part of a picture."""
    return DecodedImage(tuple(band.crop(cut) for band in picture.bands))


def crop_target(target: NDArray[np.float32], cut: Cut) -> NDArray[np.float32]:
    """The same part of its depth."""
    left, top, right, bottom = cut
    return target[top:bottom, left:right]


def depth_crop(  # noqa: PLR0913 - a picture, its depth, and what is made of them
    picture: DecodedImage,
    depth: NDArray[np.float32],
    draw: random.Random,
    *,
    short: int,
    multiple: int,
    augment: DepthAugment,
    facts: DepthRange,
) -> DenseCrop:
    """A part of the picture, turned a little, mirrored and colored at random.

    The picture is scaled as test pictures are, its short side to `short` pixels, or further until
    what is cut out fits into it.
    """
    left, top, right, bottom = kitti_benchmark_crop(picture.sides, facts)
    scale = short / min(bottom - top, right - left)
    cut = nyu_border_crop(picture.sides, facts)
    image, meters = crop_image(picture, cut), crop_target(depth, cut)
    image, meters = _turned(image, meters, draw, augment)
    down, across = (max(1, round(side * short / multiple)) * multiple for side in augment.crop)
    scale = max(scale, down / meters.shape[0], across / meters.shape[1])
    scaled = scaled_sides(image.sides, scale)
    corner = drawn_corner(scaled, (down, across), draw)
    told = nearest_part(meters, scaled, corner, (down, across))
    shown = image.resampled((down, across), part_box(image.sides, scaled, corner, told))
    pixels = _colored(eight_bit(shown).numpy(), draw, augment)
    return DenseCrop(torch.from_numpy(pixels), torch.from_numpy(np.array(told, np.float32)))


def _turned(
    picture: DecodedImage, depth: NDArray[np.float32], draw: random.Random, augment: DepthAugment
) -> tuple[DecodedImage, NDArray[np.float32]]:
    """Rotate and mirror both; depth that comes from outside is unknown."""
    image = Image.fromarray(eight_bit(picture).permute(1, 2, 0).numpy())
    rotated, flipped = draw.random() < augment.rotated, draw.random() < augment.flip
    degrees = between((-augment.rotation, augment.rotation), draw)
    if rotated:
        image = image.rotate(degrees, Image.Resampling.BICUBIC, fillcolor=PADDING)
        turned = Image.fromarray(depth).rotate(degrees, Image.Resampling.NEAREST, fillcolor=0)
        depth = np.array(turned, np.float32)
    if flipped:
        image, depth = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT), depth[:, ::-1]
    return DecodedImage((image,)), depth


def _colored(
    pixels: NDArray[np.uint8], draw: random.Random, augment: DepthAugment
) -> NDArray[np.uint8]:
    """Change colors (3, height, width) by an exponent and by factors."""
    colored = draw.random() < augment.colored
    gamma, brightness = between(augment.gamma, draw), between(augment.brightness, draw)
    factors = [brightness * between(augment.channels, draw) for _ in range(3)]
    if not colored:
        return pixels
    levels = 255 * (np.arange(256) / 255) ** gamma
    changed = [
        np.clip(np.rint(levels * factor), 0, 255).astype(np.uint8)[plane]
        for factor, plane in zip(factors, pixels, strict=True)
    ]
    return np.stack(changed)
