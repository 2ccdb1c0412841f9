"""Errors about pictures."""

import pytest

import veca
from veca.data.images import DataError, ImageError, WorkerError, reason


def test_a_picture_error_is_a_value_error_that_veca_offers() -> None:
    assert veca.ImageError is ImageError
    assert issubclass(ImageError, ValueError)


def test_what_a_user_can_mend_is_a_value_error_and_a_lost_worker_is_not() -> None:
    assert issubclass(DataError, ValueError)
    assert not issubclass(WorkerError, ValueError)


@pytest.mark.parametrize(
    ("text", "words"),
    [("two\nlines", "two lines"), ("a\x1b[31mb", "a?[31mb"), ("", "OSError"), ("x" * 500, "x...")],
)
def test_the_reason_of_a_library_fits_into_a_sentence(text: str, words: str) -> None:
    found = reason(OSError(text))
    assert words in found
    assert len(found) <= 123
    assert found.isprintable()
