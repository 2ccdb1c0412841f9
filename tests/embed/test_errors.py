"""An error of collections is a user's mistake, worded for the user."""

from veca.embed.errors import CollectionError


def test_the_command_line_words_it_like_any_wrong_value() -> None:
    assert issubclass(CollectionError, ValueError)
