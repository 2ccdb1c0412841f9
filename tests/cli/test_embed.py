"""`veca embed` and `veca search`: from images to features that survive kills, and to matches."""

import json
import os
import shlex
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from PIL import Image

from tests.data.pictures import encoded, saved_model, small_model, write_pictures, write_shard
from veca.cli.main import main
from veca.embed import embed as embed_module
from veca.embed.collection import Collection, CollectionWriter
from veca.embed.embed import EmbedConfig, embed_images

FLAGS = ["--size", "32", "--budget", "3", "--workers", "1", "--batch", "4", "--device", "cpu"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Ten images and a model, where the command is called."""
    write_pictures(tmp_path / "photos", 10)
    saved_model(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def embedded(folder: Path) -> Path:
    """The same with a collection of the images."""
    embed_images(["photos"], "model", "out", EmbedConfig(size=32), num_workers=0, device="cpu")
    return folder


def words(*inputs: str, out: str = "out", flags: Sequence[str] = FLAGS) -> list[str]:
    return ["embed", *inputs, "--model", "model", "--out", out, *flags]


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_collection_is_made_and_described(
    folder: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    write_shard(folder / "s.tar", [("a.png", encoded(50)), ("a.txt", b"words")])
    (folder / "photos" / "0004.png").write_bytes(b"")
    given = words("photos", "s.tar", flags=[*FLAGS, "--patches", "--dtype", "float32"])
    assert main(given) == 0
    captured = capsys.readouterr()
    assert "the model is untrained" in caplog.text
    assert "Embedded 10 images in " in captured.out
    assert "out has 10 features of 32 channels (float32, computed in " in captured.out
    assert "1 images could not be read (1 in this run); the column 'error'" in captured.out
    assert "0004.png cannot be read" in captured.out
    assert "Ignored 1 files without an image file extension." in captured.out
    assert "11 of 11 images" in captured.err

    metadata = pq.read_schema("out/shard-00000.parquet").metadata
    content = json.loads(metadata[b"veca"])
    assert content["command"] == shlex.join(["veca", *given])
    assert content["meta"]["model"] == str(folder / "model")
    assert (content["images"], content["failures"], content["source"]) == (10, 1, str(folder))
    collection = Collection.open("out")
    assert collection.paths[-1] == f"{folder}/s.tar#a.png"
    assert collection.patch_map("photos/0001.png").shape == (32, 2, 3)


def test_a_finished_run_does_nothing_and_says_so(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words("photos")) == 0
    paths = [folder / "out", *(folder / "out").iterdir()]
    before = {path: path.stat().st_mtime_ns for path in paths}
    capsys.readouterr()
    assert main(words("photos")) == 0
    assert "Nothing to do: out has 10 features of 32 channels" in capsys.readouterr().out
    assert before == {path: path.stat().st_mtime_ns for path in paths}
    (folder / "photos" / "0004.png").write_bytes(encoded(5))
    assert main(words("photos")) == 0
    assert "Embedded 1 images (1 changed files again) in" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (words("nothing"), "nothing does not exist, and no file matches it"),
        (words(), "no image was found in nothing; give files, folders"),
        (words("photos", out="photos"), "photos has other files (0000.png) and no collection"),
        (words("photos", flags=["--budget", "5"]), "budget=5 is outside 1..4"),
        (words("photos", flags=["--device", "abacus"]), "the device 'abacus' is not available"),
        (words("photos", flags=["--batch", "0"]), "batch=0, workers=2 is invalid"),
        (words("photos", flags=["--workers", "-1"]), "batch=16, workers=-1 is invalid"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(
    given: list[str], sentence: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(given) == 2
    error = capsys.readouterr().err
    assert error.startswith("veca: ")
    assert sentence in error
    assert error.count("\n") == 1
    assert not (folder / "out").exists()


def test_images_none_of_which_can_be_read_are_an_error(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "bad.png").write_bytes(b"")
    assert main(words("bad.png")) == 2
    assert "none of the 1 images could be read" in capsys.readouterr().err
    assert main(["search", "photos/0000.png", "--in", "out"]) == 2
    assert "out has no image that could be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "flags"),
    [
        (
            "embed",
            ["--model M", "--budget INT", "--out DIR", "--patches", "--ffn", "--size INT",
             "--fit {resize,crop,pad}", "--batch INT", "--workers INT",
             "--dtype {float16,float32}", "--device", "Example: veca embed", "exit code"],
        ),
        (
            "search",
            ["--in DIR", "--top INT", "--out PNG", "--json", "--model M", "Example: veca"],
        ),
    ],
)  # fmt: skip
def test_help_shows_every_flag_and_an_example(
    command: str, flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--help"]) == 0
    text = capsys.readouterr().out
    for flag in flags:
        assert flag in text


def test_an_interrupted_run_says_how_to_continue(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embed_module, "SHARD_ROWS", 4)
    real = CollectionWriter.write

    def write(*given: Any) -> None:
        real(*given)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(CollectionWriter, "write", write)
    assert main(words("photos")) == 130
    assert "Finished shards are kept; repeat the command" in capsys.readouterr().err
    assert len(Collection.open("out")) == 4


def children(process: int) -> list[int]:
    """Processes that a process has started."""
    found = Path(f"/proc/{process}/task").glob("*/children")
    return [int(word) for path in found for word in path.read_text().split()]


def stopped_after(
    given: Sequence[str], shards: int, folder: Path, number: signal.Signals
) -> tuple[int, list[int]]:
    """Signal a forked run once it has written some shards: its exit code, and its workers."""
    child = os.fork()
    if not child:
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        os._exit(main(given))
    deadline = time.monotonic() + 60
    while not (folder / f"shard-{shards - 1:05}.parquet").exists():
        if os.waitpid(child, os.WNOHANG)[0] or time.monotonic() > deadline:
            pytest.fail("the run ended before it could be stopped")
        time.sleep(0.001)
    workers = children(child)
    os.kill(child, number)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), workers


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads processes from /proc")
def test_a_run_that_is_stopped_by_signals_goes_on_to_the_same_bytes_and_leaves_no_process(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embed_module, "SHARD_ROWS", 8)
    write_pictures(folder / "photos", 400)  # enough to be still running when a signal arrives
    (folder / "photos" / "0100.png").write_bytes(b"")
    for name in ("stopped", "whole"):
        (folder / name).mkdir()
    given = ["embed", "../photos", "--model", "../model", "--out", "out", *FLAGS, "--patches"]

    monkeypatch.chdir(folder / "stopped")
    out, workers = folder / "stopped" / "out", []
    for shards, number, exit_code in (
        (4, signal.SIGKILL, -signal.SIGKILL),
        (8, signal.SIGTERM, 143),
        (12, signal.SIGINT, 130),
    ):
        found, its_workers = stopped_after(given, shards, out, number)
        assert found == exit_code
        workers += its_workers
    assert 12 <= len(Collection.open(out).shards) < 50
    assert Collection.open(out).missing > 0
    assert main(given) == 0
    monkeypatch.chdir(folder / "whole")
    assert main(given) == 0
    assert files(out) == files(folder / "whole" / "out")

    assert len(workers) >= 3
    deadline = time.monotonic() + 15  # they look for their parent every second
    while any(Path(f"/proc/{worker}").exists() for worker in workers):
        assert time.monotonic() < deadline, "a worker outlives its killed parent"
        time.sleep(0.1)


def test_an_image_finds_itself_first_and_a_sheet_is_written(
    embedded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["search", "photos/0005.png", "--in", "out", "--top", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "untrained" in lines[0]
    assert lines[1] == "   1  1.0000  photos/0005.png"
    assert [line.split()[0] for line in lines[1:4]] == ["1", "2", "3"]
    assert lines[4] == "Contact sheet: sheet.png"
    with Image.open(embedded / "sheet.png") as sheet:
        assert sheet.format == "PNG"


def test_a_new_image_is_embedded_by_the_model_of_the_collection(
    embedded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (embedded / "copy.png").write_bytes(encoded(3))
    assert main(["search", "copy.png", "--in", "out", "--out", "found.png", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["count"] == len(found["matches"]) == 10
    assert found["matches"][0]["path"] == str(embedded / "photos" / "0003.png")
    assert found["matches"][0]["similarity"] == pytest.approx(1, abs=1e-3)
    assert found["image"] == str(embedded / "copy.png")
    assert found["sheet"] == "found.png"
    assert (embedded / "found.png").exists()


def test_a_damaged_shard_is_an_error_until_its_images_are_given_or_it_is_deleted(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embed_module, "SHARD_ROWS", 4)
    assert main(words("photos")) == 0
    shard = folder / "out" / "shard-00001.parquet"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-1])
    problem = "veca: out/shard-00001.parquet is damaged: it does not match its SHA-256; repeat"
    for command in (["search", "photos/0000.png", "--in", "out"], words("photos/0000.png")):
        assert main(command) == 2
        assert problem in capsys.readouterr().err
    assert main(words("photos")) == 0
    assert shard.read_bytes() == whole
    shard.unlink()
    assert main(["search", "photos/0000.png", "--in", "out"]) == 0
    assert "warning: 1 shards are missing; repeat the veca embed command" in capsys.readouterr().out


def test_strange_names_do_not_reach_the_terminal(
    embedded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "a\x1b[31m\n.png"
    (embedded / "photos" / name).write_bytes(encoded(20))
    config = EmbedConfig(size=32)
    embed_images(["photos"], small_model(), "out", config, num_workers=0, device="cpu")
    assert main(["search", f"photos/{name}", "--in", "out", "--top", "1"]) == 0
    assert "photos/a?[31m?.png" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (["photos/0000.png", "--in", "photos"], "photos has no collection"),
        (["nothing.png", "--in", "out"], "nothing.png does not exist"),
        (["photos/0000.png", "--in", "out", "--top", "0"], "top=0 is invalid"),
        (["photos/0000.png", "--in", "out", "--out", "out"], "out is a folder; give a file"),
    ],
)
def test_a_mistake_in_a_search_is_one_sentence_and_exit_code_2(
    given: list[str], sentence: str, embedded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["search", *given]) == 2
    error = capsys.readouterr().err
    assert error.startswith("veca: ")
    assert sentence in error
    assert error.count("\n") == 1
