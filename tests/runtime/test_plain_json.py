"""What is written as JSON comes back as it was, or is refused by name."""

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from veca.runtime.files import PlainJsonError, plain_json

LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
)
VALUES = st.recursive(
    LEAVES | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(VALUES)
@settings(max_examples=50)
def test_every_value_comes_back_with_its_types_and_order(value: object) -> None:
    text = plain_json(value, "value")
    assert "\n" not in text
    assert repr(json.loads(text)) == repr(value)  # which tells 1 from 1.0 and 0.0 from -0.0


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (math.nan, r"^v is nan, which JSON cannot hold"),
        (-math.inf, r"^v is -inf"),
        ({"a": {"b": [1.0, 2.0, math.nan]}}, r"^v\['a'\]\['b'\]\[2\] is nan"),
        ({"a": (1, 2)}, r"^v\['a'\] is of type tuple"),
        ({"a": {1: 2}}, r"^v\['a'\] has the key 1,"),
        ([b"x"], r"^v\[0\] is of type bytes"),
        ({"a": {1, 2}}, r"^v\['a'\] is of type set"),
    ],
)
def test_what_json_would_change_is_refused_by_its_name(value: Any, words: str) -> None:
    with pytest.raises(PlainJsonError, match=words):
        plain_json(value, "v")
