"""The paper's tables for the sets that are present, ours and theirs never to be mixed up."""

from typing import Any

import pytest

from tests.probe.made_up_rows import depth_rows, knn_rows, row, teacher
from veca.probe.published import published_rows
from veca.probe.rows import Row
from veca.probe.tables import rebuild_tables

VOC: dict[str, Any] = {
    "task": "segmentation", "data": "voc2012", "metric": "miou", "resolution": 512,
    "protocol": "paper", "feature": "patches+image",
}  # fmt: skip
IMAGENET: dict[str, Any] = {
    "task": "linear", "data": "imagenet-1k", "metric": "top1", "resolution": 256,
    "protocol": "paper",
}  # fmt: skip
NAME = "runs/tiny @01234567 [paper, patches+image]"


def tables(rows: list[Row]) -> dict[str, list[list[str]]]:
    """The cells of each rebuilt table, by its number; titles first."""
    found: dict[str, list[list[str]]] = {}
    number = ""
    for line in rebuild_tables(rows).splitlines():
        if line.startswith("## Table"):
            number = line.split()[2].rstrip(":")
            found[number] = []
        elif line.startswith("|") and "--" not in line:
            found[number].append([cell.strip() for cell in line.strip("|").split("|")])
    return found


def test_only_tables_with_a_set_that_was_measured_are_rebuilt() -> None:
    assert list(tables([row(**VOC)])) == ["1", "S.16"]
    assert list(tables(depth_rows())) == ["1", "S.12", "S.16"]
    assert list(tables([row(**IMAGENET)])) == ["2", "S.10", "S.13", "S.15"]
    text = rebuild_tables([row(**VOC)])
    assert "none of their sets was measured: 2, S.10, S.11, S.12, S.13, S.15." in text


def test_other_sets_and_other_ways_to_classify_stand_in_no_table() -> None:
    rows = [*knn_rows(), row(**IMAGENET | {"task": "knn", "metric": "top1_k20"})]
    assert tables(rows) == {}


def test_ours_stand_beside_what_is_published_which_is_marked() -> None:
    found = tables([row(**VOC, value=70.5), row(**VOC, value=71.5, seed=1)])["1"]
    assert found[0] == ["model", "budget", "px", "VOC, %"]
    assert found[1] == [NAME, "8", "512", "71.00 ± 0.71"]
    assert found[-1] == ["*VECA-B (published)*", "64", "512", "*87.07*"]
    assert ["*DINOv2-B/14 (published)*", "-", "518", "*84.46*"] in found
    assert len(found) == 1 + 1 + 10
    for line in found[2:]:
        assert "(published)" in line[0]
        assert line[3].startswith("*")


def test_columns_of_sets_that_were_not_measured_are_named_and_left_out() -> None:
    text = rebuild_tables([row(**VOC)])
    assert "Not measured here: Context, ADE, Stuff, Object, City, NYUv2, KITTI." in text


def test_a_page_of_all_sets_leaves_nothing_out() -> None:
    columns = {row.column for row in published_rows()}
    facts = [{"task": it.task, "data": it.data, "metric": it.metric} for it in columns]
    rows = [row(**item, unit="m" if item["task"] == "depth" else "%") for item in facts]
    assert len(tables(rows)) == 8
    text = rebuild_tables(rows)
    assert "Not measured" not in text
    assert "Not rebuilt" not in text


def test_all_sets_of_a_model_stand_in_one_line() -> None:
    found = tables([row(**VOC), row(**VOC | {"data": "ade20k"}, value=40.0)])["1"]
    assert found[1] == [NAME, "8", "512", "60.00", "40.00"]


def test_sets_that_the_paper_does_not_tell_apart_are_named_in_the_cell() -> None:
    rows = [row(**VOC), row(**VOC | {"data": "voc2012-aug"}, value=62.0)]
    assert tables(rows)["1"][1][3] == "60.00; 62.00 (voc2012-aug)"


