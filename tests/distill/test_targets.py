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
from veca.distill.losses import LossConfig
from veca.distill.targets import (
    Margin,
    TargetScaling,
    TargetSource,
    best_patch,
    find_margin,
    moments,
)
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
        """The features, as always."""
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
    source.fit(parts, scale=True, config=LOSS)
    scaled = [source.scaled(targets) for targets in parts]
    for teacher in range(2):
        before, after = joined(parts, teacher), joined(scaled, teacher)
        assert before.image.mean(0).abs().max() > 0.1  # else there would be nothing to show
        for found in (after.image, after.patches.flatten(0, 1)):
            assert found.mean(0).abs().max() < 1e-5
            assert found.square().mean() == pytest.approx(1, abs=1e-5)


def test_targets_stay_as_they_are_where_scaling_is_not_wanted() -> None:
    source = source_of()
    parts = parts_of(source)
    source.fit(parts, scale=False, config=LOSS)
    assert torch.equal(source.scaled(parts[0])[0].patches, parts[0][0].patches)


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
        ([Strided(32, 32)], r"teacher_margin=48 is not a multiple of the stride 32 .* 0 or 64\."),
        ([Strided(16, 32)], r"teacher_margin=48 is not a multiple of the stride 32 .* 0 or 64\."),
        ([Strided(16, 16), Strided(14, 14)], r"stride 14 .* 0 or 56\."),
        ([Strided(16, 16), Strided(8, 8)], r"got strides 8, 16;"),
    ],
)
def test_a_margin_that_does_not_fit_the_teachers_is_refused(
    teachers: list[Strided], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        find_margin(small_config(Path(), teacher_margin=48), teachers)


def sparse_targets() -> Targets:
    """All positive and sparse, with channels of very different size, as a ReLU network has them."""
    sizes = torch.logspace(-1, 1, 6)
    return Targets((torch.randn(50, 4) + 3).relu(), (torch.randn(50, 9, 6) - 1).relu() * sizes)


def fitted(targets: Targets) -> TargetScaling:
    """Scaling by the targets' own moments."""
    scaling = TargetScaling(targets.image.shape[-1], targets.patches.shape[-1])
    scaling.fit(moments([targets.image]), moments([targets.patches]))
    return scaling


def test_one_scale_keeps_the_ratios_of_distances() -> None:
    targets = sparse_targets()
    before, after = targets.image, fitted(targets)(targets).image
    ratios = torch.pdist(before) / torch.pdist(after)
    torch.testing.assert_close(ratios, torch.full_like(ratios, float(ratios[0])), rtol=1e-4, atol=0)


@pytest.mark.parametrize("value", [0.0, 1234.5])
def test_features_that_never_change_are_refused(value: float) -> None:
    rounding = 1 + 1e-7 * torch.randn(100, 3)
    constant, drawn = value * rounding, torch.randn(100, 3)
    with pytest.raises(ValueError, match="image features are the same for all 100 samples"):
        fitted(Targets(constant, drawn[:, None]))
    with pytest.raises(ValueError, match="patch features are the same"):
        fitted(Targets(drawn, constant[:, None]))


def test_moments_are_those_of_all_vectors_together() -> None:
    patches = torch.randn(3, 5, 7) + 2
    patches[0, 0] *= 1e-5  # short vectors count with their whole direction
    found = moments(patches.split(2))
    rows = patches.double().numpy().reshape(-1, 7)
    units = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    assert found.total == 15
    np.testing.assert_allclose(found.mean, rows.mean(0), rtol=1e-12)
    np.testing.assert_allclose(found.unit_mean, units.mean(0), rtol=1e-12)
    assert float(found.mean_square) == pytest.approx((rows**2).mean(), rel=1e-12)
    zeros = moments([torch.tensor([[0.0, 0.0], [3.0, 4.0]])])
    assert zeros.unit_mean.tolist() == pytest.approx([0.3, 0.4])


def test_sums_of_large_features_keep_what_single_precision_would_lose() -> None:
    found = moments(torch.full((1000, 1), 4096.0) + torch.tensor([[0.5]]) for _ in range(100))
    assert float(found.mean) == 4096.5
    assert float(found.mean_square) == 4096.5**2


KINDS = ("positive", "centered", "scattered", "opposed", "few")


def drawn_targets(kind: str, seed: int) -> Targets:
    """Targets of a kind of teacher, in double precision so that a search can be compared."""
    torch.manual_seed(seed)
    image, patches = torch.randn(20, 5).double(), torch.randn(20, 6, 5).double()
    if kind == "positive":
        return Targets((image - 0.5).relu(), (patches - 0.5).relu() * 4)
    if kind == "centered":
        targets = Targets(image.exp(), patches.exp())
        return fitted(targets).double()(targets)
    if kind == "opposed":  # few long vectors against many short ones: U and m disagree
        patches[:, 0] = torch.tensor([-30.0, 1, 0, 0, 0])
        patches[:, 1:, 0] = patches[:, 1:, 0].abs() + 0.5
    if kind == "few":
        return Targets(image[:2], patches[:2, :1])
    return Targets(image + 0.3, patches + torch.randn(5))


def patch_loss(answer: Tensor, targets: Targets, error: float) -> Tensor:
    """The patch part of the loss of a constant, target by target, in double precision."""
    rows = targets.patches.flatten(0, 1)
    cosines = torch.cosine_similarity(answer.expand_as(rows), rows, dim=1, eps=1e-6)
    return 1 - cosines.mean() + error * (answer - rows).square().mean()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("error", [0.0, 0.1, 1.0, 20.0])
def test_no_search_by_gradients_and_no_drawn_constant_is_better_than_the_best_patch(
    kind: str, error: float
) -> None:
    targets = drawn_targets(kind, seed=3)
    best = best_patch(moments([targets.patches]), error)
    reached = float(patch_loss(best, targets, error))
    rows = targets.patches.flatten(0, 1)
    near = [best + width * torch.randn(5).double() for width in (1e-3, 0.1, 1.0)]
    for other in (*near, rows[0], rows.mean(0)):
        assert reached <= float(patch_loss(other, targets, error)) + 1e-9
    for start in (rows.mean(0), rows.median(0).values, -rows.mean(0), *torch.randn(3, 5).double()):
        answer = start.clone().requires_grad_()
        search = torch.optim.LBFGS([answer], max_iter=200, line_search_fn="strong_wolfe")

        def closure(answer: Tensor = answer, search: torch.optim.LBFGS = search) -> float:
            search.zero_grad()
            loss = patch_loss(answer, targets, error)
            loss.backward()
            return float(loss.detach())

        search.step(closure)
        assert reached <= float(patch_loss(answer.detach(), targets, error)) + 1e-7


@pytest.mark.parametrize("scale", [False, True])
def test_a_fitted_source_gives_the_best_constants_of_its_scaled_targets(scale: bool) -> None:
    source = source_of()
    parts = parts_of(source)
    constants = source.fit(parts, scale, LOSS)
    scaled = [source.scaled(targets) for targets in parts]
    for teacher, found in enumerate(constants):
        targets = joined(scaled, teacher)
        units = torch.nn.functional.normalize(targets.image, dim=1)
        torch.testing.assert_close(found.image[0], units.mean(0))
        wanted = best_patch(moments([targets.patches]), LOSS.error)
        torch.testing.assert_close(found.patches[0, 0], wanted.float())


def test_targets_without_any_direction_have_an_answer_too() -> None:
    targets = torch.tensor([[[1.0, 0.0], [-1.0, 0.0]]]).double()
    best = best_patch(moments([targets]), 1.0)
    assert float(patch_loss(best, Targets(targets[:, 0], targets), 1.0)) == pytest.approx(1 + 0.5)
