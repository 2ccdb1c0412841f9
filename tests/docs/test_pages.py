"""Every code block of README and the guides runs, or says why it does not."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import veca
from tests.docs.pages import PAGES, SHORT, Block, blocks_of, check_command, run_command
from tests.rules import ROOT
from veca.cli.main import main

MOST_WORDS_OF_GUIDES = 10_500
MOST_LINES_OF_README = 120


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
