"""The few directions in which a teacher's patch features vary, found on some of its images.

Kept on disk, all channels of every patch would take terabytes. Features vary mostly in a part of
their channels' space, so what is kept are their principal components; the student then learns to
predict these instead of the channels.
"""

from collections.abc import Iterable

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn


class Projection(nn.Module):
    """Maps D channels to their first principal components, which it centers."""

    center: Float[Tensor, " D"]
    components: Float[Tensor, "channels D"]
    """Orthonormal rows, those of the greatest variance first."""
    explained: Float[Tensor, ""]
    """Share of the variance that the components hold."""

    def __init__(
        self,
        center: Float[Tensor, " D"],
        components: Float[Tensor, "channels D"],
        explained: Float[Tensor, ""],
    ) -> None:
        super().__init__()
        self.register_buffer("center", center)
        self.register_buffer("components", components)
        self.register_buffer("explained", explained)

    @classmethod
    def fit(cls, features: Iterable[Float[Tensor, "... D"]], channels: int) -> "Projection":
        """The projection that keeps most of the variance of the features, given part by part.

        Equal features give equal bits: of the two directions of a component the one is taken whose
        greatest channel is positive.
        """
        mean, covariance = _moments(features)
        if not 1 <= channels <= len(mean):
            raise ValueError(
                f"{channels} principal components of {len(mean)} channels were asked for; use 1 "
                f"to {len(mean)}."
            )
        variances, directions = torch.linalg.eigh(covariance)  # rising, directions in columns
        components = directions.T.flip(0)[:channels]
        greatest = components.gather(1, components.abs().argmax(1, keepdim=True))
        components = components * torch.where(greatest < 0, -1.0, 1.0)
        variances = variances.flip(0).clamp(min=0)
        total = variances.sum()
        explained = variances[:channels].sum() / total if total > 0 else torch.ones(())
        return cls(mean.float(), components.float().contiguous(), explained.float())

    @property
    def channels(self) -> int:
        """Components that it keeps."""
        return len(self.components)

    def forward(self, patches: Float[Tensor, "B N D"]) -> Float[Tensor, "B N channels"]:
        """The components of patch features, in single precision whatever surrounds it."""
        with torch.autocast(patches.device.type, enabled=False):
            return (patches.float() - self.center) @ self.components.T

    def describe(self) -> str:
        """Such as '256 of 1,280 channels hold 93.1 % of the variance'."""
        width, share = self.components.shape[1], 100 * float(self.explained)
        return f"{self.channels:,} of {width:,} channels hold {share:.1f} % of the variance"


def _moments(
    features: Iterable[Float[Tensor, "... D"]],
) -> tuple[Float64[Tensor, " D"], Float64[Tensor, "D D"]]:
    """Mean and covariance of vectors that come in parts."""
    count, shift = 0, torch.zeros(0)
    total, squares = torch.zeros(0), torch.zeros(0)
    for part in features:
        rows = part.detach().to("cpu", torch.float64).reshape(-1, part.shape[-1])
        if not count:
            # Squares of what is far from 0 would lose the digits in which it varies.
            shift = rows.mean(0)
            total, squares = torch.zeros_like(shift), shift.new_zeros(len(shift), len(shift))
        rows = rows - shift
        count += len(rows)
        total += rows.sum(0)
        squares += rows.T @ rows
    if count < 2:
        raise ValueError(f"{count} vectors have no principal components; give 2 or more.")
    mean = total / count
    return mean + shift, squares / count - torch.outer(mean, mean)
