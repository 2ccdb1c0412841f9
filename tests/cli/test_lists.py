"""Lists with commas."""

import pytest

from veca.cli.flags import numbers, texts, whole_numbers


def test_values_come_rising_and_each_once() -> None:
    assert whole_numbers("--budgets", "64,8, 16,8") == (8, 16, 64)
    assert numbers("--ffn", "1,0.25") == (0.25, 1.0)


@pytest.mark.parametrize("text", ["", "8,", "8;16", "8.5"])
def test_what_is_no_list_of_whole_numbers_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match=r"--budgets got .* such as 8,16,64"):
        whole_numbers("--budgets", text)


def test_what_is_no_list_of_numbers_is_refused_with_an_example() -> None:
    with pytest.raises(ValueError, match=r"--ffn got 'all'; give numbers .* such as 0.25,1.0"):
        numbers("--ffn", "all")


def test_texts_stay_in_their_order_each_once() -> None:
    assert texts("--also", "b=x, a=y,b=x,,") == ("b=x", "a=y")


@pytest.mark.parametrize("text", ["", " , "])
def test_a_list_of_no_texts_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"--also got .*; give names with commas\."):
        texts("--also", text)
