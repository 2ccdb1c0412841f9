"""`veca explore` from the words to the server."""

import importlib.util
import socket
import webbrowser
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from tests.data.pictures import saved_model, write_pictures
from veca.cli.main import main
from veca.embed.embed import EmbedConfig, embed_images
from veca.explore import server
from veca.explore.session import Explorer


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Explorer]:
    """What would have been served; the server ends as if by Ctrl-C."""
    found: list[Explorer] = []

    def serve(explorer: Explorer, listener: socket.socket, ready: Callable[[], Any]) -> None:
        found.append(explorer)
        ready()
        listener.close()
        raise KeyboardInterrupt

    monkeypatch.setattr(server, "serve", serve)
    return found


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Addresses that were opened in a browser."""
    found: list[str] = []
    monkeypatch.setattr(webbrowser, "open", found.append)
    return found


def test_the_page_opens_in_a_browser_until_it_is_stopped(
    served: list[Explorer], opened: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explore", "--port", "0"]) == 0
    printed = capsys.readouterr()
    assert f"veca-tiny (size tiny), 5.5 M parameters, trained: {opened[0]} (Ctrl-C" in printed.out
    assert opened[0].startswith("http://127.0.0.1:")
    assert printed.err == "Stopped.\n"
    assert served[0].collection is None


def test_the_model_of_the_collection_is_shown_unless_another_is_named(
    served: list[Explorer], opened: list[str], tmp_path: Path
) -> None:
    write_pictures(tmp_path / "photos", 2)
    model, config = saved_model(tmp_path / "model"), EmbedConfig(size=32)
    embed_images([tmp_path / "photos"], str(model), tmp_path / "embedded", config, num_workers=0,
                 device="cpu")  # fmt: skip
    words = ["--in", str(tmp_path / "embedded"), "--port", "0", "--no-browser"]
    assert main(["explore", *words]) == 0
    assert main(["explore", "tiny", *words]) == 0
    assert [explorer.model.config.layers for explorer in served] == [1, 12]
    assert all(explorer.collection for explorer in served)
    assert opened == []


def test_mistakes_are_one_sentence(
    served: list[Explorer], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "page.html").touch()
    taken = server.free_socket(0)
    taken.listen(1)
    port = str(taken.getsockname()[1])
    for words, message in (
        (["nowhere"], "'nowhere' is unknown"),
        ([str(tmp_path / "page.html")], "page.html"),
        (["--in", str(tmp_path)], "has no collection (no file shard-*.parquet)"),
        (["--port", port], f"port {port} cannot be used"),
        (["--port", "-1"], "--port -1 is outside 0..65535"),
    ):
        assert main(["explore", "--no-browser", *words]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
    taken.close()
    assert served == []


def test_without_the_extra_the_error_names_the_pip_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def nothing(name: str) -> ModuleSpec | None:
        return None

    monkeypatch.setattr(importlib.util, "find_spec", nothing)
    assert main(["explore"]) == 2
    assert "run `pip install 'veca[explore]'`" in capsys.readouterr().err
