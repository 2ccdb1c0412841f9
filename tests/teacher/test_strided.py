"""Teachers with a stride."""

import pytest
import torch
from jaxtyping import Float
from torch import Tensor, nn

from veca.data.normalisation import Normalisation
from veca.teacher.strided import StridedTeacher, TeacherFacts
from veca.teacher.teacher import Targets, TeacherError

PLAIN = Normalisation((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))


class Cells(StridedTeacher):
    """Mean colours of its cells, in half precision; remembers what it saw."""

    def __init__(self, stride: int, side: int | None = None) -> None:
        facts = TeacherFacts(
            name="cells", image_width=3, patch_width=3, stride=stride, normalisation=PLAIN
        )
        super().__init__(facts, nn.AvgPool2d(side or stride))
        self.seen: Tensor | None = None

    def observe(self, pixels: Float[Tensor, "B 3 height width"], grid: tuple[int, int]) -> Targets:
        """Mean colours."""
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
    facts = TeacherFacts(name="line", image_width=1, patch_width=1, stride=8, normalisation=PLAIN)
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
    facts = TeacherFacts(name="none", image_width=1, patch_width=1, stride=8, normalisation=PLAIN)
    with pytest.raises(NotImplementedError, match="does not define observe"):
        StridedTeacher(facts, nn.Identity())(torch.zeros(1, 3, 8, 8, dtype=torch.uint8), (1, 1))


def test_another_normalisation_is_another_digest() -> None:
    one, other = Cells(16), Cells(16)
    one.register_buffer("weight", torch.ones(1))
    other.register_buffer("weight", torch.ones(1))
    other.normalisation = Normalisation((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    assert one.digest != other.digest
