"""Models from the hub, tried on a small server that answers as the hub does; no network is used."""

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
from veca.weights.card import Provenance
from veca.weights.checkpoint import describe
from veca.weights.format import WeightsError

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
        """Send a file, or what describes it."""
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
        """Send an error in the hub's words."""
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        if commit:
            self.send_header("X-Repo-Commit", commit)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing."""


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
    """Take the network away as HF_HUB_OFFLINE=1 does."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    close_session()
    hub.asked.clear()


def test_a_model_is_loaded_by_its_name_on_the_hub(hub: Hub) -> None:
    assert same_weights(veca.load("owner/model"), MODEL)
    facts = describe("owner/model")
    assert facts.provenance == Provenance(licence="mit")
    assert facts.notes == ()
    assert "GET owner/model model.safetensors" in hub.asked


def test_a_model_is_downloaded_once(hub: Hub) -> None:
    veca.load("owner/model")
    hub.asked.clear()
    veca.load("owner/model")
    assert not any(request.startswith("GET") for request in hub.asked)


def test_a_revision_is_another_model(hub: Hub, tmp_path: Path) -> None:
    veca.save(NEWER, tmp_path / "newer")
    hub.publish(tmp_path / "newer", "owner/model", "v1")
    assert same_weights(veca.load("owner/model", revision="v1"), NEWER)
    assert same_weights(veca.load("owner/model", revision=COMMITS["main"]), MODEL)


def test_weights_without_config_json_are_enough(hub: Hub) -> None:
    del hub.files["owner/model", "main"]["config.json"]
    assert same_weights(veca.load("owner/model"), MODEL)


def test_without_a_network_a_model_comes_from_the_cache(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    veca.load("owner/model")
    go_offline(hub, monkeypatch)
    assert same_weights(veca.load("owner/model"), MODEL)
    assert describe("owner/model").provenance == Provenance(licence="mit")
    assert hub.asked == []


def test_without_a_network_and_without_config_json_weights_come_from_the_cache(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    del hub.files["owner/model", "main"]["config.json"]
    veca.load("owner/model")
    go_offline(hub, monkeypatch)
    assert same_weights(veca.load("owner/model"), MODEL)


def test_without_a_network_an_unknown_model_says_what_to_do(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_offline(hub, monkeypatch)
    with pytest.raises(WeightsError, match=r"cannot be reached .* not in the cache; go online"):
        veca.load("owner/model")


@pytest.mark.parametrize("state", ["offline", "missing", "gated"])
def test_an_error_of_the_hub_says_first_that_there_is_no_such_folder(
    state: str, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where no folder is called runs
    if state == "offline":
        go_offline(hub, monkeypatch)
    if state == "gated":
        hub.closed["runs/smal"] = (HTTPStatus.UNAUTHORIZED, "GatedRepo")
    with pytest.raises(
        WeightsError, match=r"^there is no folder or file 'runs/smal' here, .* hub:"
    ):
        veca.load("runs/smal")


def test_a_gated_repository_says_how_to_get_in(hub: Hub) -> None:
    hub.closed["owner/gated"] = (HTTPStatus.UNAUTHORIZED, "GatedRepo")
    with pytest.raises(WeightsError, match="accept the terms, and log in"):
        veca.load("owner/gated")


def test_a_missing_repository_is_named(hub: Hub) -> None:
    assert hub.files
    with pytest.raises(WeightsError, match="owner/nothing is not on the hub, or is private"):
        veca.load("owner/nothing")


def test_a_missing_revision_is_named(hub: Hub) -> None:
    assert hub.files
    with pytest.raises(WeightsError, match="no revision 'v2'"):
        veca.load("owner/model", revision="v2")


def test_a_repository_without_weights_is_no_model(hub: Hub) -> None:
    hub.files["owner/data", "main"] = {"README.md": b"words"}
    with pytest.raises(WeightsError, match=r"has no model\.safetensors, so it is no model of veca"):
        veca.load("owner/data")


def test_the_weights_of_another_kind_of_model_are_not_even_downloaded(hub: Hub) -> None:
    hub.files["owner/vit", "main"] = {
        "config.json": b'{"model_type": "vit"}',
        "model.safetensors": b"many bytes",
    }
    with pytest.raises(WeightsError, match="a model of type 'vit', not 'veca'"):
        veca.load("owner/vit")
    assert not any("model.safetensors" in request for request in hub.asked)


def test_an_answer_that_nobody_foresaw_is_told_with_its_number(hub: Hub) -> None:
    hub.closed["owner/model"] = (HTTPStatus.FORBIDDEN, "")
    with pytest.raises(WeightsError, match="hub answered 403"):
        veca.load("owner/model")


def test_a_download_that_breaks_off_leaves_no_half_model(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_off(answers: Answers, content: bytes) -> None:
        reset = struct.pack("ii", 1, 0)  # linger for no time: the connection is reset
        answers.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        answers.wfile.write(content[: len(content) // 2])
        answers.connection.close()

    whole = Answers.send_body
    monkeypatch.setattr(Answers, "send_body", break_off)
    with pytest.raises(WeightsError, match="broke off"):
        veca.load("owner/model")
    monkeypatch.setattr(Answers, "send_body", whole)
    assert same_weights(veca.load("owner/model"), MODEL)
    assert "GET owner/model model.safetensors" in hub.asked


@pytest.mark.parametrize("name", ["owner/" + "x" * 200, "owner/a..b", "owner/-a-"])
def test_a_name_that_the_hub_cannot_have_is_refused(hub: Hub, name: str) -> None:
    with pytest.raises(WeightsError, match="is no name on the hub"):
        veca.load(name)
    assert hub.asked == []
