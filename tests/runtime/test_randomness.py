"""Seeds of steps and purposes are unrelated."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from veca.runtime.device import seed_for


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
