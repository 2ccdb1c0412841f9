"""Protocols that cannot be are refused, and say when heads are kept."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veca.probe.protocols import DENSE_PROTOCOLS_DINOV3 as DINOV3
from veca.probe.protocols import DENSE_PROTOCOLS_PAPER as PAPER
from veca.probe.protocols import DenseKnnProtocol


@pytest.mark.parametrize(
    "change",
    [
        {"steps": 0, "checks": 0},
        {"batch": 0},
        {"loss_stride": 0},
        {"views": 0},
        {"checks": 3, "steps": 2},
        {"rates": ()},
        {"rates": (0.1, 0.2), "selection": "none"},
        {"overlap": 1.0},
        {"dropout": 1.0},
        {"held_out": 0.0},
    ],
)
def test_what_no_head_can_be_fitted_with_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"^paper: "):
        replace(PAPER, **change)


@pytest.mark.parametrize(
    "change", [{"neighbors": ()}, {"bank": 0}, {"pictures": 0}, {"temperature": 0.0}]
)
def test_neighbors_that_cannot_vote_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"^near: "):
        DenseKnnProtocol(name="near", **change)


@given(steps=st.integers(1, 500), checks=st.integers(1, 20))
def test_heads_are_kept_at_equal_distances_and_at_the_end(steps: int, checks: int) -> None:
    if checks > steps:
        return
    kept = replace(PAPER, steps=steps, checks=checks).checked_steps()
    assert len(set(kept)) == checks
    assert kept[-1] == steps
    gaps = [late - early for early, late in zip((0, *kept), kept, strict=False)]
    assert max(gaps) - min(gaps) <= 1


def test_windows_of_512_come_every_341_pixels() -> None:
    assert DINOV3.window_stride(512) == 341
    assert DINOV3.window_stride(518) == 345
