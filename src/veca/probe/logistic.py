"""Logistic regression to the optimum, in double precision, over a sweep of C.

The objective is scikit-learn's: the summed cross-entropy plus the squared weights / (2 C); biases
are not penalized. With two classes scikit-learn has one row of weights w; here it is w / 2 and
-w / 2 with twice the penalty, which has the same optimum. A class without training images gets no
weights and the bias minus infinity.

The solver is a Newton-CG method. On badly conditioned features L-BFGS, which DINOv2 and
scikit-learn use, still has a gradient of 1e-4 after a thousand steps, where Newton needs a few
hundred cheaper products. Three things make it fast: features are centered and rotated to their
principal axes, so that the diagonal of the Hessian is a good preconditioner; a line search
multiplies no matrices, as logits are linear in the step length; and a fit starts from those with
stronger penalties.
"""

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from veca.probe.linear import Fit, LinearHead
from veca.probe.metrics import METRICS, Labels, has_label, soft_targets
from veca.probe.protocols import LogisticProtocol, train_val_split
from veca.probe.rows import ProbeError

MAX_RESIDUAL = 0.1
"""Share of the gradient that a Newton direction may leave, far from the optimum."""

FLAT = 0.5
"""A step length is accepted where the slope has fallen to this share of its start."""

MAX_TRIALS = 60
"""Of step lengths."""

MAX_GROWTH = 4.0
"""Of the step length from one trial to the next."""

PENALTY_SHARE = 1e-3
"""Share of the penalty's gradient that may remain.

The penalty curves the objective everywhere, so this bounds the distance to the optimal weights
relative to their norm. It matters for large C, where all gradients are small.
"""

ROUNDING = 1e-12
"""Share of the gradient at zero weights below which rounding errors dominate."""


def sweep_c(  # noqa: PLR0913, PLR0917
    features: Float[Tensor, "N D"],
    labels: Labels,
    num_classes: int,
    protocol: LogisticProtocol,
    seed: int = 0,
    val: tuple[Tensor, Tensor] | None = None,
    *,
    advance: Callable[[int], object] = lambda _: None,
) -> Fit:
    """Fit all values of C, choose the best on validation images, and fit it on all images.

    Of equals the smallest is chosen. Without `val`, features and labels to choose on, a share of
    the training images is held out. Images without a class are left out. `advance` is called with 1
    after each C.
    """
    x, y = _labeled(features, labels)
    if val is None:
        rows = train_val_split(len(x), protocol.held_out_share, seed)
        train, val = ((x[part], y[part]) for part in rows)
    else:
        train, val = (x, y), _labeled(*val)
        x, y = torch.cat((x, val[0].to(x))), torch.cat((y, val[1].to(y.device)))
    problem = SoftmaxProblem(*train, num_classes)
    path = problem.path(protocol.c_values, protocol.max_iterations, protocol.path_tolerance)
    best, chosen, start = -math.inf, protocol.c_values[0], None
    for c, solution in zip(protocol.c_values, path, strict=True):
        head = problem.head(solution)
        value = METRICS[protocol.metric](head.scores(val[0]), val[1])
        if value > best:
            best, chosen, start = value, c, head
        advance(1)
    problem = SoftmaxProblem(x, y, num_classes)
    solution = problem.solve(
        chosen, problem.solution(start), protocol.max_iterations, protocol.tolerance
    )
    return Fit(problem.head(solution), {"C": chosen}, len(x))


