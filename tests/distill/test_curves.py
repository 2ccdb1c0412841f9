"""Curves are drawn where their values are, with names that can be read."""

import itertools
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from veca.distill.curves import (
    BOTTOM,
    DARK,
    LEFT,
    LIGHT,
    NAME_GAP,
    PLOT,
    RIGHT,
    TOP,
    WIDTH,
    Chart,
    Curve,
    Mark,
    draw,
    palette,
    spread,
    value_range,
)


def line(last: float, name: str = "", points: int = 3) -> Curve:
    """A curve that ends at a value."""
    return Curve(name=name, x=np.linspace(0, 10, points), y=np.linspace(1, last, points))


def drawing(*curves: Curve, **fields: object) -> ET.Element:
    """The parsed drawing of a chart from 0 to 10 and from 0 to 2."""
    given: dict[str, object] = {"steps": (0.0, 10.0), "values": (0.0, 2.0), **fields}
    return ET.fromstring(draw(Chart(title="a <title>", curves=curves, **given)))  # type: ignore[arg-type]


def names(svg: ET.Element) -> dict[str, float]:
    """Names beside the plot, and how high they stand."""
    return {
        text.text or "": float(text.attrib["y"])
        for text in svg.iter("text")
        if float(text.attrib["x"]) > RIGHT
    }


def numbers(path: ET.Element) -> list[float]:
    """All numbers of a path."""
    return [float(word) for word in re.findall(r"-?[\d.]+", path.attrib["d"])]


def of_class(svg: ET.Element, kind: str) -> list[ET.Element]:
    """Elements of a class."""
    return [element for element in svg.iter() if element.get("class") == kind]


def test_a_curve_goes_from_corner_to_corner() -> None:
    (path,) = of_class(drawing(line(2.0, points=2)), "line")
    assert numbers(path) == [LEFT, (TOP + BOTTOM) / 2, RIGHT, TOP]


def test_each_of_few_points_says_what_it_is() -> None:
    svg = drawing(line(2.0, "8 <cores>"))
    titles = [title.text for circle in svg.iter("circle") for title in circle.iter("title")]
    assert titles[-1] == "8 <cores>, step 10: 2"
    assert len(titles) == 3
    assert not list(drawing(line(2.0, points=100)).iter("circle"))


def test_the_band_lies_around_its_curve() -> None:
    curve = Curve(x=np.array([0.0, 10.0]), y=np.ones(2), band=(np.zeros(2), np.full(2, 2.0)))
    (path,) = of_class(drawing(curve), "band")
    assert numbers(path) == [LEFT, BOTTOM, RIGHT, BOTTOM, RIGHT, TOP, LEFT, TOP]


def test_what_is_raw_is_drawn_as_such_and_without_dots() -> None:
    svg = drawing(Curve(x=np.array([0.0, 1.0]), y=np.ones(2), raw=True))
    assert len(of_class(svg, "raw")) == 1
    assert not of_class(svg, "line")
    assert not list(svg.iter("circle"))


def test_names_that_would_overlap_are_moved_apart_in_their_order() -> None:
    curves = [line(1.0 + 0.001 * number, f"{number}") for number in range(9)]
    found = names(drawing(*curves, guide=("constant", 1.0005)))
    assert len(found) == 10
    heights = sorted(found.values())
    assert min(np.diff(heights)) >= NAME_GAP - 0.11
    assert heights[0] >= TOP
    assert heights[-1] <= BOTTOM + 5
    assert list(found)[-1] == "0"  # the lowest value stands lowest
    assert found["0"] > found["constant"] > found["1"]


def test_too_many_names_are_thinned_out_evenly() -> None:
    curves = [line(0.02 * number, f"{number}") for number in range(60)]
    found = names(drawing(*curves))
    assert {"0", "59"} <= set(found)
    assert len(found) < 20
    assert min(np.diff(sorted(found.values()))) >= NAME_GAP - 0.11


def test_the_guide_is_a_line_across_at_its_value() -> None:
    svg = drawing(line(2.0), guide=("constant", 1.0))
    (path,) = of_class(svg, "guide")
    assert numbers(path) == [LEFT, (TOP + BOTTOM) / 2, RIGHT]
    assert "constant" in names(svg)


def test_names_of_curves_that_left_the_plot_stay_beside_it() -> None:
    (height,) = names(drawing(line(100.0, "far"))).values()
    assert TOP <= height <= TOP + 10


