"""Teachers with a stride."""

import pytest
import torch
from jaxtyping import Float
from torch import Tensor, nn

from veca.data.transforms import Normalization
from veca.teacher.teacher import StridedTeacher, Targets, TeacherError, TeacherSpec, cut

PLAIN = Normalization((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))


class Cells(StridedTeacher):
    """Mean colors of its cells, in half precision; remembers what it saw."""

    def __init__(self, stride: int, side: int | None = None) -> None:
        facts = TeacherSpec(
            name="cells", image_width=3, patch_width=3, stride=stride, normalization=PLAIN
        )
        super().__init__(facts, nn.AvgPool2d(side or stride))
        self.seen: Tensor | None = None

    def forward_features(
        self, pixels: Float[Tensor, "B 3 height width"], grid: tuple[int, int]
    ) -> Targets:
        """Mean colors."""
        self.seen = pixels
        cells = self.network(pixels).flatten(2).transpose(1, 2)
        return Targets(cells.mean(dim=1).half(), cells.half())


@pytest.mark.parametrize(("stride", "size"), [(14, (56, 84)), (16, (64, 96)), (32, (128, 192))])
def test_the_network_sees_the_grid_times_its_own_stride(stride: int, size: tuple[int, int]) -> None:
    teacher = Cells(stride)
    images = torch.randint(0, 256, (2, 3, 64, 96), dtype=torch.uint8)
    targets = teacher(images, (4, 6))
    assert teacher.seen is not None
    assert tuple(teacher.seen.shape[-2:]) == size
    assert targets.patches.shape == (2, 24, 3)


def test_patches_come_row_by_row() -> None:
    images = torch.zeros(1, 3, 32, 48, dtype=torch.uint8)
    images[..., 16:32, 0:16] = 255  # second row, first column
    patches = Cells(16)(images, (2, 3)).patches
    assert patches[0, :, 0].tolist() == [0, 0, 0, 1, 0, 0]


def test_answers_are_in_single_precision_and_have_no_gradient() -> None:
    teacher = Cells(16)
    targets = teacher(torch.zeros(1, 3, 16, 16, dtype=torch.uint8), (1, 1))
    assert targets.image.dtype == targets.patches.dtype == torch.float32
    assert not targets.patches.requires_grad


def test_the_network_of_a_teacher_is_frozen() -> None:
    facts = TeacherSpec(name="line", image_width=1, patch_width=1, stride=8, normalization=PLAIN)
    teacher = StridedTeacher(facts, nn.Sequential(nn.Linear(2, 2), nn.Dropout()))
    assert not any(parameter.requires_grad for parameter in teacher.parameters())
    assert not any(module.training for module in teacher.modules())


@pytest.mark.parametrize("grid", [(0, 4), (4, 0), (-1, 2)])
def test_a_grid_without_patches_is_refused(grid: tuple[int, int]) -> None:
    with pytest.raises(TeacherError, match="has no patches"):
        Cells(16)(torch.zeros(1, 3, 16, 16, dtype=torch.uint8), grid)


def test_an_answer_of_another_size_is_refused_with_both_sizes() -> None:
    with pytest.raises(TeacherError, match=r"\(1, 16, 3\), but .*\(1, 4, 3\).* check its stride"):
        Cells(16, side=8)(torch.zeros(1, 3, 32, 32, dtype=torch.uint8), (2, 2))


def test_a_teacher_that_cannot_observe_says_so() -> None:
    facts = TeacherSpec(name="none", image_width=1, patch_width=1, stride=8, normalization=PLAIN)
    with pytest.raises(NotImplementedError, match="does not define forward_features"):
        StridedTeacher(facts, nn.Identity())(torch.zeros(1, 3, 8, 8, dtype=torch.uint8), (1, 1))


def test_another_normalization_is_another_digest() -> None:
    one, other = Cells(16), Cells(16)
    one.register_buffer("weight", torch.ones(1))
    other.register_buffer("weight", torch.ones(1))
    other.normalization = Normalization((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    assert one.digest != other.digest


class Blurred(Cells):
    """Mean colors of three by three cells, those outside being black."""

    def forward_features(
        self, pixels: Float[Tensor, "B 3 height width"], grid: tuple[int, int]
    ) -> Targets:
        """Mean colors."""
        image, cells = super().forward_features(pixels, grid)
        maps = cells.float().transpose(1, 2).unflatten(2, grid)
        blurred = nn.functional.avg_pool2d(maps, 3, stride=1, padding=1)
        return Targets(image, blurred.flatten(2).transpose(1, 2))


@pytest.mark.parametrize("stride", [16, 32])
def test_within_a_margin_patches_are_those_of_the_larger_image(stride: int) -> None:
    images = torch.randint(0, 256, (2, 3, 16 * 7, 16 * 9), dtype=torch.uint8)
    teacher = Blurred(stride)
    outer = teacher(images, (7, 9)).patches.unflatten(1, (7, 9))
    found = teacher(images, (3, 5), margin=2)
    assert torch.equal(found.patches, outer[:, 2:-2, 2:-2].flatten(1, 2))

    inner = teacher(images[:, :, 32:-32, 32:-32], (3, 5))
    assert not torch.allclose(found.patches, inner.patches, atol=0.05)
    torch.testing.assert_close(found.image, inner.image, atol=2e-3, rtol=0)


def test_the_image_feature_is_of_a_second_look_at_what_lies_within() -> None:
    images = torch.randint(0, 256, (1, 3, 64, 64), dtype=torch.uint8)
    teacher = Cells(16)
    found = teacher(images, (2, 2), margin=1)
    assert torch.equal(found.image, teacher(images[..., 16:48, 16:48], (2, 2)).image)
    assert not torch.equal(found.image, teacher(images, (4, 4)).image)


def test_a_margin_that_is_none_is_refused() -> None:
    with pytest.raises(TeacherError, match=r"-1 patches is -16 pixels .* a multiple of 16 pixels"):
        Cells(16)(torch.zeros(1, 3, 32, 32, dtype=torch.uint8), (2, 2), margin=-1)


def test_maps_lose_as_much_on_every_side() -> None:
    maps = torch.arange(20.0).view(1, 4, 5)
    assert cut(maps, 1).tolist() == [[[6, 7, 8], [11, 12, 13]]]
    assert cut(maps, 0) is not maps
    assert torch.equal(cut(maps, 0), maps)
