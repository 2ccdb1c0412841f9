"""Seeds of steps and purposes are unrelated."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from veca.runtime.device import seed_for


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