def test_curves_are_cut_at_the_edge_of_the_plot() -> None:
    svg = drawing(line(100.0))
    (group,) = [group for group in svg.iter("g") if group.get("clip-path") == "url(#plot)"]
    assert list(group.iter("circle"))
    (rect,) = ET.fromstring(PLOT)
    assert float(rect.attrib["x"]) <= LEFT
    assert float(rect.attrib["y"]) + float(rect.attrib["height"]) == BOTTOM


def test_marks_stand_at_their_steps() -> None:
    marks = [
        Mark(step=5.0, words="resumed", kind="resumed"),
        Mark(step=10.0, words="skipped", kind="skipped", short=True),
    ]
    svg = drawing(line(2.0), marks=marks)
    assert numbers(of_class(svg, "resumed")[0]) == [(LEFT + RIGHT) / 2, BOTTOM, TOP]
    place, bottom, top = numbers(of_class(svg, "skipped")[0])
    assert (place, bottom) == (RIGHT, BOTTOM)
    assert TOP < top < BOTTOM


def test_ticks_do_not_overlap_and_stay_on_the_drawing() -> None:
    svg = drawing(line(2.0), steps=(0.0, 999_999.0))
    row = [text for text in svg.iter("text") if text.get("class") == "middle"]
    letter = 7.5  # of 13 units, in most fonts
    ends = [(float(text.attrib["x"]), len(text.text or "") * letter / 2) for text in row]
    for (left, half), (right, other) in itertools.pairwise(ends):
        assert left + half < right - other
    assert ends[-1][0] + ends[-1][1] < WIDTH


def test_a_logarithmic_chart_has_its_ticks() -> None:
    svg = drawing(line(2.0), values=(0.1, 10.0), logarithmic=True)
    words = [text.text for text in svg.iter("text") if text.get("class") == "end"]
    assert words == ["0.1", "1.0", "10.0", "step"]


def test_empty_curves_draw_nothing() -> None:
    none = np.zeros(0)
    svg = drawing(Curve(name="none", x=none, y=none, band=(none, none)))
    assert not of_class(svg, "line")
    assert names(svg) == {}


def test_the_title_is_for_those_who_do_not_see() -> None:
    svg = drawing(line(2.0))
    assert svg.attrib["aria-label"] == "a <title>"
    assert svg.attrib["role"] == "img"


@given(
    st.lists(st.floats(-100, 100), max_size=12).map(sorted), st.floats(0.1, 20), st.floats(0, 300)
)
def test_spread_places_keep_their_distance_and_order(
    places: list[float], gap: float, length: float
) -> None:
    moved = spread(np.array(places, dtype=np.float64), gap, 0.0, length)
    assert len(moved) == len(places)
    if len(places):
        assert (np.diff(moved) >= gap - 1e-9).all()
        assert moved[0] >= 0
    if len(places) and gap * (len(places) - 1) <= length:
        assert moved[-1] <= length + 1e-9


def test_places_that_are_apart_stay_where_they_are() -> None:
    places = np.array([10.0, 30.0, 90.0])
    assert spread(places, 16, 0, 100).tolist() == places.tolist()
    assert spread(np.array([50.0, 50.0]), 10, 0, 100).tolist() == [45, 55]


@pytest.mark.parametrize("stops", [LIGHT, DARK])
def test_a_palette_reaches_from_the_first_color_to_the_last(
    stops: tuple[tuple[int, int, int], ...],
) -> None:
    colors = palette(20, stops)
    assert colors[0] == "#{:02x}{:02x}{:02x}".format(*stops[0])
    assert colors[-1] == "#{:02x}{:02x}{:02x}".format(*stops[-1])
    assert len(set(colors)) == 20
    assert palette(1, stops) == colors[:1]


def luminance(color: tuple[int, int, int]) -> float:
    """Relative luminance as the accessibility guidelines define it."""
    linear = [
        channel / 12.92 if channel <= 0.03928 else ((channel + 0.055) / 1.055) ** 2.4
        for channel in (value / 255 for value in color)
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_colors_stand_out_from_light_and_dark_paper() -> None:
    assert all(1.05 / (luminance(color) + 0.05) > 3 for color in LIGHT)
    dark_paper = luminance((18, 23, 29))
    assert all((luminance(color) + 0.05) / (dark_paper + 0.05) > 3 for color in DARK)


def test_an_axis_shows_all_values_with_some_air() -> None:
    assert value_range(np.array([1.0, 2.0, np.nan])) == pytest.approx((0.95, 2.05))
    assert value_range(np.array([1.0, 2.0]), zero=True) == pytest.approx((0.0, 2.1))
    assert value_range(np.array([3.0])) == pytest.approx((2.85, 3.15))
    assert value_range(np.zeros(1)) == (-1.0, 1.0)
    low, high = value_range(np.zeros(0))
    assert low < high
