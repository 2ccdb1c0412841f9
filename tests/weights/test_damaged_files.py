"""A file that was changed anywhere is refused, or holds the very same model."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import veca
from tests.weights.models import same_weights, trained_model
from veca.weights.format import WeightsError, file_pieces, weights_hash

MODEL = trained_model(layers=1, width=8, heads=1, patch_size=1, budgets=(1, 2))
CONTENT = b"".join(
    file_pieces(MODEL.config, MODEL.state_dict(), weights_hash(MODEL.config, MODEL.state_dict()))
)
HEADER = 8 + int.from_bytes(CONTENT[:8], "little")


def refused_or_same(content: bytes, folder: Path) -> bool:
    """Whether a file is refused in words; if not, it must hold the same model."""
    path = folder / "model.safetensors"
    path.write_bytes(content)
    try:
        found = veca.load(path)
    except WeightsError:
        return True
    assert found.config == MODEL.config
    assert same_weights(found, MODEL)
    return False


def flipped(place: int, mask: int) -> bytes:
    """The file with some bits of one byte turned."""
    content = bytearray(CONTENT)
    content[place] ^= mask
    return bytes(content)


@settings(max_examples=100)
@given(place=st.integers(HEADER, len(CONTENT) - 1), mask=st.integers(1, 255))
def test_any_change_of_a_weight_is_refused(
    place: int, mask: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert refused_or_same(flipped(place, mask), tmp_path_factory.getbasetemp())


@settings(max_examples=200)
@given(place=st.integers(0, HEADER - 1), mask=st.integers(1, 255))
def test_any_change_of_the_header_is_refused_or_means_nothing(
    place: int, mask: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    refused_or_same(flipped(place, mask), tmp_path_factory.getbasetemp())


@settings(max_examples=100)
@given(length=st.integers(0, len(CONTENT) - 1))
def test_any_truncation_is_refused(length: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    assert refused_or_same(CONTENT[:length], tmp_path_factory.getbasetemp())


def test_pieces_cut_out_swapped_or_doubled_are_refused(tmp_path: Path) -> None:
    draw = random.Random(0)
    for _ in range(100):
        first, second, third = sorted(draw.sample(range(len(CONTENT)), 3))
        head, one, two, tail = (
            CONTENT[:first], CONTENT[first:second], CONTENT[second:third], CONTENT[third:]
        )  # fmt: skip
        for content in (head + two + one + tail, head + one + tail, head + one + one + tail):
            if content != CONTENT:
                assert refused_or_same(content, tmp_path)


def retold(**changes: Any) -> bytes:
    """The file with other words in its description, of the right length."""
    header = json.loads(CONTENT[8:HEADER])
    about = json.loads(header["__metadata__"]["veca"])
    about["config"] |= changes
    header["__metadata__"]["veca"] = json.dumps(about)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + CONTENT[HEADER:]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rotary_base": 99.0}, "changed or damaged"),
        ({"budgets": [2]}, "left over"),
        ({"layers": 10**9}, "too few for its configuration"),
        ({"width": 10**9}, "too few for its configuration"),
        ({"color": "red"}, "unknown fields 'color'"),
        ({"layers": "1"}, "a whole number is needed"),
    ],
)
def test_a_description_that_was_changed_is_refused(
    changes: Any, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(retold(**changes))
    with pytest.raises(WeightsError, match=words):
        veca.load(path)
