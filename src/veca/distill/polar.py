"""Orthogonal directions by matrix products alone: Polar Express (Amsel et al., 2025).

Each step applies an odd quintic to all singular values at once,

    X <- aX + (bA + cA^2)X,   A = XX^T,

and the quintics follow one another so that what lies between 0.001 and 1 comes close to 1. The
result is near U V^T of the singular value decomposition X = U S V^T, not equal to it: singular
values end between 0.86 and 1.14, smaller ones than 0.001 stay below. Training asks for no more.
"""

import itertools
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

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
