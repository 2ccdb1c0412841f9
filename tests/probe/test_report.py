"""A report lies in its folder as rows, words and a picture, and keeps what was there before."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.probe.made_up_cases import class_row, right_of
from tests.probe.made_up_rows import baseline, depth_rows, knn_rows, row
from veca.probe.report import ReportError, read_report, write_report
from veca.probe.rows import Row


def test_report_json_is_a_list_of_rows(tmp_path: Path) -> None:
    written = write_report(knn_rows(), tmp_path / "new" / "out")
    found = json.loads((tmp_path / "new" / "out" / "report.json").read_text("utf-8"))
    assert isinstance(found, list)
    assert found == [item.as_json() for item in knn_rows()]
    assert read_report(tmp_path / "new" / "out") == written.rows == knn_rows()


def test_a_row_is_a_line_so_that_reports_can_be_compared_by_line(tmp_path: Path) -> None:
    write_report([row(), row(budget=64)], tmp_path)
    assert len((tmp_path / "report.json").read_text("utf-8").splitlines()) == 4


def test_a_second_run_adds_its_rows_and_replaces_its_own(tmp_path: Path) -> None:
    write_report([row(value=1.0), *depth_rows()], tmp_path)
    written = write_report([row(value=2.0), row(budget=64)], tmp_path)
    assert written.rows == [row(value=2.0), *depth_rows(), row(budget=64)]
    assert read_report(tmp_path) == written.rows
    text = (tmp_path / "report.md").read_text("utf-8")
    assert "knn on pets" in text
    assert "depth on nyu-v2" in text


def test_a_plot_of_all_rows_is_written_and_shown(tmp_path: Path) -> None:
    seen: list[Row] = []

    def draw(rows: Sequence[Row]) -> bytes:
        seen.extend(rows)
        return b"png"

    write_report([row(budget=8)], tmp_path)
    written = write_report([row(budget=64)], tmp_path, draw)
    assert seen == written.rows
    assert len(seen) == 2
    assert (tmp_path / "report.png").read_bytes() == b"png"
    assert tmp_path / "report.png" in written.files
    assert "(report.png)" in (tmp_path / "report.md").read_text("utf-8")


def test_a_plot_that_is_older_than_its_tables_does_not_stay(tmp_path: Path) -> None:
    write_report([row()], tmp_path, lambda rows: b"png")
    for draw in (None, lambda rows: None):
        write_report([row(budget=64)], tmp_path, draw)
        assert not (tmp_path / "report.png").exists()
        assert "report.png" not in (tmp_path / "report.md").read_text("utf-8")


def test_with_a_baseline_the_page_begins_with_the_comparison_that_a_file_has_too(
    tmp_path: Path,
) -> None:
    twin = {"role": "baseline", "model": "runs/twin", "weights": "e" * 64, "budget": None}
    cases = tmp_path / "cases"
    rows = [class_row(cases, right_of(0)), class_row(cases, right_of(1), **twin)]
    written = write_report(rows, tmp_path, lambda rows: b"png")
    text = (tmp_path / "report.md").read_text("utf-8")
    titles = [line for line in text.splitlines() if line.startswith("## ")]
    assert titles[0] == "## Against runs/twin (baseline)"
    assert titles[1].startswith("## knn on pets")
    assert "10,000 draws" in text
    (found,) = json.loads((tmp_path / "comparison.json").read_text("utf-8"))
    (line,) = found["lines"]
    assert line["classes"]["ratio"] == rows[0].value / rows[1].value
    assert written.files[-1] == tmp_path / "comparison.json"


def test_a_comparison_that_no_longer_belongs_to_the_rows_does_not_stay(tmp_path: Path) -> None:
    (tmp_path / "comparison.json").write_text("old")
    write_report([row()], tmp_path)
    assert not (tmp_path / "comparison.json").exists()
    write_report([baseline()], tmp_path)
    text = (tmp_path / "report.md").read_text("utf-8")
    assert "- knn on pets, top1_k20, 1 line: the model: no cases on disk belong to it" in text
    assert json.loads((tmp_path / "comparison.json").read_text("utf-8"))[0]["lines"] == []


def test_a_folder_without_a_report_has_no_rows(tmp_path: Path) -> None:
    assert read_report(tmp_path) == []
    write_report([], tmp_path)
    assert json.loads((tmp_path / "report.json").read_text("utf-8")) == []


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "is no JSON"),
        ("{}", "is no list of rows"),
        ('[{"task": "knn"}]', "row 0 of .*report.json cannot be read: a row lacks"),
    ],
)
def test_a_file_that_is_no_report_is_refused_and_left_alone(
    tmp_path: Path, content: str, words: str
) -> None:
    (tmp_path / "report.json").write_text(content, "utf-8")
    with pytest.raises(ReportError, match=words):
        write_report([row()], tmp_path)
    assert (tmp_path / "report.json").read_text("utf-8") == content
