"""Pictures put aside are a fixed part, chosen by chance, and never trained on."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from veca.probe.held_out import hold_out


@given(st.integers(2, 300), st.floats(0.001, 0.999), st.integers(0, 9))
def test_both_parts_together_are_all_pictures_once(count: int, share: float, seed: int) -> None:
    kept, aside = hold_out(count, share, seed)
    assert torch.cat((kept, aside)).sort().values.tolist() == list(range(count))
    assert len(kept) >= 1
    assert len(aside) >= 1
    assert abs(len(aside) - share * count) <= 1


def test_the_seed_alone_decides_the_parts() -> None:
    first, again, other = (hold_out(1000, 0.1, seed).held_out for seed in (0, 0, 1))
    assert len(first) == 100
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert first.double().mean() == pytest.approx(499.5, abs=100)  # from everywhere


def test_a_single_picture_cannot_be_divided() -> None:
    with pytest.raises(ValueError, match="of 1 pictures none can be put aside"):
        hold_out(1, 0.5, 0)


@pytest.mark.parametrize("share", [0.0, 1.0, -0.5])
def test_a_share_that_leaves_nothing_on_one_side_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="cannot be put aside"):
        hold_out(10, share, 0)
