"""What a backbone answers with: one type, whatever was asked for."""

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor


class Features(NamedTuple):
    """Features of B images at width D: C cores, N patches, and where they are."""

    cores: Float[Tensor, "B C D"]
    """The active cores in nesting order (the prefix tokens of a full-attention model)."""

    patches: Float[Tensor, "B N D"]
    """The patches row by row."""

    core_points: Float[Tensor, "B C 2"]
    """Where the cores are, x then y, within (-1, 1) (prefix tokens have no place: zeros)."""

    grid: tuple[int, int]
    """Rows and columns of patches."""

    @property
    def image(self) -> Float[Tensor, "B D"]:
        """The global feature: the first core."""
        return self.cores.select(1, 0)

    @property
    def patch_map(self) -> Float[Tensor, "B D rows columns"]:
        """The patches as a picture with D channels."""
        return self.patches.transpose(1, 2).unflatten(2, self.grid)
