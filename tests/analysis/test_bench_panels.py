"""Which numbers the figure of a benchmark shows."""

import pytest

from tests.analysis.made_up import TWIN, report, rows, veca
from veca.analysis.figures import bench_panels


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
