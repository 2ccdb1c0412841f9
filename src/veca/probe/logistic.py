"""Logistic regression by Newton's method, over a sweep of C.

The optimum of a penalized softmax regression: Newton's method in double precision.

DINOv2 and scikit-learn go there by L-BFGS. The objective is convex, so the optimum is one and the
same; but on features of uneven spread L-BFGS ends a thousand steps later with a gradient of 1e-4,
where Newton's steps, each found by conjugate gradients, need a few hundred cheaper products.

Three things make it fast, and move no optimum. Features are centered and turned to their principal
axes, in which the diagonal of the curvature tells much; conjugate gradients start from it. Scores
are linear in the length of a step, so that looking for a good one multiplies no matrices. And a fit
begins where those with stronger penalties lead.

Logistic regression that ends at the optimum, in double precision, for small sets.

The objective is that of scikit-learn, up to a factor: the cross-entropy summed over the pictures,
plus the squared weights / (2 C); the biases are free. With two classes scikit-learn has one row of
weights w, which is here the difference of two, w / 2 and -w / 2: their penalty is doubled, so that
the optimum is the same. A class that no training picture has gets no weights and the bias minus
infinity, since its best bias is that.

DINOv2 and DINOv3 measure small sets so (`log_regression.py`): the image feature as it is, 45 values
of C, chosen on a tenth of the training part where the set has no part of its own for that, then one
fit on both parts.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from veca.probe.heads import LinearHead
from veca.probe.held_out import hold_out
from veca.probe.metrics import METRICS, Labels, check_labels, labeled_rows, target_shares
from veca.runtime import VecaError

FLAT = 0.5
"""A step is good where the slope has become this share of what it was at its start."""

ROUGHEST = 0.1
"""Share of the gradient that a Newton step may leave at most, far from the optimum."""

TRIES = 60
"""Lengths of a step that are tried at most."""

LONGER = 4.0
"""How many times longer than the last one a tried length may be."""


CLOSE = 1e-3
"""Share of the penalty's own gradient that may be left at most.

