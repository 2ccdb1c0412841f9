"""Training views of depth: cuts to the pixel, turns that both go along with, colors in range."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from veca.data.images import image_from_array
from veca.data.sets.dataset import DepthRange
from veca.probe.protocols import DepthAugment
from veca.probe.transforms import (
    DenseCrop,
    crop_image,
    crop_target,
    depth_crop,
    kitti_benchmark_crop,
    nyu_border_crop,
)

STILL = DepthAugment(rotated=0.0, flip=0.0, colored=0.0)
ANY = DepthRange()


def slope(height: int, width: int) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """A picture whose gray is its depth in tenths of a meter."""
    gray = 20 + np.add.outer(np.arange(height), np.arange(width)) % 200
    return np.repeat(gray[:, :, None], 3, 2).astype(np.uint8), (gray / 10).astype(np.float32)


def view(
    augment: DepthAugment, seed: int = 0, facts: DepthRange = ANY, side: int = 48
) -> DenseCrop:
    pixels, depth = slope(48, 64)
    return depth_crop(
        image_from_array(pixels),
        depth,
        random.Random(seed),
        short=side,
        multiple=8,
        augment=augment,
        facts=facts,
    )


def test_a_view_at_the_pictures_own_scale_is_a_cut() -> None:
    _, depth = slope(48, 64)
    image, target = view(replace(STILL, crop=(0.5, 0.8)), seed=4)
    assert target.shape == (24, 40)  # the nearest patches
    torch.testing.assert_close(image[0].float() / 10, target)
    tops = [
        (top, left)
        for top in range(25)
        for left in range(25)
        if (depth[top : top + 24, left : left + 40] == target.numpy()).all()
    ]
    assert tops


@pytest.mark.parametrize("seed", range(4))
def test_both_are_mirrored_and_rotated_alike(seed: int) -> None:
    augment = replace(STILL, rotated=1.0, flip=0.5, rotation=8.0, crop=(1.0, 1.0))
    image, target = view(augment, seed)
    known = target > 0
    assert 0.5 < known.float().mean() < 1  # corners come from outside
    error = (image[0].float() / 10 - target).abs()[known]
    assert error.median() < 0.15
    _, still = view(replace(augment, rotated=0.0), seed)
    assert (still > 0).all()


def test_mirrored_views_are_mirrored() -> None:
    straight = view(replace(STILL, crop=(1.0, 1.0)), seed=2)
    mirrored = view(replace(STILL, crop=(1.0, 1.0), flip=1.0), seed=2)
    for one, other in zip(straight, mirrored, strict=True):
        assert (one.float().diff(dim=-1) >= 0).float().mean() > 0.9
        assert (other.float().diff(dim=-1) <= 0).float().mean() > 0.9


def test_pictures_are_scaled_until_a_view_fits() -> None:
    image, target = view(replace(STILL, crop=(1.0, 2.0)), side=32)
    assert image.shape == (3, 32, 64)
    assert target.shape == (32, 64)


def test_colors_change_within_their_ranges() -> None:
    plain, _ = view(STILL)
    changed = [view(replace(STILL, colored=1.0), seed)[0] for seed in range(20)]
    assert all(image.shape == plain.shape for image in changed)
    bright, _ = view(
        replace(STILL, colored=1.0, gamma=(1.0, 1.0), brightness=(0.5, 0.5), channels=(1.0, 1.0))
    )
    assert (bright.float() - plain.float() / 2).abs().max() <= 0.5
    tinted = torch.stack(changed).float().mean((2, 3))
    assert (tinted.std(1) > 0.5).any()  # channels go their own ways


def test_kitti_is_cut_at_the_bottom_and_in_the_middle() -> None:
    facts = DepthRange(kb_crop=True)
    cut = kitti_benchmark_crop((375, 1242), facts)
    assert cut == (13, 23, 1229, 375)
    assert kitti_benchmark_crop((376, 1241), facts) == (12, 24, 1228, 376)
    assert nyu_border_crop((375, 1242), facts) == cut
    with pytest.raises(ValueError, match="352 x 1216"):
        kitti_benchmark_crop((351, 1242), facts)
    assert kitti_benchmark_crop((351, 1242), ANY) == (0, 0, 1242, 351)


def test_training_pictures_of_nyu_lose_their_frame() -> None:
    facts = DepthRange(nyu_crop=True)
    left, top, right, bottom = nyu_border_crop((480, 640), facts)
    assert (right - left, bottom - top) == (565, 427)
    assert kitti_benchmark_crop((480, 640), facts) == (0, 0, 640, 480)
    with pytest.raises(ValueError, match="white frame"):
        nyu_border_crop((479, 640), facts)


def test_a_picture_and_its_depth_are_cut_alike() -> None:
    pixels, depth = slope(20, 30)
    cut = (4, 5, 14, 12)
    image = crop_image(image_from_array(pixels), cut).pixels()
    assert image.shape == (3, 7, 10)
    np.testing.assert_array_equal(image[0].numpy() / np.float32(10), crop_target(depth, cut))


def test_nyus_usual_view_has_its_usual_size() -> None:
    pixels, depth = slope(480, 640)
    found = depth_crop(
        image_from_array(pixels),
        depth,
        random.Random(0),
        short=480,
        multiple=16,
        augment=replace(STILL, crop=(416 / 480, 544 / 480)),
        facts=DepthRange(nyu_crop=True),
    )
    assert found.target.shape == (416, 544)
    torch.testing.assert_close(found.image[0].float() / 10, found.target)
