"""Text fits its place, whatever it holds."""

import pytest

from veca.probe.overlay import fitted, font


@pytest.mark.parametrize("text", ["a" * 200 + "-0001.jpg", "\u00fc\u00e9" * 60 + ".jpg"])
def test_long_text_keeps_both_its_ends_and_fits(text: str) -> None:
    shown = fitted(text, 14, 120)
    assert font(14).getlength(shown) <= 120
    assert shown[:2] == text[:2]
    assert shown.endswith(text[-4:])
    assert "\u2026" in shown


def test_short_text_stays_as_it_is() -> None:
    assert fitted("cat", 14, 120) == "cat"


def test_letters_that_cannot_be_drawn_are_replaced() -> None:
    assert fitted("a\nb\x1b\udcff", 14, 120) == "a?b??"


def test_a_place_without_room_gets_at_most_a_letter() -> None:
    assert len(fitted("many words", 14, 0)) <= 2
