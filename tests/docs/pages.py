"""The code blocks of README and the guides, and how to run them where pictures are few and small.

A block runs unless a comment right above it gives a reason: `<!-- not run: needs a GPU -->`. Lines
that set up an environment (make, pip, activate) or start several processes (torchrun) are checked
instead, and so are the flags of every command that does not run.
"""

import functools
import inspect
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pytest
import tyro
from torch.distributed.run import get_args_parser

from tests.rules import ROOT
from veca.cli.main import main

PAGES = ["README.md", *(f"docs/guides/{one.name}" for one in sorted(ROOT.glob("docs/guides/*.md")))]

FENCE = re.compile(
    r"(?:^<!-- not run: (?P<reason>.+?) -->\n)?^```(?P<language>\w*)\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)

SHORT = {
    "distill": "--steps 2 --schedule.warmup-steps 1 --batch 2 --resolution 64 --validation-images 2"
    " --statistics-images 8 --validate-every 2 --workers 0",
    "probe": "--workers 0",
    "embed": "--workers 0",
}
"""Flags that a test appends, so that a command takes seconds; the last value of a flag counts."""


class Block(NamedTuple):
    """A fenced block of a page."""

    page: str
    line: int
    language: str
    code: str
    reason: str | None
    """Why it is not run."""

    def commands(self) -> Iterator[list[str]]:
        """The words of each command of a shell block."""
        for line in self.code.replace("\\\n", " ").splitlines():
            if words := shlex.split(line, comments=True):
                yield words


def blocks_of(page: str) -> list[Block]:
    """All blocks of a page, in order."""
    text = (ROOT / page).read_text("utf-8")
    return [
        Block(
            page,
            text.count("\n", 0, found.start("code")),
            *found.group("language", "code", "reason"),
        )
        for found in FENCE.finditer(text)
    ]


def run_command(words: Sequence[str]) -> None:
    """Run a command of veca as a test can, or check what only a person or a cluster runs."""
    if words[0] != "veca":
        check_command(words)
        return
    flags = SHORT.get(words[1], "").split()
    if words[1] == "probe" and "--resolution" not in words:
        flags += ["--resolution", "64"]
    code = main([*words[1:], *flags])
    assert code == 0, f"{shlex.join(words)} ended with exit code {code}"


def check_command(words: Sequence[str]) -> None:
    """Check a command without running it: targets, extras and flags must exist."""
    match words:
        case ["veca", *rest]:
            check_flags(rest)
        case ["torchrun", *rest]:
            handed = get_args_parser().parse_args(rest)
            assert (handed.module, handed.training_script) == (True, "veca"), shlex.join(words)
            check_flags(handed.training_script_args)
        case ["make", target]:
            makefile = (ROOT / "Makefile").read_text("utf-8")
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"no target {target}"
        case ["pip", "install", "-e", package, *_]:
            project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
            extras = package.removeprefix(".[").removesuffix("]").split(",")
            assert set(extras) <= set(project["optional-dependencies"]), package
        case [".", ".venv/bin/activate"]:
            pass
        case _:
            raise AssertionError(f"the test does not know how to check: {shlex.join(words)}")


class Parsed(Exception):  # noqa: N818 - no error: it ends a command after its flags
    """The flags of a command were read."""


def check_flags(words: Sequence[str]) -> None:
    """Let a command read its flags, and stop it there."""
    read = tyro.cli

    def parse(what: Callable[..., Any], **given: Any) -> None:
        @functools.wraps(what)
        def nothing(*_: object, **__: object) -> None:
            """Stand in for a command that would run."""

        read(nothing if inspect.isfunction(what) else what, **given)
        raise Parsed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tyro, "cli", parse)
        try:
            code = main(words)
        except Parsed:
            return
    raise AssertionError(f"veca {shlex.join(words)} ended with exit code {code}")
