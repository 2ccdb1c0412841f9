"""The paper's numbers are those of its tables, counted and compared with what is said of them."""

import pytest

from veca.probe.published import FILE, published_rows, published_source, published_tables

SHAPES = {
    "1": (10, 8), "2": (10, 8), "S.10": (44, 3), "S.11": (32, 4), "S.12": (32, 2),
    "S.13": (10, 16), "S.15": (32, 3), "S.16": (32, 3),
}  # fmt: skip
"""Lines and columns; tables by resolution and by budget have a line for each of these too."""


def value(table: str, model: str, column: str, **facts: int | None) -> float:
    """One number of a table."""
    (found,) = [
        row.value
        for row in published_rows()
        if (row.table, row.model, row.column.name) == (table, model, column)
        and all(getattr(row, name) == fact for name, fact in facts.items())
    ]
    return found


def test_every_table_is_there_whole() -> None:
    tables = published_tables()
    assert [table.table for table in tables] == list(SHAPES)
    for table in tables:
        lines, columns = SHAPES[table.table]
        assert len(table.columns) == columns
        assert len(table.rows) == lines * columns
        assert len({(row.model, row.budget, row.resolution) for row in table.rows}) == lines
    assert len(published_rows()) == 836


def test_the_file_ships_with_the_package_and_names_its_source() -> None:
    assert FILE.parent.name == "probe"
    assert "2605.12491" in published_source()


def test_gaps_and_shares_that_were_worked_out_by_hand_hold() -> None:
    dense = ("VOC", "Context", "ADE", "Stuff", "Object", "City")
    gaps = [
        value("1", "DINOv3-B/16", name) - value("1", "VECA-B", name, budget=64) for name in dense
    ]
    assert sum(gaps) / 6 == pytest.approx(0.74, abs=0.005)
    kept = [
        100 * value("1", "VECA-B", name, budget=8) / value("1", "VECA-B", name, budget=64)
        for name in dense
    ]
    assert kept == pytest.approx([96.3, 92.8, 87.8, 91.5, 91.7, 89.1], abs=0.06)
    classes = ("IN1K", "INv2", "ReaL", "Places", "Food", "SUN", "Pets", "CUB")
    kept = [
        100 * value("2", "VECA-B", name, budget=8) / value("2", "VECA-B", name, budget=64)
        for name in classes
    ]
    assert kept == pytest.approx([97.6, 95.75, 98.4, 99.1, 97.4, 98.4, 99.4, 98.8], abs=0.06)


@pytest.mark.parametrize(
    ("table", "model", "column", "facts", "wanted"),
    [
        ("S.11", "VECA-L", "ADE", {"resolution": 768}, 55.54),
        ("S.10", "VECA-L", "V2", {"resolution": 768}, 76.91),
        ("S.10", "VECA-L", "ReaL", {"resolution": 384}, 89.71),
        ("S.10", "DINOv2-L", "IN1K", {"resolution": 518}, 84.74),
        ("S.12", "VECA-L", "NYUv2", {"resolution": 512}, 0.3379),
        ("S.13", "DFN2B-CLIP", "Caltech", {}, 97.91),
        ("S.15", "VECA-S+", "ReaL", {"budget": 16}, 83.56),
        ("S.16", "VECA-B", "NYUv2", {"budget": 32}, 0.3789),
    ],
)
def test_numbers_stand_in_their_place(
    table: str, model: str, column: str, facts: dict[str, int | None], wanted: float
) -> None:
    assert value(table, model, column, **facts) == wanted


@pytest.mark.parametrize(
    ("tables", "columns"),
    [(("S.15", "S.10"), ("IN1K", "V2", "ReaL")), (("S.16", "S.12"), ("NYUv2",)),
     (("S.16", "S.11"), ("ADE",))],
)  # fmt: skip
@pytest.mark.parametrize("size", ["S", "S+", "B", "L"])
def test_tables_that_share_numbers_agree(
    tables: tuple[str, str], columns: tuple[str, ...], size: str
) -> None:
    side = 256 if tables[0] == "S.15" else 512
    for column in columns:
        first, second = (
            value(table, f"VECA-{size}", column, budget=64, resolution=side) for table in tables
        )
        assert first == second


def test_every_number_is_marked_as_published_and_has_our_names() -> None:
    for row in published_rows():
        found = row.as_json()
        assert found["published"] is True
        assert found["unit"] == ("m" if found["metric"] == "rmse" else "%")
        assert (found["unit"] == "m") == (found["value"] < 10)
        assert found["task"] in {"linear", "segmentation", "depth"}
    tasks = {row.column.data: row.column.task for row in published_rows()}
    assert len(tasks) == 24
    assert tasks["voc2007"] == "linear"
    assert tasks["voc2012"] == "segmentation"


def test_doubtful_numbers_are_kept_as_printed_with_a_note() -> None:
    doubtful = [row for row in published_rows() if row.doubtful]
    assert [(row.model, row.column.name, row.resolution, row.value) for row in doubtful] == [
        ("DINOv3-S", "Stuff", 256, 47.74),
        ("VECA-S+", "Context", 768, 54.68),
        ("VECA-S+", "ADE", 768, 46.55),
        ("VECA-S+", "Stuff", 768, 44.33),
        ("VECA-S+", "Object", 768, 58.76),
        ("VECA-B", "Object", 512, 62.58),
    ]
    assert all(row.note for row in doubtful)


def test_where_tables_differ_each_says_what_the_other_has() -> None:
    notes = {
        (row.table, row.model, row.column.name): row.note for row in published_rows() if row.note
    }
    assert notes["2", "DINOv2-B/14", "IN1K"] == "Table S.13 has 82.45"
    assert notes["S.13", "DINOv2", "IN1K"] == "Table 2 has 82.41"
    assert value("S.13", "DINOv2", "IN1K") == 82.45
    assert value("2", "DINOv2-B/14", "IN1K") == 82.41
    assert notes["1", "VECA-B", "Object"] == "Table S.11 has 62.58 for the same model"
    row = next(row for row in published_rows() if row.table == "1" and row.model == "VECA-B")
    assert row.note == ""
