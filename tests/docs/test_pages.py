"""Every code block of README and the guides runs, or says why it does not; the site builds.

A block runs unless a comment right above it gives a reason: `<!-- not run: needs a GPU -->`. Lines
that set up an environment (make, pip, activate) or start several processes (torchrun) are checked
instead, and so are the flags of every command that does not run.
"""

import functools
import importlib.util
import inspect
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import tyro
from PIL import Image
from torch.distributed.run import get_args_parser

import veca
from tests.explore.conftest import small_explorer
from tests.rules import ROOT
from veca.cli.main import main
from veca.explore.server import create_app
from veca.probe import models

MOST_WORDS_OF_GUIDES = 11_000
MOST_LINES_OF_README = 120
MOST_FILES_OF_RECORDS = 70


PAGES = ["README.md", *(f"docs/guides/{one.name}" for one in sorted(ROOT.glob("docs/guides/*.md")))]

FENCE = re.compile(
    r"(?:^<!-- not run: (?P<reason>.+?) -->\n)?^```(?P<language>\w*)\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)

SHORT = {
    "distill": "--steps 2 --schedule.warmup-steps 1 --batch 2 --resolution 64 --validation-images 2"
    " --statistics-images 8 --validate-every 2 --workers 0 --backbone.layers 2",
    "probe": "--workers 0",
    "embed": "--workers 0",
    "figures": "--size 64 --resolutions 64 --budgets 8 --only features",
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
        case ["curl", *_, address]:
            path = address.partition("8765")[2].partition("?")[0].replace("PICTURE", "{picture}")
            assert path in create_app(small_explorer()).openapi()["paths"], path
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


def write_photo(path: Path, number: int) -> None:
    """A small colored picture."""
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(number).integers(0, 256, (6, 8, 3), np.uint8)
    Image.fromarray(noise).resize((96, 72)).save(path)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the pages take for granted: photos of cats and dogs, and models in runs/."""
    folder = tmp_path_factory.mktemp("prepared")
    write_photo(folder / "holiday.jpg", 0)
    write_photo(folder / "beach.jpg", 1)
    for number in range(20):
        part = "train" if number < 16 else "val"
        write_photo(folder / "photos" / part / ("cat", "dog")[number % 2] / f"{number}.jpg", number)
    shutil.copytree(folder / "photos", folder / "pets")
    run = [
        "distill",
        "tiny",
        "--images",
        str(folder / "photos"),
        "--out",
        str(folder / "runs/tiny"),
    ]
    assert main([*run, *SHORT["distill"].split()]) == 0
    veca.save(
        veca.build("tiny", layers=1, attention="full"), folder / "runs" / "tiny-full" / "best"
    )
    return folder


@pytest.fixture
def sandbox(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A copy of the prepared folder to work in."""
    shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(models, "MAX_TIMING_SECONDS", 0.001)  # times are not what a page shows
    yield
    sys.modules.pop("my_teacher", None)


def run_python(block: Block, names: dict[str, Any]) -> None:
    """Run a block in the namespace of its page; one that begins with a file name is a file too."""
    first = block.code.partition("\n")[0].removeprefix("# ")
    if first.endswith(".py"):
        Path(first).write_text(block.code, "utf-8")
    exec(compile(block.code, f"{block.page}:{block.line}", "exec"), names)


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.usefixtures("sandbox")
def test_every_block_of_a_page_runs(page: str) -> None:
    names: dict[str, Any] = {"__name__": "page"}
    for block in blocks_of(page):
        try:
            if block.language == "python" and block.reason is None:
                run_python(block, names)
            for words in block.commands() if block.language == "bash" else ():
                (run_command if block.reason is None else check_command)(words)
        except Exception as error:
            error.add_note(f"in the block of {page}, line {block.line}")
            raise


def test_every_block_says_its_language() -> None:
    blocks = [block for page in PAGES for block in blocks_of(page)]
    assert len(blocks) > 30
    assert {block.language for block in blocks} == {"bash", "python"}


@pytest.mark.parametrize(
    "words",
    [
        "veca distill tiny --images photos --out runs/x --no-such-flag 1",
        "torchrun --nproc-per-node 2 -m -- veca probe knn pets --mode x --out y",
        "make no-such-target",
        "pip install -e '.[no-such-extra]'",
        "rm -r photos",
    ],
)
def test_a_command_that_cannot_work_is_noticed(words: str) -> None:
    with pytest.raises(AssertionError):
        check_command(words.replace("'", "").split())


def test_pages_stay_short() -> None:
    guides = [(ROOT / page).read_text("utf-8") for page in PAGES if page != "README.md"]
    assert sum(len(text.split()) for text in guides) <= MOST_WORDS_OF_GUIDES
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= MOST_LINES_OF_README


needs_sphinx = pytest.mark.skipif(
    importlib.util.find_spec("sphinx") is None, reason="needs the extra docs"
)


@needs_sphinx
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    words = ["-m", "sphinx", "-W", "--keep-going", "-q", "docs", str(tmp_path / "site")]
    built = subprocess.run(
        [sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (built.returncode, built.stderr) == (0, "")
    api = (tmp_path / "site" / "api.html").read_text("utf-8")
    assert "Encode images with the first" in api  # docstrings were read


def test_every_page_says_what_it_is_for() -> None:
    for page in [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "guides").glob("*.md")]:
        text = page.read_text("utf-8")
        if "{include}" not in text:
            second = text.split("\n\n")[1]
            assert second.startswith("For "), f"{page.name} begins with: {second[:60]}"


def test_records_stay_few() -> None:
    files = [path for path in (ROOT / "docs" / "results").rglob("*") if path.is_file()]
    assert len(files) <= MOST_FILES_OF_RECORDS
