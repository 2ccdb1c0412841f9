"""NorMuon: momentum whose every direction counts alike, for the matrices of a network.

The momentum of a matrix is made orthogonal (`polar.py`), so that a step has the same length in
all directions; then rows that keep getting larger steps than others are evened out. In symbols, for
a weight W of n rows and m columns with gradient G:

    M <- mu M + G                       momentum
    U <- orthogonal(G + mu M)           Nesterov's look ahead
    v <- b v + (1 - b) mean_j U_ij^2    second moment of each row
    U <- U / sqrt(v), scaled back to the Frobenius norm it had
    W <- W - lr decay W                 where W and U have the same sign
    W <- W - lr 0.2 sqrt(max(n, m)) U   steps about as large as AdamW's

Without the middle two lines and with decay everywhere it is Muon (`torch.optim.Muon`).
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim import Optimizer

from veca.distill.polar import PAPER, PolarConfig, polar_express
from veca.distill.sharding import local, sharded_like, whole

EPSILON = 1e-8
"""Keeps rows of zeros from being divided by their size."""

ADAMW_STEP = 0.2
"""Root mean square of a typical AdamW step at rate one, which is matched."""

MOST_ELEMENTS_ON_CPU = 2**19
"""Numbers that are made orthogonal together on a CPU: no more than its cache holds."""

MOST_ELEMENTS = 2**26
"""The same elsewhere: no more than memory holds."""


@dataclass(frozen=True, kw_only=True)
class NorMuonConfig:
    """Constants of the optimiser; the defaults are the paper's."""

    weight_decay: float = 0.015
    """Share of a weight that one step at rate one takes away."""

    momentum: float = 0.95
    """Share of the momentum that is kept."""

    beta2: float | None = 0.95
    """Share of the rows' second moments that is kept; None does not even out rows."""

    cautious: bool = True
    """Decay only weights that the step makes smaller anyway."""

    polar: PolarConfig = PAPER
    """How momentum is made orthogonal."""


class NorMuon(Optimizer):
    """Steps matrices; those without a gradient are neither moved nor decayed.

    Matrices of one shape go through the orthogonalisation together. Of a sharded matrix every
    process gathers the whole momentum, computes the whole step and applies its own part.
    """

    def __init__(
        self,
        matrices: Iterable[nn.Parameter],
        lr: float = 0.0,
        config: NorMuonConfig | None = None,
    ) -> None:
        super().__init__(matrices, {"lr": lr})
        self.config = config or NorMuonConfig()
        for group in self.param_groups:
            for matrix in group["params"]:
                if matrix.ndim != 2:
                    raise ValueError(
                        f"NorMuon steps matrices, but got a parameter of shape "
                        f"{tuple(matrix.shape)}; give it to AdamW."
                    )

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Take one step at the rate of each group."""
        for group in self.param_groups:
            for matrices in _alike(group["params"]):
                for matrix, step in zip(matrices, self._steps(matrices), strict=True):
                    self._move(matrix, step, group["lr"])

    def _steps(self, matrices: list[nn.Parameter]) -> Float[Tensor, "K rows columns"]:
        """Directions of steps, whole, for matrices of one shape; momenta take in the gradients."""
        momenta = [self._state(matrix)["momentum"] for matrix in matrices]
        gradients = [matrix.grad for matrix in matrices if matrix.grad is not None]
        share = self.config.momentum
        for momentum, gradient in zip(momenta, gradients, strict=True):
            momentum.mul_(share).add_(gradient)
        ahead = [
            whole(torch.add(gradient, momentum, alpha=share))
            for momentum, gradient in zip(momenta, gradients, strict=True)
        ]
        steps = polar_express(torch.stack(ahead), self.config.polar)
        if self.config.beta2 is None:
            return steps
        moments = [self._state(matrix)["row_moment"] for matrix in matrices]
        return _even_rows(steps, moments, self.config.beta2)

    def _move(self, matrix: nn.Parameter, step: Float[Tensor, "rows columns"], lr: float) -> None:
        """Decay a matrix and move it along a step."""
        weight, decay = local(matrix), lr * self.config.weight_decay
        step = local(sharded_like(step, matrix))
        if self.config.cautious:
            agrees = torch.mul(weight, step).ge_(0)  # ones and zeros
            weight.addcmul_(weight, agrees, value=-decay)
        else:
            weight.mul_(1 - decay)
        weight.sub_(step, alpha=lr * ADAMW_STEP * math.sqrt(max(matrix.shape)))

    def _state(self, matrix: nn.Parameter) -> dict[str, Tensor]:
        """What is remembered of a matrix: momentum, spread as it is, and whole row moments."""
        state: dict[str, Tensor] = self.state[matrix]
        if not state:
            state["momentum"] = torch.zeros_like(matrix)
            if self.config.beta2 is not None:
                state["row_moment"] = local(matrix).new_zeros(matrix.shape[0])
        return state


def _even_rows(
    steps: Float[Tensor, "K rows columns"], moments: list[Tensor], beta2: float
) -> Float[Tensor, "K rows columns"]:
    """Divide rows by the size they usually have; each matrix keeps its norm."""
    norms = torch.linalg.matrix_norm(steps, keepdim=True)
    for moment, step in zip(moments, steps.unbind(), strict=True):
        moment.lerp_(step.square().mean(1), 1 - beta2)
    steps /= torch.stack(moments).sqrt_().add_(EPSILON).unsqueeze(2)
    steps *= norms / torch.linalg.matrix_norm(steps, keepdim=True).add_(EPSILON)
    return steps


def _alike(matrices: list[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Matrices that have a gradient, in lists of one shape and of bounded size."""
    found: dict[tuple[torch.Size, torch.dtype, torch.device], list[nn.Parameter]] = defaultdict(
        list
    )
    for matrix in matrices:
        if matrix.grad is not None:
            found[matrix.shape, matrix.dtype, matrix.device].append(matrix)
    for (shape, _, device), same in found.items():
        most = MOST_ELEMENTS_ON_CPU if device.type == "cpu" else MOST_ELEMENTS
        count = max(1, most // shape.numel())
        yield from (same[start : start + count] for start in range(0, len(same), count))