The penalty bends the objective everywhere, so this bounds how far the weights are from the best
ones, in shares of their length. It counts where C is large: there all gradients are small.
"""

ROUNDING = 1e-12
"""Share of the gradient at zero weights below which rounding takes over."""


class Ending(NamedTuple):
    """When a fit ends: where both this and `CLOSE` are reached, or rounding takes over."""

    max_iterations: int
    """Products with the curvature, each about as dear as a gradient."""

    tolerance: float
    """Length of the gradient, as a share of what it is at zero weights."""


class SoftmaxProblem:
    """Pictures with their classes, prepared for fits with any penalty.

    A solution is a matrix (a, k): a row for each axis and a last one for the biases; a column for
    each class that some picture has.
    """

    def __init__(self, x: Float[Tensor, "N D"], y: Labels, num_classes: int) -> None:
        shares = target_shares(y, num_classes, torch.float64)
        self.num_classes = num_classes
        self.classes: Int64[Tensor, " k"] = (shares.sum(dim=0) > 0).nonzero().flatten()
        self.targets: Float64[Tensor, "N k"] = shares[:, self.classes]
        double = x.double()
        self.center: Float64[Tensor, " D"] = double.mean(dim=0)
        self.basis: Float64[Tensor, "D d"] = _axes(double - self.center)
        rows = (double - self.center) @ self.basis
        self.rows: Float64[Tensor, "N a"] = torch.cat((rows, rows.new_ones(len(rows), 1)), dim=1)
        even = 1 / len(self.classes)
        self.scale = float((self.rows.T @ (even - self.targets)).norm())

    def solution(self, head: LinearHead | None) -> Float64[Tensor, "a k"]:
        """The matrix that scores as a head does, or zeros; classes new to the head get zeros."""
        if head is None:
            return self.rows.new_zeros(self.rows.shape[1], len(self.classes))
        weight, bias = head.weight[self.classes].to(self.rows), head.bias[self.classes]
        bias = bias.to(self.rows).nan_to_num(neginf=0.0) + weight @ self.center
        return torch.cat((self.basis.T @ weight.T, bias[None]))

    def head(self, solution: Float64[Tensor, "a k"]) -> LinearHead:
        """The head on the features as they were given; its biases have the mean 0."""
        weight = self.center.new_zeros(self.num_classes, len(self.center))
        bias = self.center.new_full((self.num_classes,), -torch.inf)
        weight[self.classes] = (self.basis @ solution[:-1]).T
        free = solution[-1] - weight[self.classes] @ self.center
        bias[self.classes] = free - free.mean()
        return LinearHead(weight=weight, bias=bias)

    def penalty(self, strength: float) -> Float64[Tensor, "a 1"]:
        """Of each row of a solution: what its squares / 2 are multiplied by; none for biases."""
        rows = self.rows.new_full((self.rows.shape[1], 1), 1 / strength)
        rows[-1] = 0.0
        # Two rows w / 2 and -w / 2 stand for the one row of scikit-learn.
        return rows * 2 if len(self.classes) == 2 else rows

    def path(self, strengths: Sequence[float], ending: Ending) -> Iterator[Float64[Tensor, "a k"]]:
        """The solution of each C, the values of C rising.

        A fit begins where the line through the last two solutions, over the logarithm of C, leads.
        """
        before, last = None, self.solution(None)
        for number, strength in enumerate(strengths):
            start = last
            if before is not None:
                step = math.log(strengths[number - 1] / strengths[number - 2])
                ahead = math.log(strength / strengths[number - 1]) / step
                start = last + ahead * (last - before)
            found = self.solve(strength, start, ending)
            before, last = (last if number else None), found
            yield found

    def solve(
        self, strength: float, start: Float64[Tensor, "a k"], ending: Ending
    ) -> Float64[Tensor, "a k"]:
        """The solution for one C, from where another one lies.

        A start worse than zeros is not used: scores far off on the wrong side hardly bend.
        """
        penalty = self.penalty(strength)
        nothing = torch.zeros_like(start)
        worse = self.objective(start, penalty) > self.objective(nothing, penalty)
        found = nothing if worse else start
        logits, left = self.rows @ found, ending.max_iterations
        while left > 0:
            told = logits.softmax(dim=1)
            gradient = self.rows.T @ (told - self.targets) + penalty * found
            size, pulled = float(gradient.norm()), float((penalty * found).norm())
            target = min(ending.tolerance * self.scale, CLOSE * pulled)
            target = max(target, ROUNDING * self.scale)
            if size <= target:
                break
            share = min(ROUGHEST, math.sqrt(size / max(self.scale, size)))
            enough = max(share * size, target / 4)
            direction, along, used = self._newton(told, gradient, penalty, enough, left)
            pull = float((penalty * found * direction).sum())
            length = self._length(logits, along, pull, float((penalty * direction**2).sum()))
            if length is None:
                break  # rounding hides what is left
            found = found + length * direction
            logits, left = self.rows @ found, left - used
        return found

    def objective(self, solution: Float64[Tensor, "a k"], penalty: Float64[Tensor, "a 1"]) -> float:
        """What is to be small: the summed cross-entropy and the penalty."""
        logits = self.rows @ solution
        told = float(logits.logsumexp(dim=1).sum()) - _dot(self.targets, logits)
        return told + float((penalty * solution.square()).sum()) / 2

    def _newton(
        self,
        told: Float64[Tensor, "N k"],
        gradient: Float64[Tensor, "a k"],
        penalty: Float64[Tensor, "a 1"],
        enough: float,
        most: int,
    ) -> tuple[Tensor, Tensor, int]:
        """Newton's direction, what it adds to the scores, and after how many products.

        Conjugate gradients on curvature * direction = -gradient, until what is missing is `enough`.
        """
        diagonal = self.rows.square().T @ (told * (1 - told)) + penalty
        inverse = 1 / diagonal.clamp(min=torch.finfo(torch.float64).tiny)
        found, along = torch.zeros_like(gradient), torch.zeros_like(told)
        missing = -gradient
        search = inverse * missing
        weight = _dot(missing, search)
        used = 0
        while used < most:
            used += 1
            scores = self.rows @ search
            change = told * scores
            change -= told * change.sum(dim=1, keepdim=True)
            product = self.rows.T @ change + penalty * search
            bend = _dot(search, product)
            if bend <= 0:
                break  # rounding hides the curvature
            length = weight / bend
            found.add_(search, alpha=length)
            along.add_(scores, alpha=length)
            missing = missing.sub(product, alpha=length)
            if float(missing.norm()) <= enough:
                break
            nearer = inverse * missing
            weight, before = _dot(missing, nearer), weight
            search = nearer.add_(search, alpha=weight / before)
        return found, along, used

    def _length(
        self,
        logits: Float64[Tensor, "N k"],
        along: Float64[Tensor, "N k"],
        pull: float,
        stiffness: float,
    ) -> float | None:
        """How far to go, or None where it does not go down.

        The slope of a convex function only rises, so a length at which it is nearly 0 is found by
        Newton's steps, within what lies between the lengths known to be too short and too long. The
        penalty adds `pull` to the slope at the start, and `stiffness` for each length 1.
        """
        wanted = _dot(self.targets, along)
        steepest, short, long, length = 0.0, 0.0, math.inf, 0.0
        for attempt in range(TRIES):
            weighted = (logits + length * along).softmax(dim=1) * along
            slope = float(weighted.sum()) - wanted + pull + length * stiffness
            if attempt == 0:
                steepest, length = slope, 1.0
                if slope >= 0:
                    return None
                continue
            if abs(slope) <= FLAT * -steepest:
                return length
            short, long = (length, long) if slope < 0 else (short, length)
            bend = float((weighted * along).sum() - weighted.sum(dim=1).square().sum()) + stiffness
            newton = min(length - slope / bend, LONGER * length) if bend > 0 else math.inf
            middle = (short + long) / 2 if long < math.inf else LONGER * length
            length = newton if short < newton < long else middle
        return short or None


def _axes(centered: Float64[Tensor, "N D"]) -> Float64[Tensor, "D d"]:
    """The principal axes; where there are fewer pictures than numbers, of the space they span.

    The penalty keeps the weights within that space, so nothing is lost.
    """
    if centered.shape[0] >= centered.shape[1]:
        return torch.linalg.eigh(centered.T @ centered).eigenvectors
    span = torch.linalg.qr(centered.T).Q
    within = centered @ span
    return span @ torch.linalg.eigh(within.T @ within).eigenvectors


def _dot(first: Tensor, second: Tensor) -> float:
    """The sum of the products."""
    return float(torch.vdot(first.flatten(), second.flatten()))


DINO_STRENGTHS = tuple(10 ** (-6 + 11 * step / 44) for step in range(45))
"""45 values of C from 1e-6 to 1e5, evenly in the logarithm."""

ROUGH = 1e-4
"""Tolerance of fits that only lead to another one."""


class LogisticError(VecaError, ValueError):
    """A fit that cannot be made: what was got, what is allowed, what to do."""


@dataclass(frozen=True, kw_only=True)
class LogisticConfig:
    """How C is chosen and when a fit ends; the defaults are DINOv2's and DINOv3's."""

    strengths: tuple[float, ...] = DINO_STRENGTHS
    """The values of C, the weight of the data against the penalty, rising."""

    max_iterations: int = 1000
    """Products with the curvature for one C; a fit that needs more ends there."""

    tolerance: float = 1e-12
    """A fit ends where the gradient is this share of what it is at zero weights, or less."""

    path_tolerance: float = 1e-6
    """The same for the fits that only serve to choose C."""

    held_out_share: float = 0.1
    """Share of the training pictures to choose C on, where the set has no part for that."""

    metric: Literal["top1", "mean_per_class", "map"] = "top1"
    """What C is chosen by."""

    seed: int = 0
    """Decides which pictures are put aside."""

    def __post_init__(self) -> None:
        """Refuse what no fit can have."""
        if not self.strengths or min(self.strengths) <= 0:
            raise LogisticError(f"strengths={self.strengths} are no values of C; use some above 0.")
        if list(self.strengths) != sorted(set(self.strengths)):
            raise LogisticError(f"strengths={self.strengths} do not rise; sort them.")
        tolerances = self.tolerance, self.path_tolerance
        if self.max_iterations < 1 or not all(0 < share < 1 for share in tolerances):
            raise LogisticError(
                f"max_iterations={self.max_iterations} and tolerances={tolerances} end no fit; "
                "use 1 or more, and shares between 0 and 1."
            )


DINO = LogisticConfig()


class Chosen(NamedTuple):
    """What `choose_logistic` found."""

    head: LinearHead
    """Fitted on all pictures with the chosen C; double precision."""

    strength: float
    """The chosen C: of equals the smallest."""

    accuracies: dict[float, float]
    """Of each C: the metric on the pictures to choose on, in percent."""

    fitted_on: int
    """Pictures that the head is fitted on: all that have a class, those to choose on among them."""


def choose_logistic(  # noqa: PLR0913 - the last two are seldom given
    x: Float[Tensor, "N D"],
    y: Labels,
    num_classes: int,
    config: LogisticConfig = DINO,
    held_out: tuple[Tensor, Tensor] | None = None,
    *,
    advance: Callable[[int], object] | None = None,
) -> Chosen:
    """Fit a head to all values of C, choose one on pictures put aside, and fit again on all.

    `held_out` is (features, labels) of the set's own part to choose on; without it a tenth of the
    training part is put aside. Labels may be booleans; pictures without any class are left out.
    `advance` hears of each C that is done.

        chosen = choose_logistic(train, train_labels, num_classes=37)
        found = metrics(chosen.head.scores(test), test_labels)
    """
    x, y = _labeled(x, y, num_classes)
    if held_out is None:
        parts = hold_out(len(x), config.held_out_share, config.seed)
        fitted, judges = ((x[rows], y[rows]) for rows in parts)
        whole = x, y
    else:
        fitted, judges = (x, y), _labeled(*held_out, num_classes)
        whole = torch.cat((x, judges[0].to(x))), torch.cat((y, judges[1].to(y.device)))
    accuracies: dict[float, float] = {}
    best: LinearHead | None = None
    for strength, head in logistic_path(*fitted, num_classes, config):
        found = METRICS[config.metric](head.scores(judges[0]), judges[1])
        if found > max(accuracies.values(), default=-math.inf):
            best = head
        accuracies[strength] = found
        if advance is not None:
            advance(1)
    strength = max(accuracies, key=lambda each: accuracies[each])
    problem = SoftmaxProblem(*whole, num_classes)
    head = _finished(problem, problem.solution(best), strength, config)
    return Chosen(head, strength, accuracies, len(whole[0]))


def logistic_path(
    x: Float[Tensor, "N D"], y: Labels, num_classes: int, config: LogisticConfig = DINO
) -> Iterator[tuple[float, LinearHead]]:
    """The head of each C, good enough to choose by, from the smallest C on."""
    problem = SoftmaxProblem(*_labeled(x, y, num_classes), num_classes)
    solutions = problem.path(config.strengths, Ending(config.max_iterations, config.path_tolerance))
    for strength, solution in zip(config.strengths, solutions, strict=True):
        yield strength, problem.head(solution)


def fit_logistic(
    x: Float[Tensor, "N D"],
    y: Labels,
    num_classes: int,
    strength: float,
    config: LogisticConfig = DINO,
) -> LinearHead:
    """The head for one C, at the optimum; of the config only what ends a fit is used."""
    problem = SoftmaxProblem(*_labeled(x, y, num_classes), num_classes)
    return _finished(problem, _led_to(problem, strength, config), strength, config)


def _led_to(problem: SoftmaxProblem, strength: float, config: LogisticConfig) -> Tensor:
    """Near the solution of a C, by way of smaller ones, four for each power of ten."""
    count = max(0, math.ceil(4 * math.log10(strength / DINO_STRENGTHS[0])))
    way = [strength / 10 ** (step / 4) for step in range(count, -1, -1)]
    *_, last = problem.path(way, Ending(config.max_iterations, ROUGH))
    return last


def _finished(
    problem: SoftmaxProblem, start: Tensor, strength: float, config: LogisticConfig
) -> LinearHead:
    """The head at the optimum, from a solution nearby."""
    ending = Ending(config.max_iterations, config.tolerance)
    return problem.head(problem.solve(strength, start, ending))


def _labeled(x: Tensor, y: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Checked features and labels of the pictures that have a class."""
    check_labels(y, num_classes)
    rows = labeled_rows(y)
    if not len(rows):
        raise LogisticError("no picture has a class, so nothing can be learned; give some.")
    if not bool(x.isfinite().all()):
        raise LogisticError(
            "a feature holds a number that is not finite, so no head fits; compute the features "
            "again, in single precision."
        )
    return (x, y) if len(rows) == len(x) else (x[rows], y[rows])
