"""The report on paper: for people, for programs, and as a picture."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image
from rich.console import Console

from tests.analysis.made_up import report
from veca.analysis import bench_report
from veca.analysis.bench_report import as_json, as_markdown, findings, plot, tables, write


def printed() -> str:
    """The tables as text."""
    console = Console(file=io.StringIO(), width=120)
    for table in tables(report()):
        console.print(table)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_the_tables_hold_every_case_of_each_resolution() -> None:
    text = printed()
    assert "32 x 32 pixels, 64 patches" in text
    assert "64 x 64 pixels, 256 patches" in text
    for row in report().rows:
        assert row.name in text
    line = next(line for line in text.splitlines() if line.startswith("VECA, 2 cores "))
    assert line.split()[3:] == [
        "64.0",
        "64.0",
        "to",
        "64.0",
        "10",
        "1.5",
        "25",
        "%",
        "0.96",
        "1.10",
        "1.20",
        "-",
    ]


def test_json_carries_what_a_number_must_carry() -> None:
    found = json.loads(json.dumps(as_json(report())))
    assert set(found) == {
        "schema", "veca_version", "model", "weights", "backbone", "command", "started", "finished",
        "machine", "load_average", "settings", "rows", "growth", "where_veca_does_not_win",
        "remarks",
    }  # fmt: skip
    assert found["machine"]["processor"] == "Made-up 3000"
    assert found["settings"]["budgets"] == [2, 4]
    assert found["settings"]["rounds"] == 7
    assert found["weights"]["trained"] is False
    assert len(found["rows"]) == 14
    assert set(found["rows"][0]["ms"]) == {"low", "median", "high"}


def test_markdown_has_circumstances_tables_and_findings() -> None:
    text = as_markdown(report())
    for words in (
        "untrained", "Made-up 3000", "veca bench --model made-up", "2026-05-12",
        "| VECA, 2 cores | 64.0 |", "## Where VECA does not win", "## How time grows",
        "2.00 (full attention)", "1.00 (VECA, 2 cores)",
    ):  # fmt: skip
        assert words in text
    lengths = {line.count("|") for line in text.splitlines() if line.startswith("|")}
    assert len(lengths) == 1


def test_a_busy_machine_is_told_before_anything_else() -> None:
    assert "Beware" not in dict(findings(report()))
    busy = replace(report(), load=(1.5, 2.0))
    title, (sentence,) = next(iter(findings(busy)))
    assert title == "Beware"
    assert "load average 1.5" in sentence
    assert not replace(report(), load=(None, None)).busy


def test_cases_that_were_cut_short_are_listed() -> None:
    made = report()
    made.rows[0] = made.rows[0]._replace(note="2 of 7 rounds, 130 s")
    sections = dict(findings(made))
    assert sections["Not measured as the others"] == ["32 px, VECA, 2 cores: 2 of 7 rounds, 130 s."]
    assert "Not measured as the others" not in dict(findings(report()))


def test_a_case_that_could_not_run_has_dashes_for_numbers() -> None:
    made = report()
    made.rows[6] = made.rows[6]._replace(
        milliseconds=None, peak_mb=None, speedups={}, note="out of memory"
    )
    assert "| full attention | - | - | - | 1.5 |" in as_markdown(made)


def test_three_files_are_written(tmp_path: Path) -> None:
    files = write(report(), tmp_path / "new" / "folder")
    assert [file.name for file in files] == ["bench.json", "bench.md", "bench.png"]
    assert json.loads(files[0].read_text())["model"] == "made-up"
    assert files[1].read_text().startswith("# Benchmark of made-up")


def test_without_matplotlib_the_plot_alone_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_report, "can_draw", lambda: False)
    assert [file.name for file in write(report(), tmp_path)] == ["bench.json", "bench.md"]


def test_the_plot_is_a_picture_with_something_on_it() -> None:
    with Image.open(io.BytesIO(plot(report()))) as picture:
        assert picture.format == "PNG"
        assert min(picture.size) > 400
        colors = picture.convert("RGB").getcolors(1_000_000)
    assert colors is not None
    assert len(colors) > 50
