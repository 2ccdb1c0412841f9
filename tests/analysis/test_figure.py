"""Drawing, and that matplotlib stays at home."""

import itertools

import pytest

from veca.analysis.figures import BLUE, Line, Panel, draw, spread_out

LINE = Line("one", BLUE, "o", [256, 512], [1.0, 4.0], [0.9, 3.5], [1.1, 4.5])
PANEL = Panel("Time", "pixels", [LINE, LINE._replace(label="two", dashed=True)], unit=" ms")


def test_labels_that_would_touch_move_apart_around_their_mean() -> None:
    assert spread_out([0.5, 0.5], 0.1) == pytest.approx([0.45, 0.55])
    assert spread_out([0.52, 0.5, 0.9], 0.1) == pytest.approx([0.56, 0.46, 0.9])
    assert spread_out([0.1, 0.9], 0.1) == [0.1, 0.9]


def test_a_chain_of_labels_keeps_its_order_and_its_gaps() -> None:
    heights = [0.30, 0.10, 0.14, 0.19, 0.2]
    placed = spread_out(heights, 0.1)
    order = sorted(range(5), key=heights.__getitem__)
    assert sorted(range(5), key=placed.__getitem__) == order
    ordered = sorted(placed)
    gaps = [above - below for below, above in itertools.pairwise(ordered)]
    assert min(gaps) >= 0.1 - 1e-9
    assert sum(placed) == pytest.approx(sum(heights))


@pytest.mark.parametrize("count", [1, 2])
def test_panels_become_a_png(count: int) -> None:
    picture = draw([PANEL._replace(level=1.0)] * count, "title", "footnote")
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 10_000


def test_one_point_is_enough_for_a_panel() -> None:
    point = LINE._replace(x=[256], y=[1.0], low=[0.9], high=[1.1])
    assert draw([PANEL._replace(lines=[point])], "", "").startswith(b"\x89PNG")
