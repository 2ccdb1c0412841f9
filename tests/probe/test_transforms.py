"""Random crops keep images and targets together; windows cover every pixel and merge exactly."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from tests.data.corpus import photo
from veca.data.images import image_from_array
from veca.data.sets.dataset import IGNORE_INDEX, DepthRange
from veca.probe import sliding_window as windows
from veca.probe.protocols import DepthAugment, SegmentationAugment
from veca.probe.sliding_window import (
    WindowGrid,
    argmax_pixels,
    bilinear,
    cut_windows,
    eight_bit,
    merge_windows,
    slide,
    whole_image,
    window_starts,
)
from veca.probe.transforms import (
    PADDING,
    _random_corner,
    depth_crop,
    kitti_benchmark_crop,
    nearest_part,
    nyu_border_crop,
    photometric_distortion,
    segmentation_crop,
)

PLAIN = SegmentationAugment(scales=(1.0, 1.0), flip=0.0, distortion=0.0, max_tries=1)


def stripes(height: int, width: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """A picture of flat areas of some pixels, each of its own class and gray."""
    mask = (np.arange(height)[:, None] // 12 * 4 + np.arange(width) // 12 % 4).astype(np.uint8)
    return np.repeat((40 + 8 * mask)[:, :, None], 3, 2), mask


def test_a_view_of_the_pictures_own_scale_is_a_cut() -> None:
    pixels, _ = stripes(40, 64)
    mask = np.random.default_rng(0).integers(0, 9, (40, 64)).astype(np.uint8)
    image, target = segmentation_crop(
        image_from_array(pixels), mask, random.Random(3), side=40, augment=PLAIN
    )
    lefts = [left for left in range(25) if (mask[:, left : left + 40] == target).all()]
    assert len(lefts) == 1
    expected = pixels[:, lefts[0] : lefts[0] + 40]
    np.testing.assert_array_equal(image.transpose(1, 2, 0), expected)


@given(seed=st.integers(0, 1000), flip=st.sampled_from([0.0, 1.0]))
def test_colors_and_classes_stay_together(seed: int, flip: float) -> None:
    pixels, mask = stripes(50, 70)
    augment = replace(PLAIN, scales=(0.5, 2.0), flip=flip, max_tries=10)
    image, target = segmentation_crop(
        image_from_array(pixels), mask, random.Random(seed), side=48, augment=augment
    )
    inside = target != IGNORE_INDEX
    shown = (image[0].astype(int) - 40) / 8
    close = abs(shown[inside] - target[inside]) < 0.5
    assert close.mean() > 0.6  # but for the edges, which are blurred
    assert (image[:, ~inside] == np.array(PADDING)[:, None]).all()


def test_a_small_picture_is_padded_on_the_right_and_below() -> None:
    pixels, mask = stripes(40, 60)
    augment = replace(PLAIN, scales=(0.5, 0.5))
    image, target = segmentation_crop(
        image_from_array(pixels), mask, random.Random(0), side=48, augment=augment
    )
    assert (target[:24, :36] != IGNORE_INDEX).all()
    assert (target[24:] == IGNORE_INDEX).all()
    assert (target[:, 36:] == IGNORE_INDEX).all()
    assert image.shape == (3, 48, 48)


def test_a_view_follows_from_its_draw() -> None:
    picture = image_from_array(photo(60, 80))
    mask = np.random.default_rng(1).integers(0, 5, (60, 80)).astype(np.uint8)
    augment = SegmentationAugment()
    first, again, other = (
        segmentation_crop(picture, mask, random.Random(seed), side=32, augment=augment)
        for seed in (5, 5, 6)
    )
    np.testing.assert_equal(first, again)
    assert (first[0] != other[0]).any()


def test_a_place_where_one_class_rules_is_drawn_again() -> None:
    mask = np.zeros((40, 200), np.uint8)
    mask[:, :20] = 1  # only views from the far left show both
    picture = image_from_array(np.zeros((40, 200, 3), np.uint8))
    once, often = (
        sum(
            len(np.unique(segmentation_crop(picture, mask, draw, side=40, augment=augment)[1]))
            for draw in map(random.Random, range(60))
        )
        for augment in (PLAIN, replace(PLAIN, max_tries=10))
    )
    assert often > once + 15


@given(
    sides=st.tuples(st.integers(3, 30), st.integers(3, 30)),
    scaled=st.tuples(st.integers(3, 60), st.integers(3, 60)),
    seed=st.integers(0, 99),
)
def test_a_new_pixel_has_the_class_under_its_center(
    sides: tuple[int, int], scaled: tuple[int, int], seed: int
) -> None:
    mask = np.arange(sides[0] * sides[1], dtype=np.float32).reshape(sides)
    part = 1 + seed % scaled[0], 1 + seed % scaled[1]
    top, left = _random_corner(scaled, part, random.Random(seed))
    found = nearest_part(mask, scaled, (top, left), part)
    for row in range(part[0]):
        for column in range(part[1]):
            down = int((top + row + 0.5) * sides[0] / scaled[0] + 1e-9)
            across = int((left + column + 0.5) * sides[1] / scaled[1] + 1e-9)
            assert found[row, column] == mask[down, across]


EVERY = replace(SegmentationAugment(), distortion=1.0)
FLAT = Image.new("RGB", (4, 4), (100, 150, 50))


@pytest.mark.parametrize(
    ("change", "least", "most"),
    [
        ({"contrast": (1.0, 1.0), "saturation": (1.0, 1.0), "hue": 0.0}, 68, 182),
        ({"brightness": 0.0, "saturation": (1.0, 1.0), "hue": 0.0}, 25, 225),
    ],
)
def test_brightness_and_contrast_stay_in_their_ranges(
    change: dict[str, object], least: int, most: int
) -> None:
    augment = replace(EVERY, **change)  # type: ignore[arg-type]
    seen = [
        np.asarray(photometric_distortion(FLAT, random.Random(seed), augment)) for seed in range(50)
    ]
    values = np.stack(seen).astype(int)
    assert values.min() >= least - 50
    assert values[..., 1].max() <= most + 3
    assert len(np.unique(values[..., 1])) > 20
    order = values[:, 0, 0]
    assert (order[:, 1] >= order[:, 0]).all()
    assert (order[:, 0] >= order[:, 2]).all()


def test_without_saturation_colors_are_gray_and_a_turn_of_the_hue_is_none() -> None:
    still = replace(EVERY, brightness=0.0, contrast=(1.0, 1.0))
    gray = photometric_distortion(
        FLAT, random.Random(0), replace(still, saturation=(0.0, 0.0), hue=0.0)
    )
    assert len(set(np.asarray(gray)[0, 0].tolist())) == 1
    same = photometric_distortion(
        FLAT, random.Random(0), replace(still, saturation=(1.0, 1.0), hue=0.0)
    )
    assert np.abs(np.asarray(same).astype(int) - np.asarray(FLAT)).max() <= 3


def test_hues_turn_and_keep_their_brightness() -> None:
    turned = replace(EVERY, brightness=0.0, contrast=(1.0, 1.0), saturation=(1.0, 1.0), hue=0.5)
    seen = {
        tuple(np.asarray(photometric_distortion(FLAT, random.Random(seed), turned))[0, 0].tolist())
        for seed in range(40)
    }
    assert len({np.argmax(color) for color in seen}) == 3  # red, green and blue lead in turn
    assert all(abs(max(color) - 150) <= 3 for color in seen)


STILL = DepthAugment(rotate=0.0, flip=0.0, color=0.0)
ANY = DepthRange()


def slope(height: int, width: int) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """A picture whose gray is its depth in tenths of a meter."""
    gray = 20 + np.add.outer(np.arange(height), np.arange(width)) % 200
    return np.repeat(gray[:, :, None], 3, 2).astype(np.uint8), (gray / 10).astype(np.float32)


def depth_view(
    augment: DepthAugment, seed: int = 0, facts: DepthRange = ANY, side: int = 48
) -> tuple[Tensor, Tensor]:
    pixels, depth = slope(48, 64)
    image, target = depth_crop(
        image_from_array(pixels),
        depth,
        random.Random(seed),
        short_side=side,
        multiple=8,
        augment=augment,
        facts=facts,
    )
    return torch.from_numpy(image), torch.from_numpy(target.copy())


def test_a_depth_crop_at_the_scale_of_the_image_is_a_part_of_it() -> None:
    _, depth = slope(48, 64)
    image, target = depth_view(replace(STILL, crop=(0.5, 0.8)), seed=4)
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
    augment = replace(STILL, rotate=1.0, flip=0.5, rotation=8.0, crop=(1.0, 1.0))
    image, target = depth_view(augment, seed)
    known = target > 0
    assert 0.5 < known.float().mean() < 1  # corners come from outside
    error = (image[0].float() / 10 - target).abs()[known]
    assert error.median() < 0.15
    _, still = depth_view(replace(augment, rotate=0.0), seed)
    assert (still > 0).all()


def test_colors_change_within_their_ranges() -> None:
    plain, _ = depth_view(STILL)
    changed = [depth_view(replace(STILL, color=1.0), seed)[0] for seed in range(20)]
    assert all(image.shape == plain.shape for image in changed)
    bright, _ = depth_view(
        replace(STILL, color=1.0, gamma=(1.0, 1.0), brightness=(0.5, 0.5), channels=(1.0, 1.0))
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
    with pytest.raises(ValueError, match="white border"):
        nyu_border_crop((479, 640), facts)


def test_nyus_usual_view_has_its_usual_size() -> None:
    pixels, depth = slope(480, 640)
    image, target = depth_crop(
        image_from_array(pixels),
        depth,
        random.Random(0),
        short_side=480,
        multiple=16,
        augment=replace(STILL, crop=(416 / 480, 544 / 480)),
        facts=DepthRange(nyu_crop=True),
    )
    assert target.shape == (416, 544)
    np.testing.assert_allclose(image[0] / np.float32(10), target)


def step_by_step(maps: Tensor, grid: WindowGrid) -> Tensor:
    """Each window scaled to its pixels, the mean where they overlap, scaled to the original."""
    total = torch.zeros(maps.shape[1], *grid.scaled)
    count = torch.zeros(grid.scaled)
    corners = [(top, left) for top in grid.tops for left in grid.lefts]
    for (top, left), cells in zip(corners, maps, strict=True):
        here = slice(top, top + grid.window[0]), slice(left, left + grid.window[1])
        total[:, *here] += scaled(cells[None], grid.window)[0]
        count[here] += 1
    return scaled((total / count)[None], grid.original)[0]


def scaled(maps: Tensor, sides: tuple[int, int]) -> Tensor:
    return F.interpolate(maps, sides, mode="bilinear", align_corners=False)


def test_windows_cover_every_pixel_of_ten_thousand_sides() -> None:
    draw = random.Random(0)
    for _ in range(10_000):
        length, window = draw.randint(1, 900), draw.randint(1, 600)
        stride = draw.randint(1, window)
        starts = window_starts(length, window, stride)
        covered = np.zeros(length, int)
        for start in starts:
            assert start >= 0
            covered[start : start + window] += 1
        assert covered.min() >= 1
        assert starts[-1] + min(window, length) == length
        assert len(starts) == max(length - window + stride - 1, 0) // stride + 1


def test_the_windows_of_the_usual_protocol_are_where_they_usually_are() -> None:
    grid = slide((375, 500), 512, 512, 341)
    assert grid.scaled == (512, 683)
    assert (grid.tops, grid.lefts) == ((0,), (0, 171))
    assert grid.count == 2


@given(cells=st.integers(1, 40), pixels=st.integers(1, 90))
def test_the_matrix_scales_as_torch_does(cells: int, pixels: int) -> None:
    values = torch.randn(cells)
    expected = F.interpolate(values[None, None], pixels, mode="linear", align_corners=False)[0, 0]
    torch.testing.assert_close(bilinear(cells, pixels).float() @ values, expected)


@given(
    original=st.tuples(st.integers(20, 90), st.integers(20, 90)),
    stride=st.integers(3, 24),
    classes=st.integers(1, 4),
)
def test_merged_maps_are_those_of_the_steps(
    original: tuple[int, int], stride: int, classes: int
) -> None:
    grid = slide(original, 24, 24, stride)
    maps = torch.randn(grid.count, classes, 3, 3)
    torch.testing.assert_close(
        merge_windows(maps, grid), step_by_step(maps, grid), rtol=1e-4, atol=1e-5
    )


@given(original=st.tuples(st.integers(8, 90), st.integers(8, 90)))
def test_a_picture_shown_whole_is_scaled_twice(original: tuple[int, int]) -> None:
    grid = whole_image(original, 32, 8)
    rows, columns = (side // 8 for side in grid.scaled)
    maps = torch.randn(1, 2, rows, columns)
    torch.testing.assert_close(
        merge_windows(maps, grid), step_by_step(maps, grid), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("original", [(33, 47), (64, 64), (70, 31)])
def test_a_window_as_large_as_the_picture_is_the_whole_picture(original: tuple[int, int]) -> None:
    one = whole_image(original, 32, 1)
    large = slide(original, 32, 4 * max(original), 7)
    assert one == large
    maps = torch.randn(1, 3, 5, 6)
    assert torch.equal(merge_windows(maps, one), merge_windows(maps, large))


def test_equal_values_stay_equal_whatever_the_windows() -> None:
    grid = slide((61, 133), 48, 48, 17)
    maps = torch.full((grid.count, 2, 3, 3), 2.5)
    torch.testing.assert_close(merge_windows(maps, grid), torch.full((2, 61, 133), 2.5))


def test_the_strongest_class_does_not_depend_on_strips(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = slide((37, 53), 32, 32, 20)
    maps = torch.randn(grid.count, 5, 4, 4)
    expected = step_by_step(maps, grid).argmax(0)
    assert torch.equal(argmax_pixels(maps, grid).long(), expected)
    monkeypatch.setattr(windows, "MAX_STRIP_NUMBERS", 1)  # row by row
    assert torch.equal(argmax_pixels(maps, grid).long(), expected)


def test_whole_pictures_keep_their_proportions_to_the_nearest_patch() -> None:
    assert whole_image((480, 640), 512, 16).scaled == (512, 688)
    assert whole_image((375, 500), 252, 14).scaled == (252, 336)
    assert whole_image((10, 1000), 32, 16).scaled == (32, 3200)


def test_windows_are_cut_out_of_the_scaled_picture() -> None:
    picture = image_from_array(photo(50, 90))
    grid = slide((50, 90), 40, 40, 13)
    everything = eight_bit(picture.resampled(grid.scaled, (0.0, 0.0, 90.0, 50.0)))
    found = cut_windows(picture, grid)
    assert found.shape == (grid.count, 3, 40, 40)
    for window, left in zip(found, grid.lefts, strict=True):
        assert torch.equal(window, everything[:, :, left : left + 40])
    mirrored = cut_windows(picture, grid, flipped=True)
    assert torch.equal(mirrored[0], everything.flip(-1)[:, :, :40])


def test_finer_colors_are_rounded_to_bytes() -> None:
    pixels = np.linspace(0, 1, 4 * 5 * 3, dtype=np.float32).reshape(4, 5, 3)
    found = eight_bit(image_from_array(pixels))
    assert found.dtype == torch.uint8
    np.testing.assert_array_equal(found.permute(1, 2, 0).numpy(), np.rint(pixels * 255))
