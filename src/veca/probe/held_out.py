"""Training pictures that are kept from a head, so that settings can be chosen on them."""

from typing import NamedTuple

import torch
from jaxtyping import Int64
from torch import Tensor

from veca.runtime.device import seed_for


class Parts(NamedTuple):
    """Numbers of pictures, rising in each part; together they are all."""

    kept: Int64[Tensor, " n"]
    """To fit on."""

    held_out: Int64[Tensor, " m"]
    """To choose on."""


def hold_out(count: int, share: float, seed: int) -> Parts:
    """Put a share of `count` pictures aside by chance, at least one, and leave at least one."""
    if count < 2:
        raise ValueError(
            f"of {count} pictures none can be put aside to choose settings on; give 2 or more, or "
            "a part of their own to choose on."
        )
    if not 0 < share < 1:
        raise ValueError(f"share={share} of the pictures cannot be put aside; use 0 < share < 1.")
    generator = torch.Generator().manual_seed(seed_for(seed, 0, "probe/held-out"))
    order = torch.randperm(count, generator=generator)
    aside = min(max(1, round(share * count)), count - 1)
    return Parts(order[aside:].sort().values, order[:aside].sort().values)
