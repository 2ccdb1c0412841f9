"""A protocol is checked when it is written down, and says which rate and which step count."""

import math
from typing import Any

import pytest

from veca.probe.protocols import LinearProtocol, ProtocolError

PAPER = LinearProtocol(name="paper", rates=(0.05,), selection="test-best-step")


def test_the_rate_falls_along_half_a_cosine_to_zero() -> None:
    assert PAPER.rate_at(0.05, 0) == 0.05
    assert PAPER.rate_at(0.05, 6250) == pytest.approx(0.025)
    assert PAPER.rate_at(0.05, 12_499) == pytest.approx(0.05 * (math.pi / 12_500) ** 2 / 4)


def test_rates_for_a_batch_of_256_are_scaled_to_the_batch() -> None:
    scaled = LinearProtocol(name="dinov2", rates=(0.1,), scale_rates=True, batch=1024)
    assert scaled.rate_at(0.1, 0) == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("selection", "steps", "expected"),
    [
        ("test-best-step", 2500, (1250, 2500)),
        ("test-best-step", 3000, (1250, 2500, 3000)),
        ("test-best-step", 10, (10,)),
        ("test", 3000, (3000,)),
        ("held-out", 3000, (3000,)),
        ("none", 3000, ()),
    ],
)
def test_heads_are_judged_at_the_last_step_and_before_where_the_best_step_counts(
    selection: Any, steps: int, expected: tuple[int, ...]
) -> None:
    protocol = LinearProtocol(name="x", rates=(0.1,), steps=steps, selection=selection)
    assert protocol.judged_steps == expected


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"rates": ()}, "no learning rates"),
        ({"rates": (0.0,)}, "no learning rates"),
        ({"rates": (0.1, 0.1)}, "hold one twice"),
        ({"rates": (0.1, 0.2)}, "leave open which head"),
        ({"batch": 0}, "batch=0"),
        ({"steps": 0}, "steps=0"),
        ({"views": -1}, "views=-1"),
        ({"momentum": 1.0}, "momentum=1.0"),
        ({"weight_decay": -1.0}, "weight_decay=-1.0"),
        ({"held_out_share": 1.0}, "held_out_share=1.0"),
    ],
)
def test_what_cannot_be_followed_is_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ProtocolError, match=words):
        LinearProtocol(**{"name": "x", "rates": (0.1,), **wrong})
