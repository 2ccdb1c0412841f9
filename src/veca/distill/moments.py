"""Sums over a teacher's target vectors: all that centring, scaling and a constant answer need."""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from veca.distill.losses import SHORTEST


class Moments:
    """Sums over vectors of one width, in double precision, so that the order hardly matters."""

    def __init__(self, width: int) -> None:
        """No vectors yet."""
        self.count = torch.zeros((), dtype=torch.float64)
        self.sum = torch.zeros(width, dtype=torch.float64)
        self.unit_sum = torch.zeros(width, dtype=torch.float64)
        self.squared_norms = torch.zeros((), dtype=torch.float64)

    def add(self, vectors: Float[Tensor, "*batch D"]) -> None:
        """Take in more vectors."""
        rows = vectors.detach().to("cpu", torch.float64).reshape(-1, vectors.shape[-1])
        self.count += len(rows)
        self.sum += rows.sum(0)
        self.unit_sum += F.normalize(rows, dim=1, eps=SHORTEST).sum(0)
        self.squared_norms += rows.square().sum()

    def merge(self, other: "Moments") -> None:
        """Take in all that another one has seen."""
        for name, tensor in other.tensors().items():
            self.tensors()[name].add_(tensor)

    def tensors(self) -> dict[str, Tensor]:
        """The sums themselves: adding those of several processes merges them."""
        return {
            "count": self.count,
            "sum": self.sum,
            "unit_sum": self.unit_sum,
            "squared_norms": self.squared_norms,
        }

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from sums that `tensors` gave."""
        for name, tensor in self.tensors().items():
            tensor.copy_(tensors[name])

    @property
    def mean(self) -> Float[Tensor, " D"]:
        """The mean vector."""
        return self.sum / self._checked_count()

    @property
    def unit_mean(self) -> Float[Tensor, " D"]:
        """The mean of the vectors, each scaled to length one."""
        return self.unit_sum / self._checked_count()

    @property
    def mean_square(self) -> Float[Tensor, ""]:
        """The mean squared channel."""
        return self.squared_norms / self._checked_count() / len(self.sum)

    def _checked_count(self) -> Tensor:
        """The count, unless nothing was counted."""
        if self.count == 0:
            raise ValueError("moments of no vectors are not defined; add some first.")
        return self.count
