"""From a student's features to a teacher's width; trained with the student, left out of it."""

from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn

from veca.backbone.model import INITIAL_STD, Features

AdaptorKind = Literal["auto", "none", "linear", "two-layer"]
"""How a width becomes another one; 'auto' is 'none' where both agree, else 'linear'."""


class Adaptor(nn.Module):
    """What a teacher would say, told from the student's features; image and patches apart."""

    def __init__(self, width: int, image_width: int, patch_width: int, kind: AdaptorKind) -> None:
        super().__init__()
        self.image = _part(width, image_width, kind)
        self.patches = _part(width, patch_width, kind)
        self.reset_parameters()

    def forward(self, features: Features) -> tuple[Float[Tensor, "B DI"], Float[Tensor, "B N DP"]]:
        """Predict a teacher's image feature and patches."""
        return self.image(features.image), self.patches(features.patches)

    def reset_parameters(self) -> None:
        """As small as all linear layers of the backbone."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=INITIAL_STD)
                nn.init.zeros_(module.bias)


def _part(width: int, target: int, kind: AdaptorKind) -> nn.Module:
    """Layers that lead from one width to another."""
    if kind == "auto":
        kind = "none" if width == target else "linear"
    if kind == "none":
        if width != target:
            raise ValueError(
                f"a student of width {width} cannot answer a teacher of width {target} without an "
                "adaptor; use 'auto', 'linear' or 'two-layer'."
            )
        return nn.Identity()
    if kind == "linear":
        return nn.Linear(width, target)
    hidden = max(width, target)
    return nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, target))
