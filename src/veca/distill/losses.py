"""How far a student's features are from a teacher's.

    L = L_image + patches * L_patches
    L_image   = 1 - cos(image, target)
    L_patches = mean of 1 - cos(patch, target) + error * mean of (patch - target)^2

The image feature has no squared error, so its length is free; patches take the teacher's scale.
"""

from dataclasses import dataclass
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from veca.teacher.teacher import Targets

SHORTEST = 1e-6
"""Vectors shorter than this count as this long in a cosine, so that one of zeros has a gradient."""


@dataclass(frozen=True, kw_only=True)
class LossConfig:
    """Weights of the parts of the loss."""

    patches: float = 1.0
    """Weight of the patches beside the image; lambda of the paper."""

    error: float = 1.0
    """Weight of the patches' squared error beside their cosine; beta of the paper."""

    classes: float = 0.0
    """Weight of the classes that a teacher with a classifier sees (`further_losses.py`)."""

    temperature: float = 2.0
    """Of the scores of classes: the higher, the more the unlikely ones count."""

    relations: float = 0.0
    """Weight of which patches are alike (`further_losses.py`)."""

    anchors: float = 0.0
    """Weight of which other images an image is like (`further_losses.py`)."""

    anchor_temperature: float = 0.1
    """Of the cosines to these images: the lower, the more the nearest ones count."""

    def __post_init__(self) -> None:
        """Refuse weights that reward being wrong."""
        for name in ("temperature", "anchor_temperature"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(
                    f"{name}={getattr(self, name)} is not usable; use a finite number above 0."
                )
        for name in ("patches", "error", "classes", "relations", "anchors"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(
                    f"{name}={getattr(self, name)} is not usable as a weight of the loss; "
                    "use a finite number of 0 or more."
                )


class Losses(NamedTuple):
    """Parts of the loss, means over the batch."""

    image: Float[Tensor, ""]
    """1 - cosine of the image feature."""

    patch_cosine: Float[Tensor, ""]
    """1 - cosine of a patch."""

    patch_error: Float[Tensor, ""]
    """Squared error of a channel of a patch."""

    def total(self, config: LossConfig) -> Float[Tensor, ""]:
        """The paper's loss; `comparison.objective` adds what else is switched on."""
        return self.image + config.patches * (self.patch_cosine + config.error * self.patch_error)


PARTS = tuple(f"loss_{part}" for part in Losses._fields)
"""Names of the parts in the log."""


def distillation_losses(
    image: Float[Tensor, "B DI"], patches: Float[Tensor, "B N DP"], targets: Targets
) -> Losses:
    """Compare predicted features with a teacher's, in single precision whatever comes in."""
    image, patches = image.float(), patches.float()
    wanted = Targets(targets.image.float(), targets.patches.float())
    return Losses(
        1 - F.cosine_similarity(image, wanted.image, dim=-1, eps=SHORTEST).mean(),
        1 - F.cosine_similarity(patches, wanted.patches, dim=-1, eps=SHORTEST).mean(),
        F.mse_loss(patches, wanted.patches),
    )
