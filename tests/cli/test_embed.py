"""`veca embed`: one command from pictures to vectors, which survives being killed."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.data.pictures import encoded, saved_model, write_pictures, write_shard
from veca.cli.main import main
from veca.embed import windows
from veca.embed.collection import open_collection

FLAGS = ["--size", "32", "--budget", "3", "--workers", "1", "--batch", "4", "--device", "cpu"]

IN_SMALL_WINDOWS = """
import sys
from veca.cli.main import main
from veca.embed import windows
windows.WINDOW = 8
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Ten pictures and a model, where the command is called."""
    write_pictures(tmp_path / "photos", 10)
    saved_model(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def words(*inputs: str, out: str = "out", flags: Sequence[str] = FLAGS) -> list[str]:
    return ["embed", *inputs, "--model", "model", "--out", out, *flags]


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_collection_is_made_and_described(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_shard(folder / "s.tar", [("a.png", encoded(50)), ("a.txt", b"words")])
    (folder / "photos" / "0004.png").write_bytes(b"")
    given = words("photos", "s.tar", flags=[*FLAGS, "--patches", "--dtype", "float32"])
    assert main(given) == 0
    captured = capsys.readouterr()
    assert "The weights of model are untrained" in captured.out
    assert "Embedded 10 pictures in " in captured.out
    assert "out holds 10 vectors of 32 numbers (float32, computed in " in captured.out
    assert "Skipped 1 that could not be read (1 of them now); out/skipped.jsonl" in captured.out
    assert "Left out 1 files that are not named like pictures." in captured.out
    assert "11 of 11 images" in captured.err

    content = json.loads((folder / "out" / "collection.json").read_text())
    assert content["command"] == shlex.join(["veca", *given])
    assert content["model"]["name"] == str(folder / "model")
    assert (content["count"], content["budget"], content["patches"]) == (10, 3, True)
    collection = open_collection("out")
    assert collection.paths[-1] == f"{folder}/s.tar#a.png"
    assert collection.patch_map(1).shape == (32, 2, 3)


def test_a_finished_run_does_nothing_and_says_so(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words("photos")) == 0
    paths = [folder / "out", *(folder / "out").iterdir()]
    before = {path: path.stat().st_mtime_ns for path in paths}
    capsys.readouterr()
    assert main(words("photos")) == 0
    captured = capsys.readouterr()
    assert "Nothing to do: every picture is in out, which holds 10 vectors" in captured.out
    assert captured.err == ""
    assert before == {path: path.stat().st_mtime_ns for path in paths}


def test_a_changed_picture_is_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words("photos")) == 0
    (folder / "photos" / "0004.png").write_bytes(encoded(5))
    assert main(words("photos")) == 0
    assert "1 files have changed since they were embedded" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (words("nothing"), "nothing does not exist, and no file matches it"),
        (words(), "no picture was found in nothing; give files, folders"),
        (words("photos", out="photos"), "photos holds other files (0000.png) and no collection"),
        (words("photos", flags=["--budget", "5"]), "budget=5 is outside 1..4"),
        (words("photos", flags=["--device", "abacus"]), "the device 'abacus' cannot be used here"),
        (words("photos", flags=["--batch", "0"]), "batch=0 holds no picture"),
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


def test_pictures_none_of_which_can_be_read_are_an_error(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "bad.png").write_bytes(b"")
    assert main(words("bad.png")) == 2
    assert "none of the 1 inputs could be read" in capsys.readouterr().err


def test_a_misspelled_flag_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words("photos"), "--bugdet", "3"]) == 2
    assert "--budget" in capsys.readouterr().err


def test_help_shows_every_flag_and_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["embed", "--help"]) == 0
    text = capsys.readouterr().out
    for flag in (
        "--model M", "--budget INT", "--out DIR", "--patches", "--ffn SHARE", "--size INT",
        "--fit {resize,crop,pad}", "--batch INT", "--workers INT", "--dtype {float16,float32}",
        "--device", "Example: veca embed", "exit code",
    ):  # fmt: skip
        assert flag in text


def test_an_interrupted_run_says_how_to_go_on(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(windows.Planner, "windows", interrupt)
    assert main(words("photos")) == 130
    assert "Finished shards are kept; repeat the command" in capsys.readouterr().err
    assert (folder / "out" / "collection.json").exists()


def started(given: Sequence[str]) -> subprocess.Popen[bytes]:
    """The command in a process of its own, with windows of eight."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        [sys.executable, "-c", IN_SMALL_WINDOWS, *given],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def children(process: int) -> list[int]:
    """Processes that a process has started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # ended meanwhile
            continue
        if int(fields[1]) == process and fields[0] != "Z":
            found.append(int(path.parent.name))
    return found


def killed_after(given: Sequence[str], shards: int, folder: Path) -> list[int]:
    """Kill a run once so many shards are there; the workers that it leaves behind."""
    with started(given) as process:
        deadline = time.monotonic() + 60
        while not (folder / f"vectors-{shards - 1:05}.safetensors").exists():
            if process.poll() is not None or time.monotonic() > deadline:
                pytest.fail("the run ended before it could be killed")
            time.sleep(0.001)
        workers = children(process.pid)
        process.send_signal(signal.SIGKILL)
    return workers


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads processes from /proc")
def test_a_run_that_is_killed_goes_on_to_the_same_bytes_and_leaves_no_process(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windows, "WINDOW", 8)
    write_pictures(folder / "photos", 400)
    (folder / "photos" / "0100.png").write_bytes(b"")
    for name in ("killed", "whole"):
        (folder / name).mkdir()
    given = ["embed", "../photos", "--model", "../model", "--out", "out", *FLAGS, "--patches"]

    monkeypatch.chdir(folder / "killed")
    workers = killed_after(given, 5, folder / "killed" / "out")
    assert not json.loads(Path("out/collection.json").read_text())["complete"]
    workers += killed_after(given, 25, folder / "killed" / "out")
    assert 24 <= len(json.loads(Path("out/collection.json").read_text())["shards"]) < 50
    assert main(given) == 0
    monkeypatch.chdir(folder / "whole")
    assert main(given) == 0
    assert files(folder / "killed" / "out") == files(folder / "whole" / "out")

    assert len(workers) >= 2
    deadline = time.monotonic() + 15  # they look for their parent every five seconds
    while any(Path(f"/proc/{worker}").exists() for worker in workers):
        assert time.monotonic() < deadline, "a worker outlives its killed parent"
        time.sleep(0.1)
