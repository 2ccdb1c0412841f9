"""Rows, their means over seeds, and the files of a report."""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.probe.fixtures import (
    DIGEST,
    FULL,
    baseline,
    cells,
    class_row,
    correct_of,
    depth_rows,
    knn_rows,
    row,
    teacher,
)
from veca.probe.report import (
    Table,
    markdown_table,
    published_rows,
    read_report,
    report_markdown,
    report_tables,
    section_table,
    write_report,
)
from veca.probe.rows import (
    ProbeError,
    Row,
    mean_over_seeds,
    merge_rows,
    primary_metric,
    reference_of,
    row_from_json,
    sections,
)
from veca.runtime import VERSION

HOSTILE = "<b>x</b>\n\n# y | [a](b)\x1b\udce9"
"""What the name of a folder may be."""

WANTED = {
    "task", "model", "data", "budget", "resolution", "metric", "value", "seed", "weights", "split",
    "counts", "protocol", "feature", "version", "command", "milliseconds", "gflops", "partial",
    "role", "ffn", "unit", "chosen", "patches_per_core", "trained", "data_sha256",
    "data_facts", "protocol_sha256", "precision", "date",
}  # fmt: skip


@pytest.mark.parametrize(
    "stored",
    [row(ffn=0.5, partial=("10 images are missing.",), chosen={"rate": 0.1}), teacher()],
)
def test_a_row_is_read_back_from_json_with_all_its_fields(stored: Row) -> None:
    content = stored.as_json()
    assert set(content) == WANTED
    assert content["version"] == VERSION
    assert row_from_json(json.loads(json.dumps(content))) == stored


def test_results_and_commands_do_not_make_another_number() -> None:
    again = row(
        value=1.0, milliseconds=3.0, gflops=2.0, chosen={"rate": 1.0}, command="again",
        version="9", patches_per_core=1.0, date="2026-05-12T10:00:00+00:00",
        counts={"train": 888, "test": 444, "fitted": 799},
    )  # fmt: skip
    assert again.identity() == row().identity()
    assert merge_rows([row()], [again]) == [again]


@pytest.mark.parametrize(
    "change",
    [
        {"task": "linear"}, {"model": "other"}, {"role": "baseline"}, {"weights": None},
        {"data": "other"}, {"split": "test"}, {"counts": {"train": 1, "test": 444}},
        {"budget": 16}, {"ffn": 0.5}, {"resolution": 160}, {"metric": "top1_k10"}, {"seed": 1},
        {"protocol": "other"}, {"feature": "patch-mean"}, {"partial": ("some are missing.",)},
        {"trained": False}, {"data_sha256": "1"}, {"unit": ""},
    ],
)  # fmt: skip
def test_any_other_field_makes_another_number(change: dict[str, Any]) -> None:
    assert replace(row(), **change).identity() != row().identity()
    assert row(seed=1).identity("seed") == row().identity("seed")


def test_rows_of_older_versions_are_read() -> None:
    old = {**baseline().as_json(), "role": "control"}
    del old["date"]
    assert row_from_json(old) == baseline()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ([], "must be an object"),
        ({"task": "knn"}, "'model'.*another version of veca: measure again"),
        (row().as_json() | {"color": 1}, "'color'.*another version of veca"),
        (row().as_json() | {"task": "dance"}, "task of a row is 'dance'; it must be one of"),
        (row().as_json() | {"unit": "km"}, "unit of a row is 'km'; it must be one of '%', 'm', ''"),
        (row().as_json() | {"value": math.nan}, "top1_k20 of runs/tiny on pets is nan"),
    ],
)
def test_an_invalid_row_is_refused_with_the_fields_that_are_wrong(wrong: Any, words: str) -> None:
    with pytest.raises(ProbeError, match=words):
        row_from_json(wrong)


@pytest.mark.parametrize(
    ("metrics", "first"),
    [
        (["top1_k10", "top1_k20", "top1_k100"], "top1_k20"),
        (["top1_k10"], "top1_k10"),
        (["top1", "top5", "map"], "map"),
        (["aacc", "iou/cat", "miou"], "miou"),
        (["abs_rel", "rmse_pooled", "rmse"], "rmse"),
    ],
)
def test_a_table_is_led_by_the_usual_metric_of_its_dataset(metrics: list[str], first: str) -> None:
    assert primary_metric(metrics) == first


