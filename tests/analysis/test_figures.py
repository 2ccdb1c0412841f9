"""Figures drawn with matplotlib."""

import io
import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

import veca
from tests.analysis.test_benchmark import report
from tests.probe.fixtures import depth_rows, knn_rows, row, teacher
from veca.analysis import bench_report, figures
from veca.analysis.figures import (
    BLACK,
    BLUE,
    MAX_NAME,
    VERMILION,
    Curve,
    plot_quality,
    plot_time,
    quality_figure,
    shortened,
    trade_off,
)
from veca.analysis.training_curves import plot_training
from veca.probe.report import write_report
from veca.probe.rows import Row, sections
from veca.runtime import VecaError


def luminance(color: str) -> float:
    """How bright a color is, from 0 to 1, as a gray copy shows it."""
    red, green, blue = (int(color[start : start + 2], 16) / 255 for start in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_no_two_colors_are_alike() -> None:
    colors = ("#222222", *figures.COLORS["model"], VERMILION)
    for one, other in itertools.combinations(colors, 2):
        parts = zip(one[1:], other[1:], strict=True)
        assert sum(left != right for left, right in parts) >= 3
    assert max(map(luminance, colors)) < 0.75  # visible on white


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Curve]]:
    """The curves of the benchmark with made-up numbers, by panel."""
    found: dict[str, list[Curve]] = {}

    def keep(times: list[Curve], speedups: list[Curve], *_: str) -> bytes:
        found.update(times=times, speedups=speedups)
        return b""

    monkeypatch.setattr(figures, "plot_benchmark", keep)
    bench_report.plot(report())
    return found


def test_a_benchmark_shows_the_extremes_of_budgets_and_shares(drawn: dict[str, Any]) -> None:
    shown = ["VECA, 4 cores", "VECA, 2 cores", "VECA, 2 cores, FFN 0.25"]
    assert [curve.label for curve in drawn["times"]] == ["full attention", *shown]
    assert [curve.label for curve in drawn["speedups"]] == [
        shown[0], "plain form, 2 cores", *shown[1:],
    ]  # fmt: skip
    points = drawn["times"][0].points
    assert [side for side, _ in points] == [32, 64, 128]
    assert [ms.median for _, ms in points] == [0.015 * patches**2 for patches in (64, 256, 1024)]
    ratios = [ratio.median for _, ratio in drawn["speedups"][2].points]
    assert ratios == pytest.approx([0.96, 3.84, 15.36])
    for curves in drawn.values():
        assert len({curve.color for curve in curves}) == len(curves)
        assert len({curve.style for curve in curves}) == len(curves)


def legend(axes: Any) -> dict[str, Any]:
    """What a panel shows, by label."""
    handles, labels = axes.get_legend_handles_labels()
    return dict(zip(labels, handles, strict=True))


def axes_of(rows: list[Row]) -> list[Any]:
    """The panels of the figure of these rows."""
    figure = quality_figure(rows)
    assert figure is not None
    return [axes for axes in figure.axes if axes.get_visible()]


def test_models_with_budgets_are_lines_and_others_levels() -> None:
    (axes,) = axes_of(knn_rows())
    lines = legend(axes)
    names = ["runs/tiny", "runs/baseline (baseline)", "efficientnet-lite2 (teacher)"]
    assert sorted(lines) == sorted(names)
    model, baseline, level = (lines[name] for name in names)
    assert list(model.get_xdata()) == [8, 16, 32, 64]
    assert list(model.get_ydata()) == [60.0, 64.0, 66.0, 67.0]
    assert list(level.get_ydata()) == [80.0, 80.0]
    assert [line.get_linestyle() for line in (model, baseline, level)] == ["-", "--", "--"]
    assert [line.get_color() for line in (model, baseline, level)] == [BLUE, VERMILION, BLACK]
    band = axes.collections[0].get_datalim(axes.transData)
    assert (band.y0, band.y1) == pytest.approx((59.0, 68.0))


def test_a_panel_shows_the_leading_metric_and_says_which_way_is_better() -> None:
    knn, depth = axes_of([*knn_rows(), *depth_rows()])
    assert knn.get_ylabel() == "top1_k20 in % (more is better)"
    assert depth.get_ylabel() == "rmse in m (less is better)"
    assert knn.get_title(loc="left") == "knn on pets\ndinov2, feature image"


def test_resolutions_and_shares_of_a_model_are_lines_of_one_color() -> None:
    settings = itertools.product((8, 64), (128, 160), (0.5, 1.0))
    (axes,) = axes_of([row(budget=b, resolution=side, ffn=share) for b, side, share in settings])
    lines = legend(axes)
    assert list(lines) == [
        "runs/tiny, 128 px, ffn 0.5",
        "runs/tiny, 128 px, ffn 1",
        "runs/tiny, 160 px, ffn 0.5",
        "runs/tiny, 160 px, ffn 1",
    ]
    assert len({line.get_color() for line in lines.values()}) == 1
    assert len({line.get_marker() for line in lines.values()}) == 4


def test_a_trade_off_shows_quality_against_cost_and_budget(tmp_path: Path) -> None:
    write_report(knn_rows(), tmp_path)
    figure = trade_off(tmp_path / "report.json")
    cost, quality = figure.axes
    assert cost.get_xlabel() == "ms of one image through the backbone"
    assert quality.get_xlabel() == "budget: active cores"
    assert sorted(legend(quality)) == sorted(legend(cost))


