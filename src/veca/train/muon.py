"""NorMuon: momentum orthogonalized by Polar Express, with row-wise second moments.

For a weight W of n rows and m columns with gradient G:

    M <- mu M + G                       momentum
    U <- orthogonal(G + mu M)           Nesterov look-ahead
    v <- b v + (1 - b) mean_j U_ij^2    second moment of each row
    U <- U / sqrt(v), rescaled to its previous Frobenius norm
    W <- W - lr decay W                 where W and U have the same sign
    W <- W - lr 0.2 sqrt(max(n, m)) U   steps about as large as AdamW's

Polar Express (Amsel et al., 2025) orthogonalizes by matrix products alone: each step applies an odd
quintic X <- aX + (bA + cA^2)X, A = XX^T, to all singular values at once, and the sequence of
quintics brings everything between 0.001 and 1 close to 1 (to 0.86..1.14, which suffices here).
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim import Optimizer

from veca.train.parallel import full_tensor, local_tensor, shard_like

Quintic = tuple[float, float, float]
"""Coefficients of X, X^3 and X^5."""

POLAR_EXPRESS: tuple[Quintic, ...] = (
    (8.237312, -23.157747, 16.680568),
    (4.082442, -2.893048, 0.525285),
    (3.926348, -2.854747, 0.531802),
    (3.298219, -2.424542, 0.486320),
    (2.320007, -1.686217, 0.420680),
)
"""The authors' five steps; the tests derive them independently."""

MARGIN = 1.01
"""Matrices are divided by their Frobenius norm times this."""

EPSILON = 1e-7
"""Added to the norm of a matrix, so that a matrix of zeros stays zero."""


def polar_express(
    matrices: Float[Tensor, "*stack rows columns"], dtype: torch.dtype = torch.float32
) -> Float[Tensor, "*stack rows columns"]:
    """Return matrices with the same singular vectors and singular values near one.

    `dtype` is that of the matrix products.
    """
    rows, columns = matrices.shape[-2:]
    wide = matrices.to(dtype).reshape(-1, rows, columns)
    if rows > columns:
        wide = wide.mT
    norms = torch.linalg.matrix_norm(wide, keepdim=True)
    wide = wide / (norms * MARGIN + EPSILON)
    # Steps that share one Gram matrix cost up to a third less for long rows, but rounding errors
    # grow, since A holds squares: twofold for groups of two and three, fortyfold for all five in
    # one and an ill-conditioned matrix. Half precision and TF32 leave no room for either.
    exact = wide.device.type == "cpu" and torch.finfo(dtype).bits >= 32
    ends = (0, 2, 5) if exact and wide.shape[2] >= 2 * wide.shape[1] else range(6)
    for start, end in itertools.pairwise(ends):
        wide = _apply(wide, POLAR_EXPRESS[start:end])
    if rows > columns:
        wide = wide.mT
    return wide.reshape(matrices.shape).to(matrices.dtype)


def _apply(
    wide: Float[Tensor, "K rows columns"], steps: tuple[Quintic, ...]
) -> Float[Tensor, "K rows columns"]:
    """Apply a group of steps.

    A step is X <- PX with P = a + bA + cA^2. All P and A of a group are polynomials of one A, so
    they commute, and A <- PAP needs products of the short side only.
    """
    gram = torch.bmm(wide, wide.mT)
    (a, b, c), *later = steps
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
    """Add a multiple of the identity, in place."""
    matrices.diagonal(dim1=-2, dim2=-1).add_(value)
    return matrices


MUON_EPSILON = 1e-8
"""Added to the denominators of row normalization."""

ADAMW_STEP = 0.2
"""RMS of a typical AdamW step at rate one, which is matched."""

MAX_ELEMENTS_ON_CPU = 2**19
"""Elements orthogonalized together on a CPU, so that they fit into its cache."""

MAX_ELEMENTS = 2**26
"""The same elsewhere, so that they fit into memory."""


