"""Tables that Markdown reads as tables and a terminal shows in columns."""

from veca.probe.report_text import markdown_table, without_empty


def test_columns_line_up_and_numbers_stand_to_the_right() -> None:
    assert list(markdown_table(["model", "px"], [["a", "128"], ["longer name", "8"]])) == [
        "| model       |  px |",
        "| ----------- | --: |",
        "| a           | 128 |",
        "| longer name |   8 |",
    ]


def test_a_name_with_a_bar_or_a_line_end_breaks_no_table() -> None:
    lines = list(markdown_table(["model"], [["a|b\nc"]]))
    assert len(lines) == 3
    assert lines[2] == "| a\\|b c |"


def test_columns_that_say_nothing_are_left_out() -> None:
    titles, lines = without_empty(["model", "ffn", "px"], [["a", "-", "1"], ["b", "-", "-"]])
    assert titles == ["model", "px"]
    assert lines == [["a", "1"], ["b", "-"]]
