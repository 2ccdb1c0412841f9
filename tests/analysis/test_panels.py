"""Colours that can be told apart."""

import itertools

from veca.analysis import figures as panels


def luminance(colour: str) -> float:
    """How bright a colour is, from 0 to 1, as a grey copy shows it."""
    red, green, blue = (int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_no_two_colours_are_alike() -> None:
    names = ("BLACK", "ORANGE", "SKY", "GREEN", "BLUE", "VERMILION")
    colours = [getattr(panels, name) for name in names]
    assert len(set(colours)) == len(colours)
    for one, other in itertools.combinations(colours, 2):
        parts = zip(one[1:], other[1:], strict=True)
        assert sum(left != right for left, right in parts) >= 3
    assert max(map(luminance, colours)) < 0.75  # visible on white
