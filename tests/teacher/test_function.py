"""Any callable as a teacher."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from veca.data.transforms import IMAGENET, Normalization
from veca.teacher import FunctionTeacher, TeacherError

IMAGES = torch.randint(0, 256, (2, 3, 48, 32), dtype=torch.uint8)


def as_map(pixels: Tensor) -> tuple[Tensor, Tensor]:
    """Mean colors of the image and of 16 x 16 cells."""
    return pixels.mean(dim=(2, 3)), F.avg_pool2d(pixels, 16)


def as_rows(pixels: Tensor) -> list[Tensor]:
    """The same, cells row by row."""
    image, cells = as_map(pixels)
    return [image, cells.flatten(2).transpose(1, 2)]


class Network(nn.Module):
    """Cells through weights, with a layer that only training uses."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 3, 8, 8))
        self.noise = nn.Dropout(0.9)

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """A map of stride 8."""
        cells = self.noise(F.conv2d(pixels, self.weight, stride=8))
        return cells.mean(dim=(2, 3)), cells


def test_a_function_that_gives_a_map_is_a_teacher() -> None:
    teacher = FunctionTeacher(as_map, name="cells", licence="mit")
    targets = teacher(IMAGES, (3, 2))
    cells = F.avg_pool2d(IMAGENET.normalize(IMAGES), 16)
    torch.testing.assert_close(targets.patches[:, 2], cells[:, :, 1, 0])
    torch.testing.assert_close(targets.image, cells.mean(dim=(2, 3)))
    assert teacher.describe() == {
        "name": "cells",
        "licence": "mit",
        "image_width": 3,
        "patch_width": 3,
        "stride": 16,
    }


def test_a_function_that_gives_patches_in_a_row_is_the_same_teacher() -> None:
    one, other = (FunctionTeacher(call, name="cells")(IMAGES, (3, 2)) for call in (as_map, as_rows))
    assert torch.equal(one.patches, other.patches)


def test_a_module_is_frozen_and_its_weights_move_with_the_teacher() -> None:
    network = Network()
    teacher = FunctionTeacher(network, name="network", stride=8)
    assert not network.weight.requires_grad
    assert dict(teacher.named_parameters()).keys() == {"network.weight"}
    again = teacher(IMAGES, (3, 2))
    assert torch.equal(teacher(IMAGES, (3, 2)).patches, again.patches)  # no noise is drawn
    assert (teacher.image_width, teacher.patch_width) == (5, 5)


def test_pixels_come_in_the_normalization_that_was_asked_for() -> None:
    plain = Normalization((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    teacher = FunctionTeacher(as_map, name="cells", normalization=plain)
    found = teacher(IMAGES, (3, 2)).image
    torch.testing.assert_close(found, IMAGES.float().mean(dim=(2, 3)) / 255)


def test_the_digest_of_a_function_is_the_one_that_was_given() -> None:
    assert FunctionTeacher(Network(), name="network", stride=8).digest is None
    assert FunctionTeacher(as_map, name="cells", digest="first").digest == "first"


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (lambda pixels: pixels, r"one tensor of the shape \(1, 3, 224, 224\)"),
        (lambda pixels: (pixels.mean(dim=(2, 3)), None), r"\[one tensor .*, a NoneType\]"),
        (lambda pixels: (pixels, pixels), "answered with"),
        (lambda pixels: (pixels.mean(dim=(2, 3)).int(), pixels), "answered with"),
        (lambda _: {"image": 1}, "a dict"),
    ],
)
def test_an_answer_of_another_form_is_refused_in_words(
    answer: Callable[[Tensor], Any], told: str
) -> None:
    with pytest.raises(TeacherError, match=f"{told}.*must be a pair of float tensors"):
        FunctionTeacher(answer, name="odd")


def test_a_stride_below_one_is_refused() -> None:
    with pytest.raises(TeacherError, match="stride=0 must be at least one"):
        FunctionTeacher(as_map, name="cells", stride=0)