def test_rows_that_differ_in_their_seed_become_one_number() -> None:
    values, times = [60.0, 61.5, 64.0], [3.0, None, 9.0]
    rows = [
        row(seed=seed, value=value, milliseconds=time)
        for seed, (value, time) in enumerate(zip(values, times, strict=True))
    ]
    (found,) = mean_over_seeds(rows)
    assert found.mean == pytest.approx(np.mean(values))
    assert found.std == pytest.approx(np.std(values, ddof=1))
    assert (found.seeds, found.milliseconds) == ((0, 1, 2), 6.0)  # the median of those timed
    (one,) = mean_over_seeds([row(seed=3)])
    assert (one.mean, one.std, one.seeds) == (60.0, None, (3,))
    assert len(mean_over_seeds(knn_rows())) == 4 * 3 + 2  # budgets, models and metrics


SIDES = [baseline(budget=budget, resolution=side) for budget in (8, 64) for side in (128, 160)]
SHARES = [baseline(budget=None, ffn=share) for share in (0.25, 0.5, None)]


@pytest.mark.parametrize(
    ("mine", "candidates", "place"),
    [
        (row(budget=8), SIDES, 0),
        (row(budget=64, resolution=160), SIDES, 3),
        (row(resolution=512), [teacher(resolution=256), teacher(resolution=512)], 1),
        (row(budget=64, ffn=0.25), SHARES, 0),  # shares but no budgets
        (row(budget=8, ffn=None), SHARES, 2),
        (row(ffn=0.75), SHARES, None),
        (row(budget=8, ffn=0.5), [baseline(budget=8), baseline(budget=64)], 0),  # no shares
        (row(), [teacher(resolution=256)], 0),  # measured in one way only
        (row(budget=16), [baseline(budget=8), baseline(budget=64)], None),  # ambiguous
        (row(), [teacher(metric="top1_k10")], None),
    ],
)
def test_a_reference_was_measured_at_the_same_resolution_budget_and_share_where_it_can(
    mine: Row, candidates: list[Row], place: int | None
) -> None:
    (item,), others = mean_over_seeds([mine]), mean_over_seeds(candidates)
    assert reference_of(item, others) is (None if place is None else others[place])


def table(rows: list[Row]) -> list[list[str]]:
    """The leading table of rows that make one section, with its titles."""
    (section,) = sections(rows)
    title, _, *lines = markdown_table(section_table(section))
    return [cells(title), *map(cells, lines)]


def test_one_table_over_budgets_has_teacher_and_baseline_beside() -> None:
    found = table(knn_rows())
    assert found[:2] == [
        ["model", "budget", "px", "top1_k20, %", "of efficientnet-lite2 (teacher)",
         "of runs/baseline (baseline)", "ms", "GFLOPs", "patches/core"],
        ["runs/tiny", "8", "128", "60.00 ± 1.00", "75.0 %", "111.1 %", "2.00", "0.80", "8.00"],
    ]  # fmt: skip
    assert [line[:2] for line in found[2:]] == [
        *(["runs/tiny", budget] for budget in ("16", "32", "64")),
        ["efficientnet-lite2 (teacher)", "-"],
        *(["runs/baseline (baseline)", budget] for budget in ("8", "16", "32", "64")),
    ]
    assert found[5][3:] == ["80.00 ± 0.00", "-", "-", "31.0", "1.70", "-"]
    assert found[9][3:] == ["61.00 ± 0.50", "76.2 %", "-", "16.0", "6.40", "1.00"]


def test_errors_are_ratios_at_their_own_resolution() -> None:
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
    text = report_markdown(knn_rows())
    after = text.split("Other metrics; in brackets: of efficientnet-lite2 (teacher).")[1]
    title, _, first = after.strip().splitlines()[:3]
    assert cells(title) == ["model", "budget", "px", "top1_k10, %"]
    assert cells(first) == ["runs/tiny", "8", "128", "58.00 ± 1.00 (74.4 %)"]
    text = report_markdown([*knn_rows(), row(metric="top1_k100", value=50.0)])
    line = next(line for line in text.splitlines() if "50.00" in line)
    assert cells(line) == ["runs/tiny", "8", "128", "58.00 ± 1.00 (74.4 %)", "50.00"]
    line = next(line for line in text.splitlines() if "62.00 ±" in line)
    assert cells(line)[-1] == "-"  # not measured