class NorMuon(Optimizer):
    """Optimizer of matrices; those without a gradient are neither updated nor decayed.

    Matrices of one shape are orthogonalized together. For a sharded matrix every rank gathers the
    whole momentum, computes the whole step and applies its own part.
    """

    def __init__(  # noqa: PLR0913 - the defaults are the paper's
        self,
        matrices: Iterable[nn.Parameter],
        lr: float = 0.0,
        *,
        weight_decay: float = 0.015,
        momentum: float = 0.95,
        beta2: float = 0.95,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """Create an optimizer; `weight_decay` is decoupled, `dtype` is that of matrix products."""
        super().__init__(matrices, {"lr": lr})
        self.weight_decay, self.momentum, self.beta2 = weight_decay, momentum, beta2
        self.dtype = dtype
        for group in self.param_groups:
            for matrix in group["params"]:
                if matrix.ndim != 2:
                    raise ValueError(
                        f"NorMuon takes matrices, got a parameter of shape "
                        f"{tuple(matrix.shape)}; give it to AdamW."
                    )

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Take one step at the learning rate of each group."""
        for group in self.param_groups:
            for matrices in _by_shape(group["params"]):
                for matrix, step in zip(matrices, self._steps(matrices), strict=True):
                    self._apply_step(matrix, step, group["lr"])

    def _steps(self, matrices: list[nn.Parameter]) -> Float[Tensor, "K rows columns"]:
        """Update momenta, and return the step directions of matrices of one shape, whole."""
        ahead = []
        for matrix in matrices:
            state: dict[str, Tensor] = self.state[matrix]
            if not state:
                state["momentum"] = torch.zeros_like(matrix)  # sharded as the matrix
                state["row_moment"] = local_tensor(matrix).new_zeros(matrix.shape[0])  # whole
            momentum, gradient = state["momentum"], matrix.grad
            if gradient is not None:
                momentum.mul_(self.momentum).add_(gradient)
                ahead.append(full_tensor(torch.add(gradient, momentum, alpha=self.momentum)))
        steps = polar_express(torch.stack(ahead), self.dtype)
        moments = [self.state[matrix]["row_moment"] for matrix in matrices]
        return _normalize_rows(steps, moments, self.beta2)

    def _apply_step(
        self, matrix: nn.Parameter, step: Float[Tensor, "rows columns"], lr: float
    ) -> None:
        """Decay a matrix and apply a step."""
        weight, step = local_tensor(matrix), local_tensor(shard_like(step, matrix))
        agrees = torch.mul(weight, step).ge_(0)  # ones and zeros
        weight.addcmul_(weight, agrees, value=-lr * self.weight_decay)
        weight.sub_(step, alpha=lr * ADAMW_STEP * math.sqrt(max(matrix.shape)))


def _normalize_rows(
    steps: Float[Tensor, "K rows columns"], moments: list[Tensor], beta2: float
) -> Float[Tensor, "K rows columns"]:
    """Divide rows by the root of their second moment; each matrix keeps its norm."""
    norms = torch.linalg.matrix_norm(steps, keepdim=True)
    for moment, step in zip(moments, steps.unbind(), strict=True):
        moment.lerp_(step.square().mean(1), 1 - beta2)
    steps /= torch.stack(moments).sqrt_().add_(MUON_EPSILON).unsqueeze(2)
    steps *= norms / torch.linalg.matrix_norm(steps, keepdim=True).add_(MUON_EPSILON)
    return steps


def _by_shape(matrices: list[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Group matrices with a gradient by shape, in groups of bounded size."""
    found = defaultdict[tuple[torch.Size, torch.dtype, torch.device], list[nn.Parameter]](list)
    for matrix in matrices:
        if matrix.grad is not None:
            found[matrix.shape, matrix.dtype, matrix.device].append(matrix)
    for (shape, _, device), same in found.items():
        most = MAX_ELEMENTS_ON_CPU if device.type == "cpu" else MAX_ELEMENTS
        count = max(1, most // shape.numel())
        yield from (same[start : start + count] for start in range(0, len(same), count))
