"""Centre and scale of a teacher's features.

Features that are all positive, or that have one huge channel, let a student that sees nothing of
the image come far by repeating their mean. Around their centre it cannot.
"""

from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from veca.distill.moments import Moments
from veca.teacher.teacher import Targets

LEAST_VARIANCE = 1e-10
"""Share of the mean square below which features count as constant: what is left is rounding."""


class TargetScaling(nn.Module):
    """(target - centre) / scale, with a centre for each channel and one scale for all of them.

    One scale keeps the teacher's geometry: distances between features change by a factor.
    """

    image_centre: Tensor
    image_scale: Tensor
    patch_centre: Tensor
    patch_scale: Tensor
    anchors: Tensor | None
    """Scaled image targets of some training images, which the anchor loss compares images with;
    None where it is off."""

    def __init__(self, image_width: int, patch_width: int, anchors: int = 0) -> None:
        """Leave targets as they are."""
        super().__init__()
        self.register_buffer("image_centre", torch.zeros(image_width))
        self.register_buffer("image_scale", torch.ones(()))
        self.register_buffer("patch_centre", torch.zeros(patch_width))
        self.register_buffer("patch_scale", torch.ones(()))
        self.register_buffer("anchors", torch.zeros(anchors, image_width) if anchors else None)

    @classmethod
    def identity(cls, image_width: int, patch_width: int, anchors: int = 0) -> "TargetScaling":
        """Leave targets as they are, which the paper does."""
        return cls(image_width, patch_width, anchors)

    @classmethod
    def from_moments(cls, image: Moments, patches: Moments) -> "TargetScaling":
        """Give targets of these moments a mean of zero and channels of mean square one."""
        scaling = cls(len(image.sum), len(patches.sum))
        scaling.fit(image, patches)
        return scaling

    def fit(self, image: Moments, patches: Moments) -> None:
        """Take centre and scale from other moments."""
        for kind, moments in (("image", image), ("patch", patches)):
            scale = _scale(kind, moments)
            cast(Tensor, getattr(self, f"{kind}_centre")).copy_(moments.mean)
            cast(Tensor, getattr(self, f"{kind}_scale")).copy_(scale)

    def forward(self, targets: Targets) -> Targets:
        """Scale targets."""
        return Targets(
            (targets.image - self.image_centre) / self.image_scale,
            (targets.patches - self.patch_centre) / self.patch_scale,
        )

    def unscaled_image(self, image: Float[Tensor, "B DI"]) -> Float[Tensor, "B DI"]:
        """Image features as the teacher says them, from scaled ones."""
        return image * self.image_scale + self.image_centre


def _scale(kind: str, moments: Moments) -> Tensor:
    """Root of the mean squared channel around the centre."""
    variance = moments.mean_square - moments.mean.square().mean()
    if not variance > LEAST_VARIANCE * moments.mean_square:
        raise ValueError(
            f"the teacher's {kind} features are the same for all {int(moments.count)} samples, so "
            "there is nothing to learn from them; check the teacher and its images, or do not "
            "scale targets."
        )
    return variance.sqrt()
