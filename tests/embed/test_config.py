"""Choices that no collection can have are refused at the door."""

from typing import Any

import pytest

from veca.embed.config import Efficiency, EmbedConfig
from veca.embed.errors import CollectionError


def test_an_unknown_type_of_numbers_is_refused_with_those_that_are_known() -> None:
    dtype: Any = "int8"
    with pytest.raises((CollectionError, TypeError), match="'float16'"):  # or by the shape hook
        EmbedConfig(dtype=dtype)


@pytest.mark.parametrize(("name", "count"), [("batch", 0), ("workers", -1)])
def test_counts_that_are_none_are_refused(name: str, count: int) -> None:
    choices: dict[str, Any] = {name: count}
    with pytest.raises(CollectionError, match=f"{name}={count} .*use {count + 1} or more"):
        Efficiency(**choices)
