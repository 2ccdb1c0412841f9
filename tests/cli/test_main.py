"""The command line: finds commands, and words mistakes in one sentence."""

import io
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest

import veca
from tests.weights.models import trained_model
from veca.cli import main as cli
from veca.cli.main import COMMANDS, main


def failing(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Add the command `fail`, which fails."""

    def fail(words: Sequence[str]) -> None:
        assert words == ["now"]
        raise error

    home = ModuleType("failing")
    home.fail = fail  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "failing", home)
    monkeypatch.setattr(cli, "COMMANDS", {"fail": ("failing", "fails")})


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--help"], ["-h"], ["help"]):
        assert main(words) == 0
        printed = capsys.readouterr().out
        assert all(name in printed and text in printed for name, (_, text) in COMMANDS.items())


def test_no_command_shows_the_help_and_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "veca info" in capsys.readouterr().out


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"veca {veca.__version__}\n"


def test_an_unknown_command_is_answered_with_the_known_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["paint"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert f"'paint' is not a command; use one of {', '.join(COMMANDS)}." in printed.err


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_every_command_shows_an_example(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--help"]) == 0
    assert f"Example: veca {command} " in capsys.readouterr().out


@pytest.mark.parametrize("command", [["distill", "tiny"], ["probe", "knn"], ["bench"]])
def test_a_long_help_begins_with_the_common_flags_and_has_all_on_request(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--help"]) == 0
    short = capsys.readouterr().out
    assert main([*command, "--help-all"]) == 0
    long = capsys.readouterr().out
    assert short.count("\n") <= 50
    assert "--help-all lists every flag" in short
    flags = {text: set(re.findall(r"--[\w.-]+", text)) - {"--help-all"} for text in (short, long)}
    assert {"--out", "--seed", "--seeds"} & flags[short]
    assert flags[short] < flags[long]
    assert "--device" in long


@pytest.mark.parametrize("error", [ValueError("two\nlines"), OSError("two\nlines")])
def test_a_users_mistake_is_one_sentence_on_stderr(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing(monkeypatch, error)
    assert main(["fail", "now"]) == 2
    assert capsys.readouterr() == ("", "veca: two lines\n")


def test_a_traceback_is_shown_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, ValueError("words"))
    monkeypatch.setenv("VECA_TRACEBACK", "1")
    with pytest.raises(ValueError, match="words"):
        main(["fail", "now"])


@pytest.mark.parametrize("error", [ZeroDivisionError("ours"), RuntimeError("ours")])
def test_a_mistake_of_ours_is_not_hidden(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, error)
    with pytest.raises(type(error), match="ours"):
        main(["fail", "now"])


def test_a_killed_worker_is_reported_with_advice(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing(monkeypatch, RuntimeError("DataLoader worker (pid 5) is killed."))
    assert main(["fail", "now"]) == 2
    assert capsys.readouterr().err.endswith("is killed. Use fewer workers.\n")


def test_ctrl_c_ends_with_the_code_that_shells_expect(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing(monkeypatch, KeyboardInterrupt())
    assert main(["fail", "now"]) == 130
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(("code", "exit_code"), [(None, 0), (0, 0), (3, 3), ("words", 2)])
def test_a_command_that_exits_keeps_its_code(
    code: int | str | None, exit_code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, SystemExit(code))
    assert main(["fail", "now"]) == exit_code


def test_names_in_errors_cannot_control_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing(monkeypatch, OSError("no a\x1b[2J\udce9.jpg"))
    assert main(["fail", "now"]) == 2
    assert capsys.readouterr().err == "veca: no a?[2J?.jpg\n"


def run(*words: str | Path, output: int) -> tuple[int, str]:
    """Exit code and errors of `python -m veca` in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "veca", *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=output,
        stderr=subprocess.PIPE,
        check=False,
    )
    return done.returncode, done.stderr.decode()


def test_the_module_is_the_command() -> None:
    code, errors = run("paint", output=subprocess.DEVNULL)
    assert code == 2
    assert errors.startswith("veca: 'paint' is not a command")
    assert errors.count("\n") == 1


def test_a_reader_that_has_seen_enough_gets_no_traceback(tmp_path: Path) -> None:
    veca.save(trained_model(), tmp_path)
    reader, writer = os.pipe()
    os.close(reader)
    assert run("info", tmp_path, "--json", output=writer) == (1, "")
    os.close(writer)


def test_without_an_output_a_command_succeeds_and_its_waiting_threads_sleep(tmp_path: Path) -> None:
    veca.save(trained_model(), tmp_path)
    environment = {key: value for key, value in os.environ.items() if key != "OMP_WAIT_POLICY"}
    environment |= {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_DISPLAY_ENV": "true"}
    line = '"$0" -m veca info "$1" >&-'
    words = ["sh", "-c", line, sys.executable, str(tmp_path)]
    done = subprocess.run(words, env=environment, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    if sys.platform == "linux":  # where torch has the OpenMP of gcc, which shows its settings
        assert "OMP_WAIT_POLICY = 'PASSIVE'" in done.stderr


@pytest.mark.parametrize("name", ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"])
def test_how_threads_wait_is_left_to_the_user(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.setenv(name, "ACTIVE")
    main(["--version"])
    assert os.environ.get("OMP_WAIT_POLICY", "ACTIVE") == "ACTIVE"


def test_names_that_are_not_utf8_are_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    home = ModuleType("printing")
    home.show = lambda words: print(*words)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "printing", home)
    monkeypatch.setattr(cli, "COMMANDS", {"show": ("printing", "prints")})
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, "utf-8"))
    assert main(["show", "b\udce9.jpg"]) == 0
    assert written.getvalue() == b"b\\udce9.jpg\n"


@pytest.mark.parametrize(
    "code", ["import veca", "from veca.cli.main import main; main(['--help'])"]
)
def test_neither_the_package_nor_its_help_loads_torch(code: str) -> None:
    subprocess.run(
        [sys.executable, "-c", f"{code}; import sys; assert 'torch' not in sys.modules"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.DEVNULL,
        check=True,
    )


def test_every_public_name_is_imported_when_it_is_used() -> None:
    assert {"VECA", "build", "load", "prepare", "save"} <= set(dir(veca))
    assert all(getattr(veca, name) is not None for name in dir(veca) if name[0] != "_")
    with pytest.raises(AttributeError, match="no attribute 'lode'"):
        getattr(veca, "lode")  # noqa: B009 - what a typing mistake does
