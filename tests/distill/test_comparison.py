"""All parts of the objective, beside each part computed alone."""

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.distill.runs import PixelTeacher, small_config
from veca.distill.comparison import compare, objective, part_names, teacher_losses
from veca.distill.losses import LossConfig, class_divergence, distillation_losses, relation_error
from veca.distill.student import Prediction
from veca.distill.targets import TargetSource
from veca.teacher.teacher import Targets

ALL = LossConfig(classes=0.5, temperature=3.0, relations=2.0)


class ClassTeacher(PixelTeacher):
    """A teacher that tells five classes."""

    num_classes = 5

    def classes(self, image: Tensor) -> Tensor:
        """Fixed random scores."""
        draw = torch.Generator().manual_seed(7)
        return image @ torch.randn(self.image_width, 5, generator=draw)


@pytest.fixture
def source() -> TargetSource:
    """A teacher that tells classes, its features scaled, and one that tells none."""
    found = TargetSource([ClassTeacher("one"), PixelTeacher("other")], 8)
    found.scaling(0).image_center.copy_(torch.randn(12))
    found.scaling(0).image_scale.fill_(2.5)
    return found


def drawn() -> tuple[list[Prediction], list[Targets]]:
    """Answers to two teachers and what they want."""
    said = [Prediction(torch.randn(3, 12), torch.randn(3, 4, 20), torch.randn(3, 4, 32))] * 2
    return said, [Targets(torch.randn(3, 12), torch.randn(3, 4, 20)) for _ in range(2)]


def test_the_papers_parts_come_first_and_alone_unless_others_are_switched_on(
    source: TargetSource,
) -> None:
    said, wanted = drawn()
    found = compare(said, wanted, source, LossConfig())
    slow = [
        list(distillation_losses(one.image, one.patches, aim))
        for one, aim in zip(said, wanted, strict=True)
    ]
    torch.testing.assert_close(found, torch.tensor(slow))
    assert part_names(LossConfig()) == ("loss_image", "loss_patch_cosine", "loss_patch_error")
    assert torch.equal(compare(said, wanted, source, ALL)[:, :3], found)


def test_classes_are_told_from_features_as_the_teacher_says_them(source: TargetSource) -> None:
    said, wanted = drawn()
    found = compare(said, wanted, source, ALL)
    assert part_names(ALL)[3:] == ("loss_classes", "loss_relations")
    scaling, teacher = source.scaling(0), ClassTeacher("one")
    mine, aims = (
        teacher.classes(image * 2.5 + scaling.image_center)
        for image in (said[0].image, wanted[0].image)
    )
    torch.testing.assert_close(found[0, 3], class_divergence(mine, aims, 3.0))
    assert found[1, 3] == 0  # this teacher knows no classes
    torch.testing.assert_close(found[1, 4], relation_error(said[1].own, wanted[1].patches))


def test_the_objective_weighs_teachers_and_parts(source: TargetSource) -> None:
    config = dataclasses.replace(
        small_config(Path("nowhere")), teacher=("a", "b"), teacher_weights=(0.3, 2.0), loss=ALL
    )
    parts = compare(*drawn(), source, ALL)
    losses = teacher_losses(parts, ALL)
    slow = sum(
        weight * (losses[number] + 0.5 * parts[number, 3] + 2.0 * parts[number, 4])
        for number, weight in enumerate((0.3, 2.0))
    )
    torch.testing.assert_close(objective(parts, config), slow)


def test_gradients_reach_the_student_through_classes_and_relations(source: TargetSource) -> None:
    said, wanted = drawn()
    one = Prediction(*(tensor.requires_grad_() for tensor in said[0]))
    parts = compare([one, one], wanted, source, ALL)
    (parts[0, 3] + parts[0, 4]).backward()
    assert one.image.grad is not None
    assert one.image.grad.abs().sum() > 0
    assert one.own.grad is not None
    assert one.own.grad.abs().sum() > 0
    assert one.patches.grad is not None
    assert not one.patches.grad.any()  # neither part looks at the adaptor's patches


def test_classes_are_told_in_single_precision_also_under_autocast(source: TargetSource) -> None:
    said, wanted = drawn()
    with torch.autocast("cpu", torch.bfloat16):
        found = compare(said, wanted, source, ALL)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, compare(said, wanted, source, ALL))
