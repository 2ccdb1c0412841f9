"""Training views of a picture and its depth, and the cuts that depth sets are known with."""

import random

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from veca.data.labelled import DepthFacts
from veca.data.picture import Picture
from veca.probe.dense_config import DepthAugment
from veca.probe.dense_views import (
    PADDING,
    DenseView,
    between,
    drawn_corner,
    nearest_part,
    part_box,
    scaled_sides,
)
from veca.probe.windows import Sides, eight_bit

Cut = tuple[int, int, int, int]
"""Left, top, right and bottom in pixels, the last two not included."""

KITTI_SIDES = (352, 1216)
"""What is kept of a KITTI picture: of the bottom and the middle."""

NYU_SIDES = (480, 640)
NYU_FRAME: Cut = (43, 45, 608, 472)
"""What is within the white frame of an NYU picture."""


def used_cut(sides: Sides, facts: DepthFacts) -> Cut:
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


def training_cut(sides: Sides, facts: DepthFacts) -> Cut:
    """What of a picture training views are taken from."""
    if not facts.nyu_crop:
        return used_cut(sides, facts)
    if sides != NYU_SIDES:
        raise ValueError(
            f"a picture of {sides[0]} x {sides[1]} has not the white frame of NYU's pictures of "
            "480 x 640; use the pictures as published, or set nyu_crop=False."
        )
    return NYU_FRAME


def cut_picture(picture: Picture, cut: Cut) -> Picture:
    """A part of a picture."""
    return Picture(tuple(band.crop(cut) for band in picture.bands))


def cut_target(target: NDArray[np.float32], cut: Cut) -> NDArray[np.float32]:
    """The same part of its depth."""
    left, top, right, bottom = cut
    return target[top:bottom, left:right]


def depth_view(  # noqa: PLR0913 - a picture, its depth, and what is made of them
    picture: Picture,
    depth: NDArray[np.float32],
    draw: random.Random,
    *,
    short: int,
    multiple: int,
    augment: DepthAugment,
    facts: DepthFacts,
) -> DenseView:
    """A part of the picture, turned a little, mirrored and coloured at random.

    The picture is scaled as test pictures are, its short side to `short` pixels, or further until
    what is cut out fits into it.
    """
    left, top, right, bottom = used_cut(picture.sides, facts)
    scale = short / min(bottom - top, right - left)
    cut = training_cut(picture.sides, facts)
    image, metres = cut_picture(picture, cut), cut_target(depth, cut)
    image, metres = _turned(image, metres, draw, augment)
    down, across = (max(1, round(side * short / multiple)) * multiple for side in augment.crop)
    scale = max(scale, down / metres.shape[0], across / metres.shape[1])
    scaled = scaled_sides(image.sides, scale)
    corner = drawn_corner(scaled, (down, across), draw)
    told = nearest_part(metres, scaled, corner, (down, across))
    shown = image.resampled((down, across), part_box(image.sides, scaled, corner, told))
    pixels = _coloured(eight_bit(shown).numpy(), draw, augment)
    return DenseView(torch.from_numpy(pixels), torch.from_numpy(np.array(told, np.float32)))


def _turned(
    picture: Picture, depth: NDArray[np.float32], draw: random.Random, augment: DepthAugment
) -> tuple[Picture, NDArray[np.float32]]:
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
    return Picture((image,)), depth


def _coloured(
    pixels: NDArray[np.uint8], draw: random.Random, augment: DepthAugment
) -> NDArray[np.uint8]:
    """Change colours (3, height, width) by an exponent and by factors."""
    coloured = draw.random() < augment.coloured
    gamma, brightness = between(augment.gamma, draw), between(augment.brightness, draw)
    factors = [brightness * between(augment.channels, draw) for _ in range(3)]
    if not coloured:
        return pixels
    levels = 255 * (np.arange(256) / 255) ** gamma
    changed = [
        np.clip(np.rint(levels * factor), 0, 255).astype(np.uint8)[plane]
        for factor, plane in zip(factors, pixels, strict=True)
    ]
    return np.stack(changed)
