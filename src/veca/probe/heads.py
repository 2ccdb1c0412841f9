"""Linear heads: what the fits return, and what a class is told with."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class LinearHead:
    """Scores of K classes from a feature of D numbers, in the precision of the weights."""

    weight: Float[Tensor, "K D"]

    bias: Float[Tensor, " K"]
    """Minus infinity for a class that no training picture had: such a class is never told."""

    def scores(self, features: Float[Tensor, "N D"]) -> Float[Tensor, "N K"]:
        """One score for each class, the highest for the class that is told."""
        return torch.addmm(self.bias, features.to(self.weight), self.weight.T)

    def probabilities(self, features: Float[Tensor, "N D"]) -> Float[Tensor, "N K"]:
        """The scores as shares of 1."""
        return self.scores(features).softmax(dim=1)
