"""What a user names is a path, a bundled name or a name on the hub, in this order."""

from pathlib import Path

import pytest

import veca
from tests.weights.models import same_weights, trained_model
from veca.weights import hub
from veca.weights import hub as sources
from veca.weights.format import WeightsError
from veca.weights.hub import bundled_names, locate

MODEL = trained_model()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a model."""
    veca.save(MODEL, tmp_path / "model")
    return tmp_path / "model"


def test_a_folder_and_the_file_in_it_are_the_same_model(folder: Path) -> None:
    wanted = (folder / "model.safetensors", folder / "config.json")
    assert locate(folder) == locate(str(folder)) == locate(wanted[0]) == wanted


def test_a_home_folder_is_found_by_its_short_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(folder.parent))
    assert locate("~/model").weights.samefile(folder / "model.safetensors")


def test_a_file_without_a_config_beside_it_is_found_alone(folder: Path) -> None:
    (folder / "config.json").unlink()
    assert locate(folder).config is None


def test_bundled_models_are_listed_and_loaded_by_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "BUNDLED", folder.parent)
    (folder.parent / "no-model").mkdir()
    assert bundled_names() == ["model"]
    assert same_weights(veca.load("model"), MODEL)


def test_a_path_that_exists_goes_before_a_bundled_name(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "BUNDLED", folder.parent)
    here = tmp_path / "elsewhere"
    veca.save(trained_model(seed=1), here / "model")
    monkeypatch.chdir(here)
    assert locate("model").weights == Path("model/model.safetensors")


def test_a_path_that_exists_goes_before_a_name_on_the_hub(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent.parent)
    name = f"{folder.parent.name}/model"
    assert locate(name).weights == Path(name, "model.safetensors")


@pytest.mark.parametrize(
    "name", ["nothing", "./nothing", "a/b/c", "owner/model.safetensors", "", "x\x1b"]
)
def test_an_unknown_name_is_answered_with_what_is_possible(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(WeightsError, match=r"\.safetensors|bundled name \(veca-tiny\).*owner/name"):
        locate(name)


@pytest.mark.parametrize("name", ["./owner", "~/owner", "runs/best/nothing", "runs/tyni"])
def test_a_path_that_is_not_there_is_told_at_once_without_the_hub(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(*_: object) -> None:
        pytest.fail("the hub was asked")

    monkeypatch.setattr(hub, "download", ask)
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        WeightsError, match=f"^there is no file or folder '{name}'.*; give a folder"
    ):
        locate(name)


def test_a_path_object_never_means_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(WeightsError, match="is not known"):
        locate(Path("owner/name"))


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"holds no model\.safetensors"):
        locate(tmp_path)


def test_a_checkpoint_of_another_kind_points_to_its_reader(tmp_path: Path) -> None:
    (tmp_path / "student.pt").touch()
    with pytest.raises(WeightsError, match=r"veca\.load_official"):
        locate(tmp_path / "student.pt")


def test_only_the_hub_has_revisions(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(WeightsError, match="leave it out"):
        locate(folder, revision="main")
    monkeypatch.setattr(sources, "BUNDLED", folder.parent)
    with pytest.raises(WeightsError, match="leave it out"):
        locate("model", revision="main")
