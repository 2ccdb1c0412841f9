"""A sheet of labels has a tile for each picture, and bars as long as the scores."""

import numpy as np
import pytest
from PIL import Image

from veca.probe.label_sheet import (
    ACCENT,
    GAP,
    LINE,
    MARGIN,
    MOST_LABELS,
    TILE,
    TILE_COLOR,
    Labeled,
    label_sheet,
)

RED = (200, 0, 0)


def item(labels: list[tuple[str, float]], sides: tuple[int, int] = (400, 200)) -> Labeled:
    return Labeled(Image.new("RGB", sides, RED), "picture.jpg", labels)


@pytest.mark.parametrize(("count", "columns", "rows"), [(1, 1, 1), (5, 3, 2), (12, 4, 3)])
def test_a_sheet_is_as_large_as_its_tiles_need(count: int, columns: int, rows: int) -> None:
    drawn = label_sheet([item([("cat", 0.5)])] * count)
    height = TILE + 2 * LINE + 8
    assert drawn.size == (
        2 * MARGIN + columns * (TILE + GAP) - GAP,
        2 * MARGIN + rows * (height + GAP) - GAP,
    )


def test_pictures_keep_their_proportions() -> None:
    tile = np.asarray(label_sheet([item([("cat", 0.5)])]))[MARGIN:, MARGIN:]
    assert (tile[TILE // 4 + 1 : 3 * TILE // 4 - 1, :TILE] == RED).all()
    assert (tile[: TILE // 4 - 1, :TILE] == TILE_COLOR).all()


@pytest.mark.parametrize("score", [0.0, 0.25, 0.5, 1.0])
def test_the_bar_of_the_best_label_is_as_long_as_its_score(score: float) -> None:
    drawn = np.asarray(label_sheet([item([("cat", score)])]))
    longest = (drawn == ACCENT).all(axis=-1).sum(axis=1).max()
    assert longest == pytest.approx(score * TILE, abs=1.5)


def test_further_labels_have_bars_in_another_color_and_are_not_too_many() -> None:
    few = [("cat", 0.5), ("dog", 0.4)]
    one, two = (np.asarray(label_sheet([item(labels)])) for labels in (few[:1], few))
    assert ((one == ACCENT).all(axis=-1).sum()) == ((two == ACCENT).all(axis=-1).sum())
    many = [(f"label {number}", 0.1) for number in range(30)]
    assert label_sheet([item(many)]).size == label_sheet([item(many[:MOST_LABELS])]).size


def test_a_picture_may_have_no_label() -> None:
    assert label_sheet([item([])]).height == 2 * MARGIN + TILE + LINE + 8


def test_a_sheet_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one picture"):
        label_sheet([])
