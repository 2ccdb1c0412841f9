"""Restored generators draw what they would have drawn, and seeds of steps are unrelated."""

import json
import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from veca.runtime.device import random_states, restore_random_states, seed_for


def draws() -> list[Any]:
    """Something from every generator; odd numbers of normal draws leave one in store."""
    return [
        torch.rand(3).tolist(),
        torch.randn(1).item(),
        np.random.rand(3).tolist(),  # noqa: NPY002 - the generator under test
        np.random.normal(size=3).tolist(),  # noqa: NPY002
        random.random(),
        random.gauss(0, 1),
        random.getrandbits(100),
    ]


@pytest.mark.parametrize("drawn_before", range(4))
def test_draws_after_restoring_are_those_that_would_have_come(drawn_before: int) -> None:
    for _ in range(drawn_before):
        draws()
    random.gauss(0, 1)
    tensors, facts = random_states()
    facts = json.loads(json.dumps(facts, allow_nan=False))
    expected = [draws() for _ in range(3)]
    restore_random_states(tensors | {"another": torch.zeros(1)}, facts)
    assert [draws() for _ in range(3)] == expected


def test_saved_states_do_not_follow_the_generators() -> None:
    tensors, _ = random_states()
    copies = {name: tensor.clone() for name, tensor in tensors.items()}
    for _ in range(700):  # past the end of every table of numbers
        draws()
    assert all(torch.equal(tensors[name], copies[name]) for name in copies)


def test_states_of_graphics_processors_are_kept_for_those_that_are_still_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    states, restored = [torch.arange(16, dtype=torch.uint8), torch.ones(16, dtype=torch.uint8)], {}
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: states)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, at: restored.update({at: state}))
    tensors, facts = random_states()
    restore_random_states(tensors, facts)
    assert list(restored) == [0]
    assert torch.equal(restored[0], states[0])


@pytest.mark.gpu
def test_a_graphics_processor_draws_what_it_would_have_drawn() -> None:
    torch.rand(1, device="cuda")
    tensors, facts = random_states()
    expected = torch.rand(5, device="cuda")
    restore_random_states(tensors, facts)
    assert torch.equal(torch.rand(5, device="cuda"), expected)


@given(
    st.tuples(st.integers(0, 99), st.integers(0, 99), st.sampled_from(["mask", "drop"])),
    st.tuples(st.integers(0, 99), st.integers(0, 99), st.sampled_from(["mask", "drop"])),
)
def test_seeds_are_equal_only_where_seed_step_and_purpose_are(
    one: tuple[int, int, str], other: tuple[int, int, str]
) -> None:
    assert (seed_for(*one) == seed_for(*other)) == (one == other)
    assert 0 <= seed_for(*one) < 2**63


def test_the_seed_of_a_step_never_changes() -> None:
    assert seed_for(0, 0, "budget") == 3125091903214673623
    torch.manual_seed(seed_for(1, 2, "any"))  # in range for torch
