"""`veca search`: the nearest pictures, for people, for programs, and as a sheet."""

import json
from pathlib import Path

import pytest
from PIL import Image

from tests.data.pictures import encoded, saved_model, small_model, write_pictures
from veca.cli.main import main
from veca.embed.config import Efficiency, EmbedConfig
from veca.embed.run import embed_collection
from veca.embed.sheet import layout


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A collection of eight pictures, where the command is called."""
    write_pictures(tmp_path / "photos", 8)
    saved_model(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    embed_collection(
        ["photos"], "model", "out", EmbedConfig(size=32), Efficiency(workers=0, device="cpu")
    )
    return tmp_path


def test_a_picture_finds_itself_first_and_a_sheet_is_written(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["search", "photos/0005.png", "--in", "out", "--top", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "untrained" in lines[0]
    assert lines[1] == "   1  1.0000  photos/0005.png"
    assert [line.split()[0] for line in lines[1:4]] == ["1", "2", "3"]
    assert lines[4] == "Contact sheet: sheet.png"
    with Image.open(folder / "sheet.png") as sheet:
        assert sheet.size == layout(3).size


def test_a_picture_from_elsewhere_is_embedded_by_the_model_of_the_collection(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "copy.png").write_bytes(encoded(3))
    assert main(["search", "copy.png", "--in", "out", "--out", "found.png", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["count"] == len(found["neighbors"]) == 8
    assert found["neighbors"][0]["path"] == str(folder / "photos" / "0003.png")
    assert found["neighbors"][0]["similarity"] == pytest.approx(1, abs=1e-3)
    assert found["image"] == str(folder / "copy.png")
    assert found["sheet"] == "found.png"
    assert (folder / "found.png").exists()


def test_a_model_that_moved_can_be_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "copy.png").write_bytes(encoded(3))
    (folder / "model").rename(folder / "moved")
    assert main(["search", "copy.png", "--in", "out"]) == 2
    assert "say with --model where it is now" in capsys.readouterr().err
    assert main(["search", "copy.png", "--in", "out", "--model", "moved"]) == 0


def test_a_collection_that_is_not_finished_is_searched_with_a_word(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "out" / "collection.json"
    path.write_text(path.read_text().replace('"complete": true', '"complete": false'))
    assert main(["search", "photos/0000.png", "--in", "out"]) == 0
    assert "is not finished" in capsys.readouterr().out


def test_strange_names_do_not_reach_the_terminal(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "a\x1b[31m\n.png"
    (folder / "photos" / name).write_bytes(encoded(20))
    config, efficiency = EmbedConfig(size=32), Efficiency(workers=0, device="cpu")
    embed_collection(["photos"], small_model(), "out", config, efficiency)
    assert main(["search", f"photos/{name}", "--in", "out", "--top", "1"]) == 0
    assert "photos/a?[31m?.png" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["photos/0000.png", "--in", "photos"], "photos holds no collection"),
        (["nothing.png", "--in", "out"], "nothing.png does not exist"),
        (["photos/0000.png", "--in", "out", "--top", "0"], "top=0 asks for no picture"),
        (["photos/0000.png", "--in", "out", "--out", "out"], "out is a folder; give a file"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(
    words: list[str], sentence: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["search", *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith("veca: ")
    assert sentence in error
    assert error.count("\n") == 1


def test_help_shows_every_flag_and_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["search", "--help"]) == 0
    text = capsys.readouterr().out
    for flag in ("--in DIR", "--top INT", "--out PNG", "--json", "--model M", "Example: veca"):
        assert flag in text
