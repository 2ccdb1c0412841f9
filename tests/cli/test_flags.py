"""Flags that several commands share, and documented torchrun lines."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest
import tyro
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.run import get_args_parser

from tests.rules import ROOT
from veca.cli.distill import REGISTRY, _phase, _phase_text
from veca.cli.flags import command_line, numbers, read_flags, texts, whole_numbers
from veca.train.schedules import ResolutionPhase


def test_values_come_rising_and_each_once() -> None:
    assert whole_numbers("--budgets", "64,8, 16,8") == (8, 16, 64)
    assert numbers("--ffn", "1,0.25") == (0.25, 1.0)


@pytest.mark.parametrize("text", ["", "8,", "8;16", "8.5"])
def test_what_is_no_list_of_whole_numbers_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match=r"--budgets got .* such as 8,16,64"):
        whole_numbers("--budgets", text)


def test_what_is_no_list_of_numbers_is_refused_with_an_example() -> None:
    with pytest.raises(ValueError, match=r"--ffn got 'all'; give numbers .* such as 0.25,1.0"):
        numbers("--ffn", "all")


def test_texts_stay_in_their_order_each_once() -> None:
    assert texts("--also", "b=x, a=y,b=x,,") == ("b=x", "a=y")


@pytest.mark.parametrize("text", ["", " , "])
def test_a_list_of_no_texts_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"--also got .*; give names with commas\."):
        texts("--also", text)


@dataclass(frozen=True, kw_only=True)
class Lists:
    """One list of each kind."""

    names: tuple[str, ...] = ("a",)
    """names"""

    counts: tuple[int, ...] = (1, 2)
    """counts"""

    shares: tuple[float, ...] | None = None
    """shares"""

    phases: tuple[ResolutionPhase, ...] = (ResolutionPhase(sizes=(32,)),)
    """phases"""

    pair: tuple[float, float] = (0.1, 0.2)
    """a pair, which takes two words"""


def read(*words: str, default: Lists = Lists()) -> Lists:  # noqa: B008 - frozen
    """What the words mean."""
    with REGISTRY:
        return tyro.cli(Lists, args=words, default=default)


def test_lists_are_one_word_with_commas() -> None:
    found = read("--names", "a/b,c", "--counts", "8, 16,64", "--shares", "0.5,1")
    assert found.names == ("a/b", "c")
    assert found.counts == (8, 16, 64)
    assert found.shares == (0.5, 1.0)
    assert all(isinstance(share, float) for share in found.shares)


def test_one_value_is_a_list_and_what_is_not_named_stays() -> None:
    default = Lists(counts=(3,), shares=(0.25,), phases=(ResolutionPhase(sizes=(64, 96)),))
    assert read(default=default) == default
    found = read("--counts", "5", default=default)
    assert found == Lists(counts=(5,), shares=(0.25,), phases=default.phases)


def test_a_list_that_may_be_missing_can_be_taken_away() -> None:
    assert read("--shares", "None", default=Lists(shares=(0.25,))).shares is None


def test_flags_that_may_be_missing_are_shown_by_what_they_hold(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def command(
        *, size: int | None = 3, place: Path | None = None
    ) -> tuple[int | None, Path | None]:
        """Stand in for a command.

        Args:
            size: a number
            place: a path
        """
        return size, place

    def result(*words: str) -> tuple[int | None, Path | None]:
        return read_flags(command, words, prog="veca x", description="Words.")

    assert result() == (3, None)
    assert result("--size", "None", "--place", "a/b") == (None, Path("a/b"))
    assert result("--size", "5") == (5, None)
    with pytest.raises(SystemExit):
        result("--help")
    printed = capsys.readouterr().out
    assert "--size INT" in printed
    assert "--place PATH" in printed


def test_other_tuples_stay_as_many_words() -> None:
    assert read("--pair", "0.3", "0.4").pair == (0.3, 0.4)


@pytest.mark.parametrize(
    "words",
    [
        ("--counts", "8,x"),
        ("--counts", "8.5"),
        ("--shares", "all"),
        ("--phases", "large"),
        ("--phases", "0:32*x"),
        ("--phases", "1.5:32"),
        ("--counts", "8", "16"),
    ],
)
def test_what_is_no_list_is_refused_with_its_flag(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        read(*words)
    assert caught.value.code == 2
    printed = capsys.readouterr()
    found = printed.out + printed.err
    assert words[0] in found or words[-1] in found
    assert "Traceback" not in found


def test_the_help_shows_how_lists_are_written(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read("--help", default=Lists(counts=(8, 16), shares=(0.5, 1.0)))
    words = " ".join(capsys.readouterr().out.split())
    for part in ("STR,...", "INT,...", "8,16", "0.5,1.0", "FROM_SHARE:PIXELS*WEIGHT"):
        assert part in words


@pytest.mark.parametrize(
    ("text", "phases"),
    [
        ("128", [ResolutionPhase(sizes=(128,))]),
        ("128, 160", [ResolutionPhase(sizes=(128, 160))]),
        ("0:128", [ResolutionPhase(sizes=(128,))]),
        ("128*2,160", [ResolutionPhase(sizes=(128, 160), weights=(2.0, 1.0))]),
        (
            "0:256*0.35,384*0.65; 0.14:256,768;",
            [
                ResolutionPhase(sizes=(256, 384), weights=(0.35, 0.65)),
                ResolutionPhase(sizes=(256, 768), from_share=0.14),
            ],
        ),
        ("", []),
    ],
)
def test_phases_are_read_as_they_are_written(text: str, phases: list[ResolutionPhase]) -> None:
    assert read("--phases", text).phases == tuple(phases)


PAIRS = st.lists(
    st.tuples(st.integers(1, 4096), st.floats(0, 1e6, exclude_min=True)), min_size=1, max_size=4
)
"""Sizes with their weights."""


@given(st.lists(st.tuples(PAIRS, st.booleans(), st.floats(0, 1)), max_size=4))
def test_phases_survive_being_written_and_read(
    drawn: list[tuple[list[tuple[int, float]], bool, float]],
) -> None:
    phases = tuple(
        ResolutionPhase(
            sizes=tuple(size for size, _ in pairs),
            weights=tuple(weight for _, weight in pairs) if weighted else None,
            from_share=share,
        )
        for pairs, weighted, share in drawn
    )
    assert tuple(_phase(_phase_text(phase)) for phase in phases) == phases


WORDS = ["knn", "my photos", "--out", "probes"]


@pytest.mark.parametrize(
    ("given", "before"),
    [
        ({}, ""),
        ({"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}, "torchrun --nproc-per-node 2 -m -- "),
        (
            {"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"},
            "torchrun --nnodes 2 --nproc-per-node 4 -m -- ",
        ),
        ({"WORLD_SIZE": "many"}, ""),
    ],
)
def test_a_command_is_recorded_with_the_processes_that_ran_it(
    given: dict[str, str], before: str
) -> None:
    assert command_line("probe", WORDS, given) == f"{before}veca probe knn 'my photos' --out probes"


PAGES = ("README.md", "docs/guides/training.md", "docs/guides/evaluation.md")


def shown_commands() -> list[str]:
    """Every line of a page that begins with torchrun, with the lines that continue it."""
    whole = [re.sub(r"\\\n\s*", "", (ROOT / page).read_text("utf-8")) for page in PAGES]
    return [line for page in whole for line in page.splitlines() if line.startswith("torchrun ")]


def test_wherever_torchrun_is_documented_two_dashes_stand_before_veca() -> None:
    # Without them torchrun takes `--start` as an abbreviation of its own `--start-method`.
    files = [path for name in ("src", "docs") for path in (ROOT / name).rglob("*")]
    files.append(ROOT / "README.md")
    suffixes = {".py", ".md", ".sh", ".toml"}
    texts = [path.read_text("utf-8") for path in files if path.suffix in suffixes]
    found = [line for text in texts for line in re.findall(r"torchrun[^\n`]* -m [^\n`]*", text)]
    assert len(found) > 10
    assert [one for one in found if " -m -- veca" not in one] == []
    assert any("--start" in command for command in shown_commands())


@pytest.mark.parametrize("command", shown_commands())
def test_torchrun_hands_all_flags_to_veca(command: str) -> None:
    words = shlex.split(command, comments=True)
    flags = words[words.index("veca") + 1 :]

    handed = get_args_parser().parse_args(words[1:])

    assert (handed.module, handed.training_script) == (True, "veca")
    assert handed.training_script_args == flags
