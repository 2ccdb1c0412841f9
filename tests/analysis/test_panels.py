"""Colors that can be told apart."""

import itertools

from veca.analysis import figures as panels


def luminance(color: str) -> float:
    """How bright a color is, from 0 to 1, as a gray copy shows it."""
    red, green, blue = (int(color[start : start + 2], 16) / 255 for start in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_no_two_colors_are_alike() -> None:
    names = ("BLACK", "ORANGE", "SKY", "GREEN", "BLUE", "VERMILION")
    colors = [getattr(panels, name) for name in names]
    assert len(set(colors)) == len(colors)
    for one, other in itertools.combinations(colors, 2):
        parts = zip(one[1:], other[1:], strict=True)
        assert sum(left != right for left, right in parts) >= 3
    assert max(map(luminance, colors)) < 0.75  # visible on white
