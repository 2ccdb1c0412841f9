"""The page for people: one table over budgets, teacher and baseline in it, and what they cost."""

import re
from typing import Any

from tests.probe.made_up_rows import DIGEST, baseline, depth_rows, knn_rows, row, teacher
from veca.probe.report_text import report_markdown, report_tables, section_table, sections
from veca.probe.rows import Row


def cells(line: str) -> list[str]:
    """The cells of a line of a table."""
    return [cell.strip() for cell in line.strip("|").split("|")]


def table(rows: list[Row]) -> list[list[str]]:
    """The leading table of rows that make one section, with its titles."""
    (section,) = sections(rows)
    title, _, *lines = section_table(section)
    return [cells(title), *map(cells, lines)]


def test_one_table_over_budgets_has_teacher_and_baseline_beside() -> None:
    assert table(knn_rows()) == [
        ["model", "budget", "px", "top1_k20, %", "of efficientnet-lite2 (teacher)",
         "of runs/baseline (baseline)", "ms", "GFLOPs", "patches/core"],
        ["runs/tiny", "8", "128", "60.00 ± 1.00", "75.0 %", "111.1 %", "2.00", "0.80", "8.00"],
        ["runs/tiny", "16", "128", "64.00 ± 1.00", "80.0 %", "110.3 %", "4.00", "1.60", "4.00"],
        ["runs/tiny", "32", "128", "66.00 ± 1.00", "82.5 %", "110.0 %", "8.00", "3.20", "2.00"],
        ["runs/tiny", "64", "128", "67.00 ± 1.00", "83.8 %", "109.8 %", "16.0", "6.40", "1.00"],
        ["efficientnet-lite2 (teacher)", "-", "128", "80.00 ± 0.00", "-", "-", "31.0", "1.70",
         "-"],
        ["runs/baseline (baseline)", "8", "128", "54.00 ± 0.50", "67.5 %", "-", "2.00", "0.80",
         "8.00"],
        ["runs/baseline (baseline)", "16", "128", "58.00 ± 0.50", "72.5 %", "-", "4.00", "1.60",
         "4.00"],
        ["runs/baseline (baseline)", "32", "128", "60.00 ± 0.50", "75.0 %", "-", "8.00", "3.20",
         "2.00"],
        ["runs/baseline (baseline)", "64", "128", "61.00 ± 0.50", "76.2 %", "-", "16.0", "6.40",
         "1.00"],
    ]  # fmt: skip


def test_errors_are_told_as_ratios_at_their_own_resolution() -> None:
    title, *lines = table(depth_rows())
    assert title == ["model", "budget", "px", "rmse, m", "of efficientnet-lite2 (teacher)"]
    assert [line[1:] for line in lines] == [
        ["8", "256", "0.5150", "x1.226"],
        ["64", "256", "0.4600", "x1.095"],
        ["8", "512", "0.5000", "x1.250"],
        ["64", "512", "0.4400", "x1.100"],
        ["-", "256", "0.4200", "-"],
        ["-", "512", "0.4000", "-"],
    ]


def test_other_metrics_follow_with_their_share_of_the_teacher() -> None:
    text = report_markdown(knn_rows(), None)
    after = text.split("Other metrics; in brackets: of efficientnet-lite2 (teacher).")[1]
    title, _, first = after.strip().splitlines()[:3]
    assert cells(title) == ["model", "budget", "px", "top1_k10, %"]
    assert cells(first) == ["runs/tiny", "8", "128", "58.00 ± 1.00 (74.4 %)"]


def test_a_metric_that_a_model_was_not_measured_by_is_a_dash() -> None:
    rows = [*knn_rows(), row(metric="top1_k100", value=50.0)]
    line = next(line for line in report_markdown(rows, None).splitlines() if "50.00" in line)
    assert cells(line) == ["runs/tiny", "8", "128", "58.00 ± 1.00 (74.4 %)", "50.00"]
    line = next(line for line in report_markdown(rows, None).splitlines() if "62.00 ±" in line)
    assert cells(line)[-1] == "-"


