"""NorMuon with Polar Express.

Orthogonal directions by matrix products alone: Polar Express (Amsel et al., 2025).

Each step applies an odd quintic to all singular values at once,

    X <- aX + (bA + cA^2)X,   A = XX^T,

and the quintics follow one another so that what lies between 0.001 and 1 comes close to 1. The
result is near U V^T of the singular value decomposition X = U S V^T, not equal to it: singular
values end between 0.86 and 1.14, smaller ones than 0.001 stay below. Training asks for no more.

NorMuon: momentum whose every direction counts alike, for the matrices of a network.

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

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim import Optimizer

from veca.train.parallel import local, sharded_like, whole

Quintic = tuple[float, float, float]
"""The factors of X, X^3 and X^5."""

POLAR_EXPRESS: tuple[Quintic, ...] = (
    (8.237312, -23.157747, 16.680568),
    (4.082442, -2.893048, 0.525285),
    (3.926348, -2.854747, 0.531802),
    (3.298219, -2.424542, 0.486320),
    (2.320007, -1.686217, 0.420680),
)
"""The authors' five steps; the tests derive them anew."""

EPSILON = 1e-7
"""Keeps a matrix of zeros from being divided by its norm; such a matrix stays zero."""


@dataclass(frozen=True, kw_only=True)
class PolarConfig:
    """How matrices are made orthogonal; the defaults are the paper's."""

    steps: tuple[Quintic, ...] = POLAR_EXPRESS
    """The quintics in their order."""

    margin: float = 1.01
    """Matrices are divided by this multiple of their Frobenius norm."""

    dtype: torch.dtype = torch.float32
    """Of the products; training takes that of its own precision (`optimizers.py`)."""


PAPER = PolarConfig()


def polar_express(
    matrices: Float[Tensor, "*stack rows columns"], config: PolarConfig = PAPER
) -> Float[Tensor, "*stack rows columns"]:
    """Matrices with the same singular vectors and singular values near one."""
    rows, columns = matrices.shape[-2:]
    wide = matrices.to(config.dtype).reshape(-1, rows, columns)
    if rows > columns:
        wide = wide.mT
    norms = torch.linalg.matrix_norm(wide, keepdim=True)
    wide = wide / (norms * config.margin + EPSILON)
    for leg in _legs(config.steps, wide):
        wide = _after(wide, leg)
    if rows > columns:
        wide = wide.mT
    return wide.reshape(matrices.shape).to(matrices.dtype)


def _legs(
    steps: tuple[Quintic, ...], wide: Float[Tensor, "K rows columns"]
) -> list[tuple[Quintic, ...]]:
    """Which steps go together: legs of two and three cost up to a third less for long rows.

    Rounding shows in long legs, since A holds squares. With all five steps in one the error of an
    ill-conditioned matrix grows fortyfold, with two and three it doubles. Half precision has no
    room for either, nor has what a GPU may take for single precision.
    """
    count = len(steps)
    exact = wide.device.type == "cpu" and torch.finfo(wide.dtype).bits >= 32
    together = exact and wide.shape[2] >= 2 * wide.shape[1]
    ends = sorted({0, *range(2, count, 3), count}) if together else range(count + 1)
    return [steps[start:end] for start, end in itertools.pairwise(ends)]


def _after(
    wide: Float[Tensor, "K rows columns"], leg: tuple[Quintic, ...]
) -> Float[Tensor, "K rows columns"]:
    """The matrices after the steps of a leg.

    A step is X <- PX with P = a + bA + cA^2. All P of a leg and all A are polynomials of one A, so
    they commute, and A <- PAP needs products of the short side only.
    """
    gram = torch.bmm(wide, wide.mT)
    (a, b, c), *later = leg
    factor = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
    if not later:
        return torch.baddbmm(wide, factor, wide, beta=a)
    product = _with_diagonal(factor, a)
    for a, b, c in later:
        gram = torch.bmm(torch.bmm(factor, gram), factor)
        factor = _with_diagonal(torch.baddbmm(gram, gram, gram, beta=b, alpha=c), a)
        product = torch.bmm(factor, product)
    return torch.bmm(product, wide)


def _with_diagonal(matrices: Float[Tensor, "K rows rows"], value: float) -> Tensor:
    """Add a multiple of the identity in place."""
    matrices.diagonal(dim1=-2, dim2=-1).add_(value)
    return matrices


MUON_EPSILON = 1e-8
"""Keeps rows of zeros from being divided by their size."""

ADAMW_STEP = 0.2
"""Root mean square of a typical AdamW step at rate one, which is matched."""

MOST_ELEMENTS_ON_CPU = 2**19
"""Numbers that are made orthogonal together on a CPU: no more than its cache holds."""

MOST_ELEMENTS = 2**26
"""The same elsewhere: no more than memory holds."""


@dataclass(frozen=True, kw_only=True)
class NorMuonConfig:
    """Constants of the optimizer; the defaults are the paper's."""

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

    Matrices of one shape go through the orthogonalization together. Of a sharded matrix every
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
    steps /= torch.stack(moments).sqrt_().add_(MUON_EPSILON).unsqueeze(2)
    steps *= norms / torch.linalg.matrix_norm(steps, keepdim=True).add_(MUON_EPSILON)
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