def test_a_model_that_is_its_own_teacher_elsewhere_is_told_once() -> None:
    rows = [row(**VOC), row(**VOC, role="teacher")]
    assert tables(rows)["1"][1] == [NAME, "8", "512", "60.00"]


def test_tables_by_resolution_have_a_column_for_each_and_the_most_cores() -> None:
    found = tables(depth_rows())["S.12"]
    assert found[0] == ["model", "budget", "256 px", "384 px", "512 px", "768 px"]
    name = "runs/tiny @01234567 [dinov3, patches]"
    assert found[1] == [name, "64", "0.4600", "-", "0.4400", "-"]
    assert found[2][1:] == ["-", "0.4200", "-", "0.4000", "-"]
    assert ["*VECA-L (published)*", "64", "*0.3546*", "*0.3409*", "*0.3379*", "*0.3382*"] in found


def test_each_resolution_has_its_own_most_cores_which_the_line_tells() -> None:
    rows = [
        row(**IMAGENET, budget=8, value=50.0),
        row(**IMAGENET, budget=64, value=60.0),
        row(**IMAGENET | {"resolution": 512}, budget=8, value=52.0),
        row(**IMAGENET | {"resolution": 512}, budget=32, value=58.0),
    ]
    ours = [line[1:] for line in tables(rows)["S.10"] if line[0].startswith("runs/tiny")]
    assert ours == [["64", "60.00", "-", "-", "-"], ["32", "-", "-", "58.00", "-"]]


def test_resolutions_for_patches_of_14_stand_with_their_neighbors() -> None:
    rows = [teacher(**IMAGENET | {"resolution": 518}, value=83.0), row(**IMAGENET | {"data": "x"})]
    found = tables(rows)["S.10"]
    assert found[0] == ["model", "budget", "256 px", "384 px", "512 px", "768 px"]
    assert found[1][2:] == ["-", "-", "83.00", "-"]
    assert ["*DINOv2-S (published)*", "-", "*78.77*", "*79.76*", "*79.94*", "*79.41*"] in found


def test_tables_by_budget_have_a_line_for_each_and_no_model_without() -> None:
    rows = [
        row(**IMAGENET, budget=8, value=50.0),
        row(**IMAGENET, budget=12, value=55.0),
        row(**IMAGENET | {"data": "imagenet-real"}, budget=8, value=58.0),
        teacher(**IMAGENET),
    ]
    found = tables(rows)["S.15"]
    assert found[0][:2] == ["cores", "runs/tiny @01234567 [paper, image], 256 px"]
    assert found[0][2:] == [f"*VECA-{size} (published)*, 256 px" for size in ("S", "S+", "B", "L")]
    assert [line[0] for line in found[1:]] == ["64", "56", "48", "40", "32", "24", "16", "12", "8"]
    assert found[-1][1:3] == ["50.00 / 58.00", "*71.30* / *79.59*"]
    assert found[-2][1:3] == ["55.00 / -", "-"]
    assert "In each cell: IN1K, % / ReaL, %." in rebuild_tables(rows)


def test_doubtful_numbers_keep_their_mark_and_their_reason() -> None:
    text = rebuild_tables([row(**VOC | {"data": "coco-object"})])
    assert "*62.58* (?)" in text
    assert "- VECA-B with 64 cores at 512 px, Object: Table 1 has 63.58 for the same model." in text
    assert "*63.58* |" in text


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"partial": ("some are missing.",)}, "PARTIAL"),
        ({"trained": False}, "untrained"),
        ({"ffn": 0.5}, "ffn 0.5"),
    ],
)
def test_what_makes_a_number_special_stands_behind_the_model(
    change: dict[str, Any], words: str
) -> None:
    line = tables([row(**VOC, **change)])["1"][1]
    assert words in line[0]


def test_nothing_measured_gives_a_page_that_says_so() -> None:
    text = rebuild_tables([])
    assert "Not rebuilt" in text
    assert text.endswith("S.16.\n")
