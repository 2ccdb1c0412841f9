"""Errors are read by people, and repeat what a stranger's file says."""

import veca
from veca.weights.format import WeightsError, listed


def test_a_few_names_are_listed_and_the_rest_is_counted() -> None:
    assert listed(["a", "b"]) == "'a', 'b'"
    assert listed(str(number) for number in range(10)).endswith("'5' and 4 more")
    assert listed(map(str, range(10)), most=9).endswith("'8' and 1 more")
    assert listed(map(str, range(10)), most=10).endswith("'9'")


def test_names_from_a_file_cannot_command_the_terminal_or_fill_it() -> None:
    assert "\x1b" not in listed(["\x1b[31mred"])
    assert len(listed(["x" * 1000])) < 100


def test_a_weights_error_is_a_value_error_with_a_public_name() -> None:
    assert issubclass(WeightsError, ValueError)
    assert veca.WeightsError is WeightsError