def test_numbers_of_single_classes_have_a_line_each() -> None:
    facts: dict[str, Any] = {"task": "segmentation", "data": "voc"}
    rows = [
        row(**facts, metric="miou", value=50.0),
        row(**facts, metric="iou/cat", value=60.0),
        row(**facts, metric="iou/dog", value=40.0),
        row(**facts, metric="iou/dog", value=45.0, budget=64, ffn=0.5),
    ]
    text = report_markdown(rows, None)
    lines = [cells(line) for line in text.splitlines() if line.startswith("| iou/")]
    assert lines == [["iou/cat", "60.00", "-"], ["iou/dog", "40.00", "45.00"]]
    assert "runs/tiny, 64 cores, ffn 0.5, 128 px" in text
    assert "Other metrics" not in text


def test_very_many_classes_are_left_to_the_json_file() -> None:
    rows = [row(task="segmentation", metric=f"iou/{n}", value=1.0) for n in range(150)]
    text = report_markdown([row(task="segmentation", metric="miou"), *rows], None)
    assert "The 150 numbers for classes and sizes are in report.json." in text
    assert "iou/7" not in text


def test_every_task_set_protocol_and_feature_has_a_table_of_its_own() -> None:
    rows = [row(), row(task="logistic"), row(data="cars"), row(protocol="p"), row(feature="f"),
            row(counts={"train": 1, "test": 1}), row(budget=64), row(seed=1)]  # fmt: skip
    assert len(sections(rows)) == 6


def test_partial_sets_say_so_loudly_and_what_is_missing() -> None:
    text = report_markdown([row(partial=("Class cat has 3 pictures instead of 100.",))], None)
    assert "(PARTIAL)" in text
    assert "not comparable" in text
    assert "- Class cat has 3 pictures instead of 100." in text
    assert "PARTIAL" not in report_markdown([row()], None)


def test_models_of_one_name_are_told_apart_by_their_weights() -> None:
    (section,) = sections([row(), row(weights="a" * 64), teacher(), baseline(trained=False)])
    assert [section.name(who) for who in section.models] == [
        "runs/tiny @01234567",
        "runs/tiny @aaaaaaaa",
        "efficientnet-lite2 (teacher)",
        "runs/baseline, untrained (baseline)",
    ]


def test_the_page_carries_what_a_published_number_must_carry() -> None:
    text = report_markdown(knn_rows(), None)
    for words in (
        DIGEST, "val", "888 train", "444 test", "seeds: 0, 1, 2", "dinov2", "feature image",
        "veca probe knn pets --model runs/tiny --out out", "veca 0.",
    ):  # fmt: skip
        assert words in text
    assert text.count("veca probe knn") == 1


def test_a_model_alone_needs_no_reference() -> None:
    title, line = table([teacher(role="model")])
    assert title == ["model", "px", "top1_k20, %"]
    assert line == ["efficientnet-lite2", "128", "60.00"]


def test_a_line_that_lacks_the_leading_metric_stands_only_with_the_others() -> None:
    rows = [row(), row(budget=64, metric="top1_k10")]
    assert len(table(rows)) == 2
    assert re.search(r"\| runs/tiny \| +64 \|", report_markdown(rows, None))


def test_a_terminal_gets_the_leading_tables_alone() -> None:
    rows = [*knn_rows(), *depth_rows()]
    found = report_tables(rows)
    tables = [[section.title, "", *section_table(section)] for section in sections(rows)]
    assert found == "\n\n".join("\n".join(lines) for lines in tables)
    assert found.count("rmse, m") == 1
    assert "top1_k10" not in found
    assert not report_tables([])


def test_a_table_says_what_is_scored_and_on_what_was_chosen() -> None:
    facts = {"train_list": "all of it", "scored": ["cat", "dog"]}
    text = report_markdown([row(data_facts=facts, chosen={"on": "the reported part"})], None)
    assert "Of the set: train list: all of it; scored: cat, dog." in text
    assert "Rate, step or strength were chosen on the reported part." in text
    plain = report_markdown([row()], None)
    assert "Of the set" not in plain
    assert "were chosen on" not in plain
