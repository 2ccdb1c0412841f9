"""Targets: features of teachers, scaled, and their constant predictor."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from jaxtyping import UInt8
from torch import Tensor

from tests.distill.runs import PixelTeacher, small_config
from veca.distill.config import Surroundings
from veca.distill.losses import LossConfig, distillation_losses
from veca.distill.margin import Margin, find_margin
from veca.distill.run_folder import RunError
from veca.distill.targets import TargetSource, constant_predictor_loss, fit_targets
from veca.teacher.teacher import Targets

GRID = (2, 2)
LOSS = LossConfig(patches=0.7, error=0.4)


class CountingTeacher(PixelTeacher):
    """Notes how many images it gets at once."""

    def __init__(self, name: str = "pixels", image_width: int = 12, patch_width: int = 20) -> None:
        super().__init__(name, image_width, patch_width)
        self.asked: list[int] = []

    def forward(
        self, images: UInt8[Tensor, "B 3 H W"], grid: tuple[int, int], margin: int = 0
    ) -> Targets:
        """As ever."""
        self.asked.append(len(images))
        return super().forward(images, grid, margin)


def pictures(count: int, side: int = 16) -> UInt8[Tensor, "B 3 R R"]:
    """Images of chance, some darker than others, so that features are far from centered."""
    draw = torch.Generator().manual_seed(count)
    light = torch.rand(count, 1, 1, 1, generator=draw)
    return (light * 255 * torch.rand(count, 3, side, side, generator=draw)).to(torch.uint8)


def source_of(teacher_batch: int = 128) -> TargetSource:
    """Two teachers of different widths."""
    teachers = [CountingTeacher(), CountingTeacher("others", 9, 5)]
    return TargetSource(teachers, teacher_batch)


def parts_of(source: TargetSource, count: int = 24) -> list[list[Targets]]:
    """Raw targets in parts of eight images."""
    return [source.raw(images, GRID) for images in pictures(count).split(8)]


def joined(parts: Sequence[Sequence[Targets]], teacher: int) -> Targets:
    """All targets of one teacher."""
    found = [targets[teacher] for targets in parts]
    return Targets(
        torch.cat([one.image for one in found]), torch.cat([one.patches for one in found])
    )


def test_a_fresh_source_gives_what_the_teachers_say() -> None:
    source, images = source_of(), pictures(3)
    assert source.widths == [(12, 20), (9, 5)]
    for found, teacher in zip(source(images, GRID), source.teachers, strict=True):
        wanted = teacher(images, GRID)
        assert torch.equal(found.image, wanted.image)
        assert torch.equal(found.patches, wanted.patches)
        assert not found.image.requires_grad


@pytest.mark.parametrize(
    ("side", "most", "asked"),
    [(256, 2, [2, 2, 1]), (512, 8, [2, 2, 1]), (512, 2, [1] * 5), (128, 1, [4, 1]), (64, 1, [5])],
)
def test_large_images_go_through_a_teacher_in_small_parts_with_the_same_result(
    side: int, most: int, asked: list[int]
) -> None:
    source, images = source_of(most), pictures(5, side)
    found = source.raw(images, GRID)
    teacher = source.teachers[0]
    assert isinstance(teacher, CountingTeacher)
    assert teacher.asked == asked
    whole = teacher(images, GRID)
    torch.testing.assert_close(found[0].image, whole.image)
    torch.testing.assert_close(found[0].patches, whole.patches)


def test_fitted_targets_have_mean_zero_and_mean_square_one() -> None:
    source = source_of()
    parts = parts_of(source)
    fit_targets(source, parts, scale=True, config=LOSS)
    scaled = [source.scaled(targets) for targets in parts]
    for teacher in range(2):
        before, after = joined(parts, teacher), joined(scaled, teacher)
        assert before.image.mean(0).abs().max() > 0.1  # else there would be nothing to show
        for found in (after.image, after.patches.flatten(0, 1)):
            assert found.mean(0).abs().max() < 1e-5
            assert found.square().mean() == pytest.approx(1, abs=1e-5)


def test_one_scale_for_all_channels_keeps_the_geometry() -> None:
    source = source_of()
    parts = parts_of(source)
    fit_targets(source, parts, scale=True, config=LOSS)
    before = joined(parts, 0).image
    after = joined([source.scaled(targets) for targets in parts], 0).image
    ratio = torch.pdist(after) / torch.pdist(before)
    torch.testing.assert_close(ratio, ratio[:1].expand_as(ratio), rtol=1e-4, atol=0)


def test_targets_stay_as_they_are_where_scaling_is_not_wanted() -> None:
    source = source_of()
    parts = parts_of(source)
    fit_targets(source, iter(parts), scale=False, config=LOSS)
    assert torch.equal(source.scaled(parts[0])[0].patches, parts[0][0].patches)


def brute_force(
    image: Tensor, patches: Tensor, targets: Targets, config: LossConfig = LOSS
) -> float:
    """The loss of constants, image by image and patch by patch."""
    total = 0.0
    for wanted_image, wanted_patches in zip(targets.image, targets.patches, strict=True):
        here = Targets(wanted_image[None].double(), wanted_patches[None].double())
        answer = patches.expand(1, len(wanted_patches), -1)
        total += float(distillation_losses(image[None], answer, here).total(config))
    return total / len(targets.image)


@pytest.mark.parametrize("scale", [False, True])
def test_the_loss_of_the_constant_predictor_is_that_of_answering_its_constants(scale: bool) -> None:
    source = source_of()
    constants = fit_targets(source, parts_of(source), scale, LOSS)
    others = source(pictures(17), GRID)
    moments = source.moments()
    for found, targets in zip(moments, others, strict=True):
        found.add(targets)
    weights = (0.3, 1.1)
    wanted = sum(
        weight * brute_force(answer.image, answer.patches, targets)
        for weight, answer, targets in zip(weights, constants, others, strict=True)
    )
    assert constant_predictor_loss(constants, moments, weights, LOSS) == pytest.approx(
        wanted, rel=1e-5
    )


@pytest.mark.parametrize("scale", [False, True])
def test_no_other_constant_is_better_on_the_images_of_the_statistics(scale: bool) -> None:
    source = source_of()
    parts = parts_of(source)
    (answer, _) = fit_targets(source, parts, scale, LOSS)
    targets = joined([source.scaled(found) for found in parts], 0)
    best = brute_force(answer.image, answer.patches, targets)
    draw = torch.Generator().manual_seed(0)
    rivals = [
        (targets.image.mean(0), targets.patches.mean((0, 1))),
        (targets.image[0], targets.patches[0, 0]),
    ]
    for size in (0.01, 0.1, 1.0):
        rivals += [
            (
                answer.image + size * torch.randn(12, generator=draw),
                answer.patches + size * torch.randn(20, generator=draw),
            )
            for _ in range(4)
        ]
    for image, patches in rivals:
        assert brute_force(image.double(), patches.double(), targets) >= best - 1e-9


def with_margin(teacher_batch: int, patches: int, surroundings: Surroundings) -> TargetSource:
    """One teacher that sees a margin, a patch of the student having 8 pixels."""
    margin = Margin(patches=patches, pixels=8 * patches, surroundings=surroundings)
    return TargetSource([CountingTeacher()], teacher_batch, margin)


@pytest.mark.parametrize("patches", [1, 2, 5])  # the last is more than twice the view
def test_a_reflected_margin_is_numpys_symmetric_padding_of_the_view(patches: int) -> None:
    source, images = with_margin(128, patches, "reflected"), pictures(3)
    around = (8 * patches, 8 * patches)
    padded = np.pad(images.numpy(), ((0, 0), (0, 0), around, around), mode="symmetric")
    (found,) = source.raw(images, GRID)
    wanted = source.teachers[0](torch.from_numpy(padded), GRID, patches)
    assert torch.equal(found.patches, wanted.patches)
    assert torch.equal(found.image, wanted.image)
    torch.testing.assert_close(found.image, source.teachers[0](images, GRID).image)
    assert not torch.allclose(found.patches, source.teachers[0](images, GRID).patches)


def test_a_contextual_margin_comes_with_the_views() -> None:
    source, images = with_margin(128, 1, "contextual"), pictures(3, 32)
    (found,) = source.raw(images, GRID)
    wanted = source.teachers[0](images, GRID, 1)
    assert torch.equal(found.patches, wanted.patches)
    assert torch.equal(found.image, wanted.image)


@pytest.mark.parametrize(("surroundings", "side"), [("reflected", 256), ("contextual", 512)])
def test_a_margin_counts_among_the_pixels_that_go_through_a_teacher(
    surroundings: Surroundings, side: int
) -> None:
    source = with_margin(8, 16, surroundings)  # 128 pixels on each side of 256
    source.raw(pictures(5, side), (32, 32))
    teacher = source.teachers[0]
    assert isinstance(teacher, CountingTeacher)
    assert teacher.asked == [2, 2, 1]


class Strided(PixelTeacher):
    """Has strides, and so margins that fit."""

    def __init__(self, stride: int, coarsest: int) -> None:
        super().__init__()
        self.stride, self._coarsest = stride, coarsest

    @property
    def coarsest_stride(self) -> int:
        """That of another map."""
        return self._coarsest


@pytest.mark.parametrize(("stride", "patches"), [(16, 4), (32, 2), (64, 1)])
def test_a_margin_in_pixels_of_the_teacher_is_as_many_patches_of_the_student(
    stride: int, patches: int
) -> None:
    config = small_config(Path(), teacher_margin=64, teacher_surroundings="contextual")
    found = find_margin(config, [Strided(stride, max(stride, 32))] * 2)
    assert (found.patches, found.pixels) == (patches, 8 * patches)
    assert (found.loaded, found.reflected) == (8 * patches, 0)
    reflected = dataclasses.replace(found, surroundings="reflected")
    assert (reflected.loaded, reflected.reflected) == (0, 8 * patches)


def test_without_a_margin_teachers_need_not_know_of_one() -> None:
    config = small_config(Path(), teacher_surroundings="contextual")
    margin = find_margin(config, [Strided(16, 16), Strided(14, 14)])
    assert margin == Margin()
    assert margin.facts() == {}


@pytest.mark.parametrize(
    ("teachers", "words"),
    [
        ([Strided(32, 32)], r"teacher_margin=48 .* 32 pixels; .* multiple of 32, such as 64\."),
        ([Strided(16, 32)], r"teacher_margin=48 .* 32 pixels; .* multiple of 32, such as 64\."),
        ([Strided(16, 16), Strided(14, 14)], r"14 pixels; .* such as 56\."),
        ([Strided(16, 16), Strided(8, 8)], r"strides 8, 16; use teachers of one stride, or 0\."),
    ],
)
def test_a_margin_that_does_not_fit_the_teachers_is_refused(
    teachers: list[Strided], words: str
) -> None:
    with pytest.raises(RunError, match=words):
        find_margin(small_config(Path(), teacher_margin=48), teachers)
