"""The summary of a run is one page that stands alone."""

import html.parser
import re
from pathlib import Path

import pytest

from tests.distill.made_up_log import CONSTANT, speed, train, validation, write_log, write_run
from veca.distill.summary import write_summary

FACTS = {
    "recipe": "quick <script>alert(1)</script>",
    "teacher": "a & b",
    "licence": "apache-2.0",
    "images": "4,000",
    "seed": "0",
}


class Tags(html.parser.HTMLParser):
    """Checks that tags nest."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in {"meta", "br"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def summary(folder: Path, facts: dict[str, str] | None = None) -> str:
    """The text of the summary, whose tags nest."""
    path = write_summary(folder, FACTS if facts is None else facts)
    assert path == folder / "summary.html"
    text = path.read_text("utf-8")
    tags = Tags()
    tags.feed(text)
    assert not tags.open
    return text


def cells(text: str) -> list[list[str]]:
    """Rows of the tables as they are read."""
    rows = re.findall(r"<tr>(.*?)</tr>", text, re.DOTALL)
    found = [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row, re.DOTALL) for row in rows]
    return [[html.unescape(re.sub(r"<[^>]*>", "", cell)) for cell in row] for row in found]


def test_the_page_refers_to_nothing_outside_and_runs_nothing(tmp_path: Path) -> None:
    text = summary(write_run(tmp_path, 100))
    assert not re.search(r"(?:src|href)=|@import|https?:|<script|<link", text)
    assert set(re.findall(r"url\([^)]*\)", text)) == {"url(#plot)"}
    assert text.count('id="plot"') == 1


def test_what_comes_from_outside_is_text_and_never_markup(tmp_path: Path) -> None:
    text = summary(write_run(tmp_path, 100))
    assert "<script>" not in text
    assert "quick &lt;script&gt;" in text
    assert "a &amp; b \u00b7 4,000" in text


@pytest.mark.parametrize("facts", [{}, FACTS])
def test_a_run_without_rows_has_a_page_too(tmp_path: Path, facts: dict[str, str]) -> None:
    text = summary(tmp_path, facts)
    assert "Nothing was logged yet." in text
    assert ["steps done", "0"] in cells(text)


def test_a_run_that_only_validated_has_a_page_too(tmp_path: Path) -> None:
    text = summary(write_log(tmp_path, [validation(0, 2.5)]))
    assert "Nothing was logged yet." not in text
    assert ["8 cores", "1", "128", "2.5000", "2.5000", "0", "2.5000", "", ""] in cells(text)


def test_the_table_tells_first_best_and_last_against_the_constant(tmp_path: Path) -> None:
    losses = {0: (3.0, 3.0), 1000: (1.4, 2.4), 2000: (1.5, 2.2)}
    rows = [
        validation(step, loss, budget)
        for step, pair in losses.items()
        for budget, loss in zip((8, 64), pair, strict=True)
    ]
    text = summary(write_log(tmp_path, [CONSTANT, *rows]))
    found = cells(text)
    assert ["8 cores", "1", "128", "3.0000", "1.4000", "1,000", "1.5000", "2.0000",
            "25.0% below"] in found  # fmt: skip
    assert ["64 cores", "1", "128", "3.0000", "2.2000", "2,000", "2.2000", "2.0000",
            "10.0% above"] in found  # fmt: skip
    assert '<span class="bad">10.0% above</span>' in text


def test_the_tiles_tell_the_largest_budget_and_the_weakest(tmp_path: Path) -> None:
    rows = [
        validation(10, loss, budget, ffn=share)
        for budget, share, loss in ((8, 0.5, 1.8), (8, 1.0, 1.7), (64, 0.5, 1.6), (64, 1.0, 1.5))
    ]
    text = summary(write_log(tmp_path, [CONSTANT, *rows, train(9)], [speed(9)]))
    tiles = re.findall(r'<div class="tile"><b>(.*?)</b><span>(.*?)</span></div>', text)
    assert tiles == [
        ("10", "steps"),
        ("1.5000", "validation loss, 64 cores, ffn 1"),
        ("10.0% below", "the best constant, at the weakest: 8 cores, ffn 0.5"),
        ("200.0", "images per second"),
    ]


def test_facts_are_listed_and_what_the_log_tells_is_added(tmp_path: Path) -> None:
    found = cells(summary(write_run(tmp_path, 100)))
    for row in (
        ["licence", "apache-2.0"],
        ["steps done", "100"],
        ["skipped steps", "1"],
        ["resumes", "1"],
        ["images per second", "200.0 (median)"],
        ["waiting for data", "2.0% of the time"],
        ["most memory", "1,500 MB"],
    ):
        assert row in found


def test_facts_that_are_given_win(tmp_path: Path) -> None:
    found = cells(summary(write_run(tmp_path, 100), {"resumes": "20"}))
    assert ["resumes", "20"] in found
    assert ["resumes", "1"] not in found


def test_marks_are_explained_only_where_there_are_some(tmp_path: Path) -> None:
    text = summary(write_run(tmp_path, 100))
    assert "Dotted: the run was resumed." in text
    assert "Red: a step was skipped." in text
    text = summary(write_log(tmp_path, [train(step) for step in range(9)]))
    assert "Dotted" not in text
    assert "Red:" not in text


def test_every_color_that_is_used_exists_in_both_modes(tmp_path: Path) -> None:
    text = summary(write_run(tmp_path, 100, budgets=tuple(range(8, 72, 8))))
    for name in set(re.findall(r"var\((--\w+)\)", text)):
        assert len(re.findall(rf"{name}: #", text)) == 2, name


def test_a_long_run_gives_a_small_page(tmp_path: Path) -> None:
    text = summary(write_run(tmp_path, 20_000, budgets=tuple(range(8, 72, 8)), shares=(0.5, 1.0)))
    assert len(text) < 300_000
    assert len(text) < 1.5 * len(
        summary(write_run(tmp_path, 5000, tuple(range(8, 72, 8)), (0.5, 1.0)))
    )