def _labeled(features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Features and labels of the images that have a class."""
    rows = has_label(labels)
    if not len(rows):
        raise ProbeError("no training image has a class; use a dataset with labels.")
    return (features, labels) if len(rows) == len(features) else (features[rows], labels[rows])


class SoftmaxProblem:
    """Images with their classes, prepared for fits with any penalty.

    A solution is a matrix (a, k): a row for each principal axis and a last one for the biases; a
    column for each class that occurs.
    """

    def __init__(self, x: Float[Tensor, "N D"], y: Labels, num_classes: int) -> None:
        targets = soft_targets(y, num_classes, torch.float64)
        self.num_classes = num_classes
        self.classes: Int64[Tensor, " k"] = (targets.sum(dim=0) > 0).nonzero().flatten()
        self.targets: Float64[Tensor, "N k"] = targets[:, self.classes]
        double = x.double()
        self.center: Float64[Tensor, " D"] = double.mean(dim=0)
        self.basis: Float64[Tensor, "D d"] = _principal_axes(double - self.center)
        rows = (double - self.center) @ self.basis
        self.rows: Float64[Tensor, "N a"] = torch.cat((rows, rows.new_ones(len(rows), 1)), dim=1)
        uniform = 1 / len(self.classes)
        self.scale = float((self.rows.T @ (uniform - self.targets)).norm())
        """Norm of the gradient at zero weights."""

    def solution(self, head: LinearHead | None) -> Float64[Tensor, "a k"]:
        """The solution with the scores of a head, or zeros; classes new to the head get zeros."""
        if head is None:
            return self.rows.new_zeros(self.rows.shape[1], len(self.classes))
        weight, bias = head.weight[self.classes].to(self.rows), head.bias[self.classes]
        bias = bias.to(self.rows).nan_to_num(neginf=0.0) + weight @ self.center
        return torch.cat((self.basis.T @ weight.T, bias[None]))

    def head(self, solution: Float64[Tensor, "a k"]) -> LinearHead:
        """The head on the original features; its biases have mean 0."""
        weight = self.center.new_zeros(self.num_classes, len(self.center))
        bias = self.center.new_full((self.num_classes,), -torch.inf)
        weight[self.classes] = (self.basis @ solution[:-1]).T
        shifted = solution[-1] - weight[self.classes] @ self.center
        bias[self.classes] = shifted - shifted.mean()
        return LinearHead(weight=weight, bias=bias)

    def penalty(self, c: float) -> Float64[Tensor, "a 1"]:
        """Factors of the squares / 2 of each row of a solution; 0 for the biases."""
        rows = self.rows.new_full((self.rows.shape[1], 1), 1 / c)
        rows[-1] = 0.0
        return rows * 2 if len(self.classes) == 2 else rows

    def path(
        self, c_values: Sequence[float], max_iterations: int, tolerance: float
    ) -> Iterator[Float64[Tensor, "a k"]]:
        """The solution of each C, in ascending order.

        A fit starts where the last two solutions, over the logarithm of C, extrapolate to.
        """
        before, last = None, self.solution(None)
        for number, c in enumerate(c_values):
            start = last
            if before is not None:
                step = math.log(c_values[number - 1] / c_values[number - 2])
                ahead = math.log(c / c_values[number - 1]) / step
                start = last + ahead * (last - before)
            found = self.solve(c, start, max_iterations, tolerance)
            before, last = (last if number else None), found
            yield found

    def solve(
        self,
        c: float,
        start: Float64[Tensor, "a k"],
        max_iterations: int,
        tolerance: float,
    ) -> Float64[Tensor, "a k"]:
        """The solution for one C by Newton's method.

        A start worse than zeros is not used: the Hessian vanishes at confidently wrong scores.
        """
        penalty = self.penalty(c)
        zeros = torch.zeros_like(start)
        worse = self.objective(start, penalty) > self.objective(zeros, penalty)
        found = zeros if worse else start
        logits, left = self.rows @ found, max_iterations
        while left > 0:
            shares = logits.softmax(dim=1)
            gradient = self.rows.T @ (shares - self.targets) + penalty * found
            size, pulled = float(gradient.norm()), float((penalty * found).norm())
            target = min(tolerance * self.scale, PENALTY_SHARE * pulled)
            target = max(target, ROUNDING * self.scale)
            if size <= target:
                break
            residual = min(MAX_RESIDUAL, math.sqrt(size / max(self.scale, size)))
            enough = max(residual * size, target / 4)
            direction, along, used = self._newton(shares, gradient, penalty, enough, left)
            pull = float((penalty * found * direction).sum())
            length = self._line_search(logits, along, pull, float((penalty * direction**2).sum()))
            if length is None:
                break  # only rounding errors are left
            found = found + length * direction
            logits, left = self.rows @ found, left - used
        return found

    def objective(self, solution: Float64[Tensor, "a k"], penalty: Float64[Tensor, "a 1"]) -> float:
        """Summed cross-entropy and penalty."""
        logits = self.rows @ solution
        loss = float(logits.logsumexp(dim=1).sum()) - _dot(self.targets, logits)
        return loss + float((penalty * solution.square()).sum()) / 2

    def _newton(
        self,
        shares: Float64[Tensor, "N k"],
        gradient: Float64[Tensor, "a k"],
        penalty: Float64[Tensor, "a 1"],
        enough: float,
        max_products: int,
    ) -> tuple[Tensor, Tensor, int]:
        """Newton's direction, its change of the logits, and the number of products it took.

        Conjugate gradients on Hessian @ direction = -gradient, until the residual is `enough`.
        """
        diagonal = self.rows.square().T @ (shares * (1 - shares)) + penalty
        inverse = 1 / diagonal.clamp(min=torch.finfo(torch.float64).tiny)
        found, along = torch.zeros_like(gradient), torch.zeros_like(shares)
        residual = -gradient
        search = inverse * residual
        weight = _dot(residual, search)
        used = 0
        while used < max_products:
            used += 1
            scores = self.rows @ search
            change = shares * scores
            change -= shares * change.sum(dim=1, keepdim=True)
            product = self.rows.T @ change + penalty * search
            curvature = _dot(search, product)
            if curvature <= 0:
                break  # lost in rounding errors
            length = weight / curvature
            found.add_(search, alpha=length)
            along.add_(scores, alpha=length)
            residual = residual.sub(product, alpha=length)
            if float(residual.norm()) <= enough:
                break
            preconditioned = inverse * residual
            weight, before = _dot(residual, preconditioned), weight
            search = preconditioned.add_(search, alpha=weight / before)
        return found, along, used

    def _line_search(
        self,
        logits: Float64[Tensor, "N k"],
        along: Float64[Tensor, "N k"],
        pull: float,
        stiffness: float,
    ) -> float | None:
        """A length at which the slope is nearly 0, or None if the direction does not descend.

        The slope of a convex function only rises, so Newton's steps are kept between lengths known
        to be too short and too long. The penalty adds `pull` to the slope at the start, and
        `stiffness` per unit of length.
        """
        constant = _dot(self.targets, along)
        steepest, short, long, length = 0.0, 0.0, math.inf, 0.0
        for trial in range(MAX_TRIALS):
            weighted = (logits + length * along).softmax(dim=1) * along
            slope = float(weighted.sum()) - constant + pull + length * stiffness
            if trial == 0:
                steepest, length = slope, 1.0
                if slope >= 0:
                    return None
                continue
            if abs(slope) <= FLAT * -steepest:
                return length
            short, long = (length, long) if slope < 0 else (short, length)
            curvature = float((weighted * along).sum() - weighted.sum(dim=1).square().sum())
            curvature += stiffness
            newton = math.inf
            if curvature > 0:
                newton = min(length - slope / curvature, MAX_GROWTH * length)
            middle = (short + long) / 2 if long < math.inf else MAX_GROWTH * length
            length = newton if short < newton < long else middle
        return short or None


def _principal_axes(centered: Float64[Tensor, "N D"]) -> Float64[Tensor, "D d"]:
    """Principal axes, of the span of the images if these are fewer than the dimensions.

    The penalty keeps the weights in that span, so nothing is lost.
    """
    if centered.shape[0] >= centered.shape[1]:
        return torch.linalg.eigh(centered.T @ centered).eigenvectors
    span = torch.linalg.qr(centered.T).Q
    inside = centered @ span
    return span @ torch.linalg.eigh(inside.T @ inside).eigenvectors


def _dot(first: Tensor, second: Tensor) -> float:
    return float(torch.vdot(first.flatten(), second.flatten()))
