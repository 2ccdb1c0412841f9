"""Colors of classes can be told apart; colors of depths go one way."""

import numpy as np
import pytest

from veca.probe.overlay import class_colors, depth_colors


def brightness(colors: np.ndarray) -> np.ndarray:
    """How bright colors look, roughly."""
    return colors.astype(np.float64) @ (0.2126, 0.7152, 0.0722)


def distances(colors: np.ndarray) -> np.ndarray:
    """Between every two colors."""
    values = colors.astype(np.float64)
    found = np.linalg.norm(values[:, None] - values[None], axis=-1)
    return found[~np.eye(len(colors), dtype=bool)]


@pytest.mark.parametrize(("count", "least"), [(10, 60), (21, 40), (81, 20), (256, 10)])
def test_classes_have_colors_that_differ(count: int, least: float) -> None:
    assert distances(class_colors(count)).min() >= least


def test_the_color_of_a_class_does_not_depend_on_how_many_there_are() -> None:
    assert (class_colors(256)[:21] == class_colors(21)).all()


def test_no_class_is_black_white_or_gray() -> None:
    colors = class_colors(256).astype(int)
    assert (colors.max(axis=1) - colors.min(axis=1)).min() > 25


def test_far_is_darker_than_near_at_every_step() -> None:
    assert (np.diff(brightness(depth_colors(np.linspace(0.0, 1.0, 200)))) < 0).all()


def test_what_lies_beyond_the_scale_has_the_color_of_its_end() -> None:
    found = depth_colors(np.array([[-3.0, 0.0], [1.0, 7.0]]))
    assert found.shape == (2, 2, 3)
    assert (found[0, 0] == found[0, 1]).all()
    assert (found[1, 0] == found[1, 1]).all()
