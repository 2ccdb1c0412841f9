"""Logistic regression that ends at the optimum, in double precision, for small sets.

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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from veca.probe.class_metrics import METRICS
from veca.probe.heads import LinearHead
from veca.probe.held_out import hold_out
from veca.probe.labels import Labels, check_labels, labelled_rows
from veca.probe.softmax_fit import Ending, SoftmaxProblem

DINO_STRENGTHS = tuple(10 ** (-6 + 11 * step / 44) for step in range(45))
"""45 values of C from 1e-6 to 1e5, evenly in the logarithm."""

ROUGH = 1e-4
"""Tolerance of fits that only lead to another one."""


class LogisticError(ValueError):
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
    x, y = _labelled(x, y, num_classes)
    if held_out is None:
        parts = hold_out(len(x), config.held_out_share, config.seed)
        fitted, judges = ((x[rows], y[rows]) for rows in parts)
        whole = x, y
    else:
        fitted, judges = (x, y), _labelled(*held_out, num_classes)
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
    problem = SoftmaxProblem(*_labelled(x, y, num_classes), num_classes)
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
    problem = SoftmaxProblem(*_labelled(x, y, num_classes), num_classes)
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


def _labelled(x: Tensor, y: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Checked features and labels of the pictures that have a class."""
    check_labels(y, num_classes)
    rows = labelled_rows(y)
    if not len(rows):
        raise LogisticError("no picture has a class, so nothing can be learned; give some.")
    if not bool(x.isfinite().all()):
        raise LogisticError(
            "a feature holds a number that is not finite, so no head fits; compute the features "
            "again, in single precision."
        )
    return (x, y) if len(rows) == len(x) else (x[rows], y[rows])