def test_numbers_of_single_classes_have_a_line_each() -> None:
    facts: dict[str, Any] = {"task": "segmentation", "data": "voc"}
    rows = [
        row(**facts, metric="miou", value=50.0),
        row(**facts, metric="iou/cat", value=60.0),
        row(**facts, metric="iou/dog", value=40.0),
        row(**facts, metric="iou/dog", value=45.0, budget=64, ffn=0.5),
    ]
    text = report_markdown(rows)
    lines = [cells(line) for line in text.splitlines() if line.startswith("| iou/")]
    assert lines == [["iou/cat", "60.00", "-"], ["iou/dog", "40.00", "45.00"]]
    assert "runs/tiny, c64-f0.5, 128 px" in text
    assert "Other metrics" not in text
    many = [row(task="segmentation", metric=f"iou/{n}", value=1.0) for n in range(150)]
    text = report_markdown([row(task="segmentation", metric="miou"), *many])
    assert "The 150 numbers for classes and sizes are in report.json." in text
    assert "iou/7" not in text


def test_every_task_set_protocol_and_feature_has_a_table_of_its_own() -> None:
    rows = [row(), row(task="logistic"), row(data="cars"), row(protocol="p"), row(feature="f"),
            row(counts={"train": 1, "test": 1}), row(budget=64), row(seed=1)]  # fmt: skip
    assert len(sections(rows)) == 6


def test_models_of_one_name_are_named_with_their_weights() -> None:
    (section,) = sections([row(), row(weights="a" * 64), teacher(), baseline(trained=False)])
    assert [section.name(who) for who in section.models] == [
        "runs/tiny @01234567",
        "runs/tiny @aaaaaaaa",
        "efficientnet-lite2 (teacher)",
        "runs/baseline, untrained (baseline)",
    ]


def test_the_page_has_what_reproduces_a_number() -> None:
    text = report_markdown(knn_rows())
    for words in (
        DIGEST, "val", "888 train", "444 test", "seeds: 0, 1, 2", "dinov2", "feature image",
        "veca probe knn pets --model runs/tiny --out out", "veca 0.",
    ):  # fmt: skip
        assert words in text
    assert text.count("veca probe knn") == 1
    assert not any(words in text for words in ("Dataset:", "selected on", "PARTIAL"))
    facts = {"train_list": "all of it", "scored": ["cat", "dog"]}
    partial = ("Class cat has 3 images instead of 100.",)
    chosen = {"on": "the reported split"}
    text = report_markdown([row(data_facts=facts, chosen=chosen, partial=partial)])
    for words in (
        "Dataset: train list: all of it; scored: cat, dog.", "(PARTIAL)", "not comparable",
        "Hyperparameters were selected on the reported split.", f"- {partial[0]}",
    ):  # fmt: skip
        assert words in text


def test_a_model_alone_needs_no_reference_and_no_primary_metric() -> None:
    title, line = table([teacher(role="model")])
    assert title == ["model", "px", "top1_k20, %"]
    assert line == ["efficientnet-lite2", "128", "60.00"]
    rows = [row(), row(budget=64, metric="top1_k10")]
    assert len(table(rows)) == 2
    assert re.search(r"\| runs/tiny \| +64 \|", report_markdown(rows))


def test_names_of_folders_are_text_in_a_report(tmp_path: Path) -> None:
    rows = [*knn_rows(), *(row(task="segmentation", metric=m) for m in ("miou", f"iou/{HOSTILE}"))]
    names: dict[str, Any] = {
        "model": HOSTILE,
        "data": HOSTILE,
        "command": f"veca probe '{HOSTILE}'",
    }
    write_report([replace(one, **names) for one in rows], tmp_path)
    text = (tmp_path / "report.md").read_text("utf-8")
    assert "&lt;b>x&lt;/b> # y" in text
    marks = re.findall(r"^# .*|<|\]\(", text.partition("```")[0], re.MULTILINE)
    assert marks == ["# Probes"]
    shown = [*text.split("\n"), *report_tables(read_report(tmp_path)).split("\n")]
    assert all(line.isprintable() for line in shown)
    assert read_report(tmp_path)[0].data == HOSTILE


