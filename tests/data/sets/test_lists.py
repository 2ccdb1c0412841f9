"""Lists are read as their makers wrote them, and a damaged one is named."""

from pathlib import Path

import pytest

from tests.data.sets.miniatures import write
from veca.data.sets.dataset import DatasetError, lines, read_json, rows, whole


def test_lines_come_without_the_white_space_around_them(tmp_path: Path) -> None:
    write(tmp_path, {"list.txt": "a b\r\n\n  c\n   \nd"})
    assert list(lines(tmp_path / "list.txt")) == ["a b", "c", "d"]


def test_a_name_that_is_no_text_is_kept(tmp_path: Path) -> None:
    write(tmp_path, {"list.txt": b"\xff.jpg\n"})
    assert list(lines(tmp_path / "list.txt")) == ["\udcff.jpg"]


def test_the_last_column_keeps_its_spaces(tmp_path: Path) -> None:
    write(tmp_path, {"list.txt": "1025794 707-320\n0001  F/A-18 Hornet\n"})
    assert list(rows(tmp_path / "list.txt", 2)) == [
        ["1025794", "707-320"],
        ["0001", "F/A-18 Hornet"],
    ]


def test_a_line_with_too_few_columns_is_refused(tmp_path: Path) -> None:
    write(tmp_path, {"list.txt": "a 1\nb\n"})
    with pytest.raises(DatasetError, match=r"list\.txt has the line 'b'"):
        list(rows(tmp_path / "list.txt", 2))


def test_what_is_no_number_is_refused_by_the_name_of_its_list(tmp_path: Path) -> None:
    assert whole(" 12", tmp_path / "list.txt") == 12
    with pytest.raises(DatasetError, match=r"list\.txt has 'one' where a whole number"):
        whole("one", tmp_path / "list.txt")


def test_json_is_read_and_damaged_json_is_named(tmp_path: Path) -> None:
    write(tmp_path, {"good.json": '{"a": [1]}', "cut.json": '{"a": [1'})
    assert read_json(tmp_path / "good.json") == {"a": [1]}
    with pytest.raises(DatasetError, match=r"cut\.json is no JSON file"):
        read_json(tmp_path / "cut.json")
