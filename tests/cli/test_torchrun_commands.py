"""Commands for many processes, as the documents show them, reach veca through torchrun."""

import re
import shlex

import pytest
from torch.distributed.run import get_args_parser

from tests.rules import ROOT

PAGES = ("README.md", "docs/training.md", "docs/evaluation.md")


def shown_commands() -> list[str]:
    """Every line of a page that begins with torchrun, with the lines that continue it."""
    whole = [re.sub(r"\\\n\s*", "", (ROOT / page).read_text("utf-8")) for page in PAGES]
    return [line for page in whole for line in page.splitlines() if line.startswith("torchrun ")]


def told_commands() -> list[str]:
    """Every mention of torchrun with a module, in pages, scripts, help and docstrings."""
    files = [path for folder in ("src", "docs") for path in (ROOT / folder).rglob("*")]
    texts = [
        path.read_text("utf-8")
        for path in [ROOT / "README.md", *files]
        if path.suffix in {".py", ".md", ".sh", ".toml"}
    ]
    return [told for text in texts for told in re.findall(r"torchrun[^\n`]* -m [^\n`]*", text)]


def test_wherever_torchrun_is_told_of_two_dashes_stand_before_veca() -> None:
    told = told_commands()
    assert len(told) > 10
    assert [one for one in told if " -m -- veca" not in one] == []


def test_the_documents_show_such_commands() -> None:
    assert any("--start" in command for command in shown_commands())


@pytest.mark.parametrize("command", shown_commands())
def test_torchrun_hands_all_flags_to_veca(command: str) -> None:
    words = shlex.split(command, comments=True)
    flags = words[words.index("veca") + 1 :]

    handed = get_args_parser().parse_args(words[1:])

    assert (handed.module, handed.training_script) == (True, "veca")
    assert handed.training_script_args == flags


def test_without_the_dashes_torchrun_takes_start_for_its_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = "--nproc-per-node 2 -m veca distill small --stage 2 --start runs/small/best"

    with pytest.raises(SystemExit):
        get_args_parser().parse_args(command.split())

    assert "--start" in capsys.readouterr().err