def test_a_trade_off_of_a_quality_file_has_a_panel_for_each_task() -> None:
    folder = Path(veca.__file__).parent / "weights" / "bundled" / "veca-tiny"
    panels = [axes for axes in trade_off(folder / "quality.json").axes if axes.get_visible()]
    titles = {axes.get_title(loc="left").partition("\n")[0] for axes in panels}
    assert {"knn on imagenette", "segmentation on voc2012_animals"} <= titles
    assert all(axes.get_xlabel() == "budget: active cores" for axes in panels)


def test_a_trade_off_of_a_benchmark_shows_time_beside_full_attention(tmp_path: Path) -> None:
    (tmp_path / "bench.json").write_text(json.dumps(bench_report.as_json(report())))
    panels = [axes for axes in trade_off(tmp_path / "bench.json").axes if axes.get_visible()]
    assert [axes.get_title(loc="left") for axes in panels] == ["32 px", "64 px", "128 px"]
    lines = legend(panels[1])
    assert list(lines) == ["full attention", "VECA, FFN share 1", "VECA, FFN share 0.25"]
    assert list(lines["VECA, FFN share 1"].get_xdata()) == [2, 4]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("no JSON", "cannot be read.*give a report.json, quality.json or bench.json"),
        ("[]", "has no numbers of a model with budgets"),
        ('{"growth": [], "rows": [], "model": "tiny"}', "has no times at any budget"),
        ('{"format": 99}', "cannot be read"),
    ],
)
def test_a_file_without_a_trade_off_is_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "file.json").write_text(content)
    with pytest.raises(VecaError, match=message):
        trade_off(tmp_path / "file.json")


def test_two_points_are_not_joined_by_a_line() -> None:
    (axes,) = axes_of([row(budget=budget) for budget in (8, 64)])
    (series,) = legend(axes).values()
    assert (series.get_linestyle(), series.get_marker()) == ("None", "o")
    assert not axes.collections  # one seed: no bar


def test_quality_against_time_has_a_place_for_every_model_that_was_timed() -> None:
    (section,) = sections(knn_rows())
    content = plot_time(section)
    assert content is not None
    text = content.decode()
    assert content == plot_time(section)  # nothing in it depends on when it was drawn
    ElementTree.fromstring(text)
    for words in ("ms of one image", "runs/tiny", "efficientnet-lite2 (teacher)", ">64</text>"):
        assert words in text
    assert "currentColor" in text
    assert "#222222" not in text
    untimed = [replace(one, milliseconds=None, budget=b) for one in knn_rows()[:1] for b in (8, 16)]
    assert b"GFLOPs of one image" in (plot_time(sections(untimed)[0]) or b"")
    assert plot_time(sections([replace(one, gflops=None) for one in untimed])[0]) is None
    assert plot_time(sections(untimed[:1])[0]) is None  # a point is no plot


def test_names_are_drawn_as_they_are_and_never_as_formulas_or_markup() -> None:
    name = r"<b>$\frac{$"
    folder = f"{name}b\udce9"  # with a byte that is not UTF-8
    rows = [row(budget=8 * n, model=name, data=folder, gflops=8.0 * n) for n in (1, 8)]
    assert plot_quality(rows) is not None
    text = (plot_time(sections(rows)[0]) or b"").decode()
    assert "&lt;b&gt;$\\frac{$" in text
    assert plot_training([], folder).startswith(b"\x89PNG")


def test_budgets_stand_in_their_order_whichever_was_measured_first() -> None:
    (axes,) = axes_of([row(budget=budget) for budget in (64, 8, 16)])
    assert list(legend(axes)["runs/tiny"].get_xdata()) == [8, 16, 64]


def test_a_partial_set_is_marked() -> None:
    (axes,) = axes_of([row(partial=("some are missing.",))])
    assert "(PARTIAL)" in axes.get_title(loc="left")


def test_without_budgets_there_is_nothing_to_draw() -> None:
    assert plot_quality([teacher()]) is None


def test_the_plot_is_a_picture_with_up_to_two_panels_in_a_row() -> None:
    content = plot_quality([*knn_rows(), *depth_rows(), row(data="third", metric="x", unit="")])
    assert content is not None
    with Image.open(io.BytesIO(content)) as image:
        assert (image.format, image.width) == ("PNG", 1760)
        assert len(np.unique(np.asarray(image.convert("L")))) > 10


def test_long_names_keep_their_ends() -> None:
    assert shortened("tiny") == "tiny"
    name = "runs/" + "long/" * 20 + "model"
    assert len(shortened(name)) == MAX_NAME
    assert shortened(name).endswith("long/model")


def test_training_curves_are_drawn_with_and_without_rows() -> None:
    train = [{"kind": "train", "step": s, "loss": 1 / s, "loss_image": 0.1} for s in range(1, 300)]
    validation = [
        {"kind": kind, "step": step, "loss": 1.0, "resolution": side, "ffn": ffn, "budget": budget}
        for kind in ("validation", "baseline")
        for step in (0, 100)
        for side, ffn, budget in ((64, 1.0, 8), (96, 0.5, None))
    ]
    assert plot_training([], "run").startswith(b"\x89PNG")
    skipped = {"kind": "train", "step": 300, "loss": None}
    assert plot_training([*train, *validation, skipped], "run").startswith(b"\x89PNG")
