"""What a benchmark's report says about made-up numbers."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image
from rich.console import Console

from tests.analysis.made_up import TWIN, measured, plain, report, rows, veca
from veca.analysis import bench_report
from veca.analysis.bench_report import (
    as_json,
    as_markdown,
    bench_panels,
    exponent,
    findings,
    growths,
    plot,
    remarks,
    tables,
    weak_spots,
    write,
)
from veca.analysis.benchmark import rows_of


@pytest.mark.parametrize("power", [0.0, 1.0, 1.1, 2.0])
def test_the_exponent_of_a_power_is_found(power: float) -> None:
    sizes = [64.0, 256.0, 1024.0]
    assert exponent(sizes, [3.0 * size**power for size in sizes]) == pytest.approx(power)


def test_growth_is_fitted_over_large_images_where_there_are_two() -> None:
    found = []
    for side, time in ((256, 100.0), (512, 110.0), (1024, 440.0), (2048, 1760.0)):
        found += rows({veca(2): time}, side)
    (growth,) = growths(found)
    assert growth.name == "VECA, 2 cores"
    assert growth.exponent == pytest.approx(1.0)
    assert growth.resolutions == (512, 1024, 2048)


def test_growth_is_fitted_over_all_images_where_few_are_large() -> None:
    found = [*rows({TWIN: 1.0}, 128), *rows({TWIN: 16.0}, 256), *rows({TWIN: 256.0}, 512)]
    (growth,) = growths(found)
    assert growth.exponent == pytest.approx(2.0)
    assert growth.resolutions == (128, 256, 512)


def test_one_resolution_has_no_growth() -> None:
    assert growths(rows({veca(2): 1.0, TWIN: 2.0})) == []


def test_a_contender_that_could_not_run_is_left_out_of_the_fit() -> None:
    found = [*rows({TWIN: 1.0}, 512), *rows({TWIN: 16.0}, 1024)]
    failed = rows_of(2048, 16384, 1, [measured(TWIN, note="out of memory")])
    assert growths(found + failed)[0].resolutions == (512, 1024)


def test_cases_that_lose_are_named_with_their_ratio() -> None:
    (sentence,) = weak_spots(rows({veca(2): 8.0, veca(4): 12.5, TWIN: 10.0}, 256))
    assert sentence == (
        "256 px, against full attention, slower: VECA, 4 cores (0.80x, 0.80 to 0.80)."
    )


def test_a_case_whose_rounds_go_both_ways_is_no_win() -> None:
    found = [measured(veca(2), 9.0, 10.0, 11.0), measured(TWIN, 10.0, 10.0, 10.0)]
    (sentence,) = weak_spots(rows_of(256, 256, 1, found))
    assert "no clear difference: VECA, 2 cores (1.00x, 0.95 to 1.06)" in sentence


def test_a_folded_form_that_does_not_pay_is_named() -> None:
    (sentence,) = weak_spots(rows({veca(2): 8.0, plain(2): 6.0}, 64))
    assert sentence.startswith("64 px, against the plain form, slower: VECA, 2 cores (0.75x")


def test_more_memory_than_full_attention_is_no_win() -> None:
    found = [
        measured(veca(2), 1.0, megabytes=50.0),
        measured(veca(4), 1.0, megabytes=30.0),
        measured(TWIN, 2.0, megabytes=30.0),
    ]
    (sentence,) = weak_spots(rows_of(256, 256, 1, found))
    assert sentence == ("256 px: more memory than full attention (30 MB): VECA, 2 cores (50 MB).")


def test_a_clean_win_is_said_so() -> None:
    (sentence,) = weak_spots(rows({veca(2): 1.0, plain(2): 2.0, TWIN: 3.0}))
    assert "faster than full attention and than its plain form in every case" in sentence


def test_where_nothing_is_folded_the_ratio_is_called_noise() -> None:
    found = [measured(veca(4), 10.0, 10.0), measured(plain(4), 9.9, 10.0)]
    lines = rows_of(256, 256, 1, found)
    assert "against the plain form" not in " ".join(weak_spots(lines))
    (remark,) = remarks(lines)
    assert "same program and their ratio is noise: VECA, 4 cores (0.99x" in remark


def test_what_a_budget_is_worth_is_given_in_pairs_and_time() -> None:
    (remark,) = remarks(rows({veca(2): 9.0, veca(4): 10.0}, 512))
    assert remark == (
        "512 px: 2 cores instead of 4 change the pairs by -50 % and the time by -10 %."
    )


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


def test_a_busy_machine_is_reported_first() -> None:
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


def test_time_is_shown_for_the_extremes_and_the_rivals() -> None:
    times, _ = bench_panels(report().rows)
    assert [line.label for line in times.lines] == [
        "full attention", "VECA, 4 cores", "VECA, 2 cores",
        "VECA, 2 cores, FFN 0.25",
    ]  # fmt: skip
    twin = times.lines[0]
    assert list(twin.x) == [32, 64]
    assert list(twin.y) == pytest.approx([0.015 * 64**2, 0.015 * 256**2])


def test_speed_is_shown_against_full_attention_and_for_the_plain_form_too() -> None:
    _, ratios = bench_panels(report().rows)
    labels = [line.label for line in ratios.lines]
    assert "full attention" not in labels
    assert "plain form, 2 cores" in labels
    assert ratios.level == 1.0
    line = ratios.lines[labels.index("VECA, 2 cores")]
    assert list(line.y) == pytest.approx([0.96, 3.84])


def test_lines_differ_in_color_and_marker() -> None:
    for panel in bench_panels(report().rows):
        assert len({(line.color) for line in panel.lines}) == len(panel.lines)
        assert len({(line.marker) for line in panel.lines}) == len(panel.lines)


def test_one_budget_and_one_share_make_one_line() -> None:
    times, _ = bench_panels(rows({veca(2): 1.0, TWIN: 2.0}))
    assert [line.label for line in times.lines] == ["full attention", "VECA, 2 cores"]