def test_a_report_is_a_list_of_rows_and_a_second_run_replaces_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "out"
    assert read_report(folder) == []
    write_report([row(value=1.0), *depth_rows()], folder)
    write_report([row(value=2.0), row(budget=64)], folder)
    expected = [row(value=2.0), *depth_rows(), row(budget=64)]
    text = (folder / "report.json").read_text("utf-8")
    assert json.loads(text) == [item.as_json() for item in expected]
    assert len(text.splitlines()) == 2 + len(expected)  # a row a line
    assert read_report(folder) == expected
    page = (folder / "report.md").read_text("utf-8")
    assert "knn on pets" in page
    assert "depth on nyu-v2" in page


def test_a_plot_of_all_rows_is_written_and_shown_as_long_as_it_matches(tmp_path: Path) -> None:
    seen: list[Row] = []

    def draw(rows: Sequence[Row]) -> bytes:
        seen.extend(rows)
        return b"png"

    write_report([row(budget=8)], tmp_path)
    written = write_report([row(budget=64)], tmp_path, draw)
    assert seen == [row(budget=8), row(budget=64)]
    assert (tmp_path / "report.png").read_bytes() == b"png"
    assert tmp_path / "report.png" in written
    assert "(report.png)" in (tmp_path / "report.md").read_text("utf-8")
    (tmp_path / "comparison.json").write_text("old")
    for nothing in (None, lambda rows: None):  # what no longer matches the tables is removed
        write_report([row(budget=64)], tmp_path, nothing)
        assert {path.name for path in tmp_path.iterdir()} == {"report.json", "report.md"}
        assert "report.png" not in (tmp_path / "report.md").read_text("utf-8")


def test_with_a_baseline_the_page_begins_with_the_comparison(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "per_image"
    rows = [class_row(folder, correct_of(0)), class_row(folder, correct_of(1), **FULL)]
    written = write_report(rows, tmp_path, lambda rows: b"png")
    text = (tmp_path / "report.md").read_text("utf-8")
    titles = [line for line in text.splitlines() if line.startswith("## ")]
    assert titles[0] == "## Against runs/full (baseline)"
    assert titles[1].startswith("## knn on pets")
    assert "10,000 draws" in text
    (found,) = json.loads((tmp_path / "comparison.json").read_text("utf-8"))
    (line,) = found["lines"]
    assert line["classes"]["ratio"] == rows[0].value / rows[1].value
    assert written[-1] == tmp_path / "comparison.json"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "cannot be read"),
        ("{}", "is not a list of rows"),
        ('[{"task": "knn"}]', "row 0 of .*report.json cannot be read: .*another version"),
    ],
)
def test_a_file_that_is_not_a_report_is_refused_and_not_changed(
    tmp_path: Path, content: str, words: str
) -> None:
    (tmp_path / "report.json").write_text(content, "utf-8")
    with pytest.raises(ProbeError, match=words):
        write_report([row()], tmp_path)
    assert (tmp_path / "report.json").read_text("utf-8") == content


def test_columns_of_dashes_are_dropped_and_names_cannot_break_a_table() -> None:
    lines = [["a|b", "-", "1"], ["c\nd", "-", "-"]]
    assert list(markdown_table(Table(["name", "empty", "x"], lines))) == [
        "| name |   x |", "| ---- | --: |", "| a\\|b |   1 |", "| c d  |   - |"
    ]  # fmt: skip


def test_published_numbers_of_the_same_dataset_follow_in_tables_of_their_own() -> None:
    measured = row(task="depth", data="nyu-v2", metric="rmse", unit="m", value=0.5)
    text = report_markdown([measured])
    assert text.index("## depth on nyu-v2") < text.index("## Published: depth on nyu-v2")
    assert "Not measured here: Tables 1, 2" in text
    found = published_rows([measured])
    assert {one.role for one in found} == {"published"}
    assert {one.protocol for one in found} == {"of Table 1", "of Table S.12", "of Table S.16"}
    (clip,) = [one for one in found if one.model == "CLIP-B/16"]
    assert (clip.value, clip.unit, clip.resolution) == (0.6176, "m", 512)
    stuff = row(task="segmentation", data="coco-stuff", metric="miou")
    assert {one.model for one in published_rows([stuff])} >= {"DINOv3-S (?)", "VECA-S+ (?)"}
    assert not published_rows([replace(measured, partial=("9 of 10",))])
    assert not published_rows([row()])
