"""The report of a benchmark with made-up numbers."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image
from rich.console import Console

from tests.analysis.made_up import BASELINE, report, rows, veca
from veca.analysis import bench_report
from veca.analysis.bench_report import as_json, as_markdown, growths, notes, plot, tables, write
from veca.analysis.benchmark import Report


@pytest.mark.parametrize("power", [0.0, 1.0, 1.1, 2.0])
def test_the_exponent_of_a_power_is_found(power: float) -> None:
    found = [row for side in (32, 64, 128) for row in rows({veca(2): [side ** (2 * power)]}, side)]
    (growth,) = growths(found)
    assert growth.exponent == pytest.approx(power)
    assert growth.resolutions == (32, 64, 128)


def test_growth_is_fitted_over_large_images_where_there_are_two() -> None:
    times = {256: 100.0, 512: 110.0, 1024: 440.0, 2048: 1760.0}
    (growth,) = growths([row for side, ms in times.items() for row in rows({veca(2): [ms]}, side)])
    assert tuple(growth) == ("VECA, 2 cores", pytest.approx(1.0), (512, 1024, 2048))


def test_growth_is_fitted_over_all_images_where_few_are_large() -> None:
    times = {128: 1.0, 256: 16.0, 512: 256.0}
    (growth,) = growths([row for side, ms in times.items() for row in rows({BASELINE: [ms]}, side)])
    assert tuple(growth) == ("full attention", pytest.approx(2.0), (128, 256, 512))


def test_growth_leaves_out_what_could_not_run_and_single_resolutions() -> None:
    found = [*rows({BASELINE: [1.0]}, 512), *rows({BASELINE: [16.0]}, 1024)]
    assert growths([*found, *rows({BASELINE: []}, 2048)])[0].resolutions == (512, 1024)
    assert growths(rows({veca(2): [1.0], BASELINE: [2.0]})) == []


def lines(of: Report) -> list[str]:
    """The tables as text."""
    console = Console(file=io.StringIO(), width=120)
    for table in tables(of):
        console.print(table)
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


def test_the_tables_hold_every_case_of_each_resolution() -> None:
    found = lines(report())
    assert "32 x 32 pixels, 64 patches" in found[0]
    assert sum(line.startswith(row.case.name) for line in found for row in report().rows) >= 14
    line = next(line for line in found if line.startswith("VECA, 2 cores "))
    cells = ["64.0", "64.0", "to", "64.0", "10", "1.5", "25", "%", "0.96", "<1", "1.10", "1.20"]
    assert line.split()[3:] == [*cells, "-"]


@pytest.mark.parametrize(
    ("times", "cell"),
    [([8.0, 8.0], "1.25"), ([12.5, 12.5], "0.80 <1"), ([9.0, 10.0, 11.0], "1.00 ~1")],
)
def test_a_ratio_is_marked_unless_the_middle_half_of_the_rounds_is_faster(
    times: list[float], cell: str
) -> None:
    found = rows({veca(2): times, BASELINE: [10.0] * len(times)})
    text = as_markdown(replace(report(), rows=[*found, *rows({veca(2): [1.0]}, 64)]))
    assert f"| 25 % | {cell} | - |" in text


def test_a_case_that_could_not_run_has_dashes_for_numbers_and_a_note() -> None:
    made = replace(report(), rows=[*rows({BASELINE: []}), *rows({BASELINE: [1.0]}, 64)])
    assert "| full attention | - | - | - | 1.5 |" in as_markdown(made)
    assert notes(made) == ["32 px, full attention: out of memory."]


def test_json_carries_what_a_number_must_carry() -> None:
    found = json.loads(json.dumps(as_json(report())))
    assert set(found) == {
        "schema", "veca_version", "model", "weights", "backbone", "command", "started", "finished",
        "machine", "load_average", "settings", "rows", "growth",
    }  # fmt: skip
    assert found["machine"]["processor"] == "Made-up 3000"
    assert found["settings"]["budgets"] == [2, 4]
    assert found["settings"]["rounds"] == 7
    assert found["weights"]["trained"] is False
    assert len(found["rows"]) == 14
    assert {item["name"] for item in found["growth"]} == {row.case.name for row in report().rows}


def test_markdown_has_circumstances_tables_and_growth() -> None:
    text = as_markdown(report())
    for words in (
        "untrained", "Made-up 3000", "veca bench --model made-up", "2026-05-12",
        "| VECA, 2 cores | 64.0 |", "2.00 (full attention)", "1.00 (VECA, 2 cores)",
    ):  # fmt: skip
        assert words in text
    lengths = {line.count("|") for line in text.splitlines() if line.startswith("|")}
    assert len(lengths) == 1


def test_a_busy_machine_is_reported_first() -> None:
    busy = notes(replace(report(), load=(1.5, 2.0)))
    assert "was busy when the run began (load average 1.5)" in busy[0]
    for load in ((0.1, 2.0), (None, None)):
        assert not any("busy" in note for note in notes(replace(report(), load=load)))


@pytest.mark.parametrize("matplotlib", [True, False])
def test_json_and_markdown_are_written_and_the_plot_where_matplotlib_is_installed(
    matplotlib: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_report, "can_draw", lambda: matplotlib)
    files = write(report(), tmp_path / "new" / "folder")
    names = ["bench.json", "bench.md", "bench.png"]
    assert [file.name for file in files] == names[: 2 + matplotlib]
    assert json.loads(files[0].read_text())["model"] == "made-up"
    assert files[1].read_text().startswith("# Benchmark of made-up")


def test_the_plot_is_a_picture_with_something_on_it() -> None:
    with Image.open(io.BytesIO(plot(report()))) as picture:
        assert picture.format == "PNG"
        colors = picture.convert("RGB").getcolors(1_000_000)
    assert colors is not None
    assert len(colors) > 50
